"""Notebook 04: the boundary pair on a walk, BAT's loss, and whether wrong answers fall on all
classes alike."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.lessons.lesson import Exercise

Right = list[bool]


def _pair(right: Right, extra: int) -> tuple[int, int]:
    wrong = [t for t, ok in enumerate(right) if not ok]
    first = wrong[0] if wrong else len(right)
    return max(first - 1, 0), wrong[extra] if extra < len(wrong) else len(right)


def _walks() -> list[tuple[Right, int]]:
    """Crossed once, at once, at the first step, never, and to and fro; with and without extra
    steps."""
    told = ("1110000000", "0000000000", "1000000000", "1111111111", "1101010011", "1111111110",
            "0110000000", "1111111100")
    walks = [[c == "1" for c in line] for line in told]
    return [(walk, extra) for walk in walks for extra in (0, 1, 2)]


def _last_right_of_all(right: Right, extra: int) -> tuple[int, int]:
    return max((t for t, ok in enumerate(right) if ok), default=0), _pair(right, extra)[1]


def _counts_all(right: Right, extra: int) -> tuple[int, int]:
    """`extra` iterates after the first wrong one, whatever they are."""
    return _pair(right, extra)[0], min(_pair(right, 0)[1] + extra, len(right))


def _no_floor(right: Right, extra: int) -> tuple[int, int]:
    return _pair(right, 0)[1] - 1, _pair(right, extra)[1]


def _last_tested(right: Right, extra: int) -> tuple[int, int]:
    c, a = _pair(right, extra)
    return c, min(a, len(right) - 1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q), mean over the batch."""
    return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()


def _flat(logits: Tensor) -> Tensor:
    return torch.zeros_like(logits)


def _loss(at_x: Tensor, at_c: Tensor, at_a: Tensor, y: Tensor, alpha: float, beta: float) -> Tensor:
    source = F.cross_entropy(at_c, y) + beta * _kl(at_x, at_a)
    return source + alpha * (_kl(_flat(at_c), at_c) + _kl(_flat(at_a), at_a))


def _without_constant(at_x: Tensor, at_c: Tensor, at_a: Tensor, y: Tensor, alpha: float,
                      beta: float) -> Tensor:
    return _loss(at_x, at_c, at_a, y, alpha, beta) + 2 * alpha * math.log(at_c.shape[1])


def _batches() -> list[tuple[Any, ...]]:
    g, found = torch.Generator().manual_seed(0), []
    for n, classes, alpha, beta in ((4, 10, 0.3, 6.0), (3, 4, 1.0, 1.0), (5, 3, 0.1, 2.5)):
        logits = [3 * torch.randn(n, classes, generator=g) for _ in range(3)]
        found.append((*logits, torch.arange(n) % classes, alpha, beta))
    return found


def _unevenness(matrix: Tensor) -> float:
    share = matrix / matrix.sum(1, keepdim=True)
    columns = share.sum(0) / share.sum()
    return float((columns - 1 / len(columns)).abs().sum() / 2)


def _raw(matrix: Tensor) -> float:
    columns = matrix.sum(0) / matrix.sum()
    return float((columns - 1 / len(columns)).abs().sum() / 2)


def _no_half(matrix: Tensor) -> float:
    return 2 * _unevenness(matrix)


def _mistakes_only(matrix: Tensor) -> float:
    return _unevenness(matrix - torch.diag(matrix.diagonal()) + 1e-12)


def _matrices() -> list[tuple[Tensor]]:
    """Even and uneven columns, classes of different sizes."""
    told = ([[6, 2, 2], [1, 3, 0], [0, 10, 10]], [[5, 5], [0, 10]],
            [[8, 1, 1, 0], [4, 4, 4, 8], [0, 1, 9, 0], [3, 3, 3, 1]])
    return [(torch.tensor(m, dtype=torch.float32),) for m in told]


EXERCISES = {
    "04.pair": Exercise(
        solution=_pair,
        mistakes={
            "x_a comes one step late: with extra = 0 it is the first wrong iterate.": lambda right, extra: _pair(right, extra + 1),
            "x_a is always your first wrong iterate. With `extra` it is a later one: the authors' code has extra = 1.": (
                lambda right, extra: _pair(right, 0)
            ),
            "An iterate can be right again after a wrong one. x_c is the one before the FIRST wrong one.": _last_right_of_all,
            "`extra` counts wrong iterates; a right one in between does not count.": _counts_all,
            "There is no iterate before z_0: where z_0 is wrong x_c is z_0 itself.": _no_floor,
            "Where too few iterates are wrong x_a is the end of the walk, z_K, and K is len(right).": _last_tested,
            "The other way round: first x_c, then x_a.": lambda right, extra: _pair(right, extra)[::-1],
        },
        hints=(
            "Write down the places of all wrong iterates first: [t for t in range(len(right)) if not right[t]].",
            "x_c is one before the first of them, but not below 0. x_a is the one at place `extra` of that list, or len(right).",
        ),
        cases=_walks,
        praise="These are last_right and first_wrong of PGD.walk, which finds both in one pass.",
    ),
    "04.loss": Exercise(
        solution=_loss,
        mistakes={
            "The arguments of the source term's KL are swapped: it is KL(p(x) || p(x_a)), the expectation is taken under p(x).": (
                lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, beta) + beta * (_kl(a, x) - _kl(x, a))
            ),
            "This is KL(p || U), the term of the authors' code. The paper's is KL(U || p): the expectation is taken under U.": (
                lambda x, c, a, y, alpha, beta: F.cross_entropy(c, y) + beta * _kl(x, a) + alpha * (_kl(c, _flat(c)) + _kl(a, _flat(a)))
            ),
            "Cross-entropy is taken on x_c, the last right iterate, not on x.": lambda x, c, a, y, alpha, beta: (
                _loss(x, c, a, y, alpha, beta) + F.cross_entropy(x, y) - F.cross_entropy(c, y)
            ),
            "The KL term compares x_a with the clean image x, not with x_c.": lambda x, c, a, y, alpha, beta: (
                _loss(x, c, a, y, alpha, beta) + beta * (_kl(c, a) - _kl(x, a))
            ),
            "The target term is for both images of the pair; x_a is missing.": lambda x, c, a, y, alpha, beta: (
                _loss(x, c, a, y, alpha, beta) - alpha * _kl(_flat(a), a)
            ),
            "The target term is for both images of the pair; x_c is missing.": lambda x, c, a, y, alpha, beta: (
                _loss(x, c, a, y, alpha, beta) - alpha * _kl(_flat(c), c)
            ),
            "The target term is for the pair x_c and x_a, not for x.": lambda x, c, a, y, alpha, beta: (
                _loss(x, c, a, y, alpha, beta) + alpha * (_kl(_flat(x), x) - _kl(_flat(c), c))
            ),
            "alpha is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 1.0, beta),
            "beta is missing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, alpha, 1.0),
            "The gradient is right, the value is not: KL(U || p) = -log C - mean of log p, and zero where p is uniform.": _without_constant,
            "This is TRADES' loss, alpha times nothing.": lambda x, c, a, y, alpha, beta: _loss(x, c, a, y, 0.0, beta),
        },
        hints=(
            "log p is logits.log_softmax(1). KL(a || b) = sum over classes of a (log a - log b), then the mean over the batch.",
            "With U = 1/C the target term of one image is -log C - log_p.mean(1). Four terms: CE at x_c, beta KL, alpha times the two.",
        ),
        cases=_batches,
        praise="That is the paper's loss. The authors' code turns the two target terms round, and they are not the same.",
        tolerance=1e-4,
    ),
    "04.columns": Exercise(
        solution=_unevenness,
        mistakes={
            "Half of this: what one class has too much another has too little, and the sum counts both.": _no_half,
            "These are the row sums, which are all alike after normalising: sum over the rows, so that one number a column is left.": (
                lambda m: float(((m / m.sum(1, keepdim=True)).sum(1) / len(m) - 1 / len(m)).abs().sum() / 2)
            ),
            "A class with more images counts more. Divide each row by its sum first.": _raw,
            "You left the right answers out. All answers count here, the diagonal too.": _mistakes_only,
            "The columns must sum to one before they are compared with 1/C.": lambda m: float(
                ((m / m.sum(1, keepdim=True)).sum(0) - 1 / len(m)).abs().sum() / 2
            ),
            "This is the largest deviation of one class; add up all of them and halve.": lambda m: float(
                ((m / m.sum(1, keepdim=True)).mean(0) - 1 / len(m)).abs().max()
            ),
        },
        hints=(
            "Three steps: rows to shares, the mean of each column, the distance from 1/C.",
            "share = matrix / matrix.sum(1, keepdim=True); columns = share.mean(0); then half the sum of |columns - 1/C|.",
        ),
        cases=_matrices,
        praise="This share of all answers would have to move for every class to be given equally often.",
        tolerance=1e-4,
    ),
}
