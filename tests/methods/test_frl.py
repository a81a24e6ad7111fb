"""FRL and the report's FRL: the updates by hand, their bounds, and the methods they must equal."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.nn.functional import cross_entropy, one_hot
from torch.testing import assert_close

from course_lib import CourseError, build
from course_lib.fairness import Errors, Report
from course_lib.methods import METHODS
from course_lib.methods.frl import FRL
from course_lib.methods.frl_report import FRLReport, FRLReportMended
from tests.helpers import labels, seeded
from tests.methods.test_methods import at

X, Y = torch.rand(40, 1, 32, 32, generator=seeded(1)), labels(40, 10)
FOUR = torch.where(torch.arange(10) == 4, 3.0, 1.0)  # class 4 has a margin of three


def report(nat, rob, flips=None):
    """Errors of 1,000 images per class."""
    errors = [e and Errors(tuple(e), (1000,) * len(e)) for e in (nat, rob, flips)]
    return Report(*errors[:2], tuple("abcdefghij"[: len(nat)]), flips=errors[2])


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
        assert_close(state, {key: tensor(value) for key, value in values.items()})


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


@pytest.mark.parametrize(("preset", "scale"), [("authors_2022", 1), ("authors_2021", 2)])
def test_tau_one_equals_trades(preset, scale):
    """No class exceeds the mean error by 1, so the weights are even and the loss is TRADES' (joint:
    divided by two)."""
    model, frl = build("lenet5", seed=3), FRL.preset(preset, "rw", tau=(1.0, 1.0))
    state = frl.update(frl.init_state(10), report([0] * 9 + [900], [100] * 9 + [1000]), at())
    assert all(torch.equal(state[w], torch.full((10,), 0.1)) for w in ("w0", "w1"))
    trades = METHODS["trades"](frl.beta).loss(model, X, Y, {}, at(5))
    assert_close(scale * frl.loss(model, X, Y, state, at(5)), trades, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("variant", "natural_reweight", "moved"), [
    ("rw", True, {"lam0", "lam1"}), ("rm", True, {"lam0", "lam2"}), ("rm", False, {"lam2"}),
    ("rmrw", False, {"lam0", "lam1", "lam2"})])
def test_which_multipliers_move(variant, natural_reweight, moved):
    frl = FRL(variant=variant, natural_reweight=natural_reweight)
    state = frl.update(frl.init_state(2), report([0, 500], [0, 900]), at())
    assert {k for k in ("lam0", "lam1", "lam2") if state[k].any()} == moved


def reach(method, x=X):
    """How far from `x` the images of the last forward pass are, where class 4 has its margin."""
    model, last = build("lenet5", seed=3), []
    model.register_forward_pre_hook(lambda module, given: last.append(given[0].detach()))
    method.loss(model, x, Y, {**method.init_state(10), "margin": FOUR}, at())
    return (last[-1] - x).abs().amax((1, 2, 3))


@pytest.mark.parametrize("cls", [FRL, FRLReport, FRLReportMended])
def test_a_margin_of_three_attacks_three_times_as_far(cls):
    far = reach(cls(attack=FRL().attack))
    half = cls is FRLReportMended  # of the batch, the second one
    assert far[20 * half:][Y[20 * half:] == 4].min() > 2 * 8 / 255
    assert far[Y != 4].max() <= 8 / 255 + 1e-6 and far[: 20 * half].sum() == 0
    # one step from the clean image, with budgets of 8/255 and (class 4) 24/255
    attack = dataclasses.replace(FRL().attack, steps=1, start="clean", objective="ce")
    for step, size in (("fixed", 2), ("largest", 6)):
        far = reach(FRL(step=step, attack=attack), torch.full_like(X, 0.5))
        assert_close(far, torch.full((40,), size / 255))


@pytest.mark.parametrize("windup", [True, False])
def test_windup_is_the_authors_and_can_be_turned_off(windup):
    frl = FRL(rates=(0.0, 0.0, 5.0), windup=windup)
    state = frl.init_state(2)
    for _ in range(5):
        state = frl.update(state, report([0, 0], [0, 900]), at())
    top = 0.5 * tensor(3.0).log()  # exp(2 * .549) = 3
    assert state["lam2"][1] > 9 if windup else torch.isclose(state["lam2"][1], top)
    assert_close(state["margin"], tensor([0.98, 3.0]))


@pytest.mark.parametrize(("year", "variant", "tau", "rate2", "clip", "lim", "beta"), [
    (2021, "rw", 0.1, 0.1, 2.5, 0.5, 1.0), (2021, "rm", 0.1, 0.1, 2.5, 0.3, 1.0),
    (2021, "rmrw", 0.1, 0.1, 3.0, 0.5, 1.0), (2022, "rw", 0.1, 0.2, 2.5, 0.5, 1.5),
    (2022, "rmrw", 0.07, 0.2, 3.0, 0.5, 1.5)])
def test_g1_presets_are_the_authors_constants(year, variant, tau, rate2, clip, lim, beta):
    frl = FRL.preset(f"authors_{year}", variant)
    assert (frl.variant, frl.tau, frl.rates[2], frl.clip[1], frl.lim, frl.beta) == (
        variant, (tau, tau), rate2, clip, lim, beta)
    assert (frl.normaliser, frl.step) == (("joint", "fixed") if year == 2021
                                          else ("separate", "largest"))


def test_the_report_forgets_uses_softmax_and_its_margins_ignore_the_mean():
    """w = softmax(1 + a (gap - tau)); the boundary counts flips; eps_i = eps exp(a3 (err - tau))"""
    frl, now = FRLReport(tau=(0.05, 0.1)), report([100, 300], [200, 900], flips=[100, 500])
    first = frl.update(frl.init_state(2), now, at())
    # gaps: nat (-.1, .1) - .05 times 5; flips (-.2, .2) - .1 times 1
    assert_close(first, {"w0": torch.softmax(tensor([-0.75, 0.25]), 0),
                         "w1": torch.softmax(tensor([-0.3, 0.1]), 0), "margin": torch.ones(2)})
    assert_close(frl.update(first, now, at()), first, rtol=0, atol=0)
    frl = FRLReport(variant="rm", tau=(0.2, 0.05), rates=(0.0, 5.0, 10.0))
    state = frl.update(first, report([0, 0], [0, 0], flips=[100, 300]), at())
    assert_close(state["margin"], torch.exp(10 * tensor([0.05, 0.25])))
    assert torch.equal(state["w1"], torch.full((2,), 0.5))


def test_the_reports_boundary_loss_has_the_clean_prediction_and_its_weight():
    model, frl = build("lenet5", seed=3), FRLReport()
    guess = model(X).argmax(1)
    common = guess.mode().values
    z = frl.attack(model, X, Y, generator=at().generator)
    want = cross_entropy(model(X), Y) + cross_entropy(model(z)[guess == common],
                                                      guess[guess == common])
    state = {**frl.init_state(10), "w1": one_hot(common, 10).float()}
    assert_close(frl.loss(model, X, Y, state, at()), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("say", "bad"), [
    ("clip is", lambda: FRL(clip=(2.0, 1.0))),
    ("variant in authors_2022 'rm'", lambda: FRL.preset("authors_2022", "rm")),
    ("validate", lambda: FRL().update(FRL().init_state(2), None, at())),
    ("flips", lambda: FRLReport().update({}, report([0, 0], [1, 1]), at()))])
def test_bad_settings_are_refused(say, bad):
    with pytest.raises(CourseError, match=say):
        bad()
