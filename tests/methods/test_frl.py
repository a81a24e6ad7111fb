"""FRL: the dual update against a trace worked out by hand, its bounds, and the methods it must
equal in the limit."""


import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.fairness import Errors, Report
from course_lib.methods import Step
from course_lib.methods.frl import FRL, PRESETS
from course_lib.methods.trades import TRADES
from course_lib.models import build


def at(epoch: int = 0) -> Step:
    return Step(epoch, 10, 0, 1, torch.Generator().manual_seed(epoch))


def report(nat: list[int], rob: list[int], n: int = 1000, flips: list[int] | None = None) -> Report:
    counts = (n,) * len(nat)
    return Report(Errors(tuple(nat), counts), Errors(tuple(rob), counts),
                  tuple("abcdefghij"[: len(nat)]),
                  flips=None if flips is None else Errors(tuple(flips), counts))


def batch(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 1, 32, 32, generator=torch.Generator().manual_seed(1)), torch.arange(
        n) % 10


def test_two_epochs_by_hand():
    """Four classes, tau = .05, rates (.05, .10, .20), lim = .5.

    Epoch 1: err_nat = (.10 .20 .30 .40), mean .25 -> gaps -.20 -.10 .00 .10; err_bndy = (.10 .10
    .10 .50), mean .20 -> gaps -.15 -.15 -.15 .25. lambda0 = (0 0 0 .005), lambda1 = (0 0 0 .025),
    lambda2 = (-.03 -.03 -.03 .05). Epoch 2, the same errors: lambda0_4 = .010, lambda1_4 = .050,
    lambda2 = (-.06 -.06 -.06 .10).
    """
    method = FRL(variant="rmrw", tau=(0.05, 0.05))
    seen = report([100, 200, 300, 400], [200, 300, 400, 900])
    state = method.update(method.init_state(4), seen, at())
    torch.testing.assert_close(state["lam0"], torch.tensor([0, 0, 0, 0.005]))
    torch.testing.assert_close(state["lam1"], torch.tensor([0, 0, 0, 0.025]))
    torch.testing.assert_close(state["lam2"], torch.tensor([-0.03, -0.03, -0.03, 0.05]))
    torch.testing.assert_close(state["w0"], torch.tensor([0.24875, 0.24875, 0.24875, 0.25375]))
    torch.testing.assert_close(state["w1"], torch.tensor([0.24375, 0.24375, 0.24375, 0.26875]))
    torch.testing.assert_close(state["margin"], torch.tensor([0.98, 0.98, 0.98, 1.1051709]))
    state = method.update(state, seen, at(1))
    torch.testing.assert_close(state["lam0"], torch.tensor([0, 0, 0, 0.010]))
    torch.testing.assert_close(state["lam2"], torch.tensor([-0.06, -0.06, -0.06, 0.10]))
    torch.testing.assert_close(state["w1"], torch.tensor([0.2375, 0.2375, 0.2375, 0.2875]))
    torch.testing.assert_close(state["margin"], torch.tensor([0.98, 0.98, 0.98, 1.2214028]))


counts = st.lists(st.integers(0, 500), min_size=10, max_size=10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=6),
       st.sampled_from(["rw", "rm", "rmrw"]), st.floats(0, 0.2))
def test_weights_and_margins_stay_in_their_bounds(epochs, variant, tau):
    method = FRL(variant=variant, tau=(tau, tau), rates=(2.0, 2.0, 2.0))
    state = method.init_state(10)
    for nat, more in epochs:
        state = method.update(state, report(nat, [a + b for a, b in zip(nat, more, strict=True)]),
                              at())
        for w in (state["w0"], state["w1"]):
            assert abs(w.sum() - 1) < 1e-5
            assert (w.min() >= (1 - method.lim) / 10 - 1e-6
                    and w.max() <= 0.1 + method.lim * 0.9 + 1e-6)
        for lam in (state["lam0"], state["lam1"]):
            assert lam.min() >= 0 and lam.sum() <= method.lim + 1e-5
        assert method.clip[0] - 1e-6 <= state["margin"].min() and state[
            "margin"].max() <= method.clip[1] + 1e-6
    if variant == "rm":
        assert torch.equal(state["w1"], torch.full((10,), 0.1))
    if variant == "rw":
        assert torch.equal(state["margin"], torch.ones(10))


def test_a_constant_added_to_all_errors_changes_nothing():
    method, nat, rob = FRL(), [50, 100, 200, 310], [150, 300, 350, 600]
    one = method.update(method.init_state(4), report(nat, rob), at())
    two = method.update(method.init_state(4), report([n + 40 for n in nat], [r + 90 for r in rob]),
                        at())
    for key in one:
        torch.testing.assert_close(one[key], two[key])


def test_without_gaps_above_tau_weights_stay_even():
    method = FRL(variant="rw", tau=(1.0, 1.0))
    state = method.update(method.init_state(10), report([0] * 9 + [900], [100] * 9 + [1000]), at())
    assert torch.equal(state["w0"], torch.full((10,), 0.1)) and torch.equal(state["w1"],
        torch.full((10,), 0.1))


@pytest.mark.parametrize("preset", ["authors_2022", "authors_2021"])
def test_tau_one_equals_trades(preset):
    """No class exceeds the mean error by 1, so the weights are even and the loss is TRADES' (joint:
    divided by two)."""
    (x, y), model = batch(), build("lenet5", seed=3)
    frl = FRL.preset(preset, variant="rw", tau=(1.0, 1.0))
    state = frl.update(frl.init_state(10), report([0] * 9 + [900], [100] * 9 + [1000]), at())
    trades = TRADES(frl.beta).loss(model, x, y, {}, at(5))
    scale = 2 if preset == "authors_2021" else 1
    torch.testing.assert_close(scale * frl.loss(model, x, y, state, at(5)), trades, rtol=1e-5,
                               atol=1e-6)


def test_weights_and_margins_reach_the_loss():
    """One heavy class: the loss is that class's own; a margin of 3 attacks three times as far."""
    (x, y), model = batch(40), build("lenet5", seed=3)
    frl = FRL(beta=1.0)
    state = frl.init_state(10)
    heavy = {**state, "w0": torch.nn.functional.one_hot(torch.tensor(4), 10).float(),
             "w1": torch.full((10,), 0.1)}
    only = torch.nn.functional.cross_entropy(model(x[y == 4]), y[y == 4])
    even = frl.loss(model, x, y, state, at()) - torch.nn.functional.cross_entropy(model(x), y)
    torch.testing.assert_close(frl.loss(model, x, y, heavy, at()), only + even, rtol=1e-5,
                               atol=1e-6)

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = model, []

        def forward(self, z):
            self.seen.append((z - x).abs().amax((1, 2, 3)).detach() if z.shape == x.shape else None)
            return self.inner(z)

    spy = Spy()
    frl.loss(spy, x, y, {**state, "margin": torch.where(torch.arange(10) == 4, 3.0, 1.0)}, at())
    reach = spy.seen[-1]
    assert reach[y == 4].min() > 2 * 8 / 255 and reach[y != 4].max() <= 8 / 255 + 1e-6


def test_the_report_forgets_and_uses_softmax():
    """Its phi starts at one each time: w = softmax(1 + a (gap - tau)); the boundary counts
    flips."""
    frl = FRL.preset("report")
    seen = report([100, 300], [200, 600], flips=[100, 500])
    first = frl.update(frl.init_state(2), seen, at())
    again = frl.update(first, seen, at())
    # gaps: nat (-.1, .1) - .05 times 5; flips (-.2, .2) - .05 times 1
    torch.testing.assert_close(first["w0"], torch.softmax(torch.tensor([-0.75, 0.25]), 0))
    torch.testing.assert_close(first["w1"], torch.softmax(torch.tensor([-0.25, 0.15]), 0))
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_the_report_margins_ignore_the_mean():
    """eps_i = eps exp(a2 (err_bndy(i) - tau))"""
    frl = FRL.preset("report", variant="rm", rates=(0.0, 0.0, 10.0))
    state = frl.update(frl.init_state(2), report([0, 0], [0, 0], flips=[100, 300]), at())
    torch.testing.assert_close(state["margin"], torch.exp(10 * torch.tensor([0.05, 0.25])))


def test_boundary_loss_to_the_clean_prediction_is_weighted_by_it():
    (x, y), model = batch(), build("lenet5", seed=3)
    frl = FRL.preset("report")
    predicted = int(model(x).argmax(1).mode().values)
    state = {**frl.init_state(10), "w1": torch.nn.functional.one_hot(torch.tensor(predicted),
        10).float()}
    z = frl.attack(model, x, y, generator=at().generator)
    mine = model(x).argmax(1) == predicted
    want = torch.nn.functional.cross_entropy(model(x),
                                             y) + torch.nn.functional.cross_entropy(model(z)[mine],
                                                 model(x).argmax(1)[mine])
    torch.testing.assert_close(frl.loss(model, x, y, state, at()), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("windup", [True, False])
def test_windup_is_the_authors_and_can_be_turned_off(windup):
    frl = FRL(rates=(0.0, 0.0, 5.0), windup=windup)
    state = frl.init_state(2)
    for _ in range(5):
        state = frl.update(state, report([0, 0], [0, 900]), at())
    top = 0.5 * torch.tensor(3.0).log()  # exp(2 * .549) = 3
    assert state["lam2"][1] > 9 if windup else torch.isclose(state["lam2"][1], top)
    torch.testing.assert_close(state["margin"], torch.tensor([0.98, 3.0]))


@pytest.mark.parametrize("bad", [{"variant": "x"}, {"lim": 2.0}, {"clip": (2.0, 1.0)},
                                 {"rates": (-1.0, 0.0, 0.0)}, {"weights": "hard"}])
def test_bad_settings_are_told(bad):
    with pytest.raises(CourseError):
        FRL(**bad)


def test_no_report_or_no_flips_is_told():
    with pytest.raises(CourseError, match="validate"):
        FRL().update(FRL().init_state(2), None, at())
    with pytest.raises(CourseError, match="flips"):
        FRL.preset("report").update(FRL().init_state(2), report([0, 0], [1, 1]), at())
    with pytest.raises(CourseError, match=next(iter(PRESETS))):
        FRL.preset("authors_2023")
