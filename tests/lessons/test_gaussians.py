"""The two Gaussian classes: every closed form against brute force, and every ordering at random."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import ndtr, ndtri

from course_lib import CourseError
from course_lib.lessons.gaussians import LOSSES, Gaussians, attacked, train, two_features

G = Gaussians(d=10, eta=0.5, sigma=1.0, K=2.0)
EPS = 0.2
R = G.budget(EPS)
N = 200_000
RNG = np.random.default_rng(0)
# random m, K and r (below m); d = 1 and sigma = 1 make eta the signal and eps the budget
MANY = Gaussians(d=1, eta=RNG.uniform(0.05, 5, N), sigma=1, K=RNG.uniform(1.05, 6, N))
BUDGETS = MANY.eta * RNG.uniform(0.01, 0.99, N)
# omega and budgets with one global optimum inside
WEIGHTED = [(1.0, 0.0), (1.0, R), (2.0, R), (0.4, (0.3, 0.9)), (1.7, (0.9, 0.3)), (2.5, 0.0)]


def risk(theta, omega, s):
    easy, hard = G.errors(theta, s)
    return float(easy + omega * hard)


def leverage(model, omega=1.0, s=0.0):
    """d theta / d s_- and d theta / d s_+ as notebook 06 has them."""
    _, u, v, S = model.optimum(omega, s)
    return np.array([-model.K * u, v]) / ((model.K**2 - 1) * S)


@pytest.mark.parametrize(("omega", "s"), WEIGHTED)
def test_the_optimum_is_that_of_a_search(omega, s):
    theta, u, v, _ = G.optimum(omega, s)
    best = min(np.linspace(-8, 8, 1601), key=lambda t: risk(t, omega, s))
    found = minimize_scalar(risk, args=(omega, s), bounds=(best - 0.02, best + 0.02),
                            method="bounded", options={"xatol": 1e-9})
    assert abs(theta - found.x) < 1e-6 and theta == G.threshold(omega, s)
    assert np.allclose(G.errors(theta, s), [ndtr(u), ndtr(v)], atol=1e-12)


def test_the_optimum_exists_where_a_search_finds_one():
    M = G.m - R
    limit = G.K * np.exp(2 * M**2 / (G.K**2 - 1))
    assert np.isfinite(G.optimum(0.999 * limit, R).theta)
    assert np.isnan(G.optimum(1.001 * limit, R).theta) and G.threshold(1.001 * limit, R) == -np.inf
    for K, needed in ((1.5, 0.317), (2.0, 0.646), (3.0, 1.349), (5.0, 2.902)):
        assert np.round((K + 1) / 2 * ndtri(K / (K + 1)), 3) == needed
        below, above = (Gaussians(d=1, eta=needed + x, K=K).threshold(K) for x in (-0.01, 0.01))
        assert below == -np.inf and np.isfinite(above)


@pytest.mark.parametrize("eps", [0.0, 0.2, 0.4])
def test_equal_weights_are_best_among_all_directions(eps):
    """A free search over w and b."""
    def free(p):
        w, b = p[:-1], p[-1]
        signal, size = G.eta * w.sum() - eps * np.abs(w).sum(), np.linalg.norm(w)
        return float(ndtr((b - signal) / size) + ndtr((-b - signal) / (G.K * size)))

    best = minimize(free, np.append(RNG.uniform(0.2, 1, 10), 0.0), options={"gtol": 1e-9})
    s = G.budget(eps)
    assert abs(best.fun - risk(G.threshold(s=s), 1.0, s)) < 1e-7
    assert np.ptp(best.x[:-1]) < 1e-3 * best.x[:-1].mean()


def test_200_000_random_models_without_a_violation():
    nat, rob = MANY.optimum(), MANY.optimum(s=BUDGETS)
    slope = leverage(MANY, s=BUDGETS).sum(0)  # of theta, when both budgets grow
    assert (nat.u < nat.v).all() and (rob.u < rob.v).all() and (rob.theta > nat.theta).all()
    assert (slope > (MANY.K - 1) / (MANY.K + 1) - 1e-9).all()
    before, after = MANY.errors(nat.theta), MANY.errors(rob.theta)
    attacked_before, attacked_after = (MANY.errors(o.theta, BUDGETS) for o in (nat, rob))
    moved, moved_rob = after - before, attacked_after - attacked_before
    slack = 1e-12  # errors below it are rounded
    for easy, hard in (moved, moved_rob):  # the easy class gains, the hard one loses
        assert (easy <= slack).all() and (hard >= -slack).all()
    for sign, bndy in ((1, attacked_before - before), (-1, attacked_after - after)):
        assert (sign * (bndy[0] - bndy[1]) >= -slack).all()  # boundary errors reverse
    assert (MANY.price(BUDGETS) >= -slack).all()
    assert np.allclose(MANY.optimum(MANY.K, BUDGETS).theta, MANY.equal(BUDGETS))
    # the hard class passes 50 % where M = sqrt(log K / 2), and there v changes its sign
    beyond = MANY.m - BUDGETS < np.sqrt(np.log(MANY.K) / 2)
    assert ((rob.v > 0) == beyond).all() and ((attacked_after[1] > 0.5) == beyond).all()
    assert (np.sign(leverage(MANY, s=BUDGETS)) == [np.ones(N), np.where(beyond, 1, -1)]).all()


@pytest.mark.parametrize(("omega", "s"), WEIGHTED)
def test_leverage_is_the_derivative(omega, s):
    easy, hard = s if isinstance(s, tuple) else (s, s)
    for k, (a, b) in enumerate(((1e-5, 0.0), (0.0, 1e-5))):
        after, before = (G.optimum(omega, (easy + c * a, hard + c * b)).theta for c in (1, -1))
        assert abs(leverage(G, omega, (easy, hard))[k] - (after - before) / 2e-5) < 1e-6


@pytest.mark.parametrize("loss", LOSSES)
def test_training_ends_where_no_step_lowers_the_loss_under_the_sign_attack(loss):
    (x, y), (value, slope), unit = G.sample(300), LOSSES[loss], loss == "ramp"
    z, T = np.linspace(-4, 4, 9), 0.1 if unit else 1.0
    assert np.allclose(slope(z), (value(z + 1e-6) - value(z - 1e-6)) / 2e-6, atol=1e-8)
    w, b = train(x, y, EPS, loss)

    def total(p):
        w = p[:-1] / (np.linalg.norm(p[:-1]) if unit else 1.0)
        return float(value(y * (attacked(x, y, w, EPS) @ w + p[-1]) / T).mean())

    p, bumps = np.append(w, b), np.eye(11) * 1e-4 * (np.linalg.norm(w) if unit else 1.0)
    assert all(total(p) < total(p + s * e) + 1e-9 for e in bumps for s in (-1, 1))


def test_adversarial_training_can_make_a_model_fair():
    for eps, gap in ((0.0, 0.0354), (0.1, 0.0287), (0.2, 0.0062), (0.25, 0.0), (0.4, 0.0)):
        easy, hard, a = two_features(eps)
        assert np.round(hard - easy, 4) == gap and (a < 1e-4) == (eps >= 0.25)
    with pytest.raises(CourseError, match="K must be above 1"):
        Gaussians(K=np.array([2.0, 0.5]))


def test_training_approaches_the_closed_forms():
    for loss, theta in (("ramp", G.threshold(s=R)), ("logistic", G.logistic(s=R))):
        w, b = train(*G.sample(100_000, 1), EPS, loss)
        assert w.sum() / np.linalg.norm(w) > 0.99 * np.sqrt(10)
        assert abs(-b / np.linalg.norm(w) - theta) < 0.04
