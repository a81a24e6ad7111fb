"""Notebook 01: errors by class, the boundary error, and how much of a difference is chance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _labels() -> list[tuple[Any, ...]]:
    """Classes of unlike sizes, so that it matters what one divides by."""
    g = torch.Generator().manual_seed(2)
    cases = []
    for sizes in ((40, 10, 30), (5, 25, 10, 20)):
        y = torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])
        noise = torch.randint(len(sizes), y.shape, generator=g)
        cases.append((y, torch.where(torch.rand(y.shape, generator=g) < 0.3, noise, y), len(sizes)))
    return cases


def _class_errors(y: Tensor, predicted: Tensor, n: int) -> list[float]:
    return [float((predicted[y == c] != c).float().mean()) for c in range(n)]


def _predictions() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Labels, clean and attacked predictions, in which some wrong images change from one wrong
    class to another, and some recover."""
    g = torch.Generator().manual_seed(3)
    y = torch.randint(5, (400,), generator=g)
    clean, attacked = (torch.where(torch.rand(y.shape, generator=g) < p,
                                   torch.randint(5, y.shape, generator=g), y) for p in (0.3, 0.6))
    return [(y, clean, attacked), (y[:100], clean[:100], attacked[:100])]


EXERCISES = {
    "01.class_errors": Exercise(
        solution=_class_errors,
        mistakes={
            "These are accuracies. The error is 1 minus that.": lambda y, p,
            n: [1 - e for e in _class_errors(y, p, n)],
            "You divide by the number of all images. The error of a class is a share of that "
            "class: divide by its own size.":
                lambda y, p, n: [float(((y == c) & (p != c)).sum() / len(y)) for c in range(n)],
            "You look at the images predicted as c (that gives 1 - precision). Fairness asks about "
            "the images that are c: condition on y.":
                lambda y, p, n: [float((y[p == c] != c).float().mean()) for c in range(n)],
            "These are counts. Divide each by the size of its class.":
                lambda y, p, n: [float(((y == c) & (p != c)).sum()) for c in range(n)],
            "This counts wrong images twice over: those of class c, and those taken for c.":
                lambda y, p, n: [float(((y == c) != (p == c)).sum() / (y == c).sum())
                                 for c in range(n)],
        },
        hints=(
            "Take one class at a time: the images with y == c. What share of them is predicted as "
            "something else?",
            "For one class: (predicted[y == c] != c).float().mean(). Now a list over c in "
            "range(n_classes).",
        ),
        cases=_labels,
        praise="Everything in this notebook is made of these numbers.",
    ),
    "01.boundary": Exercise(
        solution=lambda y, clean, attacked: float(((clean == y) & (attacked != y)).float().mean()),
        mistakes={
            "This is the share of predictions that changed. It also counts images that were wrong "
            "already and went from one wrong "
            "class to another (the reproduction's code does this, and then standard + boundary is "
            "not the robust error).":
                lambda y, clean, attacked: float((clean != attacked).float().mean()),
            "This is the robust error: it still contains the images that were wrong before any "
            "attack.":
                lambda y, clean, attacked: float(((clean != y) | (attacked != y)).float().mean()),
            "This is the error under attack; take away the images that were wrong before.":
                lambda y, clean, attacked: float((attacked != y).float().mean()),
            "This counts an image that is wrong clean and recovers under attack as -1. An attacker "
            "who wanted to would leave it alone: "
            "count as robust only what is right both times.":
                lambda y, clean, attacked: float((attacked != y).float().mean() - (
                    clean != y).float().mean()),
            "This is the share among the images that were right (the attack's success rate). The "
            "boundary error is a share of all images.":
                lambda y, clean, attacked: float((attacked[clean == y] != y[clean
                    == y]).float().mean()),
            "This is the standard error.": lambda y, clean,
            attacked: float((clean != y).float().mean()),
        },
        hints=(
            "The boundary error is what the attack adds: images that are right on the clean "
            "picture and wrong on the attacked one.",
            "Combine two conditions with &: (clean == y) & (attacked != y). The mean of the "
            "result, as float, is the share.",
        ),
        cases=_predictions,
        praise="And robust error = standard error + boundary error, exactly.",
    ),
    "01.chance": Exercise(
        solution=lambda p, n: 1.96 * math.sqrt(p * (1 - p) / n),
        mistakes={
            "This is the standard error itself: a 95 % interval reaches 1.96 of them to each side.":
                lambda p, n: math.sqrt(p * (1 - p) / n),
            "The square root covers the whole fraction: p (1 - p) / n.": lambda p,
            n: 1.96 * math.sqrt(p * (1 - p)) / n,
            "The root is missing: p (1 - p) / n is a variance, the interval is made of its root.":
            lambda p, n: 1.96 * p * (1 - p) / n,
            "This is the whole width; the question is how far the interval reaches to each side.":
                lambda p, n: 3.92 * math.sqrt(p * (1 - p) / n),
            "The variance of one yes-or-no is p (1 - p), not p.": lambda p,
            n: 1.96 * math.sqrt(p / n),
        },
        hints=(
            "An error rate is a mean of n draws that are 0 or 1. The variance of one draw is p (1 "
            "- p); that of their mean n times less.",
            "1.96 times the square root of p * (1 - p) / n.",
        ),
        cases=lambda: [(0.3, 1000), (0.03, 1000), (0.5, 10_000), (0.12, 250)],
        praise="At 30 % error and 1,000 images this is 2.8 points; the difference of two such "
        "classes reaches sqrt(2) times as far, 4.0.",
    ),
}
