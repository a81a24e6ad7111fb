"""Notebook 07: where the wrong answers go, and the budget that a class withstands."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _wrong(matrix: Tensor) -> Tensor:
    return matrix - torch.diag(torch.diag(matrix))


def _targets(matrix: Tensor) -> Tensor:
    return _wrong(matrix).sum(0) / _wrong(matrix).sum()


def _matrices() -> list[tuple[Tensor]]:
    """Three classes and five, of unequal size; some columns are empty."""
    g = torch.Generator().manual_seed(7)
    small = torch.tensor([[80.0, 15.0, 5.0], [30.0, 60.0, 10.0], [0.0, 45.0, 155.0]])
    return [(small,), (torch.randint(0, 40, (5, 5), generator=g).float() + 60 * torch.eye(5),),
            (torch.tensor([[3.0, 4.0], [0.0, 9.0]]),)]


def _reached(eps: list[int], errors: list[float], level: float) -> float:
    for i in range(1, len(eps)):
        if errors[i] > level:
            share = (level - errors[i - 1]) / (errors[i] - errors[i - 1])
            return eps[i - 1] + share * (eps[i] - eps[i - 1])
    return eps[-1]


def _after(eps: list[int], errors: list[float], level: float) -> int:
    """Where the first error above the level is, the last place where there is none."""
    return next((i for i, wrong in enumerate(errors) if wrong > level), len(eps) - 1)


def _curves() -> list[tuple[Any, ...]]:
    """Crossings at once, in the middle and at the end, one that touches the level, and one that
    never gets there; uneven budgets, too."""
    eps = [0, 2, 4, 6, 8]
    return [(eps, [0.05, 0.1, 0.3, 0.6, 0.9], 0.5), (eps, [0.4, 0.6, 0.7, 0.8, 0.9], 0.5),
            (eps, [0.1, 0.25, 0.5, 0.7, 0.8], 0.5),
            (eps, [0.01, 0.02, 0.02, 0.03, 0.04], 0.5),
            ([0, 1, 4, 16], [0.1, 0.2, 0.2, 0.45], 0.25)]


EXERCISES = {
    "07.targets": Exercise(
        solution=_targets,
        mistakes={
            "The right answers are still in it: take the diagonal away first.": lambda m: m.sum(0) / m.sum(),
            "These are row sums: whose images are lost. The question is what they are taken for: sum each column.": lambda m: (
                _wrong(m).sum(1) / _wrong(m).sum()
            ),
            "These are counts. Divide by all wrong answers, so that they sum to one.": lambda m: _wrong(m).sum(0),
            "You divide by all images; among the wrong answers the shares must sum to one.": lambda m: _wrong(m).sum(0) / m.sum(),
            "This divides each column by itself: the share of an answer that is wrong.": lambda m: _wrong(m).sum(0) / m.sum(0),
        },
        hints=(
            "Rows are true classes, columns are answers. What is on the diagonal is right and does not count.",
            "torch.diag(matrix) is the diagonal as a vector, and torch.diag of a vector is a matrix: subtract, then sum(0), then scale.",
        ),
        cases=_matrices,
        praise="If this were 1/C everywhere, no class would be the one that others are taken for.",
    ),
    "07.reached": Exercise(
        solution=_reached,
        mistakes={
            "This is the first budget that is too much; the level is reached on the way to it.": lambda eps, errors, level: eps[
                _after(eps, errors, level)
            ],
            "This is the last budget before the level is passed; the curve goes on from there.": lambda eps, errors, level: (
                eps[_after(eps, errors, level) - 1] if max(errors) > level else eps[-1]
            ),
            "This is the middle of the two budgets. How far between them depends on the two errors.": lambda eps, errors, level: (
                (eps[_after(eps, errors, level) - 1] + eps[_after(eps, errors, level)]) / 2 if max(errors) > level else eps[-1]
            ),
            "The budgets are not always two apart: multiply by eps[i] - eps[i - 1].": lambda eps, errors, level: _reached(
                list(range(0, 2 * len(eps), 2)), errors, level
            ),
            "Where the level is never reached, the answer is the last budget.": lambda eps, errors, level: (
                _reached(eps, errors, level) if max(errors) > level else math.inf
            ),
            "The share is turned round: it is how far the level is above the error before.": lambda eps, errors, level: (
                2 * eps[i] - eps[i] + (eps[i - 1] - eps[i]) * (level - errors[i - 1]) / (errors[i] - errors[i - 1])
                if errors[i := _after(eps, errors, level)] > level else eps[-1]
            ),
        },
        hints=(
            "Go through i = 1, 2, ... until errors[i] is above the level. It was reached on the line from eps[i - 1] to eps[i].",
            "share = (level - errors[i - 1]) / (errors[i] - errors[i - 1]) of the way from eps[i - 1] to eps[i].",
        ),
        cases=_curves,
        praise="One number a class, in grey levels: the horizontal way to read the picture of all budgets.",
    ),
}
