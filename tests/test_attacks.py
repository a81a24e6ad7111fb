import dataclasses
import itertools
import math
import sys
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib import CourseError, build, evaluate, load, load_model, native
from course_lib.attacks import ATTACKS, OBJECTIVES, PGD, STARTS, Walk, WalkSetup
from course_lib.autoattack import STANDARD, AutoAttack
from course_lib.inference import predict
from tests.helpers import Linear, Small, failing_at, images, labels, left_alone, seeded


def assert_near(z, want):
    torch.testing.assert_close(z, want, rtol=0, atol=1e-12)


def direction(model, y, shape):
    """sign grad_x L of two classes: the same everywhere, for cross-entropy and for the margin."""
    return (model.weight[1 - y] - model.weight[y]).sign().reshape(-1, *shape).detach()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("objective", "start"), [
    *itertools.product(["ce", "margin"], STARTS), ("kl", "gaussian"), ("kl", "uniform")])
def test_each_step_on_a_linear_model(objective, start, each):
    """z_{t+1} = clip(z_t + a s) in the ball and in the box, where s is known."""
    model, shape, n = Linear(), (1, 2, 2), 40
    x, y = images(n, shape, dtype=torch.float64), labels(n, 2)
    scale = torch.linspace(0.2 if each else 1, 1, n, dtype=torch.float64)
    eps, a = 0.1 * scale, 0.02 * scale.flip(0)
    words = {"eps": eps, "step_size": a} if each else {"eps": 0.1, "step_size": 0.02}
    path = [z for z, _ in PGD(0.5, 0.5, 9, objective, start).path(model, x, y, **words)]
    eps, a, way = eps.reshape(n, 1, 1, 1), a.reshape(n, 1, 1, 1), direction(model, y, shape)
    for z, after in itertools.pairwise(path):
        if objective == "kl":  # which grows away from x along the difference of the logits
            d = (model(z) - model(x)).detach()
            way = direction(model, (d[:, 1] < d[:, 0]).long(), shape)
        assert_near(after, (z + a * way).clamp(x - eps, x + eps).clamp(0, 1))
    assert torch.equal(PGD(0.5, 0.5, 9, objective, start)(model, x, y, **words), path[-1])


@given(st.data())
def test_never_outside_ball_or_box(data):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)))
    n = data.draw(st.integers(0, 4))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    budget = st.one_of(st.sampled_from([0.0, 1e-8, 8 / 255, 1.0]), st.floats(0, 1))
    x = images(n, shape, seed=data.draw(st.integers(0, 9)),
               dtype=dtype).round(decimals=data.draw(st.sampled_from([0, 1, 8])))
    each = st.lists(budget, min_size=n, max_size=n).map(lambda v: torch.tensor(v, dtype=dtype))
    eps = data.draw(st.one_of(budget, each))
    attack = PGD(0.5, data.draw(budget), data.draw(st.integers(0, 4)),
                 *(data.draw(st.sampled_from([*names])) for names in (OBJECTIVES, STARTS)),
                 data.draw(budget))
    model, g = Linear(shape, 3, dtype=dtype), data.draw(st.integers(0, 9))
    ball = torch.as_tensor(eps, dtype=dtype).reshape(-1, 1, 1, 1)
    rounding = 4 * torch.finfo(dtype).eps
    path = list(attack.path(model, x, labels(n), eps=eps, generator=seeded(g)))
    walk = attack.walk(model, x, labels(n), eps=eps, generator=seeded(g),
                       stop=data.draw(st.booleans()))
    assert all(right.shape == (n,) for _, right in path)
    for z in (*(z for z, _ in path), walk.last, walk.first_wrong, walk.last_right):
        assert z.shape == x.shape and z.dtype == dtype and not z.requires_grad
        assert ((z >= 0) & (z <= 1)).all() and ((z - x).abs() <= ball + rounding).all()


def test_starts_and_noise():
    """Where z_0 lies: in the whole ball, near x, at x; and the deviation that each step adds."""
    x = torch.full((200, 1, 6, 6), 0.5)
    offset = {s: next(PGD(0.2, start=s).path(Small(), x, labels(200)))[0] - x for s in STARTS}
    assert not offset["clean"].any() and offset["uniform"].abs().max() > 0.199
    assert abs(offset["uniform"].std() - 0.2 / 3**0.5) < 2e-3
    assert abs(offset["uniform"].mean()) < 5e-3
    assert abs(offset["gaussian"].std() - 1e-3) < 2e-5 and abs(offset["gaussian"].mean()) < 5e-5
    path = [z for z, _ in PGD(0.5, 0.0, 2, start="clean", noise=0.01).path(Small(), x, labels(200))]
    first, second = path[1] - path[0], path[2] - path[1]
    assert abs(first.std() - 0.01) < 2e-4 and abs(second.std() - 0.01) < 2e-4
    assert not torch.equal(first, second)


def fold(path, extra, stop):
    """What `walk` returns, written the long way: one example after another."""
    iterates, rights = zip(*path, strict=True)
    k, found = len(path) - 1, []
    for i in range(len(rights[0])):
        wrong = [t for t in range(k) if not rights[t][i]]
        t_wrong = wrong[0] if wrong else k
        t_found = wrong[extra] if len(wrong) > extra else k
        n_right = sum(bool(rights[t][i]) for t in range(min(t_found + 1, k) if stop else k))
        z = [iterates[t][i] for t in range(k + 1)]
        found.append((z[t_found] if stop else z[k], z[t_found], z[max(t_wrong - 1, 0)],
                      torch.tensor(n_right), torch.tensor(t_wrong)))
    return Walk(*(torch.stack(part) for part in zip(*found, strict=True)))


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize(("objective", "steps"), [("ce", 0), ("ce", 7), ("kl", 7)])
def test_walk_is_the_fold_over_path(objective, extra, stop, steps):
    """So noisy that examples fall, recover and fall again; some are wrong at once, some never."""
    attack = PGD(0.25, 0.02, steps, objective, noise=0.15)
    model, x = Small().double().eval(), images(60, dtype=torch.float64, seed=5)
    y = torch.where(torch.arange(60) % 7 == 0, (predict(model, x) + 1) % 3, predict(model, x))
    each = {"eps": torch.linspace(0, 0.4, 60), "step_size": torch.linspace(0.1, 0, 60)}
    for words in ({}, each):
        walk = attack.walk(model, x, y, extra=extra, stop=stop, generator=seeded(1), **words)
        oracle = fold(list(attack.path(model, x, y, generator=seeded(1), **words)), extra, stop)
        for field in dataclasses.fields(Walk):
            mine, other = getattr(walk, field.name), getattr(oracle, field.name)
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-9, msg=field.name)
        if stop:
            assert torch.equal(walk.last, walk.first_wrong)
    if (objective, steps) == ("ce", 7):  # the examples are of every kind
        rights = torch.stack([r for _, r in attack.path(model, x, y)])[:-1]
        falls, recovers = (rights[:-1] & ~rights[1:]).sum(0), (~rights[:-1] & rights[1:]).any(0)
        assert (~rights[0]).any() and rights.all(0).any() and recovers.any()
        assert (falls > 1).any() and ((~rights).sum(0) >= 4).any()


def worn_model():
    """Some parts in training mode and some not, some parameters fixed, one with a gradient."""
    model = Small(dropout=0.5).train()
    model.norm.eval()
    model.head.bias.requires_grad_(False)
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    return model


CALLS = {
    "walk": lambda a, *args: a.walk(*args, extra=1),
    "stop": lambda a, *args: a.walk(*args, stop=True),
    "path": lambda a, *args: list(a.path(*args)),
    "predict": lambda a, model, x, y: [predict(model, x, y) for _ in range(4)]}


@pytest.mark.parametrize(("objective", "failing"), [("ce", 0), ("ce", 4), ("kl", 2)])
@pytest.mark.parametrize("call", CALLS)
def test_model_and_random_state_are_left_alone(call, objective, failing):
    """Also after an exception in the n-th forward pass."""
    model, x, y = worn_model(), images(6, seed=2), labels(6)
    model.register_forward_pre_hook(failing_at(failing))
    with pytest.raises(ArithmeticError) if failing else nullcontext(), left_alone(model):
        CALLS[call](PGD(0.1, 0.02, 4, objective, noise=0.01), model, x, y)
    assert x.grad is None and not x.requires_grad
    with left_alone(model := worn_model()):  # by a path that is not followed to its end, too
        next(PGD(0.1, 0.02, 3, objective).path(model, x, y))
        assert model.training and model.drop.training


def test_the_callers_modes_and_gradients_do_not_matter():
    x, y = images(6), labels(6)
    want = PGD(0.1)(Small(), x, y)
    assert not torch.equal(want, x)
    assert torch.equal(want, PGD(0.1)(Small(dropout=0.9).train(), x.clone().requires_grad_(), y))
    with torch.no_grad():
        assert torch.equal(want, PGD(0.1)(Small(), x, y)) and not torch.is_grad_enabled()


X, Y = images(4), labels(4)


@pytest.mark.parametrize(("x", "y", "words", "say"), [
    (255 * X, Y, {}, r"\[0, 1\].*Divide pixels by 255"),
    ((255 * X).byte(), Y, {}, r"uint8.* / 255"),
    (X[:, :, :5], Y, {}, r"Small cannot take images of shape \(4, 1, 5, 6\)"),
    (X, Y[:3], {}, "4 labels, a tensor of int64"),
    (X, Y + 5, {}, r"shape \(4, 3\).*, labels run to 7"),
    (X, Y, {"eps": 8}, "8 / 255"), (X, Y, {"eps": torch.full((3,), 0.1)}, "3 values for 4 images"),
    (X, Y, {"step_size": torch.tensor([0.1, torch.nan, 0.1, 0.1])}, "step_size is nan")])
def test_bad_images_labels_and_budgets(x, y, words, say):
    """The rest is in tests/traps/test_judge.py."""
    model, attack = worn_model(), PGD(0.1, steps=2)
    for call in (attack, attack.walk, lambda *given, **more: list(attack.path(*given, **more))):
        with pytest.raises(CourseError, match=say), left_alone(model):
            call(model, x, y, **words)


UNITS3 = (1 / 10, 1 / 100, 1.0)  # features that run over 10, 100 and 1 of their own units


def test_a_scale_multiplies_budget_and_step_feature_by_feature():
    """z = clip(x + units * min(step, eps) * sign(gradient)): one step on a linear model."""
    model, x, y = Linear((3,)), images(40, (3,), dtype=torch.float64), labels(40, 2)
    units = torch.tensor(UNITS3, dtype=x.dtype)
    for eps, step, steps in ((2.0, 1.5, 1), (3.0, 50.0, 1), (3.0, 2.0, 4)):
        z = PGD(eps, step, steps, start="clean", scale=UNITS3)(model, x, y)
        reach = min(steps * step, eps) * units
        assert_near(z, (x + reach * direction(model, y, (3,))).clamp(0, 1))
    even = PGD(0.2, 0.1, 3, scale=(1.0, 1.0, 1.0))
    assert torch.equal(even(model, x, y), PGD(0.2, 0.1, 3)(model, x, y))
    with pytest.raises(CourseError, match=r"2 values, for a table \[B, 2\]; given: \(40, 3\)"):
        PGD(5.0, scale=(1.0, 1.0))(model, x, y)
    with pytest.raises(CourseError, match="Images take no scale"):
        PGD(5.0, scale=UNITS3)(Linear((1, 1, 3)), torch.rand(2, 1, 1, 3).double(), labels(2, 2))


def test_the_kernel_leaves_scaled_attacks_alone():
    """Images of one row would fit its memory and be attacked with wrong budgets."""
    model, x, y = build("lenet5"), torch.rand(2, 1, 32, 32), torch.tensor([0, 1])
    setup = WalkSetup.of(PGD(steps=2), model, x, y)
    scaled = dataclasses.replace(setup, attack=PGD(steps=2, scale=UNITS3))
    assert native.walk(scaled, 0, False) is None
    assert native.library() is None or native.walk(setup, 0, False) is not None


QUICK = AutoAttack(attacks=("apgd-ce", "fab-t"))
EPS = 0.068


def linear(n=60):
    """A linear model of five classes, images far from the walls of the box, and their budgets."""
    model = Linear((1, 6, 6), classes=5, dtype=torch.float32)
    x = 0.3 + 0.4 * torch.rand(n, 1, 6, 6, generator=seeded(1))
    y = predict(model, x)
    with torch.no_grad():
        f, w = model(x), model.weight
        margins = f.gather(1, y[:, None]) - f
        norms = (w[y][:, None] - w[None]).abs().sum(2)
        own = torch.nn.functional.one_hot(y, 5).bool()
    return model, x, y, (margins / norms).masked_fill(own, torch.inf).amin(1)


@pytest.mark.parametrize("attacks", [("apgd-ce", "fab-t"), ("apgd-t",)])
def test_a_linear_model_is_robust_just_where_its_margin_says(attacks):
    model, x, y, needed = linear()
    sure = (needed / EPS - 1).abs() > 0.02
    held = predict(model, AutoAttack(EPS, attacks)(model, x, y, generator=seeded(0))) == y
    assert torch.equal(held[sure], needed[sure] > EPS) and 10 < held.sum() < 50
    assert AutoAttack(EPS, attacks)(model, x[:0], y[:0]).shape == x[:0].shape


def test_no_weaker_than_pgd_and_the_same_for_the_same_seed():
    model, part = load_model("exp1/pgd-at"), load("fashion-mnist").test.per_class(4)
    quick, pgd = AutoAttack(attacks=("apgd-ce", "apgd-t")), ATTACKS["pgd20"]
    strong, weak, again = (evaluate(model, part, a, progress=False) for a in (quick, pgd, quick))
    assert strong.nat == weak.nat and strong == again
    assert sum(strong.rob.wrong) >= sum(weak.rob.wrong) > sum(weak.nat.wrong)


def test_the_standard_four():
    """Square, too; on three images, one of which is wrong when clean and not attacked."""
    model, x, y, needed = linear(40)
    order = needed.argsort()[[0, 20, 39]]
    x, y = x[order], y[order].clone()
    y[1] = (y[1] + 1) % 5
    z = AutoAttack(EPS)(model, x, y, generator=seeded(0))
    assert (predict(model, z) == y).tolist() == [False, False, True] and torch.equal(z[1], x[1])


def test_everything_is_left_alone():
    model, y = Small(4, dropout=0.5).train(), torch.tensor([0, 1, 2, 3, 0, 1])
    x = torch.rand(6, 1, 6, 6, generator=seeded(0))
    before, given, tracer = sys.gettrace(), x.clone(), lambda *_: None
    sys.settrace(tracer)
    try:
        with left_alone(model):
            QUICK(model, x, y, generator=seeded(0))
        assert sys.gettrace() is tracer and torch.equal(x, given)
    finally:
        sys.settrace(before)


def test_the_judge_is_called_as_published():
    """The standard version with its one restart each, but no more targets than other classes."""
    model, x, _, _ = linear(2)
    judge = AutoAttack(EPS)._judge(model, x, seed=5)
    assert judge.version == "standard" and judge.attacks_to_run == list(STANDARD)
    assert judge.apgd_targeted.n_target_classes == judge.fab.n_target_classes == 4
    assert (judge.apgd.n_restarts, judge.square.n_queries, judge.seed) == (1, 5000, 5)
    assert QUICK._judge(model, x, seed=0).attacks_to_run == ["apgd-ce", "fab-t"]


def test_what_leaves_the_ball_is_refused(monkeypatch):
    class Wild:
        def run_standard_evaluation(self, x, y, **_):
            return x + EPS + 0.02, y

    model, x, y, _ = linear(4)
    monkeypatch.setattr(AutoAttack, "_judge", lambda *_: Wild())
    with pytest.raises(CourseError, match="left the ball"):
        AutoAttack(EPS)(model, x, y)
    assert torch.allclose(AutoAttack(EPS + 0.02)(model, x, y), x + EPS + 0.02)


def apart(classes, attacks=STANDARD):
    x, y = torch.rand(5, 1, 6, 6, generator=seeded(0)), torch.zeros(5, dtype=torch.int64)
    return AutoAttack(attacks=attacks)(Linear((1, 6, 6), classes, dtype=torch.float32), x, y)


@pytest.mark.parametrize(("call", "say"), [
    (lambda: apart(2), r"needs 4 classes, but the model has 2. "
                       r"Use AutoAttack\(attacks=\('apgd-ce', 'fab-t', 'square'\)"),
    (lambda: apart(3), "needs 4 classes, but the model has 3"),
    (lambda: apart(2, ("apgd-dlr",)), "needs 3 classes"),
    (lambda: QUICK(Small(), torch.rand(4, 36), torch.zeros(4, dtype=torch.int64)),
     "float32 images of shape"),
    (lambda: AutoAttack(eps=8.0), "For 8 grey levels of 255 write 8 / 255"),
    (lambda: AutoAttack(attacks=("fgsm",)), "Unknown attack of AutoAttack's 'fgsm'"),
    (lambda: AutoAttack(attacks=()), "without attacks"),
    (lambda: AutoAttack(batch=0), "batch is 0"),
    *[(lambda words=words: PGD(**words), say) for words, say in [
        ({"eps": 8}, "8 / 255"), ({"eps": math.nan}, "eps is nan"), ({"noise": -1}, "noise is -1"),
        ({"step_size": 2}, "step_size is 2"), ({"steps": -1}, "0 or more"),
        ({"objective": "hinge"}, "ce, kl, margin"), ({"start": "x"}, "clean, gaussian, uniform"),
        ({"scale": (0.5, 0.0)}, "scale holds 0.0; give"), ({"scale": 0.5}, "scale holds None"),
        ({"scale": (0.5,), "eps": -1.0}, "eps is -1; .*from 0 with a scale")]]])
def test_what_cannot_be(call, say):
    with pytest.raises(CourseError, match=say):
        call()


def test_two_classes_are_enough_for_some_and_the_package_for_all(monkeypatch):
    assert apart(2, QUICK.attacks).shape == (5, 1, 6, 6)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(CourseError, match="pip install 'pyautoattack>=0.2'"):
        apart(2, QUICK.attacks)
