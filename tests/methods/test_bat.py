"""BAT, FAT and GAIRAT: what they must equal in the limit, and the edge cases of paper and code."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from course_lib import PGD, build
from course_lib.methods import METHODS
from course_lib.methods.bat import BAT
from course_lib.methods.fat import FAT
from course_lib.methods.gairat import GAIRAT
from tests.helpers import Linear, seeded
from tests.methods.test_methods import at

PLAIN = PGD(steps=10, start="clean")
MODEL = build("lenet5", seed=3)
X = 0.2 + 0.6 * torch.rand(24, 1, 32, 32, generator=seeded(1))  # away from the box
Y = MODEL(X).argmax(1)
Y[::3] = (Y[::3] + 1) % 10  # some are right, some are wrong


def halved():
    """f(x) = (0, sum of x - 2): class 1 where the mean of the four pixels exceeds one half."""
    model = Linear(dtype=torch.float32)
    model.weight.data = torch.tensor([[0.0] * 4, [1.0] * 4])
    model.bias.data = torch.tensor([0.0, -2.0])
    return model


def grey(mean):
    return torch.full((1, 1, 2, 2), mean)


@pytest.mark.parametrize(("method", "other"), [
    (FAT(PLAIN, schedule=((1.0, 10),)), METHODS["pgd_at"](PLAIN)),
    (GAIRAT(PLAIN, L=float("inf")), METHODS["pgd_at"](PLAIN)),
    (GAIRAT(PLAIN, L=float("-inf")), METHODS["pgd_at"](PLAIN)),  # every omega is zero
    (GAIRAT(PLAIN, begin=0.6), METHODS["pgd_at"](PLAIN)),
    (BAT.preset("ablation-6", target_on=()), METHODS["trades"](6.0))],
    ids=["FAT, tau = K", "GAIRAT, L = inf", "GAIRAT, L = -inf", "GAIRAT before its begin",
         "BAT on the ends alone"])
def test_limits_that_are_another_method(method, other):
    assert_close(method.loss(MODEL, X, Y, {}, at(6)), other.loss(MODEL, X, Y, {}, at(6)), rtol=1e-5,
                 atol=1e-6)


def test_fat_with_tau_zero_trains_on_wrong_images_as_they_are():
    fat = FAT(PGD(eps=0.2, step_size=0.02, steps=10, start="clean"))
    loss = fat.loss(halved(), grey(0.4), torch.tensor([1]), {}, at(0))
    assert_close(loss, cross_entropy(halved()(grey(0.4)), torch.tensor([1])))
    # the authors' shares of the epochs
    assert [FAT().tau(at(e, 12)) for e in range(12)] == [0] * 5 + [1] * 4 + [2] * 3
    assert [FAT().tau(at(e, 120)) for e in (49, 50, 89, 90)] == [0, 1, 1, 2]


def test_gairat_weighs_the_loss_by_omega():
    """omega's values of algorithm.md's table at L = -1, K = 10: nearly one, .119 and 6e-6."""
    def omega(kappa):
        return (1 + torch.tanh(-1 + 5 * (1 - 2 * kappa / 10))) / 2

    table = torch.tensor([0.99966, 0.11920, 6.1e-6])
    assert_close(omega(torch.tensor([0, 5, 10])), table, rtol=1e-2, atol=1e-5)
    walk = PLAIN.walk(MODEL, X, Y)
    ce, w = cross_entropy(MODEL(walk.last), Y, reduction="none"), omega(walk.n_right)
    assert_close(GAIRAT(PLAIN).loss(MODEL, X, Y, {}, at(6)), (ce * w / w.sum()).sum())


def pair(method, x):
    return method.images(halved(), x, torch.tensor([1]), seeded(0))


# The mean falls by a step from where it starts, and class 1 ends at one half. Crossing it: right
# until .51, wrong from .49 on. Never wrong: x_a is z_K in both; x_c is z_{K-1} in the paper, the
# untested z_K in the code.
@pytest.mark.parametrize(("preset", "step", "start", "clean", "first"), [
    ("paper", 0.02, 0.55, 0.51, 0.49), ("code", 0.02, 0.55, 0.51, 0.47),
    ("paper", 0.01, 0.9, 0.81, 0.80), ("code", 0.01, 0.9, 0.80, 0.80)])
def test_boundary_pair_on_a_linear_model(preset, step, start, clean, first):
    attack = PGD(eps=0.2, step_size=step, steps=10, start="clean")
    images = pair(BAT.preset(preset, attack=attack), grey(start))
    assert images["clean"].mean().item() == pytest.approx(clean, abs=1e-6)
    assert images["first"].mean().item() == pytest.approx(first, abs=1e-6)


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_wrong_at_once(preset):
    """Paper: both are x, without noise. Code: both come from the noised z_0, x_a one step on."""
    x = grey(0.3)
    clean, first = (pair(BAT.preset(preset), x)[key] for key in ("clean", "first"))
    assert torch.equal(clean, x) is torch.equal(first, x) is (preset == "paper")
    assert (clean - x).abs().max() < 0.01
    assert preset == "paper" or first.mean() < x.mean() - 1.5 / 255


def test_two_draws_differ_and_one_does_not():
    """One pass gives a pair one step apart; two passes with their own noise do not."""
    images = (BAT(draws=n, tau=0, literal=True).images(MODEL, X, Y, seeded(0)) for n in (1, 2))
    one, two = (float((pair["clean"] - pair["first"]).abs().max()) for pair in images)
    assert one <= 2 / 255 + 1e-6 < two
