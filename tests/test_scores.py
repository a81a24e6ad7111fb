"""Scores and diagnoses against closed forms, fairlearn, and examples by hand."""

import numpy as np
import pytest
import torch
from fairlearn.metrics import MetricFrame
from torch import nn

from course_lib import PGD, CourseError, Report, Split, build
from course_lib import diagnostics as d
from course_lib.fairness import Errors
from course_lib.inference import predict
from course_lib.lessons.scores import PRINTED, differences
from course_lib.scores import LeastEps, cau, cru_eps, cru_s, eou, grid_eps, least_eps, luf
from course_lib.tables import compare_scores, score_results
from course_lib.zoo import load_record
from tests.helpers import Linear, Small, images, labels, left_alone, seeded, split

REPORT = Report(Errors((1, 5, 2), (10, 10, 20)), Errors((4, 9, 4), (10, 10, 20)),
                ("cat", "dog", "frog"))
LOST = Report(Errors((10, 1), (10, 10)), Errors((10, 1), (10, 10)), ("cat", "dog"))
HALF = torch.full((4, 1, 2, 2), 0.5, dtype=torch.float64)


def exact(model, x, y, scale=1.0):
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
    (grid_eps, {"increment": 0.01, "cap": 5.0}, TABLE)])
def test_least_eps_of_a_linear_model(own, words, attack):
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


def test_least_eps_is_a_budget_that_succeeds():
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


def test_examples_that_no_budget_breaks_are_censored_and_cru_eps_is_the_range():
    model = Linear((1, 2, 2))
    y = model(HALF).argmax(1)
    far = exact(model, HALF, y)
    found = least_eps(model, HALF, y, cap=0.9 * float(far[0]), first=float(far[0]) / 3)
    assert found.censored.all() and torch.allclose(found.eps, 0.9 * far)
    least = LeastEps(torch.tensor([0.0, 0.02, 0.04, 0.06]), torch.tensor([False] * 4), 0)
    assert cru_eps(least, torch.tensor([0, 0, 1, 1]), 2) == pytest.approx(0.05 - 0.01)


def test_what_notebook_05_does_not_compute_by_hand():
    assert cau(REPORT) == pytest.approx(0.5 - 0.1) and cru_s(LOST) == pytest.approx(0.9)
    assert cru_s(REPORT, correct_only=True) == pytest.approx(4 / 5 - 2 / 18)
    full, changed = torch.tensor([[0.4, 0.6], [0.9, 0.1]]), torch.tensor([[0.6, 0.4], [0.9, 0.1]])
    found = luf(full, torch.stack([changed, full]))
    assert found.flips == (1, 0) and found.luf_l == pytest.approx(1 / 2)


def test_eou_is_fairlearns():
    g, names = seeded(3), ("a", "b", "c")
    confidence = torch.rand(500, generator=g)
    y, group = (torch.randint(n, (500,), generator=g) for n in (2, 3))
    frame = MetricFrame(metrics=lambda t, p: float(np.mean(p)), y_true=y.numpy(),
                        y_pred=confidence.numpy(), sensitive_features=group.numpy(),
                        control_features=y.numpy())
    assert eou(confidence, y, group, names) == pytest.approx(tuple(frame.difference()), abs=1e-6)


def of_groups(**change):
    given = {"confidence": torch.rand(4), "y": torch.tensor([0, 0, 1, 1]),
             "group": torch.tensor([0, 1, 0, 0]), "names": ("male", "female")}
    return lambda: eou(**given | change)


def search(**words):
    return lambda: least_eps(Linear(), HALF, torch.zeros(4, dtype=torch.int64), **words)


@pytest.mark.parametrize(("call", "says"), [
    (lambda: cru_s(LOST, correct_only=True), "No image of cat is right when clean"),
    (lambda: LeastEps(torch.ones(1), torch.ones(1), 0).by_class(torch.zeros(1), 2),
     "Class 1 holds no example"),
    (lambda: luf(torch.rand(3, 2), torch.rand(3, 2)), r"\[L, X, C\]"),
    (search(first=0.5, cap=0.1), "first"), (search(tolerance=0.0), "tolerance is 0"),
    (search(cap=2.0), "must be finite"),
    (of_groups(), "No example of label 1 belongs to female"),
    (of_groups(y=torch.tensor([0, 2, 1, 1])), r"labels \[0, 1, 2\]"),
    (of_groups(confidence=torch.tensor([0, 1, 1, torch.nan])), "a finite confidence"),
    (lambda: d.confusion(torch.tensor([0, 1]), torch.tensor([0]), 2), "2 labels and 1 pred"),
    (lambda: d.confusion(torch.tensor([0]), torch.tensor([2]), 2), "lie in 0 to 1"),
    (lambda: d.kept(torch.tensor([[1, 0], [0, 0]])), "A class has no image"),
    (lambda: d.steps_to_wrong(Threshold(), split(0), PGD()), "The split is empty"),
    *[(lambda n=n: d.constraint(torch.ones(n), torch.ones(2 * (n > 0))), f"given: {n} and")
      for n in (0, 3)]])
def test_bad_input_gets_a_sentence(call, says):
    with pytest.raises(CourseError, match=says):
        call()


def of(recipe, score, value, **which):
    rows = [row for seed in range(3) for row in load_record(recipe, seed=seed)["scores"]]
    return np.array([value(row) for row in rows
                     if row["score"] == score and which.items() <= row.items()])


def test_stored_scores_as_tables():
    static = of("scores/adult-static", "static", lambda row: 100 - 100 * row["accuracy"], eps=15)
    table = score_results("scores/adult-static").set_index("figure")
    assert table.loc["error on copies, 15 units", "mean"] == pytest.approx(static.mean())
    new, old = (of(f"scores/adult-{kind}", "EOU", lambda row: 100 * row["value"][1], group="race")
                for kind in ("robust", "standard"))
    table = compare_scores("scores/adult-standard", "scores/adult-robust").set_index("figure")
    row = table.loc["EOU, race, label 1"]
    assert (row["difference"], row["sd"], row["n"]) == pytest.approx(
        ((new - old).mean(), (new - old).std(ddof=1), 3))
    found = differences()  # the papers' claims have one each
    assert {*PRINTED} <= {*found} and {found[label].n for label in PRINTED} == {3}


MATRIX = torch.tensor([[6, 2, 2], [1, 3, 0], [0, 10, 10]])  # classes of 10, 4 and 20 images


class Threshold(nn.Module):
    """Right (class 1) where the mean of x exceeds one half; its margin is 4 mean - 2."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        score = x.flatten(1) @ self.w - 0.5 * self.w.sum()
        return torch.stack([torch.zeros_like(score), score], 1)


def test_shares_diagonal_and_columns_of_a_hand_made_matrix():
    assert d.shares(MATRIX)[1].tolist() == [0.25, 0.75, 0]
    assert d.kept(MATRIX).tolist() == pytest.approx([0.6, 0.75, 0.5])
    # columns of the shares sum to .85, 1.45, .70, in all 3; without the diagonal to .25, .70, .20,
    # in all 1.15
    assert (3 * d.targets(MATRIX)).tolist() == pytest.approx([0.85, 1.45, 0.7])
    assert (1.15 * d.targets(MATRIX, own=False)).tolist() == pytest.approx([0.25, 0.7, 0.2])
    both = torch.stack([MATRIX, MATRIX.flip(1)])
    for read in (d.shares, d.kept, d.targets):
        assert torch.equal(read(both), torch.stack([read(m) for m in both]))
    assert d.targets(torch.eye(3), own=False).tolist() == [0, 0, 0]  # nothing is wrong
    p = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert d.from_uniform(p).tolist() == pytest.approx([0, 1 - 1 / 4, 0.5])


def test_the_path_of_confusion_matrices_is_that_of_the_attack():
    model, data = build("lenet5", classes=3), split(25, (1, 32, 32))
    attack = PGD(0.1, 0.03, 4)
    with left_alone(model):
        found = d.confusion_path(model, data, attack, batch=100)
    assert len(found) == 5
    for t, (z, right) in enumerate(attack.path(model, data.images(), data.y, generator=seeded(0))):
        assert torch.equal(found[t], d.confusion(data.y, predict(model, z), 3))
        assert int(found[t].diagonal().sum()) == int(right.sum())
    attack = PGD(0.1, 0.01, 12, start="clean")  # without chance, batches change nothing
    at_once, parts = (d.steps_to_wrong(model, data, attack, batch=b) for b in (100, 7))
    assert torch.equal(at_once[0], parts[0]) and torch.equal(parts[1], data.y)


def test_steps_on_a_linear_model():
    """The mean falls by .02 a step and one half is crossed after ceil(gap / .02) steps; .10 is all
    the budget allows."""
    x = torch.tensor([0.55, 0.51, 0.4, 0.59, 0.7]).reshape(5, 1, 1, 1).repeat(1, 1, 2, 2)
    data = Split(x, torch.ones(5, dtype=torch.int64), ("a", "b"))
    t, y = d.steps_to_wrong(Threshold(), data, PGD(0.1, 0.02, 20, start="clean"))
    assert t.tolist() == [3, 1, 0, 5, 20]
    means = d.class_means(t, y, 2)
    assert np.isnan(means[0]) and means[1] == pytest.approx(29 / 5)


def test_distance_to_the_boundary_of_a_linear_model():
    """|m_j| / ||w_y - w_j||_1 for the nearest rival j, which need not be the runner-up; negative
    where wrong; moving by it reaches the boundary. A model ten times as confident is equally far,
    and without a margin it is zero."""
    model, x, y = Linear(classes=3, seed=2), images(40, (1, 2, 2), dtype=torch.float64), labels(40)
    with left_alone(model):
        distance = d.boundary_distance(model, x, y)
    f, rows = model(x).detach(), model.weight.detach()
    each = (f.gather(1, y[:, None]) - f) / (rows[y][:, None] - rows).abs().sum(2)
    j = each.scatter(1, y[:, None], torch.inf).argmin(1)
    assert (j != f.scatter(1, y[:, None], -torch.inf).argmax(1)).any()
    w, b = ((v[y] - v[j]).detach() for v in (model.weight, model.bias))
    torch.testing.assert_close(distance, ((x.flatten(1) * w).sum(1) + b) / w.abs().sum(1))
    assert bool((distance < 0).any()) and bool((distance > 0).any())
    on_it = x.flatten(1) - distance[:, None] * w.sign()
    assert ((on_it * w).sum(1) + b).abs().max() < 1e-12
    for scale, distances in ((10, distance), (0, 0 * distance)):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(scale)
        torch.testing.assert_close(d.boundary_distance(model, x, y), distances)


def test_eq_4_by_hand_and_its_parts_between_and_within_classes():
    delta, distance = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 3.0, 3.0])
    # delta less its mean, 3: -2, -1, 3
    assert d.constraint(delta, distance) == pytest.approx((0 - 3 + 9) / 3)
    # all equally far: fair
    assert d.constraint(delta, torch.full((3,), 5.0)) == pytest.approx(0, abs=1e-12)
    delta, distance = torch.rand(2, 60, generator=seeded(4))
    y, total = torch.arange(60) ** 2 % 5 % 3, d.constraint(delta, distance)
    within = sum(len(y[y == c]) / 60 * d.constraint(delta[y == c], distance[y == c])
                 for c in y.unique())
    assert total == pytest.approx(d.between_classes(delta, distance, y) + within)
    assert d.between_classes(delta, distance, torch.zeros_like(y)) == pytest.approx(0, abs=1e-12)
    assert d.between_classes(delta, distance, torch.arange(60)) == pytest.approx(total)
