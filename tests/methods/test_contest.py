"""DAFA by hand, and the limits in which it is another method."""

from typing import Any

import pytest
import torch

from course_lib.errors import CourseError
from course_lib.methods import METHODS, Method, Step
from course_lib.methods.base import State
from tests.helpers import Small, images, labels, seeded

X, Y = images(12), labels(12)


def at(epoch: int = 0, epochs: int = 11, **stats: Any) -> Step:
    return Step(epoch, epochs, 0, 3, seeded(0), {k: torch.tensor(v) for k, v in stats.items()})


def loss_of(method: Method, state: State | None = None) -> torch.Tensor:
    out = method.loss(Small().eval(), X, Y, state or method.init_state(3), at())
    return out[0] if isinstance(out, tuple) else out


# --------------------------------------------------------------------------------------------- DAFA


def test_dafa_with_lam_0_is_trades() -> None:
    """Also after the warm-up, whatever the classes confuse."""
    dafa = METHODS["dafa"](lam=0.0)
    state = dafa.update(dafa.init_state(3), None, at(7, p=[[3, 1, 0], [1, 2, 1], [0, 4, 0]],
                                                    n=[4, 4, 4]))
    torch.testing.assert_close(loss_of(dafa, state), loss_of(METHODS["trades"]()))


def test_dafa_moves_weight_from_the_easy_class_to_the_hard_one() -> None:
    """p_0 = (.8, .2), p_1 = (.5, .5): T_10 = p_1(0) p_0(0) = .4, so W = 1 -+ .4 lam, in the epoch
    after the warm-up and in no other."""
    dafa, even = METHODS["dafa"](lam=0.5), torch.ones(2)
    p = {"p": [[8.0, 2.0], [2.0, 2.0]], "n": [10.0, 4.0]}
    weights = [dafa.update({"weight": even}, None, at(e, **p))["weight"] for e in (6, 7, 8)]
    assert torch.equal(weights[0], even) and torch.equal(weights[2], even)
    torch.testing.assert_close(weights[1], torch.tensor([0.8, 1.2]))
    tied = [[6.0, 3.0, 1.0], [1.0, 6.0, 3.0], [2.0, 2.0, 6.0]]
    tie = dafa.update(dafa.init_state(3), None, at(7, p=tied, n=[10.0] * 3))
    assert tie["weight"].tolist() == [1, 1, 1], "a tie moves nothing"


def test_dafas_weights_sum_to_the_number_of_classes_and_set_weight_step_and_budget() -> None:
    dafa = METHODS["dafa"]()
    p = torch.rand(10, 10, generator=seeded(1)).softmax(1)
    weight = dafa.update(dafa.init_state(10), None, at(7, p=p.tolist(), n=[1.0] * 10))["weight"]
    torch.testing.assert_close(weight.sum(), torch.tensor(10.0))
    assert 0 < weight.min() < 1 < weight.max()
    # a class of weight 0 is neither attacked nor learnt: only its clean KL to itself, 0, is left
    only = Y == 2
    out = dafa.loss(Small().eval(), X[only], Y[only], {"weight": torch.tensor([1.0, 1.0, 0.0])},
                    at())
    assert out[0] == 0 and out[1]["n"].tolist() == [0, 0, 4]
    with pytest.raises(CourseError, match="warmup is 2"):
        METHODS["dafa"](warmup=2)
