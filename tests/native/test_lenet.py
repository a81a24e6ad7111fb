"""The C++ kernel of LeNet-5 against PyTorch: same numbers, same landmarks, and never a crash."""

import copy
import logging
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import hypothesis.strategies as some
import pytest
import torch
from hypothesis import given
from torch import nn
from torch.nn import functional as F

from course_lib import attacks, load, load_model, native
from course_lib.attacks import PGD
from course_lib.inference import predict
from course_lib.models import LeNet5, build
from course_lib.native import build as builder
from tests.helpers import seeded

IMAGES, COUNTS = ("last", "first_wrong", "last_right"), ("n_right", "t_wrong")

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")


def images(n, channels=1, classes=10, seed=0):
    g = seeded(seed)
    return (torch.rand(n, channels, 32, 32, generator=g),
            torch.randint(0, classes, (n,), generator=g))


def same_walks(ours, theirs):
    """Equal counts, and images that differ in less than a pixel of a thousand."""
    assert all(torch.equal(getattr(ours, word), getattr(theirs, word)) for word in COUNTS)
    for a, b in ((getattr(ours, word), getattr(theirs, word)) for word in IMAGES):
        assert ((a - b).abs() > 1e-5).float().mean() < 1e-3


def by_loop(attack, model, x, y, **words):
    with native.off():
        return attack.walk(model, x, y, **words)


def scaled(factor, channels=1, classes=10):
    model = build("lenet5", channels=channels, classes=classes)
    model.load_state_dict({k: factor * v for k, v in model.state_dict().items()})
    return model


def served(model, x):
    """Whether the kernel computed model(x), which must equal PyTorch's either way."""
    with mock.patch.object(native, "_forward", wraps=native._forward) as kernels:
        out = model(x)
    with native.off():
        torch.testing.assert_close(out, model(x), atol=1e-5, rtol=1e-4)
    return kernels.called


@pytest.fixture(scope="module")
def trained():
    """An adversarially trained LeNet-5, and test images."""
    test = load("fashion-mnist").test.take(slice(0, 130))
    return load_model("exp1/pgd-at"), test.images(), test.y


@pytest.mark.parametrize("objective", ["ce", "kl", "margin"])
def test_after_twenty_steps_as_near_to_float64_as_pytorch(objective, trained, monkeypatch):
    model, x, y = trained
    attack = PGD(objective=objective, start="gaussian" if objective == "kl" else "uniform")
    ours, theirs = attack.walk(model, x, y), by_loop(attack, model, x, y)
    draw = attacks._draw
    monkeypatch.setattr(attacks, "_draw", lambda *a: draw(*a[:3], a[3].float()).double())
    truth = by_loop(attack, copy.deepcopy(model).double(), x.double(), y)
    for word in IMAGES:
        right = getattr(truth, word)
        off = [int(((getattr(walk, word).double() - right).abs() > 1e-4).sum())
               for walk in (ours, theirs)]
        slack = 1e-3 * x.numel()  # one sign that differs early takes some hundred pixels along
        assert off[0] <= 1.5 * off[1] + slack, f"{word}: {off} pixels differ"
    for word in COUNTS:
        assert torch.equal(getattr(ours, word), getattr(truth, word))


@pytest.mark.parametrize("words", [{}, {"extra": 1}, {"stop": True}, {"stop": True, "extra": 2}])
@pytest.mark.parametrize("more", [{"noise": 0.01}, {"objective": "margin", "start": "clean"}])
def test_landmarks_are_the_loops(more, words, trained):
    (model, x, y), attack = trained, PGD(steps=8, step_size=0.02, **more)
    each = torch.linspace(0, 0.15, len(x))
    ours = attack.walk(model, x, y, eps=each, step_size=each / 4, **words)
    theirs = by_loop(attack, model, x, y, eps=each, step_size=each / 4, **words)
    assert 0 < (ours.t_wrong < attack.steps).sum() < len(x)  # both kinds are there
    same_walks(ours, theirs)


@given(n=some.integers(1, 257), eps=some.floats(0, 0.5), steps=some.integers(0, 50),
       factor=some.sampled_from([0, 1e-20, 0.1, 1, 3, 30, 1e4, 1e20]),
       objective=some.sampled_from(["ce", "kl", "margin"]), channels=some.sampled_from([1, 1, 3]),
       classes=some.sampled_from([2, 7, 10, 41]), extra=some.integers(0, 3), stop=some.booleans(),
       noise=some.sampled_from([0, 0.01]), seed=some.integers(0, 99))
def test_any_walk_keeps_the_rules(n, eps, steps, factor, objective, channels, classes, extra, stop,
                                  noise, seed):
    n, steps = (n, steps) if n * steps < 2000 else (n, 2000 // n)
    model, (x, y) = scaled(factor, channels, classes), images(n, channels, classes, seed)
    y[::2] = predict(model, x)[::2]
    walk = PGD(eps, eps / 4, steps, objective, noise=noise).walk(model, x, y, extra=extra,
                                                                 stop=stop)
    for z in (walk.last, walk.first_wrong, walk.last_right):
        assert z.min() >= 0 and z.max() <= 1 and ((z - x).abs() <= eps + 1e-6).all()
    hit, was_right = walk.t_wrong < steps, (walk.t_wrong > 0) & (steps > 0)
    assert (walk.n_right <= steps).all() and (walk.n_right >= walk.t_wrong).all()
    assert (walk.n_right[~hit] == steps).all()
    assert torch.equal(predict(model, walk.last_right)[was_right], y[was_right])
    assert extra or (predict(model, walk.first_wrong) != y)[hit].all()
    assert torch.equal(walk.first_wrong[~hit], walk.last[~hit])


@given(n=some.integers(1, 40), factor=some.sampled_from([0.3, 1, 3]),
       channels=some.sampled_from([1, 3]), classes=some.sampled_from([2, 10, 41]),
       wants_x=some.booleans(), seed=some.integers(0, 99))
def test_logits_and_gradients_are_pytorchs(n, factor, channels, classes, wants_x, seed):
    model, (x, y) = scaled(factor, channels, classes), images(n, channels, classes, seed)
    results = []
    for switch in (native.off, lambda: torch.enable_grad()):
        z = x.clone().requires_grad_(wants_x)
        with switch():
            out = model(z)
        wanted = [*model.parameters(), *([z] if wants_x else [])]
        results.append((out, torch.autograd.grad(F.cross_entropy(out, y), wanted)))
    (theirs, their_gradients), (ours, our_gradients) = results
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    for a, b in zip(our_gradients, their_gradients, strict=True):
        assert a.shape == b.shape and (a - b).norm() <= 1e-4 * b.norm() + 1e-7


@pytest.mark.parametrize("flags", ["-mno-avx512f -mavx2 -mfma", "-march=x86-64"])
def test_every_width_of_register(flags, trained, monkeypatch):
    if "x86_64" not in os.uname().machine:
        pytest.skip("flags of another machine")
    model, x, y = trained
    attack = PGD(steps=5)
    want = attack.walk(model, x[:19], y[:19])
    native_lanes = native.library().lenet_lanes()
    monkeypatch.setenv("COURSE_NATIVE_FLAGS", f"{flags} -O1")
    assert native.library().lenet_lanes() == (8 if "avx2" in flags else 4) <= native_lanes
    same_walks(attack.walk(model, x[:19], y[:19]), want)
    test_logits_and_gradients_are_pytorchs.hypothesis.inner_test(19, 1, 3, 5, True, 0)


def test_an_image_is_walked_alike_in_any_company_on_any_thread_and_in_a_fork(trained):
    """Gradients are the same bits each time, too."""
    (model, x, y), attack = trained, PGD(steps=5, start="clean")
    together, before = attack.walk(model, x, y, stop=True), torch.get_num_threads()
    child = os.fork() if sys.platform != "win32" else -1
    if child == 0:
        torch.set_num_threads(1)
        os._exit(not torch.equal(attack.walk(model, x, y, stop=True).last, together.last))
    assert os.waitpid(child, 0)[1] == 0
    torch.set_num_threads(3)
    try:
        first, second = (torch.autograd.grad(F.cross_entropy(model(x), y), [*model.parameters()])
                         for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for part in (torch.randperm(len(x), generator=seeded(0)), torch.tensor([7])):
            walk = attack.walk(model, x[part], y[part], stop=True)
            for word in (*IMAGES, *COUNTS):
                assert torch.equal(getattr(walk, word), getattr(together, word)[part])
    finally:
        torch.set_num_threads(before)


def test_backward_twice_and_again(trained):
    model, x, y = trained
    z = x[:5].clone().requires_grad_()
    loss = F.cross_entropy(model(z), y[:5])
    (once,) = torch.autograd.grad(loss, z, retain_graph=True)
    (twice,) = torch.autograd.grad(loss, z, retain_graph=True)
    assert torch.equal(once, twice)
    (along,) = torch.autograd.grad(loss, z, create_graph=True)  # a second derivative, by PyTorch
    (ours,) = torch.autograd.grad(along.square().sum(), z)
    with native.off():
        (along,) = torch.autograd.grad(F.cross_entropy(model(z), y[:5]), z, create_graph=True)
        (theirs,) = torch.autograd.grad(along.square().sum(), z)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    model = scaled(1)
    model.conv2.requires_grad_(False)
    F.cross_entropy(model(x), y).backward()
    assert model.conv2.weight.grad is None and model.conv1.weight.grad is not None
    with torch.no_grad():
        assert not model(x).requires_grad


Doubled = type("Doubled", (LeNet5,), {"forward": lambda self, x: 2 * LeNet5.forward(self, x)})


def test_pytorch_serves_the_unusual():
    """Hooks and replaced forwards of a class or layer: tests/traps/test_kernel.py"""
    (x, y), attack, usual = images(3), PGD(steps=2), [build("lenet5") for _ in range(6)]
    usual[0].conv2.register_forward_hook(lambda m, i, o: o + 1)
    usual[1].conv3 = nn.Conv2d(16, 120, 5, bias=False)
    nn.utils.parametrizations.weight_norm(usual[2].fc1)
    usual[3].forward = lambda z: z.flatten(1)[:, :10]
    for model, z in (*((m, x) for m in usual[:4]), (usual[4].double(), x.double()), (Doubled(), x),
                     (usual[5], x[:0])):
        assert not served(model, z)
        torch.testing.assert_close(attack(model, z, y[: len(z)]),
                                   by_loop(attack, model, z, y[: len(z)]).last)


@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: x.to(memory_format=torch.channels_last), lambda x: x.transpose(2, 3),
    lambda x: x[::2], lambda x: x[:1].expand(9, 3, 32, 32), lambda x: x.clone().requires_grad_()])
def test_layouts_are_served(change):
    model, x = scaled(1, channels=3), change(images(9, channels=3)[0])
    y = torch.zeros(len(x), dtype=torch.int64)
    assert served(model, x) and served(model.to(memory_format=torch.channels_last), x)
    same_walks(PGD(steps=3).walk(model, x, y), by_loop(PGD(steps=3), model, x, y))


def test_transformations_see_pytorch():
    model, (x, _) = scaled(1), images(3)
    with torch.no_grad(), native.off():
        want = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(x).dtype == torch.bfloat16
    one_by_one = torch.func.vmap(lambda z: model(z[None])[0])(x)
    torch.testing.assert_close(one_by_one, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x), want)
    torch.testing.assert_close(torch.compile(model, backend="eager")(x), want)
    ways = (torch.func.jvp(model, (x,), (torch.ones_like(x),)),
            torch.autograd.functional.jvp(model, x, torch.ones_like(x)))
    torch.testing.assert_close(ways[0][1], ways[1][1], rtol=1e-3, atol=1e-5)
    with torch.no_grad():
        model.fc2.bias += 1  # the kernel reads the weights anew each time
        torch.testing.assert_close(model(x), want + 1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_broken_weights_do_what_they_do_in_pytorch(bad):
    model, (x, y) = scaled(1), images(20)
    with torch.no_grad():
        model.fc1.weight[0, 0] = bad
    ours, theirs = PGD(steps=3).walk(model, x, y), by_loop(PGD(steps=3), model, x, y)
    assert all(torch.equal(getattr(ours, word), getattr(theirs, word)) for word in COUNTS)
    assert bad == bad or torch.equal(ours.last, theirs.last)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache of its own, and a compiler that is quick: it copies a library that is there."""
    fake = tmp_path / "fake-c++"
    fake.write_text(f'#!/bin/sh\necho built >> {tmp_path}/built\n[ "$1" = --version ] && exit 0\n'
                    f'while [ "$1" != -o ]; do shift; done\ncp {native.library()._name} "$2"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    builder._TRIED.clear()
    yield tmp_path / "cache" / "native"
    builder._TRIED.clear()


def test_built_once_found_again_and_replaced_when_damaged(fresh, monkeypatch):
    """Two builders at once leave one library, whose name says what the code depends on."""
    with ThreadPoolExecutor(2) as pool:
        assert None not in pool.map(builder._found_or_compiled, [builder.compiler()] * 2)
    (path,) = fresh.iterdir()
    built, good = fresh.parent.parent / "built", path.read_bytes()
    before = built.read_text().count("built")
    assert native.library() is not None and [*fresh.iterdir()] == [path]
    assert built.read_text().count("built") == before + 1  # only its version was asked for
    for damaged in (good[:1000], good[:5000] + b"x" + good[5001:]):
        path.unlink()  # the first one stays mapped
        path.write_bytes(damaged)
        builder._TRIED.clear()
        assert native.library() is not None and path.read_bytes() == good
    cxx, names = builder.compiler(), set()
    for change in (lambda: None, lambda: monkeypatch.setenv("COURSE_NATIVE_FLAGS", "-O0"),
                   lambda: monkeypatch.setattr(platform, "machine", lambda: "another CPU"),
                   lambda: monkeypatch.setattr(builder, "SOURCE", Path(__file__))):
        change()
        names.add(builder.key(cxx))
    assert len(names) == 4


@pytest.mark.parametrize("full", [False, True])
def test_a_cache_that_cannot_be_written(full, fresh, caplog, monkeypatch):
    if full:
        monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left")))
    else:
        fresh.parent.write_text("a file where the folder should be")
    assert native.library() is None and native.library() is None
    assert len(caplog.records) == 1
    assert ("No space left" if full else "Not a directory") in caplog.text
    assert not full or [*fresh.iterdir()] == []  # no half file stays


@pytest.mark.parametrize("cxx", ["/bin/false", "no-such-compiler", "something else"])
def test_without_a_working_compiler_pytorch_serves(cxx, fresh, monkeypatch, caplog):
    fake = Path(os.environ["CXX"])
    fake.write_text(fake.read_text().replace("cp ", "echo not ").replace('"$2"', '> "$2"'))
    monkeypatch.setenv("CXX", str(fake) if cxx == "something else" else cxx)
    with caplog.at_level(logging.WARNING):
        model, (x, y) = scaled(1), images(3)
        assert not served(model, x) and native.library() is None
        theirs = by_loop(PGD(steps=2), model, x, y).last
        torch.testing.assert_close(PGD(steps=2)(model, x, y), theirs)
    assert len(caplog.records) == 1 and "runs on PyTorch" in caplog.text
    assert native.reason() and native.reason() in caplog.text
    monkeypatch.setenv("COURSE_NATIVE", "0")
    assert native.library() is None and native.reason() == "COURSE_NATIVE=0"
