"""Four unfairness scores (Sooksatra and Rivas): one number each for how unequally a model treats
classes, people and groups.

    CAU      = max_c acc(c) - min_c acc(c)                                    class-wise accuracy
    CRU_eps  = max_c LE(c) - min_c LE(c),  LE(c) = class mean of least eps    class-wise robustness,
    by distance CRU_s    = max_c s(c) - min_c s(c),    s(c) = success rate of an attack   class-wise
    robustness, by success LUF      = mean_x max_{i, y} |F_D(x)_y - F_{D - i}(x)_y|
    what one training example decides EOU      = max_{a, b} |E[F(x)_1 | group a, label] - E[F(x)_1 |
    group b, label]|, for each label
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.attacks import PGD
from course_lib.errors import CourseError, whole
from course_lib.fairness import Report
from course_lib.inference import check_images, predict

# ------------------------------------------------------------------------------------------------ classes


def cau(report: Report) -> float:
    """Range of class accuracies, which is the range of standard errors."""
    return float(np.ptp(report.nat.by_class))


def success(report: Report, *, correct_only: bool = False) -> np.ndarray:
    """The attack's success rate on each class: of all its images, or of those that are right when
    clean."""
    nat, rob = report.nat.by_class, report.rob.by_class
    if not correct_only:
        return rob
    if (nat >= 1).any():
        gone = ", ".join(c for c, e in zip(report.classes, nat, strict=True) if e >= 1)
        raise CourseError(f"No image of {gone} is right when clean, so no attack on it can "
                          "succeed. Count all images instead.")
    return (rob - nat) / (1 - nat)


def cru_s(report: Report, *, correct_only: bool = False) -> float:
    """Range over classes of the attack's success rate. With all images counted it is the gap in
    robust error."""
    return float(np.ptp(success(report, correct_only=correct_only)))


@dataclass(frozen=True)
class LeastEps:
    """The smallest budget found for each example under which the attack succeeds; `cap` where none
    did."""

    eps: Tensor  # [N]; 0 where the example is wrong already
    censored: Tensor  # [N], did no budget up to the cap succeed?
    steps: int  # attack steps that were allowed, all in all

    def by_class(self, y: Tensor, classes: int, *, right_only: bool = False) -> np.ndarray:
        """LE(c): class means. `right_only` leaves out what is wrong when clean."""
        found = []
        for c in range(classes):
            mine = self.eps[(y == c) & ((self.eps > 0) | (not right_only))]
            if not len(mine):
                raise CourseError(f"Class {c} holds no example to take a mean "
                                  f"of{' that is right when clean' if right_only else ''}.")
            found.append(float(mine.mean()))
        return np.array(found)


def cru_eps(least: LeastEps, y: Tensor, classes: int, *, right_only: bool = False) -> float:
    """Range over classes of the mean least eps."""
    return float(np.ptp(least.by_class(y, classes, right_only=right_only)))


def least_eps(model: nn.Module, x: Tensor, y: Tensor, *, attack: PGD | None = None,
              first: float = 1 / 255, cap: float = 64 / 255,
              tolerance: float = 1 / 2550, generator: torch.Generator | None = None) -> LeastEps:
    """Double the budget until the attack succeeds, then bisect, each example for itself.

    What is kept is always a budget that succeeded, the distance of the adversarial example that was
    found, so it is an upper bound of the true minimum. That a budget fails proves nothing: PGD's
    success is not monotone in it. Under an attack with a `scale` all budgets are in its units, and
    the cap may exceed 1.
    """
    attack = attack or PGD(steps=20)
    _bracket(attack, "first", first, cap)
    if tolerance <= 0:
        raise CourseError(f"first {first:g} and cap {cap:g} are a bracket; tolerance is "
                          f"{tolerance:g}, it must be above 0.")
    s = _Search.of(model, x, y, attack, generator)
    e = torch.full_like(s.low, first)
    while len(on := torch.nonzero((s.high == torch.inf) & (s.low < cap)).flatten()):
        s.attempt(on, e[on])
        e = (2 * e).clamp(max=cap)
    while len(on := torch.nonzero((s.high < torch.inf) & (s.high - s.low > tolerance)).flatten()):
        s.attempt(on, (s.low[on] + s.high[on]) / 2)
    return s.found(cap)


def grid_eps(model: nn.Module, x: Tensor, y: Tensor, *, attack: PGD | None = None,
             increment: float = 1 / 255, cap: float = 64 / 255,
             generator: torch.Generator | None = None) -> LeastEps:
    """The paper's way: the first of increment, 2 increment, ... that succeeds, so up to one
    increment too large."""
    attack = attack or PGD(steps=20)
    _bracket(attack, "increment", increment, cap)
    s = _Search.of(model, x, y, attack, generator)
    for k in range(1, int(cap / increment + 1e-9) + 1):
        on = torch.nonzero(s.high == torch.inf).flatten()
        s.attempt(on, torch.full_like(s.low[on], k * increment), exact=True)
    return s.found(cap)


def _bracket(attack: PGD, word: str, first: float, cap: float) -> None:
    most = math.inf if attack.scale else 1
    if not 0 < first <= cap <= most or cap == math.inf:
        limit = "be finite" if attack.scale else f"satisfy 0 < {word} <= cap <= 1"
        raise CourseError(f"{word} {first:g} and cap {cap:g} must {limit}, the first above 0 and "
                          "no larger than the cap.")


@dataclass
class _Search:
    """The bracket of each example: `low` failed, `high` succeeded."""

    model: nn.Module
    x: Tensor
    y: Tensor
    attack: PGD
    generator: torch.Generator
    low: Tensor
    high: Tensor
    steps: int = 0

    @classmethod
    def of(cls, model: nn.Module, x: Tensor, y: Tensor, attack: PGD,
           generator: torch.Generator | None) -> _Search:
        x = check_images(x, y)
        low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        high = torch.where(predict(model, x, y) == y, torch.inf, low)
        return cls(model, x, y, attack, generator or torch.Generator().manual_seed(0), low, high)

    def attempt(self, on: Tensor, eps: Tensor, exact: bool = False) -> None:
        """Attack these examples with these budgets, in steps of 2.5 budgets shared out, and narrow
        their brackets."""
        if not len(on):
            return
        k, x, y = whole(self.attack.steps, "steps", 1), self.x[on], self.y[on]
        z = self.attack.walk(self.model, x, y, eps=eps, step_size=2.5 * eps / k,
                             generator=self.generator, stop=True).first_wrong
        self.steps += k * len(on)
        hit = predict(self.model, z, y) != y
        scale = self.attack.scale_for(x)
        moved = (z - x).abs() if scale is None else (z - x).abs() / scale
        far = eps if exact else torch.minimum(moved.flatten(1).amax(1), eps)
        self.high[on[hit]] = far[hit]
        self.low[on[~hit]] = eps[~hit]
        # a smaller budget than one that failed can succeed
        self.low = torch.minimum(self.low, self.high)

    def found(self, cap: float) -> LeastEps:
        censored = self.high == torch.inf
        return LeastEps(self.high.masked_fill(censored, cap), censored, self.steps)


# ------------------------------------------------------------------------------------------------ single examples


@dataclass(frozen=True)
class LUF:
    """Leave-one-out unfairness over |X| examples and |L| left-out ones. LUF_l = LUF_t |X| / |L|:
    one number, told twice."""

    luf: float
    luf_t: float  # left-out examples whose absence changes a prediction, a test example
    luf_l: float  # predictions that change, a left-out example
    flips: tuple[int, ...]  # changed predictions, left-out example by left-out example


def luf(whole_set: Tensor, without: Tensor) -> LUF:
    """From probabilities: F_D(x) [X, C], and F_{D - i}(x) [L, X, C].

    >>> luf(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]))
    LUF(luf=0.375, luf_t=0.5, luf_l=1.0, flips=(1,))
    """
    if whole_set.ndim != 2 or without.ndim != 3 or without.shape[
            1:] != whole_set.shape or not without.numel():
        raise CourseError(f"Probabilities of shape {tuple(whole_set.shape)} and "
                          f"{tuple(without.shape)}; they must be [X, C] and [L, X, C].")
    most = (without - whole_set).abs().amax((0, 2))
    flips = (without.argmax(2) != whole_set.argmax(1)).sum(1)
    total, (left_out, n) = int(flips.sum()), without.shape[:2]
    return LUF(float(most.mean()), total / n, total / left_out, tuple(flips.tolist()))


# ------------------------------------------------------------------------------------------------ groups


def group_means(confidence: Tensor, y: Tensor, group: Tensor, names: Sequence[str]) -> np.ndarray:
    """E[F(x)_1 | label, group], [labels, groups]."""
    if not confidence.shape == y.shape == group.shape:
        raise CourseError(f"{len(confidence)} confidences, {len(y)} labels and {len(group)} "
                          "groups; give one of each for every example.")
    if len(group) and not 0 <= int(group.min()) <= int(group.max()) < len(names):
        raise CourseError(f"Groups run from {int(group.min())} to {int(group.max())}; the "
                          f"{len(names)} names end at {len(names) - 1}.")
    if not bool(torch.isfinite(confidence).all()):
        raise CourseError("A confidence is NaN or infinite, so no mean of them is known. Look at "
                          "the model that gave it.")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) <= 1:
        raise CourseError(f"Labels run from {int(y.min())} to {int(y.max())}; equalised odds are "
                          "told for labels 0 and 1.")
    means = np.empty((2, len(names)))
    for label in (0, 1):
        for g, name in enumerate(names):
            mine = confidence[(y == label) & (group == g)]
            if not len(mine):
                raise CourseError(f"No example of label {label} belongs to {name}; its mean "
                                  "confidence is unknown. Leave the group out.")
            means[label, g] = float(mine.double().mean())
    return means


def eou(confidence: Tensor, y: Tensor, group: Tensor, names: Sequence[str]) -> tuple[float, float]:
    """Equalised-odds unfairness on the examples of label 0 and of label 1: the range over groups of
    the mean confidence in class 1."""
    if len(names) < 2:
        raise CourseError(f"The only group is {', '.join(names) or 'none'}; a range over groups "
                          "needs two at least.")
    zero, one = np.ptp(group_means(confidence, y, group, names), axis=1)
    return float(zero), float(one)


SCORES: dict[str, Callable[..., object]] = {"CAU": cau, "CRU_eps": cru_eps, "CRU_s": cru_s,
                                            "LUF": luf, "EOU": eou}
