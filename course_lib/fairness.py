"""Numbers from per-class counts: errors with their intervals, reports, and means over seeds.

    err_nat(c)  = Pr[ argmax f(x) != c | y = c ]             standard error of class c
    err_rob(c)  = the same under attack                       robust error
    err_bndy(c) = err_rob(c) - err_nat(c)                     boundary error
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from course_lib.errors import CourseError

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


@dataclass(frozen=True)
class Errors:
    """Wrong images and all images, class by class."""

    wrong: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.wrong) != len(self.counts) or not self.counts:
            raise CourseError(
                f"{len(self.wrong)} classes of errors for {len(self.counts)} classes of counts; "
                "give one of each for every class."
            )
        if min(self.counts) < 1:
            raise CourseError(f"Class {self.counts.index(min(self.counts))} holds no image; an "
                              "error rate needs one at least.")
        if any(abs(w) > n for w, n in zip(self.wrong, self.counts, strict=True)):
            raise CourseError(f"More wrong images than images: {self.wrong} of {self.counts}.")

    @cached_property
    def by_class(self) -> np.ndarray:
        return np.asarray(self.wrong, float) / np.asarray(self.counts, float)

    @property
    def mean(self) -> float:
        """Over the images (over the classes too, when they are of one size)."""
        return sum(self.wrong) / sum(self.counts)

    @property
    def worst_class(self) -> int:
        return int(self.by_class.argmax())

    @property
    def worst(self) -> float:
        return float(self.by_class.max())

    def intervals(self) -> np.ndarray:
        """Wilson's 95 % interval of each class's error, [C, 2]."""
        return np.array([wilson(w, n) for w, n in zip(self.wrong, self.counts, strict=True)])


@dataclass(frozen=True)
class Report:
    """What an evaluation found: standard and robust errors of every class under one attack."""

    nat: Errors
    rob: Errors
    classes: tuple[str, ...]
    attack: str = ""
    eps: float = 0.0
    # predictions that the attack changed, right or wrong, where they were counted
    flips: Errors | None = None

    def __post_init__(self) -> None:
        if not len(self.classes) == len(self.nat.counts) == len(self.rob.counts):
            raise CourseError(f"{len(self.classes)} class names for {len(self.nat.counts)} and "
                              f"{len(self.rob.counts)} classes of counts.")
        if self.nat.counts != self.rob.counts:
            raise CourseError("Standard and robust errors count different images: "
                              f"{self.nat.counts} and {self.rob.counts}.")

    @property
    def bnd(self) -> Errors:
        """err_bndy = err_rob - err_nat"""
        return Errors(tuple(r - n for r, n in zip(self.rob.wrong, self.nat.wrong, strict=True)),
                      self.nat.counts)

    @property
    def worst_class(self) -> str:
        """The name of the class with the largest robust error."""
        return self.classes[self.rob.worst_class]

    def to_json(self) -> dict[str, Any]:
        rates = {k: e.by_class.tolist() for k,
                 e in (("nat", self.nat), ("rob", self.rob), ("flips", self.flips))
                 if e is not None}
        return {"attack": self.attack, "eps": self.eps, "classes": list(self.classes),
                "counts": list(self.nat.counts), **rates}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Report:
        try:
            counts = tuple(int(n) for n in row["counts"])

            def errors(kind: str) -> Errors:
                return Errors(tuple(round(e * n) for e, n in zip(row[kind], counts, strict=True)),
                              counts)

            flips = errors("flips") if "flips" in row else None
            return cls(errors("nat"), errors("rob"), tuple(str(c) for c in row["classes"]),
                       str(row["attack"]), float(row["eps"]), flips)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
            raise CourseError(f"Not a report ({type(e).__name__}: {e}). One needs attack, eps, "
                              "classes, counts, nat and rob.") from None


def wilson(wrong: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion.

    ( p + z^2/2n  -+  z sqrt( p(1-p)/n + z^2/4n^2 ) ) / (1 + z^2/n)
    """
    p, zz = wrong / n, Z95**2 / n
    centre, half = p + zz / 2, Z95 * math.sqrt(max(p * (1 - p), 0) / n + zz / (4 * n))
    return max(0.0, (centre - half) / (1 + zz)), min(1.0, (centre + half) / (1 + zz))


# Student's 97.5 % point, 1 to 9 degrees
T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)


def t95(df: int) -> float:
    """Student's two-sided 95 % point: a table, then Cornish and Fisher's expansion, good to 2e-4
    from 10 degrees on."""
    if df <= len(T95):
        return T95[df - 1]
    z = Z95
    g1, g2 = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / df + g2 / df**2 + g3 / df**3


@dataclass(frozen=True)
class Spread:
    """A figure over several seeds: mean, sample standard deviation, 95 % t-interval of the mean."""

    mean: float
    sd: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        v = np.fromiter(values, float)
        if not len(v):
            raise CourseError("No value to take a mean of; give one a seed.")
        if len(v) == 1:
            return cls(float(v[0]), math.nan, math.nan, math.nan, 1)
        mean, sd = float(v.mean()), float(v.std(ddof=1))
        half = t95(len(v) - 1) * sd / math.sqrt(len(v))
        return cls(mean, sd, mean - half, mean + half, len(v))

    def __str__(self) -> str:
        """In percent: mean ± sample standard deviation."""
        return f"{100 * self.mean:.2f}" + ("" if self.n == 1 else f" ± {100 * self.sd:.2f}")


def class_spreads(errors: Sequence[Errors]) -> list[Spread]:
    """The spread over seeds of each class's error."""
    return [Spread.of(e.by_class[c] for e in errors) for c in range(len(errors[0].counts))]
