"""Exercises of notebook 06: thresholds, weights and margins, and the errors it predicts."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from course_lib.lessons.gaussians import Gaussians
from course_lib.lessons.lesson import Exercise
from course_lib.zoo import load_reports

Pair = tuple[float, float]  # errors of the easy and of the hard class


# m and K
SIGNALS = [(1.5, 2.0), (2.0, 3.0), (0.7, 1.25)]
EQUAL = Exercise(lambda m, K: -m * (K - 1) / (K + 1), cases=SIGNALS, mistakes={
    "The threshold must move away from the wide class.": lambda m, K: m * (K - 1) / (K + 1),
    "At 0 the wide class has the larger error: m / K is less than m.": lambda m, K: 0.0,
    "The signal m is missing: both means move with it.": lambda m, K: -(K - 1) / (K + 1),
})


def _bisect(gap: Callable[[float], float], low: float, high: float, steps: int,
            above: Callable[[float], bool] = lambda g: g > 0) -> float:
    """`above` says whether the root is above the middle, given the gap there."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if above(gap(middle)) else (low, middle)
    return (low + high) / 2


def _trained(omega: float, m: float, K: float) -> float:
    """Error of the hard class minus error of the easy one, trained with weight omega; falling."""
    _, u, v, _ = Gaussians(d=1, eta=m, K=K).optimum(omega)
    return float(ndtr(v) - ndtr(u))


GAPS = [(partial(_trained, m=1.5, K=2.0), 0.5, 3.0, 60), (lambda omega: 1.7 - omega, 0.0, 10.0, 5),
        (partial(_trained, m=2.0, K=3.0), 1.0, 4.0, 40)]
WEIGHT = Exercise(_bisect, cases=GAPS, mistakes={
    "You keep the wrong half. While the gap is positive, the hard class needs more weight.":
        partial(_bisect, above=lambda g: g <= 0),
    "This is the middle of the first interval.": lambda gap, low, high, steps: (low + high) / 2,
    "This is the gap at the root. Return the weight.":
        lambda gap, low, high, steps: gap(_bisect(gap, low, high, steps)),
})


def _ratio(before: Pair, after: Pair, scale: Callable[[Any], Any] = ndtri) -> float:
    (easy, hard), (easy_after, hard_after) = scale(np.array(before)), scale(np.array(after))
    return float((easy_after - easy) / (hard - hard_after))


# two thresholds of one model: K is 2, 3 and 1.5
POINTS = ((2.0, -1.9, -1.2, -0.6), (3.0, -3.0, -0.5, -1.5), (1.5, 0.2, -1.0, 0.4))
MOVES = [(tuple(ndtr([a, (c - a) / K])), tuple(ndtr([b, (c - b) / K]))) for K, c, a, b in POINTS]
RATIO = Exercise(_ratio, cases=MOVES, mistakes={
    "The sign is wrong. One error rises while the other falls, and K is positive.":
        lambda before, after: -_ratio(before, after),
    "This is 1 / K: turn the fraction over.": lambda before, after: 1 / _ratio(before, after),
    "You took the errors themselves. The law is linear in Phi^-1 of the errors (ndtri).":
        partial(_ratio, scale=lambda e: e),
    "You used Phi. The law has its inverse, ndtri.": partial(_ratio, scale=ndtr),
})

# training errors of the easy and the hard class
SIDES = [(0.1, 0.37), (0.1, 0.62), (0.45, 0.8), (0.6, 0.7), (0.02, 0.48)]
LEVER = Exercise(lambda easy, hard: float(np.sign(hard - 0.5)), cases=SIDES, mistakes={
    "The sign is wrong. Look at the denominator: it is positive.":
        lambda easy, hard: float(np.sign(0.5 - hard)),
    "Not always: v changes its sign where the hard class's error is 50 %.": lambda easy, hard: -1.0,
    "It is not about which class is worse. Compare the hard class's error with 50 %.":
        lambda easy, hard: float(np.sign(hard - easy)),
    "This is v. Return its sign, -1 or +1.": lambda easy, hard: float(ndtri(hard)),
})


@cache
def class_errors(name: str, kind: str = "rob") -> Any:
    """The stored errors of a recipe at 8/255: one row per seed, one column per class.

    >>> class_errors("exp1/pgd-at")[["Trouser", "Shirt"]].mean().round(2).tolist()
    [0.06, 0.79]
    """
    import pandas as pd

    rates = [(r.classes, getattr(r, kind).by_class) for r in load_reports(name)]
    return pd.DataFrame([dict(zip(*rate, strict=True)) for rate in rates])
