"""The four scores against closed forms, fairlearn, and examples worked out by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame

from course_lib import PGD, CourseError, Report
from course_lib.fairness import Errors
from course_lib.lessons.scores import PRINTED, differences
from course_lib.scores import LeastEps, cau, cru_eps, cru_s, eou, grid_eps, least_eps, luf, success
from course_lib.tables import compare_scores, score_results
from course_lib.zoo import load_scores
from tests.helpers import Linear, Small, seeded

REPORT = Report(Errors((1, 5, 2), (10, 10, 20)), Errors((4, 9, 4), (10, 10, 20)),
                ("cat", "dog", "frog"))
LOST = Report(Errors((10, 1), (10, 10)), Errors((10, 1), (10, 10)), ("cat", "dog"))
HALF = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)


def test_cau_and_cru_s_by_hand() -> None:
    assert cau(REPORT) == pytest.approx(0.5 - 0.1)
    assert success(REPORT).tolist() == [0.4, 0.9, 0.2] and cru_s(REPORT) == pytest.approx(0.7)
    assert success(REPORT, correct_only=True) == pytest.approx([3 / 9, 4 / 5, 2 / 18])
    assert cru_s(REPORT, correct_only=True) == pytest.approx(4 / 5 - 2 / 18)
    assert cru_s(LOST) == pytest.approx(0.9)


def exact(model: Linear, x: torch.Tensor, y: torch.Tensor, scale: Any = 1.0) -> torch.Tensor:
    """eps*(x) = |margin| / sum_j scale_j |w_yj - w_j| for two classes, away from the box; 0 where
    the example is wrong."""
    logits, w = model(x).detach(), (model.weight[1] - model.weight[0]).detach()
    gap = ((logits[:, 1] - logits[:, 0]) * (2 * y - 1)).clamp(min=0)
    return gap / (w.abs() * torch.tensor(scale)).sum()


TABLE = PGD(eps=1, step_size=1, steps=10, start="clean", scale=(1 / 10, 1 / 100, 1 / 1000))


@pytest.mark.parametrize(("own", "words", "attack"), [
    (least_eps, {"tolerance": 1 / 2550}, PGD(steps=10)),
    (least_eps, {"tolerance": 1 / 2550}, PGD(steps=10, start="clean")),
    (least_eps, {"tolerance": 0.01, "first": 0.1, "cap": 5.0}, TABLE),
    (grid_eps, {"increment": 1 / 60, "cap": 0.2}, PGD(steps=10, start="clean")),
    (grid_eps, {"increment": 0.01, "cap": 5.0}, TABLE),
])
def test_least_eps_of_a_linear_model(own: Any, words: dict[str, float], attack: PGD) -> None:
    """At most one tolerance, or one of the paper's increments, too large; a table's budgets are in
    its own units and may exceed 1."""
    shape = (3,) if attack.scale else (1, 4, 4)
    model, y, g = Linear(shape), torch.arange(100) % 2, seeded(0)
    x = 0.5 + 0.05 * (torch.rand(100, *shape, generator=g, dtype=torch.float64) - 0.5)
    want, found = exact(model, x, y, attack.scale or 1.0), own(model, x, y, attack=attack, **words)
    assert (want == 0).any() and want.max() > (1 if attack.scale else 0.005)
    assert not found.censored.any() and found.eps[want == 0].eq(0).all()
    step = next(iter(words.values()))
    assert (found.eps >= want - 1e-9).all() and (found.eps <= want + step + 1e-9).all()
    assert found.steps % attack.steps == 0 and found.steps > 0
    if own is grid_eps:
        assert torch.allclose(found.eps / step, (found.eps / step).round())


def test_least_eps_is_a_budget_that_succeeds() -> None:
    """Also where a network is not linear: an example at that distance exists, so the same attack
    finds one within a hair more."""
    model = Small(seed=1).double()
    x = torch.rand(60, 1, 6, 6, generator=seeded(1), dtype=torch.float64)
    y = model.eval()(x).argmax(1)
    found, coarse = (least_eps(model, x, y, cap=0.5, tolerance=t) for t in (1 / 2550, 1 / 20))
    hit = ~found.censored
    assert hit.any() and (found.eps[hit] > 0).all() and coarse.steps < found.steps
    assert (found.eps[hit] <= coarse.eps[hit] + 1 / 20).all()
    once = least_eps(model, x, y, cap=0.5, first=0.5, tolerance=1.0)
    assert (once.eps[~once.censored] < 0.5).any(), "the distance that was reached, not the budget"


def test_examples_that_no_budget_breaks_are_censored_and_cru_eps_is_the_range() -> None:
    model = Linear((1, 2, 2))
    y = model(HALF).argmax(1)
    far = exact(model, HALF, y)
    found = least_eps(model, HALF, y, cap=float(far[0]) / 2, first=float(far[0]) / 8)
    assert found.censored.all() and torch.allclose(found.eps, far / 2)
    least = LeastEps(torch.tensor([0.0, 0.02, 0.04, 0.06]), torch.tensor([False] * 4), 0)
    assert cru_eps(least, torch.tensor([0, 0, 1, 1]), 2) == pytest.approx(0.05 - 0.01)


def test_luf_by_hand() -> None:
    full = torch.tensor([[0.9, 0.1, 0], [0.4, 0.6, 0], [0.5, 0.5, 0]])
    without = torch.stack([torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.4, 0], [0.5, 0.5, 0]]), full])
    found = luf(full, without)
    assert found.luf == pytest.approx((0.2 + 0.2 + 0) / 3) and found.flips == (1, 0)
    assert found.luf_t == pytest.approx(1 / 3) and found.luf_l == pytest.approx(1 / 2)


def test_eou_by_hand_and_by_fairlearn() -> None:
    g, names = seeded(3), ("a", "b", "c")
    confidence = torch.rand(500, generator=g)
    y, group = (torch.randint(n, (500,), generator=g) for n in (2, 3))
    frame = MetricFrame(metrics=lambda t, p: float(np.mean(p)), y_true=y.numpy(),
                        y_pred=confidence.numpy(), sensitive_features=group.numpy(),
                        control_features=y.numpy())
    assert eou(confidence, y, group, names) == pytest.approx(tuple(frame.difference()), abs=1e-6)
    # the paper's tables IV and V: .272 - .198 = .074 and .717 - .626 = .091 for gender
    table, (y, group) = torch.tensor([0.272, 0.198, 0.717, 0.626]), torch.tensor([[0, 0, 1, 1],
                                                                                  [0, 1, 0, 1]])
    assert eou(table, y, group, ("male", "female")) == pytest.approx((0.074, 0.091), abs=1e-6)


def of_groups(**change: Any) -> Any:
    given = {"confidence": torch.rand(4), "y": torch.tensor([0, 0, 1, 1]),
             "group": torch.tensor([0, 1, 0, 0]), "names": ("male", "female")}
    return lambda: eou(**given | change)


def search(**words: Any) -> Any:
    return lambda: least_eps(Linear(), HALF, torch.zeros(4, dtype=torch.int64), **words)


@pytest.mark.parametrize(("call", "says"), [
    (lambda: cru_s(LOST, correct_only=True), "No image of cat is right when clean"),
    (lambda: LeastEps(torch.ones(1), torch.ones(1), 0).by_class(torch.zeros(1), 2),
     "Class 1 holds no example"),
    (lambda: luf(torch.rand(3, 2), torch.rand(3, 2)), r"\[L, X, C\]"),
    (search(first=0.0), "first"), (search(first=0.5, cap=0.1), "first"),
    (search(tolerance=0.0), "tolerance is 0"), (search(cap=2.0), "must be finite"),
    (search(attack=TABLE, cap=float("inf")), "must be finite"),
    (of_groups(), "No example of label 1 belongs to female"),
    (of_groups(names=("male",)), "two groups; given: male"),
    (of_groups(group=torch.tensor([0, 2, 0, 0])), r"groups \[0, 2\]"),
    (of_groups(y=torch.tensor([0, 2, 1, 1])), r"labels \[0, 1, 2\]"),
    (of_groups(confidence=torch.tensor([0, 1, 1, torch.nan])), "a finite confidence"),
    (of_groups(confidence=torch.rand(2)), "given: 2 confidences"),
])
def test_bad_input_gets_a_sentence(call: Callable[[], object], says: str) -> None:
    with pytest.raises(CourseError, match=says):
        call()


@pytest.mark.parametrize(("name", "score", "which", "figure", "value"), [
    ("cifar10-robust", "CRU_eps", {"estimator": "bisection"}, "CRU_eps (grey levels)",
     lambda row: 255 * row["value"]),
    ("adult-static", "static", {"eps": 15}, "error on copies, 15 units",
     lambda row: 100 - 100 * row["accuracy"]),
    ("adult-robust", "EOU", {"group": "race"}, "EOU, race, label 1",
     lambda row: 100 * row["value"][1]),
])
def test_stored_scores_as_tables(name: str, score: str, which: dict[str, Any], figure: str,
                                 value: Callable[[dict[str, Any]], float]) -> None:
    def of(recipe: str) -> np.ndarray:
        wanted = {"score": score, **which}.items()
        return np.array([value(row) for seed in range(3) for row in load_scores(recipe, seed=seed)
                         if wanted <= {k: row.get(k) for k, _ in wanted}.items()])

    table = score_results(f"scores/{name}").set_index("figure")
    assert table.loc[figure, "mean"] == pytest.approx(of(f"scores/{name}").mean())
    if score != "static":
        other = f"scores/{name.partition('-')[0]}-standard"
        row = compare_scores(other, f"scores/{name}").set_index("figure").loc[figure]
        change = of(f"scores/{name}") - of(other)
        assert (row["difference"], row["sd"], row["n"]) == pytest.approx(
            (change.mean(), change.std(ddof=1), 3))


def test_the_papers_claims_have_a_difference_each() -> None:
    found = differences()
    assert {*PRINTED} <= {*found} and {found[label].n for label in PRINTED} == {3}
