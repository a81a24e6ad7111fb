"""Exercises of notebook 04: the boundary pair of a walk, BAT's loss, and how evenly the wrong
answers are spread."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as ce

from course_lib.lessons.lesson import Cases, Exercise


def _pair(right: list[bool], extra: int) -> tuple[int, int]:
    wrong = [t for t, ok in enumerate(right) if not ok]
    first = wrong[0] if wrong else len(right)
    return max(first - 1, 0), wrong[extra] if extra < len(wrong) else len(right)


# crossed once, at the start, at the first step, never, and several times
WALKS = [([c == "1" for c in walk], extra) for walk in (
    "1110000000", "0000000000", "1000000000", "1111111111", "1101010011", "1111111110",
    "0110000000", "1111111100") for extra in (0, 1, 2)]


PAIR = Exercise(_pair, cases=WALKS, mistakes={
    "x_a comes one step late. With extra = 0 it is the first wrong iterate.":
        lambda right, extra: _pair(right, extra + 1),
    "x_a is always your first wrong iterate. With `extra` it is a later one; the authors' code "
    "uses extra = 1.": lambda right, extra: _pair(right, 0),
    "x_c is the iterate before the FIRST wrong one. Later iterates can be right again.":
        lambda right, extra: (
            max((t for t, ok in enumerate(right) if ok), default=0), _pair(right, extra)[1]),
    "`extra` counts wrong iterates only. Skip the right ones in between.":
        lambda right, extra: (_pair(right, 0)[0], min(_pair(right, 0)[1] + extra, len(right))),
    "There is no iterate before z_0. If z_0 is wrong, x_c is z_0 itself.":
        lambda right, extra: (_pair(right, 0)[1] - 1, _pair(right, extra)[1]),
    "If too few iterates are wrong, x_a is the end of the walk, z_K, and K is len(right).":
        lambda right, extra: (_pair(right, 0)[0], min(_pair(right, extra)[1], len(right) - 1)),
    "The two are swapped. Return x_c first, then x_a.":
        lambda right, extra: _pair(right, extra)[::-1],
}, hints=(
    "First list the wrong iterates: [t for t in range(len(right)) if not right[t]].",
    "x_c is one before the first of them, but not below 0. x_a is entry `extra` of that list, or "
    "len(right).",
), praise="These are last_right and first_wrong of PGD.walk, which finds both in one pass.")


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q), mean over the batch."""
    return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()


def _target(*logits: Tensor) -> Tensor:
    """The sum of KL(U || p) over the images given."""
    return sum((kl(torch.zeros_like(f), f) for f in logits), torch.zeros(()))


def _loss(x: Tensor, c: Tensor, a: Tensor, y: Tensor, alpha: float, beta: float) -> Tensor:
    return ce(c, y) + beta * kl(x, a) + alpha * _target(c, a)


def _batches() -> Cases:
    g, cases = torch.Generator().manual_seed(0), []
    for n, classes, alpha, beta in ((4, 10, 0.3, 6.0), (3, 4, 1.0, 1.0), (5, 3, 0.1, 2.5)):
        logits = [3 * torch.randn(n, classes, generator=g) for _ in range(3)]
        cases.append((*logits, torch.arange(n) % classes, alpha, beta))
    return cases


LOSS = Exercise(_loss, cases=_batches(), mistakes={
    "The arguments of the source term's KL are swapped. It is KL(p(x) || p(x_a)); the expectation "
    "is taken under p(x).":
        lambda x, c, a, y, alpha, beta: _loss(a, c, x, y, 0, beta) + alpha * _target(c, a),
    "This is KL(p || U), the term of the authors' code. The paper's is KL(U || p); the expectation "
    "is taken under U.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0, beta) + alpha * (
            kl(c, torch.zeros_like(c)) + kl(a, torch.zeros_like(a))),
    "Cross-entropy is taken on x_c, the last right iterate, not on x.":
        lambda x, c, a, y, alpha, beta: ce(x, y) + beta * kl(x, a) + alpha * _target(c, a),
    "The KL term compares x_a with the clean image x, not with x_c.":
        lambda x, c, a, y, alpha, beta: _loss(c, c, a, y, alpha, beta),
    "The target term is for both images of the pair; x_a is missing.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0, beta) + alpha * _target(c),
    "The target term is for both images of the pair; x_c is missing.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0, beta) + alpha * _target(a),
    "The target term is for the pair x_c and x_a, not for x.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0, beta) + alpha * _target(x, a),
    "alpha is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 1.0, beta),
    "beta is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, 1.0),
    "The gradient is right, but not the value. KL(U || p) = -log C - mean of log p, which is zero "
    "if p is uniform.":
        lambda x, c, a, y, alpha, beta: (
            _loss(x, c, a, y, alpha, beta) + 2 * alpha * math.log(c.shape[1])),
    "The target term is missing. Without it the loss is nearly that of TRADES.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0.0, beta),
}, hints=(
    "log p is logits.log_softmax(1). KL(a || b) is the sum over classes of a (log a - log b), then "
    "the mean over the batch.",
    "With U = 1/C the target term of one image is -log C - log_p.mean(1). Four terms: CE at x_c, "
    "beta times the KL, alpha times each of the two target terms.",
), praise="This is the paper's loss. The authors' code swaps the arguments of both target terms, "
    "which gives a different loss.")


def _shares(matrix: Tensor) -> Tensor:
    return matrix / matrix.sum(1, keepdim=True)


def _distance(columns: Tensor) -> float:
    """Half the sum of |columns - 1/C|."""
    return float((columns - 1 / len(columns)).abs().sum() / 2)


def _unevenness(matrix: Tensor) -> float:
    return _distance(_shares(matrix).mean(0))


# even and uneven columns, classes of different sizes
MATRICES = ([[6, 2, 2], [1, 3, 0], [0, 10, 10]], [[5, 5], [0, 10]],
            [[8, 1, 1, 0], [4, 4, 4, 8], [0, 1, 9, 0], [3, 3, 3, 1]])


COLUMNS = Exercise(_unevenness, cases=[(torch.tensor(m).float(),) for m in MATRICES], mistakes={
    "Return half of this. The sum counts one class's surplus and another's deficit.":
        lambda m: 2 * _unevenness(m),
    "These are row sums, which are all equal after normalising. Sum over the rows, so that one "
    "number per column is left.": lambda m: _distance(_shares(m).sum(1) / len(m)),
    "A class with more images counts more. Divide each row by its sum first.":
        lambda m: _distance(m.sum(0) / m.sum()),
    "You left out the right answers. All answers count here, also the diagonal.":
        lambda m: _unevenness(m - torch.diag(m.diagonal()) + 1e-12),
    "Scale the columns to sum to one before you compare them with 1/C.":
        lambda m: _distance(_shares(m).sum(0)),
    "This is the largest deviation of one class. Add up all deviations and halve the sum.":
        lambda m: float((_shares(m).mean(0) - 1 / len(m)).abs().max()),
}, hints=(
    "Three steps: rows to shares, the mean of each column, the distance from 1/C.",
    "share = matrix / matrix.sum(1, keepdim=True); columns = share.mean(0); then half the sum of "
    "|columns - 1/C|.",
), praise="If this share of all answers moved, every class would be predicted equally often.")
