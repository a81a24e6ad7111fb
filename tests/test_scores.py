"""The four scores against closed forms, fairlearn, and examples worked out by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame

from course_lib import PGD, CourseError, Report
from course_lib.fairness import Errors
from course_lib.scores import SCORES, LeastEps, cau, cru_eps, cru_s, eou, grid_eps, group_means, least_eps, luf, success
from tests.helpers import Linear, seeded

REPORT = Report(Errors((1, 5, 2), (10, 10, 20)), Errors((4, 9, 4), (10, 10, 20)),
                ("cat", "dog", "frog"))


def test_cau_by_hand_and_by_fairlearn() -> None:
    assert cau(REPORT) == pytest.approx(0.5 - 0.1)
    y = np.repeat([0, 1, 2], [10, 10, 20])
    right = np.concatenate([np.arange(n) >= w for w,
                            n in zip(REPORT.nat.wrong, REPORT.nat.counts, strict=True)])
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


def exact(model: Linear, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """eps*(x) = |margin| / ||w_y - w_other||_1 for two classes, away from the box; 0 where the
    example is wrong."""
    logits, w = model(x).detach(), (model.weight[1] - model.weight[0]).detach()
    gap = (logits[:, 1] - logits[:, 0]) * (2 * y - 1)
    return gap.clamp(min=0) / w.abs().sum()


@pytest.mark.parametrize("start", ["uniform", "clean"])
def test_least_eps_of_a_linear_model(start: str) -> None:
    model, n, tolerance = Linear((1, 4, 4)), 200, 1 / 2550
    x = 0.5 + 0.05 * (torch.rand(n, 1, 4, 4, generator=seeded(0), dtype=torch.float64) - 0.5)
    y = torch.arange(n) % 2
    want = exact(model, x, y)
    assert (want == 0).any() and want.max() > 0.005
    found = least_eps(model, x, y, attack=PGD(steps=10, start=start), tolerance=tolerance)
    assert not found.censored.any() and found.eps[want == 0].eq(0).all()
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + tolerance + 1e-9).all()
    assert found.steps % 10 == 0 and found.steps > 0


def test_least_eps_is_a_budget_that_succeeds() -> None:
    """Also where a network is not linear: an example at that distance exists, so the same attack
    finds one within a hair more."""
    from tests.helpers import Small

    model = Small(seed=1).double()
    x = torch.rand(60, 1, 6, 6, generator=seeded(1), dtype=torch.float64)
    y = model.eval()(x).argmax(1)
    found = least_eps(model, x, y, cap=0.5)
    hit = ~found.censored
    assert hit.any() and (found.eps[hit] > 0).all()
    coarse = least_eps(model, x, y, cap=0.5, tolerance=1 / 20)
    assert (found.eps[hit] <= coarse.eps[hit] + 1 / 20).all() and coarse.steps < found.steps


def test_what_no_budget_breaks_is_censored() -> None:
    model = Linear((1, 2, 2))
    x = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)
    y = model(x).argmax(1)
    far = float(exact(model, x, y)[0])
    found = least_eps(model, x, y, cap=far / 2, first=far / 8)
    assert found.censored.all() and torch.allclose(found.eps,
                                                   torch.full((4,), far / 2, dtype=torch.float64))


def test_the_papers_increments_are_too_large_by_one_at_most() -> None:
    model, step = Linear((1, 4, 4)), 1 / 1000
    x = 0.5 + 0.05 * (torch.rand(50, 1, 4, 4, generator=seeded(2), dtype=torch.float64) - 0.5)
    y = model(x).argmax(1)
    want, found = exact(model, x, y), grid_eps(model, x, y, attack=PGD(steps=5, start="clean"),
                                               increment=step, cap=0.2)
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + step + 1e-9).all()
    multiples = found.eps / step
    assert torch.allclose(multiples, multiples.round())


def test_cru_eps_by_hand() -> None:
    least, y = LeastEps(torch.tensor([0.0, 0.02, 0.04, 0.06]), torch.tensor([False] * 4),
                        0), torch.tensor([0, 0, 1, 1])
    assert cru_eps(least, y, 2) == pytest.approx(0.05 - 0.01) and cru_eps(least, y, 2,
        right_only=True) == pytest.approx(0.05 - 0.02)
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
    g = seeded(3)
    confidence, y, group = torch.rand(500, generator=g), torch.randint(2, (500,),
        generator=g), torch.randint(3, (500,), generator=g)
    names = ("a", "b", "c")
    frame = MetricFrame(metrics=lambda t, p: float(np.mean(p)), y_true=y.numpy(),
                        y_pred=confidence.numpy(),
                        sensitive_features=group.numpy(), control_features=y.numpy())
    assert eou(confidence, y, group, names) == pytest.approx(tuple(frame.difference()), abs=1e-6)
    by_hand = group_means(torch.tensor([0.2, 0.4, 0.9, 0.8]), torch.tensor([0, 0, 1, 1]),
                          torch.tensor([0, 1, 0, 1]), ("a", "b"))
    assert by_hand == pytest.approx(np.array([[0.2, 0.4], [0.9, 0.8]]))


def test_the_papers_tables_iv_and_v_give_its_eou() -> None:
    """Worked out by hand: .272 - .198 = .074 and .717 - .626 = .091 for gender and the standard
    model."""
    names, y = ("male", "female"), torch.tensor([0, 0, 1, 1])
    assert eou(torch.tensor([0.272, 0.198, 0.717, 0.626]), y, torch.tensor([0, 1, 0, 1]),
               names) == pytest.approx((0.074, 0.091), abs=1e-6)


def test_an_empty_or_unknown_group_is_told() -> None:
    c, y, group = torch.rand(4), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 0])
    with pytest.raises(CourseError, match="No example of label 1 belongs to female"):
        eou(c, y, group, ("male", "female"))
    with pytest.raises(CourseError, match="Groups run from 0 to 1"):
        group_means(c, y, group, ("male",))
    with pytest.raises(CourseError, match="The only group is male"):
        eou(c, y, torch.zeros(4, dtype=torch.int64), ("male",))
    with pytest.raises(CourseError, match="give one of each"):
        eou(c[:2], y, group, ("male", "female"))


@pytest.mark.parametrize("words", [{"first": 0.0}, {"first": 0.5, "cap": 0.1}, {"tolerance": 0.0},
                                   {"cap": 2.0}])
def test_bad_brackets(words: dict[str, float]) -> None:
    with pytest.raises(CourseError, match="first"):
        least_eps(Linear(), torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64), torch.tensor([0]),
                  **words)


def test_the_registry() -> None:
    assert list(SCORES) == ["CAU", "CRU_eps", "CRU_s", "LUF", "EOU"]


@pytest.mark.parametrize("own", [least_eps, grid_eps])
def test_least_eps_in_a_tables_own_units(own: Any) -> None:
    """eps*(x) = |margin| / sum_j units_j |w_j| on a linear model, away from the box; the cap may
    exceed 1."""
    units, n = (1 / 10, 1 / 100, 1 / 1000), 60
    model = Linear((3,))
    x = 0.5 + 0.02 * (torch.rand(n, 3, generator=seeded(4), dtype=torch.float64) - 0.5)
    y = model(x).argmax(1)
    gap = (model(x)[:, 1] - model(x)[:, 0]).abs().detach()
    want = gap / ((model.weight[1] - model.weight[0]).abs().detach() * torch.tensor(units,
        dtype=torch.float64)).sum()
    assert 1 < want.max() < 5
    words = {"tolerance": 0.01, "first": 0.1} if own is least_eps else {"increment": 0.01}
    found = own(model, x, y, attack=PGD(eps=1, step_size=1, steps=10, start="clean", scale=units),
                cap=5.0, **words)
    assert not found.censored.any() and (found.eps >= want - 1e-9).all() and (found.eps <= want
        + 0.01 + 1e-9).all()
    with pytest.raises(CourseError, match="be finite"):
        own(model, x, y, attack=PGD(scale=units), cap=float("inf"))
