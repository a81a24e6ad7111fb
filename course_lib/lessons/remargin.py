"""Notebook 03: multipliers into margins, what shuffled labels teach, and the models that nobody
dominates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _margins(lam: Tensor, gap: Tensor, rate: float, low: float, high: float) -> Tensor:
    return torch.exp(2 * (lam + rate * gap)).clamp(low, high)


def _states() -> list[tuple[Any, ...]]:
    """Margins that are free, held below, held above."""
    return [
        (torch.tensor([0.0, 0.1, 0.3, 0.5]), torch.tensor([0.1, -0.2, 0.3, 0.25]), 0.2, 0.98, 3.0),
        (torch.tensor([-0.2, 0.0, 0.2]), torch.tensor([0.05, 0.0, 0.4]), 0.5, 0.5, 2.0),
        (torch.tensor([0.01, 0.02]), torch.tensor([0.3, -0.02]), 0.1, 0.98, 2.5),
    ]


def _optimum(share: float, classes: int) -> float:
    return 1 - share + share / classes


Points = list[tuple[float, float]]


def _front(points: Points) -> list[int]:
    return [i for i, (a, b) in enumerate(points)
            if not any(x <= a and y <= b and (x < a or y < b) for x, y in points)]


def _clouds() -> list[tuple[Points]]:
    """Ties in one coordinate, ties in both, one that is best in everything."""
    return [
        ([(13.0, 40.0), (14.0, 35.0), (14.5, 36.0), (15.0, 30.0), (15.0, 33.0)],),
        ([(1.0, 1.0), (2.0, 2.0), (3.0, 0.5)],),
        ([(2.0, 3.0), (2.0, 3.0), (2.0, 4.0), (1.0, 5.0)],),
        ([(1.0, 9.0), (1.5, 1.5), (9.0, 1.0), (8.0, 1.0), (5.0, 5.0)],),
    ]


EXERCISES = {
    "03.margins": Exercise(
        solution=_margins,
        mistakes={
            "The factor 2 in the exponent is missing.": lambda lam, gap, rate, low,
            high: torch.exp(lam + rate * gap).clamp(low, high),
            "You forget what was there: the multiplier is moved by the gap, not replaced.":
            lambda lam, gap, rate, low, high: torch.exp(
                2 * rate * gap
            ).clamp(low, high),
            "The margins are not clipped.": lambda lam, gap, rate, low,
            high: torch.exp(2 * (lam + rate * gap)),
            "You clip the multiplier; low and high are for the margin.": lambda lam, gap, rate, low,
            high: torch.exp(
                2 * (lam + rate * gap).clamp(low, high)
            ),
            "The sign is wrong: a class with a gap above the tolerance gets a larger margin.":
            lambda lam, gap, rate, low, high: _margins(
                lam, -gap, rate, low, high
            ),
            "These are the margins before the update: move the multiplier first.": lambda lam, gap,
            rate, low, high: torch.exp(
                2 * lam
            ).clamp(low, high),
            "This adds where the rule multiplies: the margin is the exponential.": lambda lam, gap,
            rate, low, high: (
                1 + 2 * (lam + rate * gap)
            ).clamp(low, high),
        },
        hints=(
            "First the new multiplier, lam + rate * gap; then its margin, exp(2 lambda); then the "
            "clip.",
            "torch.exp(...) and .clamp(low, high), in this order.",
        ),
        cases=_states,
        praise="A gap that stays makes the margin grow by the same factor each epoch.",
        tolerance=1e-5,
    ),
    "03.optimum": Exercise(
        solution=_optimum,
        mistakes={
            "A random label is right one time in C: add share / C.": lambda share,
            classes: 1 - share,
            "This is what is left for all wrong classes together.": lambda share,
            classes: share * (1 - 1 / classes),
            "A random label falls on C classes, the true one among them: share / C, not share / (C "
            "- 1).": lambda share, classes: (
                1 - share + share / (classes - 1)
            ),
            "This is what one wrong class gets.": lambda share, classes: share / classes,
            "The shares are the wrong way round: `share` of the terms have random labels.":
            lambda share, classes: (
                share + (1 - share) / classes
            ),
        },
        hints=(
            "Cross-entropy is smallest where the belief equals how often each label comes up with "
            "the image. How often is it the true one?",
            "The true label comes from the unshuffled terms always, and from the shuffled ones one "
            "time in C.",
        ),
        cases=lambda: [(0.5, 10), (0.25, 10), (1.0, 4), (0.0, 7), (0.8, 3)],
        praise="With half of the terms shuffled and ten classes this is 0.55: what the report's "
        "network believes.",
        tolerance=1e-6,
    ),
    "03.front": Exercise(
        solution=_front,
        mistakes={
            "A point that equals another is thrown out: to dominate, a point must be smaller in "
            "one of the two.": lambda points: [
                i for i, (a, b) in enumerate(points)
                if not any(x <= a and y <= b and j != i for j, (x, y) in enumerate(points))
            ],
            "You ask for smaller in both. A point that ties in one and is smaller in the other "
            "dominates as well.": lambda points: [
                i for i, (a, b) in enumerate(points) if not any(x < a and y < b for x, y in points)
            ],
            "This is the best average only.": lambda points:
            [i for i, p in enumerate(points) if p[0] == min(q[0] for q in points)],
            "This is the best worst class only.": lambda points:
            [i for i, p in enumerate(points) if p[1] == min(q[1] for q in points)],
            "These are the dominated ones.": lambda points:
            [i for i in range(len(points)) if i not in _front(points)],
            "Errors are to be small: you kept the points that are largest.": lambda points:
            _front([(-a, -b) for a, b in points]),
            "Give the places (0, 1, ...), not the points.": lambda points:
            [points[i] for i in _front(points)],
        },
        hints=(
            "Point i is out when some point is at most as large in both coordinates and smaller in "
            "one of them.",
            "any(x <= a and y <= b and (x < a or y < b) for x, y in points) says whether (a, b) is "
            "dominated.",
        ),
        cases=_clouds,
        praise="What is left is a matter of what you want, no longer of what is better.",
    ),
}
