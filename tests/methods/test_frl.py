"""FRL and the report's FRL: the updates by hand, their bounds, and the methods they must equal."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, one_hot

from course_lib.errors import CourseError
from course_lib.fairness import Errors, Report
from course_lib.methods import Step
from course_lib.methods.frl import FRL
from course_lib.methods.frl_report import FRLReport, FRLReportMended
from course_lib.methods.trades import TRADES
from course_lib.models import build
from tests.helpers import labels, seeded


def at(epoch: int = 0) -> Step:
    return Step(epoch, 10, 0, 1, seeded(epoch))


def report(nat: list[int], rob: list[int], flips: list[int] | None = None) -> Report:
    """Errors of 1,000 images per class."""
    errors = [e and Errors(tuple(e), (1000,) * len(e)) for e in (nat, rob, flips)]
    return Report(*errors[:2], tuple("abcdefghij"[: len(nat)]), flips=errors[2])


def batch(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 1, 32, 32, generator=seeded(1)), labels(n, 10)


def test_two_epochs_by_hand():
    """Four classes, tau = (.05, .15), rates (.05, .10, .20), lim = .5.

    Epoch 1: err_nat = (.10 .20 .30 .40), mean .25 -> gaps -.20 -.10 .00 .10; err_bndy = (.10 .10
    .10 .50), mean .20 -> gaps -.25 -.25 -.25 .15. lambda0 = (0 0 0 .005), lambda1 = (0 0 0 .015),
    lambda2 = (-.05 -.05 -.05 .03). Epoch 2, the same errors: all three twice as large.
    """
    method, state = FRL(tau=(0.05, 0.15)), FRL().init_state(4)
    expected = (
        {"lam0": [0, 0, 0, 0.005], "lam1": [0, 0, 0, 0.015], "lam2": [-0.05, -0.05, -0.05, 0.03],
         "w0": [0.24875, 0.24875, 0.24875, 0.25375], "w1": [0.24625, 0.24625, 0.24625, 0.26125],
         "margin": [0.98, 0.98, 0.98, 1.0618365]},
        {"lam0": [0, 0, 0, 0.010], "lam1": [0, 0, 0, 0.030], "lam2": [-0.10, -0.10, -0.10, 0.06],
         "w0": [0.2475, 0.2475, 0.2475, 0.2575], "w1": [0.2425, 0.2425, 0.2425, 0.2725],
         "margin": [0.98, 0.98, 0.98, 1.1274969]})
    for values in expected:
        state = method.update(state, report([100, 200, 300, 400], [200, 300, 400, 900]), at())
        assert state.keys() == values.keys()
        for key, value in values.items():
            torch.testing.assert_close(state[key], torch.tensor(value))


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
        for w, lam in ((state["w0"], state["lam0"]), (state["w1"], state["lam1"])):
            assert abs(w.sum() - 1) < 1e-5 and w.min() >= (1 - method.lim) / 10 - 1e-6
            assert w.max() <= 0.1 + method.lim * 0.9 + 1e-6
            assert lam.min() >= 0 and lam.sum() <= method.lim + 1e-5
        low, high = method.clip
        assert low - 1e-6 <= state["margin"].min() and state["margin"].max() <= high + 1e-6
    assert variant != "rm" or torch.equal(state["w1"], torch.full((10,), 0.1))
    assert variant != "rw" or torch.equal(state["margin"], torch.ones(10))


def test_a_constant_added_to_all_errors_changes_nothing():
    method, nat, rob = FRL(), [50, 100, 200, 310], [150, 300, 350, 600]
    more = report([n + 40 for n in nat], [r + 90 for r in rob])
    one, two = (method.update(method.init_state(4), r, at()) for r in (report(nat, rob), more))
    for key in one:
        torch.testing.assert_close(one[key], two[key])


@pytest.mark.parametrize(("preset", "scale"), [("authors_2022", 1), ("authors_2021", 2)])
def test_tau_one_equals_trades(preset, scale):
    """No class exceeds the mean error by 1, so the weights are even and the loss is TRADES' (joint:
    divided by two)."""
    (x, y), model = batch(), build("lenet5", seed=3)
    frl = FRL.preset(preset, "rw", tau=(1.0, 1.0))
    state = frl.update(frl.init_state(10), report([0] * 9 + [900], [100] * 9 + [1000]), at())
    assert all(torch.equal(state[w], torch.full((10,), 0.1)) for w in ("w0", "w1"))
    trades = TRADES(frl.beta).loss(model, x, y, {}, at(5))
    torch.testing.assert_close(scale * frl.loss(model, x, y, state, at(5)), trades, rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize(("variant", "natural_reweight", "moved"), [
    ("rw", True, {"lam0", "lam1"}), ("rm", True, {"lam0", "lam2"}), ("rm", False, {"lam2"}),
    ("rmrw", False, {"lam0", "lam1", "lam2"})])
def test_which_multipliers_move(variant, natural_reweight, moved):
    frl = FRL(variant=variant, natural_reweight=natural_reweight)
    state = frl.update(frl.init_state(2), report([0, 500], [0, 900]), at())
    assert {k for k in ("lam0", "lam1", "lam2") if state[k].any()} == moved


class Spy(torch.nn.Module):
    """Remembers how far from `x` the images of its last call are."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.inner, self.x = build("lenet5", seed=3), x

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        self.reach = (z - self.x).abs().amax((1, 2, 3)).detach()
        return self.inner(z)


@pytest.mark.parametrize("method", [FRL(), FRLReport(attack=FRL().attack)])
def test_a_margin_of_three_attacks_three_times_as_far(method):
    x, y = batch(40)
    spy = Spy(x)
    margin = torch.where(torch.arange(10) == 4, 3.0, 1.0)
    method.loss(spy, x, y, {**method.init_state(10), "margin": margin}, at())
    assert spy.reach[y == 4].min() > 2 * 8 / 255 and spy.reach[y != 4].max() <= 8 / 255 + 1e-6


@pytest.mark.parametrize(("step", "sizes"), [("fixed", (2, 2)), ("own", (2, 6)),
                                             ("largest", (6, 6))])
def test_the_length_of_a_step(step, sizes):
    """One step from the clean image, with budgets of 8/255 and (class 4) 24/255."""
    x, y = batch(40)
    spy, x[:] = Spy(x), 0.5
    frl = FRL(step=step, attack=dataclasses.replace(FRL().attack, steps=1, start="clean",
                                                    objective="ce"))
    margin = torch.where(torch.arange(10) == 4, 3.0, 1.0)
    frl.loss(spy, x, y, {**frl.init_state(10), "margin": margin}, at())
    for part, size in zip((y != 4, y == 4), sizes, strict=True):
        torch.testing.assert_close(spy.reach[part], torch.full((int(part.sum()),), size / 255))


def test_one_heavy_class_makes_the_natural_loss_its_own():
    (x, y), model = batch(40), build("lenet5", seed=3)
    frl = FRL(beta=1.0)
    state = frl.init_state(10)
    heavy = {**state, "w0": one_hot(torch.tensor(4), 10).float()}
    only = cross_entropy(model(x[y == 4]), y[y == 4])
    boundary = frl.loss(model, x, y, state, at()) - cross_entropy(model(x), y)
    torch.testing.assert_close(frl.loss(model, x, y, heavy, at()), only + boundary, rtol=1e-5,
                               atol=1e-6)


@pytest.mark.parametrize("windup", [True, False])
def test_windup_is_the_authors_and_can_be_turned_off(windup):
    frl = FRL(rates=(0.0, 0.0, 5.0), windup=windup)
    state = frl.init_state(2)
    for _ in range(5):
        state = frl.update(state, report([0, 0], [0, 900]), at())
    top = 0.5 * torch.tensor(3.0).log()  # exp(2 * .549) = 3
    assert state["lam2"][1] > 9 if windup else torch.isclose(state["lam2"][1], top)
    torch.testing.assert_close(state["margin"], torch.tensor([0.98, 3.0]))


@pytest.mark.parametrize(("year", "variant", "tau", "rate2", "clip", "lim", "beta"), [
    (2021, "rw", 0.1, 0.1, 2.5, 0.5, 1.0), (2021, "rm", 0.1, 0.1, 2.5, 0.3, 1.0),
    (2021, "rmrw", 0.1, 0.1, 3.0, 0.5, 1.0), (2022, "rw", 0.1, 0.2, 2.5, 0.5, 1.5),
    (2022, "rmrw", 0.07, 0.2, 3.0, 0.5, 1.5)])
def test_g1_presets_are_the_constants_of_the_authors_files(year, variant, tau, rate2, clip, lim,
                                                           beta):
    frl = FRL.preset(f"authors_{year}", variant)
    assert (frl.variant, frl.tau, frl.rates[2], frl.clip[1], frl.lim, frl.beta) == (
        variant, (tau, tau), rate2, clip, lim, beta)
    assert (frl.normaliser, frl.step) == (("joint", "fixed") if year == 2021
                                          else ("separate", "largest"))


def test_g3_the_mended_report_attacks_half_a_batch_and_keeps_the_true_labels():
    (x, y), model = batch(), build("lenet5", seed=3)
    frl = FRLReportMended()
    z = frl.attack(model, x[12:], y[12:], generator=at().generator)
    want = cross_entropy(model(x), y) + cross_entropy(model(torch.cat([x[:12], z])), y)
    torch.testing.assert_close(frl.loss(model, x, y, frl.init_state(10), at()), want)


def test_the_report_forgets_and_uses_softmax():
    """Its phi starts at one each time: w = softmax(1 + a (gap - tau)); the boundary counts
    flips."""
    frl, seen = FRLReport(tau=(0.05, 0.1)), report([100, 300], [200, 600], flips=[100, 500])
    first = frl.update(frl.init_state(2), seen, at())
    again = frl.update(first, seen, at())
    # gaps: nat (-.1, .1) - .05 times 5; flips (-.2, .2) - .1 times 1
    torch.testing.assert_close(first["w0"], torch.softmax(torch.tensor([-0.75, 0.25]), 0))
    torch.testing.assert_close(first["w1"], torch.softmax(torch.tensor([-0.3, 0.1]), 0))
    assert torch.equal(first["margin"], torch.ones(2))
    assert all(torch.equal(first[k], again[k]) for k in first)


def test_the_report_margins_ignore_the_mean():
    """eps_i = eps exp(a2 (err_bndy(i) - tau))"""
    frl = FRLReport(variant="rm", tau=(0.2, 0.05), rates=(0.0, 5.0, 10.0))
    state = frl.update(frl.init_state(2), report([0, 0], [0, 0], flips=[100, 300]), at())
    torch.testing.assert_close(state["margin"], torch.exp(10 * torch.tensor([0.05, 0.25])))
    assert torch.equal(state["w1"], torch.full((2,), 0.5))


def test_the_reports_boundary_loss_has_the_clean_prediction_and_its_weight():
    (x, y), model = batch(), build("lenet5", seed=3)
    frl, guess = FRLReport(), model(x).argmax(1)
    common = guess.mode().values
    z = frl.attack(model, x, y, generator=at().generator)
    want = cross_entropy(model(x), y) + cross_entropy(model(z)[guess == common],
                                                      guess[guess == common])
    state = {**frl.init_state(10), "w1": one_hot(common, 10).float()}
    torch.testing.assert_close(frl.loss(model, x, y, state, at()), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("say", "bad"), [
    ("variant", lambda: FRL(variant="x")), ("lim", lambda: FRL(lim=2.0)),
    ("clip", lambda: FRL(clip=(2.0, 1.0))), ("rates", lambda: FRL(rates=(-1.0, 0.0, 0.0))),
    ("step", lambda: FRL(step="x")), ("normaliser", lambda: FRL(normaliser="x")),
    ("authors_2021, authors_2022", lambda: FRL.preset("authors_2023")),
    ("variant in authors_2022 'rm'", lambda: FRL.preset("authors_2022", "rm")),
    ("validate", lambda: FRL().update(FRL().init_state(2), None, at())),
    ("flips", lambda: FRLReport().update({}, report([0, 0], [1, 1]), at())),
    ("validate=", lambda: FRLReport().update({}, None, at())),
    ("variant", lambda: FRLReport(variant="x")),
    ("negative", lambda: FRLReport(rates=(-1.0, 0.0, 0.0)))])
def test_bad_settings_are_told(say, bad):
    with pytest.raises(CourseError, match=say):
        bad()
