"""The C++ kernel of LeNet-5 against PyTorch: same numbers, same landmarks, and never a crash."""

import copy
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as some
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import attacks, native
from course_lib.attacks import PGD, Walk
from course_lib.data import load
from course_lib.errors import CourseError
from course_lib.inference import predict
from course_lib.models import LeNet5, build
from course_lib.native import build as builder
from course_lib.zoo import load_model
from tests.helpers import seeded

IMAGES, COUNTS = ("last", "first_wrong", "last_right"), ("n_right", "t_wrong")

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")


def images(n: int, channels: int = 1, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = seeded(seed)
    return (torch.rand(n, channels, 32, 32, generator=g),
            torch.randint(0, classes, (n,), generator=g))


def same_walks(ours: Walk, theirs: Walk) -> None:
    """Equal counts, and images that differ in less than a pixel of a thousand."""
    assert all(torch.equal(getattr(ours, word), getattr(theirs, word)) for word in COUNTS)
    for a, b in ((getattr(ours, word), getattr(theirs, word)) for word in IMAGES):
        assert ((a - b).abs() > 1e-5).float().mean() < 1e-3


def scaled(factor: float, channels: int = 1, classes: int = 10) -> nn.Module:
    model = build("lenet5", channels=channels, classes=classes)
    with torch.no_grad():
        for p in model.parameters():
            p *= factor
    return model


def by_loop(attack: PGD, model: nn.Module, x: Tensor, y: Tensor, **words: Any) -> Walk:
    with native.off():
        return attack.walk(model, x, y, **words)


def served(model: nn.Module, x: Tensor) -> bool:
    """Whether the kernel computed model(x), which must equal PyTorch's either way."""
    with mock.patch.object(native, "_pass", wraps=native._pass) as kernels:
        out = model(x)
    with native.off():
        torch.testing.assert_close(out, model(x), atol=1e-5, rtol=1e-4)
    return kernels.called


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """An adversarially trained LeNet-5, and test images."""
    test = load("fashion-mnist").test.take(slice(0, 200))
    return load_model("exp1/pgd-at"), test.images(), test.y


# --- the same numbers


@pytest.mark.parametrize("objective", ["ce", "kl", "margin"])
def test_after_twenty_steps_as_near_to_float64_as_pytorch(objective: str, trained: Any,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize("more", [{}, {"noise": 0.01}, {"objective": "margin", "start": "clean"}])
def test_landmarks_are_the_loops(more: dict[str, Any], words: dict[str, Any], trained: Any) -> None:
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
def test_any_walk_keeps_the_rules(n: int, eps: float, steps: int, factor: float, objective: str,
                                  channels: int, classes: int, extra: int, stop: bool,
                                  noise: float, seed: int) -> None:
    n, steps = (n, steps) if n * steps < 3000 else (n, 3000 // n)
    model, (x, y) = scaled(factor, channels, classes), images(n, channels, classes, seed)
    y[::2] = predict(model, x)[::2]
    attack = PGD(eps, eps / 4, steps, objective, noise=noise)
    walk = attack.walk(model, x, y, extra=extra, stop=stop)
    for word in IMAGES:
        z = getattr(walk, word)
        assert z.min() >= 0 and z.max() <= 1 and ((z - x).abs() <= eps + 1e-6).all()
    hit, was_right = walk.t_wrong < steps, (walk.t_wrong > 0) & (steps > 0)
    assert (walk.n_right <= steps).all() and (walk.n_right >= walk.t_wrong).all()
    assert (walk.n_right[~hit] == steps).all()
    assert torch.equal(predict(model, walk.last_right)[was_right], y[was_right])
    if extra == 0:
        assert (predict(model, walk.first_wrong) != y)[hit].all()
    if not hit.all():
        assert torch.equal(walk.first_wrong[~hit], walk.last[~hit])


@given(n=some.integers(1, 40), factor=some.sampled_from([0.3, 1, 3]),
       channels=some.sampled_from([1, 3]), classes=some.sampled_from([2, 10, 41]),
       wants_x=some.booleans(), seed=some.integers(0, 99))
def test_logits_and_gradients_are_pytorchs(n: int, factor: float, channels: int, classes: int,
                                           wants_x: bool, seed: int) -> None:
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
def test_every_width_of_register(flags: str, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- the same bits


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    yield
    torch.set_num_threads(before)


def test_an_image_is_walked_alike_in_any_company_and_on_any_thread(trained: Any) -> None:
    (model, x, y), attack = trained, PGD(steps=5, start="clean")
    together = attack.walk(model, x, y, stop=True)
    with threads(3):
        for part in (torch.randperm(len(x), generator=seeded(0)), torch.tensor([7])):
            walk = attack.walk(model, x[part], y[part], stop=True)
            for word in (*IMAGES, *COUNTS):
                assert torch.equal(getattr(walk, word), getattr(together, word)[part])


@pytest.mark.parametrize("n", [1, 3])
def test_gradients_are_the_same_bits_each_time(n: int) -> None:
    model, (x, y) = scaled(1), images(129)
    with threads(n):
        first, second = (torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
                         for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_backward_twice_and_again(trained: Any) -> None:
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


def test_only_what_is_wanted_has_a_gradient() -> None:
    model, (x, y) = scaled(1), images(3)
    model.conv2.requires_grad_(False)
    F.cross_entropy(model(x), y).backward()
    assert model.conv2.weight.grad is None and model.conv1.weight.grad is not None
    with torch.no_grad():
        assert not model(x).requires_grad


# --- who is served


class Doubled(LeNet5):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


# hooks and replaced forwards of a class or layer: tests/traps/test_kernel.py
UNUSUAL: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda m: m.conv2.register_forward_hook(lambda m, i, o: o + 1),
    "no bias": lambda m: setattr(m, "conv3", nn.Conv2d(16, 120, 5, bias=False)),
    "parametrised": lambda m: nn.utils.parametrizations.weight_norm(m.fc1),
    "patched": lambda m: setattr(m, "forward", lambda z: z.flatten(1)[:, :10]),
}


@pytest.mark.parametrize("word", [*UNUSUAL, "subclass", "double", "no image"])
def test_pytorch_serves_the_unusual(word: str) -> None:
    model, x = Doubled() if word == "subclass" else build("lenet5"), images(3)[0]
    UNUSUAL.get(word, lambda m: m)(model)
    x = x[:0] if word == "no image" else x
    model, x = (model.double(), x.double()) if word == "double" else (model, x)
    assert not served(model, x)
    y, attack = torch.zeros(len(x), dtype=torch.int64), PGD(steps=2)
    torch.testing.assert_close(attack(model, x, y), by_loop(attack, model, x, y).last)


@pytest.mark.parametrize("change", [
    lambda x: x, lambda x: x.to(memory_format=torch.channels_last), lambda x: x.transpose(2, 3),
    lambda x: x[::2], lambda x: x[:1].expand(9, 3, 32, 32), lambda x: x.clone().requires_grad_()])
def test_layouts_are_served(change: Callable[[Tensor], Tensor]) -> None:
    model, x = scaled(1, channels=3), change(images(9, channels=3)[0])
    y = torch.zeros(len(x), dtype=torch.int64)
    assert served(model, x) and served(model.to(memory_format=torch.channels_last), x)
    same_walks(PGD(steps=3).walk(model, x, y), by_loop(PGD(steps=3), model, x, y))


def test_transformations_see_pytorch() -> None:
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


def test_a_label_that_no_class_has_is_a_plain_error() -> None:
    with pytest.raises(CourseError):
        PGD(steps=2)(build("lenet5"), images(3)[0], torch.full((3,), 10))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_broken_weights_do_what_they_do_in_pytorch(bad: float) -> None:
    model, (x, y) = scaled(1), images(20)
    with torch.no_grad():
        model.fc1.weight[0, 0] = bad
    ours, theirs = PGD(steps=3).walk(model, x, y), by_loop(PGD(steps=3), model, x, y)
    assert all(torch.equal(getattr(ours, word), getattr(theirs, word)) for word in COUNTS)
    assert bad == bad or torch.equal(ours.last, theirs.last)


def test_a_forked_process_can_walk() -> None:
    model, (x, y) = scaled(1), images(40)
    before, want = torch.get_num_threads(), PGD(steps=2)(model, x, y)
    child = os.fork() if sys.platform != "win32" else -1
    if child == 0:
        torch.set_num_threads(1)
        os._exit(0 if torch.equal(PGD(steps=2)(model, x, y), want) else 1)
    assert os.waitpid(child, 0)[1] == 0 and torch.get_num_threads() == before


# --- building it


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and a compiler that is quick: it copies a library that is there."""
    fake = tmp_path / "fake-c++"
    fake.write_text(f'#!/bin/sh\necho built >> {tmp_path}/built\n[ "$1" = --version ] && exit 0\n'
                    f'while [ "$1" != -o ]; do shift; done\ncp {native.library()._name} "$2"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    builder._built.cache_clear()
    yield tmp_path / "cache" / "native"
    builder._built.cache_clear()


def kept(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_built_once_and_found_again(fresh: Path) -> None:
    assert native.library() is not None and len(kept(fresh)) == 1
    built = fresh.parent.parent / "built"
    before = built.read_text().count("built")
    builder._built.cache_clear()
    assert native.library() is not None and len(kept(fresh)) == 1
    assert built.read_text().count("built") == before + 1  # only its version was asked for


@pytest.mark.parametrize("damage", [lambda b: b[:1000], lambda b: b[:5000] + b"x" + b[5001:],
                                    lambda b: b""])
def test_a_damaged_library_is_replaced(fresh: Path, damage: Callable[[bytes], bytes]) -> None:
    native.library()
    (path,) = fresh.iterdir()
    good = path.read_bytes()
    path.unlink()  # the first one stays mapped
    path.write_bytes(damage(good))
    builder._built.cache_clear()
    assert native.library() is not None and path.read_bytes() == good


@pytest.mark.parametrize("full", [False, True])
def test_a_cache_that_cannot_be_written(full: bool, fresh: Path, caplog: pytest.LogCaptureFixture,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    if full:
        monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(28, "No space left")))
    else:
        fresh.parent.write_text("a file where the folder should be")
    assert native.library() is not None and native.library() is not None
    assert len(caplog.records) == 1 and "cannot be kept" in caplog.text
    assert not full or kept(fresh) == []  # no half file stays


@pytest.mark.parametrize("cxx", ["/bin/false", "no-such-compiler", "true", "something else"])
def test_without_a_working_compiler_pytorch_serves(
        cxx: str, fresh: Path, monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture) -> None:
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


def test_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_NATIVE", "0")
    assert native.library() is None and not served(scaled(1), images(2)[0])
    assert native.reason() == "COURSE_NATIVE=0"


def test_two_processes_build_at_once(fresh: Path) -> None:
    say = ("import torch; from course_lib.models import build; "
           "print(build('lenet5')(torch.zeros(1, 1, 32, 32)).sum().item())")
    both = [subprocess.Popen([sys.executable, "-c", say], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0] and answers[0] == answers[1] and not answers[0][1]
    assert len(kept(fresh)) == 1


def test_the_name_says_what_the_code_depends_on(fresh: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    cxx, names = builder.compiler(), set()
    for change in (lambda: None, lambda: monkeypatch.setenv("COURSE_NATIVE_FLAGS", "-O0"),
                   lambda: monkeypatch.setattr(builder, "_cpu_features", lambda: "another CPU"),
                   lambda: monkeypatch.setattr(builder, "SOURCE", Path(__file__))):
        change()
        names.add(builder.key(cxx))
    assert len(names) == 4
