"""Numbers from counts per class: errors with their intervals, reports, and means over seeds.

    err_nat(c)  = Pr[ argmax f(x) != c | y = c ]             standard error of class c
    err_rob(c)  = the same under attack                       robust error
    err_bndy(c) = err_rob(c) - err_nat(c)                     boundary error
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from course_lib.errors import UNFIT, CourseError, resolve, several

Z95 = 1.959963984540054  # two-sided 95 % point of the normal distribution


@dataclass(frozen=True)
class Errors:
    """Wrong images and all images of each class, as whole counts.

    >>> Errors(wrong=(1, 5), counts=(10, 10)).by_class.tolist()
    [0.1, 0.5]
    """

    wrong: tuple[int, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.wrong) != len(self.counts) or not self.counts or not all(
                abs(w) <= n > 0 == w % 1 for w, n in zip(self.wrong, self.counts, strict=True)):
            raise CourseError(f"Wrong images {self.wrong} of {self.counts}; give both numbers for "
                              "each class, which holds one image or more.")

    @cached_property
    def by_class(self) -> np.ndarray:
        return np.asarray(self.wrong, float) / np.asarray(self.counts, float)

    @property
    def mean(self) -> float:
        """Over all images; also over the classes where they have equally many."""
        return sum(self.wrong) / sum(self.counts)

    @property
    def worst_class(self) -> int:
        return int(self.by_class.argmax())

    @property
    def worst(self) -> float:
        return float(self.by_class.max())

    def intervals(self) -> np.ndarray:
        """Wilson's 95 % interval of each class's error, [C, 2]."""
        p, n = self.by_class, np.asarray(self.counts, float)
        zz = Z95**2 / n
        # ( p + z^2/2n  -+  z sqrt( p(1-p)/n + z^2/4n^2 ) ) / (1 + z^2/n)
        centre, half = p + zz / 2, Z95 * np.sqrt(np.maximum(p * (1 - p), 0) / n + zz / (4 * n))
        low, high = (centre - half) / (1 + zz), (centre + half) / (1 + zz)
        return np.stack([np.maximum(low, 0), np.minimum(high, 1)], axis=1)


@dataclass(frozen=True)
class Report:
    """The result of an evaluation: standard and robust errors of every class under one attack."""

    nat: Errors
    rob: Errors
    classes: tuple[str, ...]
    attack: str = ""
    eps: float = 0.0
    flips: Errors | None = None  # predictions that the attack changed, where they were counted
    warnings: tuple[str, ...] = ()  # what makes these figures doubtful, in words (judge/)

    def __post_init__(self) -> None:
        if not self.nat.counts == self.rob.counts or len(self.classes) != len(self.nat.counts):
            raise CourseError(f"{len(self.classes)} class names for counts of {self.nat.counts} "
                              f"without and {self.rob.counts} under attack; they must agree.")
        if min(*self.nat.wrong, *self.rob.wrong) < 0 or not 0 <= self.eps < math.inf:
            raise CourseError(f"Errors and eps must be finite and not below 0: {self.to_json()}.")

    @property
    def bnd(self) -> Errors:
        # err_bndy(c) = err_rob(c) - err_nat(c)
        return Errors(tuple(r - n for r, n in zip(self.rob.wrong, self.nat.wrong, strict=True)),
                      self.nat.counts)

    @property
    def worst_class(self) -> str:
        """The class with the largest robust error, by name."""
        return self.classes[self.rob.worst_class]

    def frame(self) -> Any:
        """One row per class in percent: a DataFrame, which is also how a report shows itself."""
        return resolve("course_lib.tables.display:of_classes")(self)

    def plot(self, ax: Any = None, **words: Any) -> Any:
        """Standard and robust errors per class as bars, with the options of plots.class_bars."""
        plots, kinds = resolve("course_lib.plots:"), several(words.pop("kind", ("nat", "rob")))
        rows = {plots.KINDS.get(kind, kind): self for kind in kinds}
        return plots.class_bars(rows, ax, kind=kinds, **words)

    def __repr__(self) -> str:
        return repr(self.frame())

    def _repr_html_(self) -> str:
        return str(self.frame()._repr_html_())

    def to_json(self) -> dict[str, Any]:
        errors = {"nat": self.nat, "rob": self.rob, "flips": self.flips}
        return {"attack": self.attack, "eps": self.eps, "classes": list(self.classes),
                "counts": list(self.nat.counts),
                **{k: e.by_class.tolist() for k, e in errors.items() if e is not None},
                **({"warnings": list(self.warnings)} if self.warnings else {})}

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Self:
        """The report that `to_json` wrote; rates times counts are whole numbers again."""
        try:
            counts = tuple(int(n) for n in row["counts"])
            errors = {
                kind: Errors(tuple(round(e * n) for e, n in zip(row[kind], counts, strict=True)),
                             counts) for kind in ("nat", "rob", "flips") if kind in row}
            return cls(errors["nat"], errors["rob"], tuple(map(str, row["classes"])),
                       str(row["attack"]), float(row["eps"]), errors.get("flips"),
                       tuple(map(str, row.get("warnings", ()))))
        except UNFIT as e:
            raise CourseError(f"Not a report ({type(e).__name__}: {e}). One needs attack, eps, "
                              "classes, counts, nat and rob.") from None


def t95(df: float) -> float:
    """Student's two-sided 95 % point with `df` degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats.t.ppf calls it, but takes a second to import

    return float(stdtrit(df, 0.975))


@dataclass(frozen=True)
class Spread:
    """A number over several seeds: mean, sample standard deviation, 95 % t-interval of the mean.

    >>> str(Spread.of([0.1, 0.2]))
    '15.00 ± 7.07'
    """

    mean: float
    sd: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """From one value per seed. A single value has no standard deviation and no interval."""
        if not (n := len(v := np.fromiter(values, float))):
            raise CourseError("There is no value to average; give one value per seed.")
        mean, sd = float(v.mean()), float(v.std(ddof=1)) if n > 1 else math.nan
        # mean -+ t_{n-1} sd / sqrt(n)
        half = t95(n - 1) * sd / math.sqrt(n) if n > 1 else math.nan
        return cls(mean, sd, mean - half, mean + half, n)

    def __str__(self) -> str:
        """In percent: mean ± sample standard deviation."""
        return f"{100 * self.mean:.2f}" + ("" if self.n == 1 else f" ± {100 * self.sd:.2f}")


def class_spreads(errors: Sequence[Errors]) -> list[Spread]:
    """The spread over seeds of each class's error; `errors` has one entry per seed."""
    return [Spread.of(of_class) for of_class in zip(*(e.by_class for e in errors), strict=True)]


def undominated(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other point dominates: is at most as large in both and smaller in one."""
    return [not any(a <= x and b <= y and (a, b) != (x, y) for a, b in points) for x, y in points]
