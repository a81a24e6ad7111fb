"""The four scores against closed forms, fairlearn, and examples worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame

from course_lib import PGD, CourseError, Report, scores
from course_lib.fairness import Errors
from course_lib.scores import LeastEps, cau, cru_eps, cru_s, eou, grid_eps, least_eps, luf, success
from tests.helpers import Linear, Small, seeded

REPORT = Report(Errors((1, 5, 2), (10, 10, 20)), Errors((4, 9, 4), (10, 10, 20)),
                ("cat", "dog", "frog"))


def test_cau_by_hand_and_by_fairlearn() -> None:
    assert cau(REPORT) == pytest.approx(0.5 - 0.1)
    y = np.repeat([0, 1, 2], [10, 10, 20])
    right = np.concatenate([np.arange(n) >= w for w, n in zip(REPORT.nat.wrong, REPORT.nat.counts,
                                                              strict=True)])
    frame = MetricFrame(metrics=lambda t, p: float(np.mean(t == p)), y_true=y,
                        y_pred=np.where(right, y, -1), sensitive_features=y)
    assert cau(REPORT) == pytest.approx(frame.difference())


def test_cru_s_by_hand() -> None:
    assert success(REPORT).tolist() == [0.4, 0.9, 0.2] and cru_s(REPORT) == pytest.approx(0.7)
    assert success(REPORT, correct_only=True) == pytest.approx([3 / 9, 4 / 5, 2 / 18])
    assert cru_s(REPORT, correct_only=True) == pytest.approx(4 / 5 - 2 / 18)
    lost = Report(Errors((10, 1), (10, 10)), Errors((10, 1), (10, 10)), ("cat", "dog"))
    assert cru_s(lost) == pytest.approx(0.9)
    with pytest.raises(CourseError, match="No image of cat is right when clean"):
        cru_s(lost, correct_only=True)


def around_half(n: int, *shape: int, seed: int, width: float = 0.05) -> torch.Tensor:
    """Examples away from the box."""
    return 0.5 + width * (torch.rand(n, *shape, generator=seeded(seed), dtype=torch.float64) - 0.5)


def exact(model: Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """eps*(x) = |margin| / ||w_y - w_other||_1 for two classes, away from the box; 0 where the
    example is wrong."""
    logits, w = model(x).detach(), (model.weight[1] - model.weight[0]).detach()
    return ((logits[:, 1] - logits[:, 0]) * (2 * y - 1)).clamp(min=0) / w.abs().sum()


@pytest.mark.parametrize("start", ["uniform", "clean"])
def test_least_eps_of_a_linear_model(start: str) -> None:
    model, tolerance, y = Linear((1, 4, 4)), 1 / 2550, torch.arange(200) % 2
    x = around_half(200, 1, 4, 4, seed=0)
    want = exact(model, x, y)
    assert (want == 0).any() and want.max() > 0.005
    found = least_eps(model, x, y, attack=PGD(steps=10, start=start), tolerance=tolerance)
    assert not found.censored.any() and found.eps[want == 0].eq(0).all()
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + tolerance + 1e-9).all()
    assert found.steps % 10 == 0 and found.steps > 0


def test_least_eps_is_a_budget_that_succeeds() -> None:
    """Also where a network is not linear: an example at that distance exists, so the same attack
    finds one within a hair more."""
    model = Small(seed=1).double()
    x = torch.rand(60, 1, 6, 6, generator=seeded(1), dtype=torch.float64)
    y = model.eval()(x).argmax(1)
    found, coarse = (least_eps(model, x, y, cap=0.5, tolerance=t) for t in (1 / 2550, 1 / 20))
    hit = ~found.censored
    assert hit.any() and (found.eps[hit] > 0).all()
    assert (found.eps[hit] <= coarse.eps[hit] + 1 / 20).all() and coarse.steps < found.steps


def test_examples_that_no_budget_breaks_are_censored() -> None:
    model, x = Linear((1, 2, 2)), torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)
    y = model(x).argmax(1)
    far = exact(model, x, y)
    found = least_eps(model, x, y, cap=float(far[0]) / 2, first=float(far[0]) / 8)
    assert found.censored.all() and torch.allclose(found.eps, far / 2)


def test_the_papers_increments_are_too_large_by_one_at_most() -> None:
    model, step, x = Linear((1, 4, 4)), 1 / 1000, around_half(50, 1, 4, 4, seed=2)
    y = model(x).argmax(1)
    want, found = exact(model, x, y), grid_eps(model, x, y, attack=PGD(steps=5, start="clean"),
                                               increment=step, cap=0.2)
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + step + 1e-9).all()
    assert torch.allclose(found.eps / step, (found.eps / step).round())


@pytest.mark.parametrize("own", [least_eps, grid_eps])
def test_least_eps_in_a_tables_own_units(own: Any) -> None:
    """eps*(x) = |margin| / sum_j units_j |w_j| on a linear model, away from the box; the cap may
    exceed 1."""
    units, model = (1 / 10, 1 / 100, 1 / 1000), Linear((3,))
    x, scale = around_half(60, 3, seed=4, width=0.02), torch.tensor(units, dtype=torch.float64)
    y = model(x).argmax(1)
    w = (model.weight[1] - model.weight[0]).abs().detach()
    want = exact(model, x, y) * w.sum() / (w * scale).sum()
    assert 1 < want.max() < 5
    words = {"tolerance": 0.01, "first": 0.1} if own is least_eps else {"increment": 0.01}
    found = own(model, x, y, attack=PGD(eps=1, step_size=1, steps=10, start="clean", scale=units),
                cap=5.0, **words)
    assert not found.censored.any()
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + 0.01 + 1e-9).all()
    with pytest.raises(CourseError, match="must be finite"):
        own(model, x, y, attack=PGD(scale=units), cap=float("inf"))


@pytest.mark.parametrize("words", [{"first": 0.0}, {"first": 0.5, "cap": 0.1}, {"tolerance": 0.0},
                                   {"cap": 2.0}])
def test_bad_brackets(words: dict[str, float]) -> None:
    with pytest.raises(CourseError, match="first"):
        least_eps(Linear(), torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64), torch.tensor([0]),
                  **words)


def test_cru_eps_by_hand() -> None:
    least = LeastEps(torch.tensor([0.0, 0.02, 0.04, 0.06]), torch.tensor([False] * 4), 0)
    y = torch.tensor([0, 0, 1, 1])
    assert cru_eps(least, y, 2) == pytest.approx(0.05 - 0.01)
    assert cru_eps(least, y, 2, right_only=True) == pytest.approx(0.05 - 0.02)
    with pytest.raises(CourseError, match="Class 2 holds no example"):
        cru_eps(least, y, 3)


def test_luf_by_hand_and_its_identity() -> None:
    full = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]])
    without = torch.stack([torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.5, 0.5]]), full])
    found = luf(full, without)
    assert found.luf == pytest.approx((0.2 + 0.2 + 0) / 3) and found.flips == (1, 0)
    assert found.luf_t == pytest.approx(1 / 3) and found.luf_l == pytest.approx(1 / 2)
    p = torch.rand(20, 30, 4, generator=seeded(0)).softmax(2)
    r = luf(p[0], p[1:])
    assert r.luf_l == pytest.approx(r.luf_t * 30 / 19)
    assert luf(p[0], p[:1]) == luf(p[1], p[1:2])  # nothing changed: no unfairness
    with pytest.raises(CourseError, match=r"\[L, X, C\]"):
        luf(p[0], p[0])


def test_eou_by_hand_and_by_fairlearn() -> None:
    g, names = seeded(3), ("a", "b", "c")
    confidence = torch.rand(500, generator=g)
    y, group = (torch.randint(n, (500,), generator=g) for n in (2, 3))
    frame = MetricFrame(metrics=lambda t, p: float(np.mean(p)), y_true=y.numpy(),
                        y_pred=confidence.numpy(), sensitive_features=group.numpy(),
                        control_features=y.numpy())
    assert eou(confidence, y, group, names) == pytest.approx(tuple(frame.difference()), abs=1e-6)
    # the paper's tables IV and V: .272 - .198 = .074 and .717 - .626 = .091 for gender
    table, y, group = torch.tensor([0.272, 0.198, 0.717, 0.626]), *torch.tensor([[0, 0, 1, 1],
                                                                                 [0, 1, 0, 1]])
    assert eou(table, y, group, ("male", "female")) == pytest.approx((0.074, 0.091), abs=1e-6)
    assert scores.group_means(table, y, group, ("male", "female")) == pytest.approx(
        table.reshape(2, 2).numpy())


@pytest.mark.parametrize(("change", "says"), [
    ({}, "No example of label 1 belongs to female"),
    ({"names": ("male",)}, "The only group is male"),
    ({"group": torch.tensor([0, 2, 0, 0])}, "Groups run from 0 to 2"),
    ({"y": torch.tensor([0, 2, 1, 1])}, "Labels run from 0 to 2"),
    ({"confidence": torch.tensor([0, 1, 1, torch.nan])}, "NaN or infinite"),
    ({"confidence": torch.rand(2)}, "give one of each"),
])
def test_groups_that_have_no_eou(change: dict[str, Any], says: str) -> None:
    given = {"confidence": torch.rand(4), "y": torch.tensor([0, 0, 1, 1]),
             "group": torch.tensor([0, 1, 0, 0]), "names": ("male", "female")}
    with pytest.raises(CourseError, match=says):
        eou(**given | change)
