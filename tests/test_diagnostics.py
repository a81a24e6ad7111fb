"""Confusion, steps, distances and Eq. 4: hand-made matrices, and linear models that can be solved
by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from course_lib import diagnostics as d
from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.errors import CourseError
from course_lib.inference import predict
from course_lib.models import build
from tests.helpers import Linear, images, labels, left_alone, seeded, split

MATRIX = torch.tensor([[6, 2, 2], [1, 3, 0], [0, 10, 10]])  # classes of 10, 4 and 20 images


class Threshold(nn.Module):
    """Right (class 1) where the mean of x exceeds one half; its margin is 4 mean - 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        score = x.flatten(1) @ self.w - 0.5 * self.w.sum()
        return torch.stack([torch.zeros_like(score), score], 1)


def flat(*values: float) -> torch.Tensor:
    return torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()


def test_shares_diagonal_and_columns_of_a_hand_made_matrix() -> None:
    assert torch.allclose(d.shares(MATRIX), torch.tensor([[0.6, 0.2, 0.2], [0.25, 0.75, 0],
                                                          [0, 0.5, 0.5]]))
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


def test_the_path_of_confusion_matrices_is_that_of_the_attack() -> None:
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
    assert torch.equal(at_once.t, parts.t) and torch.equal(parts.y, data.y)


def test_steps_on_a_linear_model() -> None:
    """The mean falls by .02 a step and one half is crossed after ceil(gap / .02) steps; .10 is all
    the budget allows."""
    data = Split(flat(0.55, 0.51, 0.4, 0.59, 0.7), torch.ones(5, dtype=torch.int64), ("a", "b"))
    steps = d.steps_to_wrong(Threshold(), data, PGD(0.1, 0.02, 20, start="clean"))
    assert steps.t.tolist() == [3, 1, 0, 5, 20]
    assert np.isnan(steps.mean[0]) and steps.mean[1] == pytest.approx(29 / 5)


def test_distance_to_the_boundary_of_a_linear_model() -> None:
    """|m| / ||w_y - w_j||_1 for the nearest rival j, negative where wrong; moving by it reaches the
    boundary. A model ten times as confident is equally far, and without a margin it is zero."""
    model, x, y = Linear(classes=3, seed=2), images(40, (1, 2, 2), dtype=torch.float64), labels(40)
    with left_alone(model):
        distance = d.boundary_distance(model, x, y)
    f = model(x).detach()
    j = f.scatter(1, y[:, None], -torch.inf).argmax(1)
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


def test_eq_4_by_hand_and_its_parts_between_and_within_classes() -> None:
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


@pytest.mark.parametrize("bad", [
    lambda: d.confusion(torch.tensor([0, 1]), torch.tensor([0]), 2),  # a prediction is missing
    lambda: d.confusion(torch.tensor([0]), torch.tensor([2]), 2),
    lambda: d.confusion(torch.tensor([-1]), torch.tensor([0]), 2),
    lambda: d.kept(torch.tensor([[1, 0], [0, 0]])),  # a class without images
    lambda: d.steps_to_wrong(Threshold(), split(0)),
    lambda: d.constraint(torch.zeros(0), torch.zeros(0)),
    lambda: d.constraint(torch.ones(3), torch.ones(2)),
])
def test_bad_input_gets_a_sentence(bad: Callable[[], object]) -> None:
    with pytest.raises(CourseError):
        bad()
