"""What every training method promises; a new method is tested as it appears."""

import dataclasses
import json
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from course_lib import PGD, CourseError, Optim, evaluate, fit
from course_lib import methods as room
from course_lib.methods import METHODS, Step
from tests.helpers import Small, images, labels, random_states, report, seeded, split

X, Y = images(12), labels(12)


def at(epoch=0, epochs=11, seed=0, **stats):
    return Step(epoch, epochs, 0, 3, seeded(seed), {k: torch.tensor(v) for k, v in stats.items()})


def loss_of(method, state=None, model=None, step=None):
    state = state or method.init_state(3)
    out = method.loss(model or Small().eval(), X, Y, state, step or at())
    return out[0] if isinstance(out, tuple) else out


def test_every_file_of_the_folder_registers_its_methods():
    assert all(cls.name == name for name, cls in METHODS.items())
    files = {p.stem for p in Path(room.__file__).parent.glob("*.py")} - {"__init__", "base"}
    assert {cls.__module__.rsplit(".", 1)[1] for cls in METHODS.values()} == files


@pytest.mark.parametrize("name", METHODS)
def test_is_plain_frozen_data_with_a_docstring(name):
    method = METHODS[name]()
    assert method == METHODS[name]() and repr(method) == repr(METHODS[name]())
    assert " at 0x" not in repr(method) and method.wants_report in ("errors", "flips", "")
    json.dumps(dataclasses.asdict(method))  # as records keep it
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.attack = None
    doc = METHODS[name].__doc__
    assert doc and not doc.startswith(f"{METHODS[name].__name__}(")


@pytest.mark.parametrize("epoch", [0, 10])
@pytest.mark.parametrize("name", METHODS)
def test_loss_is_a_finite_number_with_gradients(name, epoch):
    model = Small().train()
    loss = loss_of(METHODS[name](), model=model, step=at(epoch))
    assert loss.shape == () and torch.isfinite(loss) and loss > 0
    assert all(p.grad is None for p in model.parameters()), "the attack left gradients behind"
    loss.backward()
    assert all(torch.isfinite(p.grad).all() and p.requires_grad for p in model.parameters())
    assert model.head.weight.grad.any() and all(m.training for m in model.modules())


@pytest.mark.parametrize("name", METHODS)
def test_the_steps_generator_is_the_only_source_of_chance(name):
    method = METHODS[name]()
    # noise in every step, so that not all walks end in the same corner
    if hasattr(method, "attack"):
        method = dataclasses.replace(method, attack=dataclasses.replace(method.attack, noise=0.01))
    before = random_states()
    losses = [loss_of(method, step=at(seed=seed)).item() for seed in (1, 1, 2)]
    assert before == random_states() and losses[0] == losses[1]
    assert (losses[0] == losses[2]) == (name == "natural")


@pytest.mark.parametrize("name", METHODS)
def test_memory_is_tensors_that_nobody_changes_in_place(name):
    """Neither loss nor update changes what it was given; the memory keeps names, shapes, types."""
    method = METHODS[name]()
    state = method.init_state(3)
    before, x, y = {k: v.clone() for k, v in state.items()}, X.clone(), Y.clone()
    method.loss(Small().eval(), X, Y, state, at())
    later = method.update(state, dataclasses.replace(report(), flips=report().rob), at())
    assert state.keys() == before.keys() and all(torch.equal(v, before[k])
                                                 for k, v in state.items())
    assert torch.equal(x, X) and torch.equal(y, Y)
    assert later.keys() == state.keys() and all(
        (v.shape, v.dtype) == (state[k].shape, state[k].dtype) for k, v in later.items())
    assert all(torch.isfinite(v).all() for v in later.values())


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name):
    """Three classes of different brightness, a budget too small to hide it."""
    y = labels(60)
    bright = (0.2 * images(60) + 0.4 * y.reshape(-1, 1, 1, 1)).clamp(0, 1)
    data = dataclasses.replace(split(60), x=bright, y=y)
    method = METHODS[name]()
    if hasattr(method, "attack"):
        method = dataclasses.replace(method, attack=method.attack.at(0.01))

    def check(model, step):
        return evaluate(model, data, PGD(0.01, 0.01, 2), flips=True, progress=False)

    model = fit(Small(), method, data, epochs=5, optim=Optim(lr=0.01, batch=10), seed=0,
                validate=check, progress=False).model
    # (what is optimised may change from epoch to epoch; so the errors are looked at)
    assert evaluate(model, data, PGD(0.01, 0.01, 5), progress=False).rob.mean < 0.1


def test_natural_and_adversarial_training_by_hand():
    pgd_at, attack, model = METHODS["pgd_at"], PGD(0.1, 0.03, 5, start="clean"), Small().eval()
    natural, p = loss_of(METHODS["natural"]()), torch.softmax(model(X), 1)
    assert_close(natural, -sum(p[i, c].log() for i, c in enumerate(Y.tolist())) / len(Y))
    for nothing in (pgd_at(attack, mix=1), pgd_at(PGD(0.1, steps=0, start="clean")),
                    pgd_at(PGD(eps=0), mix=0.5)):
        assert torch.equal(loss_of(nothing), natural)
    loss = loss_of(pgd_at(attack), model=model)
    assert_close(loss, F.cross_entropy(model(attack(model, X, Y)), Y))
    assert loss > natural + 0.01


@pytest.mark.parametrize(("name", "limit"), [
    (name, limit) for name, cls in METHODS.items() for limit in cls.limits])
def test_what_is_beyond_a_limit_is_refused(name, limit):
    bounds = isinstance(limit, str)  # such as "0 <= mix <= 1"
    word, kind = limit.split()[2] if bounds else limit[0], METHODS[name].__name__
    usual = getattr(METHODS[name](), word)
    for bad in [-0.1, torch.nan, *[1.1] * limit.endswith("= 1")] if bounds else ["x"]:
        given = (bad,) * len(usual) if isinstance(usual, tuple) else bad
        says = f"{word} is .*; {kind} takes {limit}" if bounds else f"{word} of {kind} 'x'"
        with pytest.raises(CourseError, match=says):
            METHODS[name](**{word: given})


@pytest.mark.parametrize(("n", "mix", "attacked"), [
    (12, 0, 12), (12, 0.25, 9), (12, 0.5, 6), (12, 1, 0), (1, 0.5, 1), (5, 0.5, 3), (7, 0.5, 3)])
def test_the_mix_is_the_clean_share(n, mix, attacked):
    """Exactly so many images are attacked, others in each batch; the rest keep their places."""
    spy = mock.Mock(side_effect=lambda model, x, y, *, generator: torch.ones_like(x))
    model, x, white = mock.Mock(wraps=Small().eval()), images(n), torch.zeros(n, dtype=torch.bool)
    for seed in range(4):
        METHODS["pgd_at"](spy, mix=mix).loss(model, x, labels(n), {}, at(seed=seed))
        last = model.call_args.args[0]
        now = (last == 1).flatten(1).all(1)
        assert now.sum() == attacked and torch.equal(last[~now], x[~now])
        assert torch.equal(spy.call_args.args[1].sort(0)[0], x[now].sort(0)[0])
        white |= now
    assert white.sum() > attacked or attacked in (0, n)
