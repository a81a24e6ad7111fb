"""Confusion, steps, distances and Eq. 4: hand-made matrices, and linear models that can be solved
by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_lib import diagnostics as d
from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.errors import CourseError
from course_lib.inference import predict
from course_lib.models import build
from tests.helpers import THREE, Linear, images, labels, left_alone, seeded, split

MATRIX = torch.tensor([[6, 2, 2], [1, 3, 0], [0, 10, 10]])  # classes of 10, 4 and 20 images


class Threshold(nn.Module):
    """Right (class 1) where the mean of x exceeds one half; its margin is the mean times four, less
    two."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1) @ self.w - 0.5 * self.w.sum()
        return torch.stack([torch.zeros_like(score), score], 1)


def flat(*values: float) -> torch.Tensor:
    return torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


def test_confusion_counts_source_by_target() -> None:
    y, predicted = torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 1, 1, 2, 0])
    assert d.confusion(y, predicted, 3).tolist() == [[1, 2, 0], [0, 0, 0], [1, 0, 1]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_confusion_loses_no_image(pairs: list[tuple[int, int]]) -> None:
    y, predicted = (torch.tensor([p[k] for p in pairs], dtype=torch.int64) for k in (0, 1))
    found = d.confusion(y, predicted, 4)
    assert found.sum(1).tolist() == torch.bincount(y, minlength=4).tolist()
    assert found.sum(0).tolist() == torch.bincount(predicted, minlength=4).tolist()
    assert int(found.diagonal().sum()) == int((y == predicted).sum())


def test_shares_diagonal_and_columns_of_a_hand_made_matrix() -> None:
    assert d.shares(MATRIX).tolist() == [[pytest.approx(v) for v in row]
                                         for row in ([0.6, 0.2, 0.2], [0.25, 0.75, 0],
                                                     [0, 0.5, 0.5])]
    assert d.kept(MATRIX).tolist() == pytest.approx([0.6, 0.75, 0.5])
    # columns of the shares sum to .85, 1.45, .70, in all 3; without the diagonal to .25, .70, .20,
    # in all 1.15
    assert d.targets(MATRIX).tolist() == pytest.approx([0.85 / 3, 1.45 / 3, 0.7 / 3])
    assert d.targets(MATRIX, own=False).tolist() == pytest.approx([0.25 / 1.15, 0.7 / 1.15,
        0.2 / 1.15])


def test_matrices_are_read_one_by_one() -> None:
    both = torch.stack([MATRIX, MATRIX.flip(1)])
    for read in (d.shares, d.kept, d.targets):
        assert torch.equal(read(both), torch.stack([read(m) for m in both]))


def test_nothing_wrong_means_no_target() -> None:
    assert d.targets(torch.eye(3), own=False).tolist() == [0, 0, 0]
    assert d.targets(torch.eye(3)).tolist() == pytest.approx([1 / 3] * 3)


def test_distance_from_uniform() -> None:
    assert float(d.from_uniform(torch.tensor([0.25] * 4))) == 0
    # all to one: 1 - 1/C
    assert float(d.from_uniform(torch.tensor([1.0, 0, 0, 0]))) == pytest.approx(0.75)
    assert float(d.from_uniform(torch.tensor([0.5, 0.5, 0, 0]))) == pytest.approx(0.5)
    assert d.from_uniform(torch.tensor([[1.0, 0], [0.5, 0.5]])).tolist() == pytest.approx([0.5, 0])


def test_the_path_of_confusion_matrices_is_that_of_the_attack() -> None:
    model, data = build("lenet5", classes=3), split(25, (1, 32, 32))
    attack = PGD(0.1, 0.03, 4)
    with left_alone(model):
        found = d.confusion_path(model, data, attack, batch=100)
    assert found.shape == (5, 3, 3) and (found.sum((1, 2)) == 25).all()
    for t, (z, right) in enumerate(attack.path(model, data.images(), data.y, generator=seeded(0))):
        assert torch.equal(found[t], d.confusion(data.y, predict(model, z), 3))
        assert int(found[t].diagonal().sum()) == int(right.sum())
    assert (d.confusion_path(model, data, attack, batch=10).sum((1, 2)) == 25).all()


def test_steps_on_a_linear_model() -> None:
    """The mean falls by .02 a step and one half is crossed after ceil(gap / .02) steps; .10 is all
    the budget allows."""
    data = Split(flat(0.55, 0.51, 0.4, 0.59, 0.7), torch.ones(5, dtype=torch.int64), ("a", "b"))
    steps = d.steps_to_wrong(Threshold(), data, PGD(0.1, 0.02, 20, start="clean"))
    assert steps.t.tolist() == [3, 1, 0, 5, 20]
    assert np.isnan(steps.mean[0]) and steps.mean[1] == pytest.approx(29 / 5)
    assert steps.censored[1] == pytest.approx(1 / 5) and steps.of_the_lost[1] == pytest.approx(9
        / 4)


def test_a_class_that_is_never_lost_has_no_mean_over_the_lost() -> None:
    steps = d.Steps(torch.tensor([7, 7, 2]), torch.tensor([0, 0, 1]), 7, ("a", "b"))
    assert np.isnan(steps.of_the_lost[0]) and steps.of_the_lost[1] == 2
    assert steps.censored.tolist() == [1, 0] and steps.mean.tolist() == [7, 2]


def test_counting_steps_in_batches_gives_the_same() -> None:
    model, data = build("lenet5", classes=3), split(25, (1, 32, 32))
    attack = PGD(0.1, 0.01, 12, start="clean")
    whole, parts = (d.steps_to_wrong(model, data, attack, batch=b) for b in (100, 7))
    assert torch.equal(whole.t, parts.t) and torch.equal(whole.y, parts.y)


def test_distance_to_the_boundary_of_a_linear_model() -> None:
    """|m| / ||w_y - w_j||_1 for the nearest rival, negative where wrong; moving by it reaches the
    boundary."""
    model, x, y = Linear((1, 2, 2), classes=2, seed=1), images(40, (1, 2, 2),
        dtype=torch.float64), labels(40, 2)
    with left_alone(model):
        distance = d.boundary_distance(model, x, y)
    w, b = (model.weight[1] - model.weight[0]).detach(), (model.bias[1] - model.bias[0]).detach()
    score = (x.flatten(1) @ w + b) * (2 * y - 1)
    torch.testing.assert_close(distance, score / w.abs().sum())
    assert bool((distance < 0).any()) and bool((distance > 0).any())
    on_it = x.flatten(1) - distance[:, None] * (2 * y - 1)[:, None] * w.sign()
    torch.testing.assert_close(on_it @ w + b, torch.zeros(40, dtype=torch.float64), atol=1e-12,
                               rtol=0)


def test_distance_is_the_same_for_a_model_ten_times_as_confident() -> None:
    model, loud = (Linear((1, 2, 2), classes=3, seed=2) for _ in range(2))
    with torch.no_grad():
        for p in loud.parameters():
            p.mul_(10)
    x, y = images(9, (1, 2, 2), dtype=torch.float64), labels(9)
    torch.testing.assert_close(d.boundary_distance(model, x, y), d.boundary_distance(loud, x, y))


def test_a_model_without_a_gradient_is_infinitely_far() -> None:
    model = Threshold()
    with torch.no_grad():
        model.w.zero_()
    size, dead = d.gradient_size(model, flat(0.4, 0.6), torch.tensor([1, 1]))
    assert size.tolist() == [0, 0] and dead.tolist() == [1, 1]
    # nor is there a margin
    assert d.boundary_distance(model, flat(0.4), torch.tensor([1])).tolist() == [0]


def test_size_of_the_gradient_of_a_linear_model() -> None:
    """grad CE = (p_1 - 1) w, so its l1 norm is 4 (1 - p_1) for w = (1, 1, 1, 1)."""
    model, x = Threshold(), flat(0.3, 0.8)
    size, dead = d.gradient_size(model, x, torch.tensor([1, 1]))
    torch.testing.assert_close(size, 4 * (1 - model(x).softmax(1)[:, 1].detach()))
    assert dead.tolist() == [0, 0]
    assert d.gradient_size(model, x, torch.tensor([1, 1]),
                           "margin")[0].tolist() == pytest.approx([4, 4])


def test_eq_4_by_hand() -> None:
    delta, distance = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([0.0, 3.0, 3.0])
    # delta less its mean, 3: -2, -1, 3
    assert d.constraint(delta, distance) == pytest.approx((0 - 3 + 9) / 3)
    assert d.constraint(delta, distance, torch.tensor([1.0, 1.0, 2.0])) == pytest.approx((0 + 3
        + 12) / 3)
    # all equally far: fair
    assert d.constraint(delta, torch.full((3,), 5.0)) == pytest.approx(0, abs=1e-12)


def test_eq_4_falls_apart_into_between_and_within_classes() -> None:
    g = seeded(4)
    delta, distance, y = torch.rand(60, generator=g), torch.rand(60,
        generator=g), torch.arange(60) ** 2 % 5 % 3
    within = sum(len(y[y == c]) / 60 * d.constraint(delta[y == c], distance[y == c])
                 for c in y.unique())
    assert d.constraint(delta, distance) == pytest.approx(d.between_classes(delta, distance,
        y) + within)
    assert d.between_classes(delta, distance, torch.zeros_like(y)) == pytest.approx(0, abs=1e-12)
    assert d.between_classes(delta, distance,
                             torch.arange(60)) == pytest.approx(d.constraint(delta, distance))


def test_perturbations_grow_step_by_step() -> None:
    """Four pixels move by .02 a step: ||z_t - x||_2 = .04 t up to the budget, here after three of
    five steps."""
    last, mean = d.perturbations(Threshold(), flat(0.7), torch.tensor([1]),
                                 PGD(0.06, 0.02, 5, start="clean"))
    assert last.item() == pytest.approx(0.12,
                                        abs=1e-6) and mean.item() == pytest.approx((0.04 + 0.08 + 3
                                            * 0.12) / 5, abs=1e-6)


def test_correlations() -> None:
    u = np.array([1.0, 2.0, 3.0, 4.0])
    assert d.correlation(u, 5 - 2 * u) == pytest.approx(-1)
    assert d.correlation(u, np.array([1.0, -1.0, -1.0, 1.0])) == pytest.approx(0)
    assert d.correlation(u, np.exp(3 * u)) < 0.95 and d.correlation(u, np.exp(3 * u),
        ranks=True) == pytest.approx(1)
    # ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: r = 4.5 / sqrt(4.5 * 5)
    assert d.correlation(np.array([0.0, 7.0, 7.0, 9.0]), u,
                         ranks=True) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert np.isnan(d.correlation(u, np.ones(4)))


BAD = {
    "labels and predictions": lambda: d.confusion(torch.tensor([0, 1]), torch.tensor([0]), 2),
    "a class too many": lambda: d.confusion(torch.tensor([0]), torch.tensor([2]), 2),
    "a class below zero": lambda: d.confusion(torch.tensor([-1]), torch.tensor([0]), 2),
    "an empty class": lambda: d.kept(torch.tensor([[1, 0], [0, 0]])),
    "an empty split": lambda: d.steps_to_wrong(Threshold(),
                                               Split(torch.rand(0, 1, 2, 2),
                                                     torch.zeros(0, dtype=torch.int64),
                                                     ("a", "b"))),
    "no image for Eq. 4": lambda: d.constraint(torch.zeros(0), torch.zeros(0)),
    "a centre too short": lambda: d.constraint(torch.ones(3), torch.ones(3), torch.ones(2)),
    "one number": lambda: d.correlation(np.ones(1), np.ones(1)),
    "an objective": lambda: d.gradient_size(Threshold(), flat(0.5), torch.tensor([1]), "dlr"),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
def test_what_cannot_be_diagnosed_is_told(bad) -> None:
    with pytest.raises(CourseError):
        bad()


def test_the_class_names_go_along() -> None:
    assert d.steps_to_wrong(Linear((1, 6, 6), 3, dtype=torch.float32), split(),
                            PGD(steps=2)).classes == THREE
