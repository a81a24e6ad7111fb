"""Exercises of notebook 07: where the wrong answers go, and the budget that a class withstands."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _share(matrix: Tensor, over: int = 0) -> Tensor:
    """Of the wrong answers the share in each column, or with over=1 in each row."""
    wrong = matrix - torch.diag(torch.diag(matrix))
    return wrong.sum(over) / wrong.sum()


# of different sizes; some columns are empty
NOISE = torch.randint(0, 40, (5, 5), generator=torch.Generator().manual_seed(7)).float()
MATRICES = [(torch.tensor([[80.0, 15.0, 5.0], [30.0, 60.0, 10.0], [0.0, 45.0, 155.0]]),),
            (NOISE + 60 * torch.eye(5),), (torch.tensor([[3.0, 4.0], [0.0, 9.0]]),)]


TARGETS = Exercise(_share, cases=MATRICES, mistakes={
    "The right answers are still counted. Subtract the diagonal first.":
        lambda m: m.sum(0) / m.sum(),
    "These are row sums: the true classes of the wrong answers. Sum each column.":
        partial(_share, over=1),
    "These are counts. Divide by the number of wrong answers, so that they sum to one.":
        lambda m: _share(m) * (m.sum() - m.trace()),
    "You divide by all images. The shares of the wrong answers must sum to one.":
        lambda m: _share(m) * (m.sum() - m.trace()) / m.sum(),
    "You divide each column by its own sum: the share of this answer that is wrong.":
        lambda m: 1 - m.diagonal() / m.sum(0),
}, hints=(
    "Rows are true classes, columns are answers. The diagonal is right and does not count.",
    "torch.diag(torch.diag(matrix)) is the diagonal. Subtract it, then sum(0), then scale.",
), praise="If every share were 1/C, the wrong answers would be spread evenly.")


def _crossing(eps: list[int], errors: list[float], level: float,
              between: Any = lambda low, high, share: low + share * (high - low)) -> float:
    """`between` of the two budgets around the crossing, and of how far it is from the first."""
    for i in range(1, len(eps)):
        if errors[i] > level:
            share = (level - errors[i - 1]) / (errors[i] - errors[i - 1])
            return between(eps[i - 1], eps[i], share)
    return eps[-1]


# crossed in the middle, at once, after touching the level, and never; then uneven budgets
EPS = [0, 2, 4, 6, 8]
CURVES = [(EPS, [0.05, 0.1, 0.3, 0.6, 0.9], 0.5), (EPS, [0.4, 0.6, 0.7, 0.8, 0.9], 0.5),
          (EPS, [0.1, 0.25, 0.5, 0.7, 0.8], 0.5), (EPS, [0.01, 0.02, 0.02, 0.03, 0.04], 0.5),
          ([0, 1, 4, 16], [0.1, 0.2, 0.2, 0.45], 0.25)]


REACHED = Exercise(_crossing, cases=CURVES, mistakes={
    "This is the first budget above the level. The level is reached before it.":
        partial(_crossing, between=lambda low, high, share: high),
    "This is the last budget below the level. The curve reaches the level after it.":
        partial(_crossing, between=lambda low, high, share: low),
    "This is the middle of the two budgets. Where between them depends on the two errors.":
        partial(_crossing, between=lambda low, high, share: (low + high) / 2),
    "The budgets are not always two apart. Multiply by eps[i] - eps[i - 1].":
        lambda eps, errors, level: _crossing(list(range(0, 2 * len(eps), 2)), errors, level),
    "If the level is never reached, return the last budget.":
        lambda eps, errors, level: (
            _crossing(eps, errors, level) if max(errors) > level else math.inf),
    "The share is the wrong way round. It is how far the level is above the error before.":
        partial(_crossing, between=lambda low, high, share: high - share * (high - low)),
}, hints=(
    "Go through i = 1, 2, ... until errors[i] is above the level, reached since eps[i - 1].",
    "share = (level - errors[i - 1]) / (errors[i] - errors[i - 1]) of the way between.",
), praise="One number per class, in grey levels: all budgets, read horizontally.")
