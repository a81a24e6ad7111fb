"""Exercises of notebook 04: the boundary pair of a walk, BAT's loss, and how evenly the wrong
answers are spread."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

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
    "x_a is always your first wrong iterate. With `extra` it is a later one.":
        lambda right, extra: _pair(right, 0),
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
    "x_c is one before the first of them, not below 0. x_a is entry `extra` of it, or len(right).",
), praise="These are last_right and first_wrong of PGD.walk, which finds both in one pass.")


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q), mean over the batch."""
    return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()


def _loss(x: Tensor, c: Tensor, a: Tensor, y: Tensor, alpha: float, beta: float, *,
          even: str = "ca", swapped: bool = False) -> Tensor:
    """BAT's loss from logits. The target term KL(U || p) is of the images named in `even`."""
    uniform, images = torch.zeros_like(x), {"x": x, "c": c, "a": a}
    target = sum(kl(images[i], uniform) if swapped else kl(uniform, images[i]) for i in even)
    return ce(c, y) + beta * kl(x, a) + alpha * target


def _batches() -> Cases:
    g, cases = torch.Generator().manual_seed(0), []
    for n, classes, alpha, beta in ((4, 10, 0.3, 6.0), (3, 4, 1.0, 1.0), (5, 3, 0.1, 2.5)):
        logits = [3 * torch.randn(n, classes, generator=g) for _ in range(3)]
        cases.append((*logits, torch.arange(n) % classes, alpha, beta))
    return cases


LOSS = Exercise(_loss, cases=_batches(), mistakes={
    "The arguments of the source term's KL are swapped. It is KL(p(x) || p(x_a)).":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, 0) + beta * kl(a, x),
    "This is KL(p || U), as in the authors' code. The paper has KL(U || p).":
        partial(_loss, swapped=True),
    "Cross-entropy is taken on x_c, the last right iterate, not on x.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, beta) - ce(c, y) + ce(x, y),
    "The KL term compares x_a with the clean image x, not with x_c.":
        lambda x, c, a, y, alpha, beta: _loss(c, c, a, y, alpha, beta),
    "The target term is for both images of the pair; x_a is missing.": partial(_loss, even="c"),
    "The target term is for both images of the pair; x_c is missing.": partial(_loss, even="a"),
    "The target term is for the pair x_c and x_a, not for x.": partial(_loss, even="xa"),
    "alpha is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 1.0, beta),
    "beta is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, 1.0),
    "The gradient is right, but not the value. KL(U || p) = -log C - mean of log p.":
        lambda x, c, a, y, alpha, beta: (
            _loss(x, c, a, y, alpha, beta) + 2 * alpha * math.log(c.shape[1])),
    "The target term is missing. Without it the loss is nearly that of TRADES.":
        lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0.0, beta),
}, hints=(
    "log p is logits.log_softmax(1). KL(a || b) is the sum over classes of a (log a - log b).",
    "With U = 1/C the target term of one image is -log C - log_p.mean(1). Four terms: CE at x_c, "
    "beta times the KL, alpha times each of the two target terms.",
), praise="This is the paper's loss. The authors' code swaps the arguments of both target terms.")


def _shares(matrix: Tensor) -> Tensor:
    return matrix / matrix.sum(1, keepdim=True)


def _unevenness(matrix: Tensor, columns: Any = lambda m: _shares(m).mean(0)) -> float:
    """Half the sum of |columns - 1/C|."""
    return float((columns(matrix) - 1 / len(matrix)).abs().sum() / 2)


# even and uneven columns, classes of different sizes
MATRICES = ([[6, 2, 2], [1, 3, 0], [0, 10, 10]], [[5, 5], [0, 10]],
            [[8, 1, 1, 0], [4, 4, 4, 8], [0, 1, 9, 0], [3, 3, 3, 1]])


COLUMNS = Exercise(_unevenness, cases=[(torch.tensor(m).float(),) for m in MATRICES], mistakes={
    "Return half of this. The sum counts one class's surplus and another's deficit.":
        lambda m: 2 * _unevenness(m),
    "These are row sums, which are all equal after normalising. Sum each column.":
        partial(_unevenness, columns=lambda m: _shares(m).mean(1)),
    "A class with more images counts more. Divide each row by its sum first.":
        partial(_unevenness, columns=lambda m: m.sum(0) / m.sum()),
    "You left out the right answers. All answers count here, also the diagonal.":
        lambda m: _unevenness(m - torch.diag(m.diagonal()) + 1e-12),
    "Scale the columns to sum to one before you compare them with 1/C.":
        partial(_unevenness, columns=lambda m: _shares(m).sum(0)),
    "This is the largest deviation of one class. Add up all deviations and halve the sum.":
        lambda m: float((_shares(m).mean(0) - 1 / len(m)).abs().max()),
}, hints=(
    "Three steps: rows to shares, the mean of each column, the distance from 1/C.",
    "columns = (matrix / matrix.sum(1, keepdim=True)).mean(0); half the sum of |columns - 1/C|.",
), praise="If this share of all answers moved, every class would be predicted equally often.")
