"""DAFA, CFA, FAAL, WAT and CFOL: each by hand, and the limits in which it is another method."""

from itertools import product
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import tensor
from torch.testing import assert_close

from course_lib import PGD, Report
from course_lib.experiments import contest
from course_lib.methods import METHODS
from course_lib.methods.faal import worst_weights
from course_lib.zoo import load_record, manifest
from tests.helpers import Small
from tests.methods.test_methods import X, Y, at, loss_of

OWN = [Y == 0, Y == 1, Y == 2]  # the images of each class
CLEAN = PGD(0.1, 0.03, 5, start="clean")  # PGD-AT draws its noise in another order
FAR = PGD(0.5, 0.2, 5, "kl", "gaussian")  # so far that KL(p || p') is not KL(p' || p)
PGD_AT, TRADES = METHODS["pgd_at"](attack=CLEAN), METHODS["trades"](attack=FAR)
DAFA_0, CFA_PLAIN = METHODS["dafa"](lam=0.0, attack=FAR), METHODS["cfa"](plain=True, attack=CLEAN)
CFA_EVEN = METHODS["cfa"](lambda1=0.25, plain=True, attack=CLEAN)
CFOL_EVEN = METHODS["cfol"](eta=0.1, gamma=1.0, attack=CLEAN)
CONFUSED = {"p": [[3, 1, 0], [1, 2, 1], [0, 4, 0]], "n": [4, 4, 4]}
WAT_0, COSTS = METHODS["wat"](eta=0.0, attack=FAR), {"loss": [4.0, 8.0, 12.0], "n": [4.0] * 3}


@pytest.mark.parametrize(("method", "step", "other", "factor"), [
    (DAFA_0, at(7, **CONFUSED), "trades", 1),  # also after the warm-up, whatever is confused
    (CFA_PLAIN, at(), "pgd_at", 1), (METHODS["cfa"](attack=FAR), at(), "trades", 1 / 7),
    (CFA_EVEN, at(5, right=[3.0] * 3, n=[4.0] * 3), "pgd_at", 1),  # t = 1 - lambda1 for all
    (METHODS["faal"](tau=0.0, attack=CLEAN), at(), "pgd_at", 1),
    (METHODS["wat"](attack=FAR), at(), "trades", 2), (WAT_0, at(1, **COSTS), "trades", 2 * 3 / 4),
    (CFOL_EVEN, at(wrong=[2, 7, 0]), "pgd_at", 1)])
def test_limits_that_are_another_method(method, step, other, factor):
    state = method.update(method.init_state(3), None, step)
    plain = PGD_AT if other == "pgd_at" else TRADES
    assert_close(loss_of(method, state), factor * loss_of(plain))


def test_dafa_weighs_once_after_the_warm_up_and_a_tie_moves_nothing():
    """p_0 = (.8, .2), p_1 = (.5, .5): T_10 = p_1(0) p_0(0) = .4, so W = 1 -+ .4 lam."""
    dafa, even = METHODS["dafa"](lam=0.5), torch.ones(2)
    for p, wanted in (([[8.0, 2.0], [2.0, 2.0]], [0.8, 1.2]), ([[3.0, 1.0], [3.0, 9.0]], [1, 1])):
        step = {"p": p, "n": [sum(row) for row in p]}
        weights = [dafa.update({"weight": even}, None, at(e, **step))["weight"] for e in (6, 7, 8)]
        assert torch.equal(weights[0], even) and torch.equal(weights[2], even)
        assert_close(weights[1], tensor(wanted, dtype=torch.float32))


def test_a_class_of_weight_0_is_neither_attacked_nor_learnt_by_dafa():
    """Only its clean KL to itself, 0, is left."""
    only, state = Y == 2, {"weight": tensor([1.0, 1.0, 0.0])}
    out = METHODS["dafa"]().loss(Small().eval(), X[only], Y[only], state, at())
    assert out[0] == 0 and out[1]["n"].tolist() == [0, 0, 4]


def test_cfa_follows_the_robust_accuracy_of_training():
    """t = (.75, .5): g = (1.05, .8), b = 6 (1.25, 1); nothing moves before the share `begin`."""
    right = {"right": [3.0, 2.0], "n": [4.0, 4.0]}
    cfa = METHODS["cfa"]()
    state = cfa.update(cfa.init_state(2), None, at(1, **right))
    assert_close(state, {"margin": tensor([1.05, 0.8]), "beta": tensor([7.5, 6.0])})
    for still in (METHODS["cfa"](lambda1=None, lambda2=None), METHODS["cfa"](begin=0.5)):
        assert still.update(still.init_state(2), None, at(1, **right))["margin"].tolist() == [1, 1]


def test_cfas_margins_and_betas_act_on_their_own_class():
    """With beta 0 for class 2 its images count as natural ones; with margin 0 its KL is 0, too."""
    cfa, model = METHODS["cfa"](), Small().eval()
    natural = torch.nn.functional.cross_entropy(model(X), Y, reduction="none")
    state = {**cfa.init_state(3), "beta": tensor([6.0, 6.0, 0.0])}
    full = [cfa.loss(model, X[own], Y[own], state, at())[0] for own in OWN]
    assert full[2] == natural[Y == 2].mean() and full[1] != natural[Y == 1].mean() / 7
    state = {**cfa.init_state(3), "margin": tensor([1.0, 0.0, 1.0])}
    loss, stats = cfa.loss(model, X[Y == 1], Y[Y == 1], state, at())
    assert_close(loss, natural[Y == 1].mean() / 7)
    right = model(X[Y == 1]).argmax(1) == 1
    assert stats["right"].tolist() == [0, right.sum(), 0] and stats["n"].tolist() == [0, 4, 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=3, max_size=10), st.floats(0.02, 1.5))
def test_faals_search_finds_what_a_general_solver_finds(values, tau):
    """To 1e-8 of the objective; the weights lie in the simplex and on the edge of the ball."""
    a, n = np.array(values), len(values)
    assume(np.ptp(a) > 0.01)
    w = worst_weights(torch.tensor(a), tau).numpy()
    assert w.min() > 0 and w.sum() == pytest.approx(1)
    assert -np.log(n * w).mean() == pytest.approx(tau)
    found = minimize(lambda v: -v @ a, 0.9 * w + 0.1 / n, jac=lambda v: -a, method="SLSQP",
                     bounds=[(1e-9, 1)] * n, options={"ftol": 1e-15, "maxiter": 500}, constraints=[
                         {"type": "eq", "fun": lambda v: v.sum() - 1, "jac": np.ones_like},
                         {"type": "ineq", "fun": lambda v: tau + np.log(n * v).mean(),
                          "jac": lambda v: 1 / (n * v)}])
    assert -found.fun == pytest.approx(w @ a, abs=1e-8)
    np.testing.assert_allclose(worst_weights(torch.tensor(7 * a - 3), tau), w, atol=1e-9)


def test_faals_wide_ball_leaves_the_class_of_the_largest_margin_alone():
    double = torch.float64
    one = worst_weights(tensor([0.1, 0.3, 0.2], dtype=double), 30)
    assert_close(one, tensor([0.0, 1.0, 0.0], dtype=double), atol=1e-9, rtol=0)
    assert worst_weights(torch.ones(4, dtype=double), 0.5).tolist() == [0.25] * 4
    model, wide = Small().eval(), loss_of(METHODS["faal"](tau=30.0, attack=CLEAN))
    alone = [PGD_AT.loss(model, X[own], Y[own], {}, at()) for own in OWN]
    assert_close(wide, max(alone))


def test_faals_counts_are_the_authors_and_without_them_an_absent_class_is_no_harder():
    """One class is absent and the others are right: with counts it seems the hardest, so little
    weight is left for the images of the batch; without, its margin of -1 is the lowest."""
    model, y = Small().eval(), Small().eval()(X).argmax(1)
    here, nothing = y != y.mode().values, PGD(eps=0)
    counts, text = (METHODS["faal"](counts=c, attack=nothing).loss(
        model, X[here], y[here], {}, at()) for c in (True, False))
    assert here.sum() > 2 and counts < 0.8 * text


def test_wats_costs_add_up_and_its_weights_are_a_softmax():
    """Mean losses 1, 2, 6 and 3 over all images; twice: G = (2, 4, 12, 6)."""
    wat = METHODS["wat"](eta=0.5)
    state, step = wat.init_state(3), at(1, loss=[4.0, 8.0, 12.0], n=[4.0, 4.0, 2.0])
    assert wat.update(state, None, at()) is state
    state = wat.update(wat.update(state, None, step), None, step)
    assert_close(state["cost"], tensor([2, 4, 12, 4.8]))
    assert_close(state["weight"], 3 * (state["cost"] / 2).softmax(0))
    # the class that wins alone trains at its own loss
    out, stats = wat.loss(Small().eval(), X, Y, {**state, "weight": tensor([0, 0, 3.0, 0])}, at())
    assert_close(out, 3 * stats["loss"][2] / len(Y))


def test_cfols_floor_and_the_mistakes_that_it_counts():
    """No class falls below gamma / C."""
    cfol = METHODS["cfol"](eta=0.1, gamma=0.3)
    state = cfol.update(cfol.init_state(2), None, at(wrong=[0, 900]))
    assert_close(state["p"], tensor([0.15, 0.85]))
    cfol, model = METHODS["cfol"](attack=PGD(eps=0)), Small().eval()
    wrong = [int((model(X[own]).argmax(1) != Y[own]).sum()) for own in OWN]
    assert cfol.loss(model, X, Y, cfol.init_state(3), at())[1]["wrong"].tolist() == wrong


def test_the_margins_of_our_own_recipe_follow_the_weights():
    """Class 0 with weight 2 is attacked sqrt(2) times as far, in longer steps; class 2 is not."""
    spy, state = Mock(wraps=CLEAN, eps=0.1, step_size=0.03), {"p": tensor([2 / 3, 1 / 3, 0])}
    METHODS["cfol"](margins=0.5, attack=spy).loss(Small().eval(), X, Y, state, at())
    for word, size in (("eps", 0.1), ("step_size", 0.03)):
        assert_close(spy.call_args.kwargs[word][:3], size * tensor([2**0.5, 1, 0]))


@pytest.mark.parametrize("name", contest.CHOSEN)
def test_the_contest_takes_what_the_trials_found(name):
    """The lowest worst-class robust error at an average at most a point above the best, where a
    method's trials are all stored."""
    tried = {c: f"tune/{name}-{c[0]:g}-{c[1]:g}" for c in product(*contest.TRIED[name][1:])}
    assert contest.CHOSEN[name] in tried
    if set(tried.values()) <= set(manifest()):
        rob = {c: Report.from_json(load_record(n)["validation"]).rob for c, n in tried.items()}
        best = min(r.mean for r in rob.values())
        assert contest.CHOSEN[name] == min((c for c, r in rob.items() if r.mean <= best + 0.01),
                                           key=lambda c: rob[c].worst)
