"""Four unfairness scores (Sooksatra and Rivas): how unequally a model treats classes, people and
groups, one number each.

    CAU     = max_c acc(c) - min_c acc(c)                            accuracy of classes
    CRU_eps = max_c LE(c) - min_c LE(c),  LE(c) = mean least eps     robustness of classes: distance
    CRU_s   = max_c s(c) - min_c s(c),    s(c) = attack's success    robustness of classes: success
    LUF     = mean_x max_{i, y} |F_D(x)_y - F_{D - i}(x)_y|          effect of one training example
    EOU     = max_{a, b} |E[F(x)_1 | group a, label] - E[F(x)_1 | group b, label]|   for each label
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.attacks import PGD
from course_lib.errors import CourseError, integer
from course_lib.fairness import Report
from course_lib.inference import check_images, predict


def cau(report: Report) -> float:
    """CAU: the range of class accuracies, which equals the range of standard errors."""
    return float(np.ptp(report.nat.by_class))


def success(report: Report, *, correct_only: bool = False) -> np.ndarray:
    """s(c) [C]: the attack's success rate on all images of a class, or, with `correct_only`, on
    those that are classified correctly without an attack."""
    nat, rob = report.nat.by_class, report.rob.by_class
    if not correct_only:
        return rob
    if (nat >= 1).any():
        lost = ", ".join(c for c, e in zip(report.classes, nat, strict=True) if e >= 1)
        raise CourseError(f"No image of {lost} is right when clean; count all images instead.")
    return (rob - nat) / (1 - nat)


def cru_s(report: Report, *, correct_only: bool = False) -> float:
    """CRU_s: the range of `success` over classes; over all images, the gap in robust error."""
    return float(np.ptp(success(report, correct_only=correct_only)))


def class_means(values: Tensor, y: Tensor, classes: int) -> np.ndarray:
    """The mean of the values of each class [C]; NaN for a class without a value."""
    return np.array([float(values[y == c].double().mean()) for c in range(classes)])


@dataclass(frozen=True)
class LeastEps:
    """The smallest budget under which the attack succeeded on each example."""

    eps: Tensor  # [N]; 0 where the example is wrong already, the cap where no budget succeeded
    censored: Tensor  # [N], did no budget up to the cap succeed?
    steps: int  # allowed attack steps, summed over all examples

    def by_class(self, y: Tensor, classes: int) -> np.ndarray:
        """LE(c) [C]: the mean of each class."""
        means = class_means(self.eps, y, classes)
        for c in np.flatnonzero(np.isnan(means)):
            raise CourseError(f"Class {c} holds no example.")
        return means


def cru_eps(least: LeastEps, y: Tensor, classes: int) -> float:
    """CRU_eps: the range over classes of the mean least eps."""
    return float(np.ptp(least.by_class(y, classes)))


def least_eps(model: nn.Module, x: Tensor, y: Tensor, *, attack: PGD | None = None,
              first: float = 1 / 255, cap: float = 64 / 255, tolerance: float = 1 / 2550,
              generator: torch.Generator | None = None) -> LeastEps:
    """Double each example's budget from `first` until the attack succeeds, then bisect. The result
    is an upper bound: the distance of an adversarial example that PGD reached. A budget that fails
    proves nothing, because success is not monotone. Budgets are in units of the attack's `scale`,
    if it has one, and may then exceed 1."""
    if tolerance <= 0:
        raise CourseError(f"tolerance is {tolerance:g}; it must be above 0.")
    s = _Search(model, x, y, attack, generator, first, cap)
    e = torch.full_like(s.low, first)
    while len(on := torch.nonzero((s.high == torch.inf) & (s.low < cap)).flatten()):
        s.attempt(on, e[on])
        e = (2 * e).clamp(max=cap)
    tolerance = max(tolerance, cap * torch.finfo(s.low.dtype).eps)  # numbers lie no closer
    while len(on := torch.nonzero((s.high < torch.inf) & (s.high - s.low > tolerance)).flatten()):
        s.attempt(on, (s.low[on] + s.high[on]) / 2)
    return s.result()


def grid_eps(model: nn.Module, x: Tensor, y: Tensor, *, attack: PGD | None = None,
             increment: float = 1 / 255, cap: float = 64 / 255,
             generator: torch.Generator | None = None) -> LeastEps:
    """The paper's search: the first of increment, 2 increment, ... that succeeds. It is up to one
    increment larger than the minimum."""
    s = _Search(model, x, y, attack, generator, increment, cap)
    for k in range(1, int(cap / increment + 1e-9) + 1):
        on = torch.nonzero(s.high == torch.inf).flatten()
        s.attempt(on, torch.full_like(s.low[on], k * increment), exact=True)
    return s.result()


class _Search:
    """The bracket of each example: the budget `low` failed, the budget `high` succeeded."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, attack: PGD | None,
                 generator: torch.Generator | None, first: float, cap: float) -> None:
        self.attack, self.cap, self.spent = attack or PGD(steps=20), cap, 0
        if not 0 < first <= cap < math.inf or (cap > 1 and not self.attack.scale):
            raise CourseError(f"The first budget {first:g} must be above 0 and at most the cap "
                              f"{cap:g}, which must be finite (at most 1 for images).")
        self.k = integer(self.attack.steps, "steps", 1)
        self.model, self.x, self.y = model, check_images(x, y), y
        self.generator = generator or torch.Generator().manual_seed(0)
        self.low = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        self.high = torch.where(predict(model, x, y) == y, torch.inf, self.low)

    def attempt(self, on: Tensor, eps: Tensor, exact: bool = False) -> None:
        """Attack the examples `on` with these budgets, in K steps of 2.5 eps / K, and narrow their
        brackets to the reached distance, or with `exact` to the budget."""
        if not len(on):
            return
        x, y = self.x[on], self.y[on]
        z = self.attack.walk(self.model, x, y, eps=eps, step_size=2.5 * eps / self.k,
                             generator=self.generator, stop=True).first_wrong
        self.spent += self.k * len(on)
        hit, scale = predict(self.model, z, y) != y, self.attack.scale_for(x)
        moved = ((z - x).abs() / (1 if scale is None else scale)).flatten(1).amax(1)
        reached = eps if exact else torch.minimum(moved, eps)
        self.high[on[hit]], self.low[on[~hit]] = reached[hit], eps[~hit]

    def result(self) -> LeastEps:
        censored = self.high == torch.inf
        return LeastEps(self.high.masked_fill(censored, self.cap), censored, self.spent)


@dataclass(frozen=True)
class LUF:
    """Leave-one-out unfairness over |X| test and |L| left-out examples; LUF_l = LUF_t |X| / |L|."""

    luf: float
    luf_t: float  # per test example: left-out examples whose absence changes its prediction
    luf_l: float  # per left-out example: test predictions that change
    flips: tuple[int, ...]  # changed predictions of each left-out example


def luf(whole_set: Tensor, without: Tensor) -> LUF:
    """From probabilities: F_D(x) [X, C], and F_{D - i}(x) [L, X, C].

    >>> luf(torch.tensor([[0.75, 0.25], [0.25, 0.75]]), torch.tensor([[[0.5, 0.5], [0.75, 0.25]]]))
    LUF(luf=0.375, luf_t=0.5, luf_l=1.0, flips=(1,))
    """
    if (whole_set.ndim != 2 or without.ndim != 3 or without.shape[1:] != whole_set.shape
            or not without.numel()):
        raise CourseError(f"Probabilities of shape {tuple(whole_set.shape)} and "
                          f"{tuple(without.shape)}; they must be [X, C] and [L, X, C].")
    # LUF = mean_x max_{i, y} |F_D(x)_y - F_{D - i}(x)_y|
    most = (without - whole_set).abs().amax((0, 2))
    flips = (without.argmax(2) != whole_set.argmax(1)).sum(1)
    total, (left_out, n) = int(flips.sum()), without.shape[:2]
    return LUF(float(most.mean()), total / n, total / left_out, tuple(flips.tolist()))


def group_means(confidence: Tensor, y: Tensor, group: Tensor, names: Sequence[str]) -> np.ndarray:
    """E[F(x)_1 | label, group] [2, groups], for labels 0 and 1."""
    groups, labels = group.unique().tolist(), y.unique().tolist()
    if (not confidence.shape == y.shape == group.shape or not confidence.isfinite().all()
            or not set(labels) <= {0, 1} or not set(groups) <= set(range(len(names)))):
        raise CourseError("Every example needs a finite confidence, a label 0 or 1, and a group "
                          f"from 0 to {len(names) - 1}; given: {len(confidence)} confidences, "
                          f"labels {labels}, groups {groups}.")
    means = np.stack([class_means(confidence[y == label], group[y == label], len(names))
                      for label in (0, 1)])
    for label, g in np.argwhere(np.isnan(means)):
        raise CourseError(f"No example of label {label} belongs to {names[g]}; leave it out.")
    return means


def eou(confidence: Tensor, y: Tensor, group: Tensor, names: Sequence[str]) -> tuple[float, float]:
    """EOU on the examples of label 0 and of label 1: the range of `group_means` over groups."""
    if len(names) < 2:
        raise CourseError(f"A range needs at least two groups; given: {', '.join(names)}.")
    zero, one = np.ptp(group_means(confidence, y, group, names), axis=1)
    return float(zero), float(one)
