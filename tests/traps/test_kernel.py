"""The kernels serve only what they know, and threads may share a model."""

import functools
import inspect
import linecache
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from torch import nn

from course_lib import PGD, native
from course_lib.inference import frozen, predict
from course_lib.machine import channels_last
from course_lib.models import LeNet5, build
from course_lib.native.guard import serves
from tests.helpers import Small, belongings, images, labels, left_alone, seeded

X, Y = torch.rand(6, 1, 32, 32, generator=seeded(0)), torch.arange(6)
compiled = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")


def edited(tmp_path):
    """LeNet5.forward as in an edited models.py that was loaded again."""
    source = inspect.getsource(LeNet5.forward).replace("torch.tanh(self.fc1", "torch.relu(self.fc1")
    assert "relu" in source
    (tmp_path / "models.py").write_text("class LeNet5:\n" + source)
    space = dict(LeNet5.forward.__globals__)
    exec(compile("class LeNet5:\n" + source, str(tmp_path / "models.py"), "exec"), space)
    linecache.checkcache()
    return space["LeNet5"].forward


def called(cls):
    inner = cls.forward
    return lambda self, z: inner(self, z).flip(1)


@compiled
@pytest.mark.parametrize("what", ["edited", "replaced", "convolution", "linear", "call"])
def test_h13_another_forward_is_pytorchs(what, tmp_path, monkeypatch):
    model = build("lenet5")
    assert serves(model, X), "the digest in native/guard.py is that of LeNet5.forward"
    old = PGD(steps=3)(model, X, Y)
    cls, name, new = {
        "edited": (LeNet5, "forward", edited(tmp_path)),
        "replaced": (LeNet5, "forward", functools.wraps(LeNet5.forward)(called(LeNet5))),
        "convolution": (nn.Conv2d, "forward", called(nn.Conv2d)),
        "linear": (nn.Linear, "forward", called(nn.Linear)),
        "call": (LeNet5, "__call__", lambda self, z: -nn.Module.__call__(self, z))}[what]
    monkeypatch.setattr(cls, name, new, raising=False)
    with mock.patch.object(native, "_forward") as used:
        z = PGD(steps=3)(model, X, Y)
    assert not used.called and not serves(model, X) and not torch.equal(z, old)
    with native.off():
        assert torch.equal(z, PGD(steps=3)(model, X, Y))


def together(*jobs):
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()


def test_h28_the_last_thread_to_leave_restores_the_model():
    """The first one leaves while the second still works: that must not wake dropout up."""
    model, inside, left = Small(dropout=0.5).train(), threading.Event(), threading.Event()
    model.head.bias.requires_grad_(False)
    before = belongings(model)

    def first():
        with frozen(model), channels_last(model):
            assert inside.wait(10)
        left.set()

    def second():
        with frozen(model), channels_last(model):
            inside.set()
            assert left.wait(10)
            assert not any(m.training for m in model.modules())
            assert not any(p.requires_grad for p in model.parameters())

    kept = list(model.parameters())
    together(first, second)
    assert belongings(model) == before
    assert all(a is b for a, b in zip(kept, model.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["small", "lenet5", "preact_resnet_s"])
def test_h28_threads_that_share_a_model_get_right_answers(kind):
    if kind == "small":
        model, x, y = Small(dropout=0.5).train(), images(6), labels(6)
    else:
        model, x, y = build(kind, channels=1).train(), X, Y
    want, walk = predict(model, x, y), PGD(0.1, steps=4)(model, x, y)

    def job():
        for _ in range(6):
            assert torch.equal(predict(model, x, y), want)
            assert torch.allclose(PGD(0.1, steps=4)(model, x, y), walk, atol=1e-6)

    with left_alone(model):
        together(job, job, job)
