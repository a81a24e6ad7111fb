"""Batch normalisation and ReLU as one kernel, against PyTorch's two."""

import copy
from unittest import mock

import hypothesis.strategies as some
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from course_lib import PGD, build, native
from course_lib.inference import frozen
from course_lib.native import relu_of_norm

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")
HALF = torch.bfloat16


def a_norm(channels, seed=0):
    """As after training, but with every sign of a weight."""
    g, norm = torch.Generator().manual_seed(seed), nn.BatchNorm2d(channels).eval()
    with torch.no_grad():
        for t in (norm.weight, norm.bias, norm.running_mean):
            t.copy_(torch.randn(channels, generator=g))
        norm.running_var.copy_(torch.rand(channels, generator=g) + 0.1)
    return norm.requires_grad_(False)


def values(shape, seed, dtype=torch.float32):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def served(norm, x):
    """Whether the kernel computed it, which must equal PyTorch's either way."""
    with mock.patch.object(native, "_norm_pass", wraps=native._norm_pass) as kernels:
        a, past = relu_of_norm(norm, x)
    with native.off():
        torch.testing.assert_close(a, torch.relu(copy.deepcopy(norm)(x)))
    assert torch.equal(past, x)
    return kernels.called


@given(some.integers(1, 4), some.sampled_from([16, 32, 48, 160]), some.integers(1, 7),
       some.integers(1, 7), some.integers(1, 3), some.integers(0, 100),
       some.sampled_from([(1, 1), (1, 0), (0, 1)]), some.sampled_from([
           lambda t: t, Tensor.contiguous, lambda t: torch.ones(()).expand(t.shape)]))
def test_the_same_as_pytorch(n, channels, height, width, threads, seed, used, lie):
    """Also where only one of the two is used, where gradients lie otherwise or are one number."""
    norm, x = a_norm(channels, seed), values((n, channels, height, width), seed + 1)
    weights = [lie(values(x.shape, seed + k)) for k in (0, 1) if used[k]]
    found, before = [], torch.get_num_threads()
    for layer in (relu_of_norm, lambda norm, x: (torch.relu(norm(x)), x)):
        z = x.clone().requires_grad_()
        torch.set_num_threads(threads)
        try:
            a, past = layer(norm, z)
        finally:
            torch.set_num_threads(before)
        outs = [out for out, wanted in zip((a, past), used, strict=True) if wanted]
        found.append((a.detach(), *torch.autograd.grad(outs, z, weights)))
    near = found[1][0].abs() > 1e-5  # at the kink either side is right
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-4)
    flat = (found[1][0] == 0) == (found[0][0] == 0)
    assert (flat | ~near).all()
    torch.testing.assert_close(found[0][1][flat], found[1][1][flat], atol=1e-5, rtol=1e-4)


def test_bfloat16_is_rounded_once():
    """Sums are float32; what is stored is the nearest bfloat16, ties to even, as PyTorch rounds."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(HALF)  # every bfloat16 there is
    x = x.reshape(-1, 16, 1, 1).contiguous(memory_format=torch.channels_last)
    scale, shift = torch.full((16,), 1 + 3 / 512), torch.zeros(16)
    found = native._norm_pass(x, scale, shift=shift, x=x)
    wanted = (x.float() * scale[0]).relu().to(HALF)
    assert torch.equal(found.isnan(), wanted.isnan()) and found.isnan().any()
    torch.testing.assert_close(found.nan_to_num(-1), wanted.nan_to_num(-1), atol=0, rtol=0)
    norm, z = a_norm(32), values((2, 32, 5, 5), 1, HALF).requires_grad_()
    a, _ = relu_of_norm(norm, z)
    assert a.dtype == HALF
    # s x + t with s = w / sqrt(var + e), t = b - s mean
    s = norm.weight / (norm.running_var + norm.eps).sqrt()
    s, t = (v.view(1, -1, 1, 1) for v in (s, norm.bias - norm.running_mean * s))
    assert torch.equal(a.detach(), (s * z.detach().float() + t).relu().to(HALF))


def test_second_derivatives():
    """Of a gradient's square, through PyTorch's operations: the kernel's own are not asked."""
    found = []
    for off in (False, True):
        norm, z = a_norm(16), values((2, 16, 3, 3), 1).requires_grad_()
        a, past = (torch.relu(norm(z)), z) if off else relu_of_norm(norm, z)
        (g,) = torch.autograd.grad((a**3 + past**2).sum(), z, create_graph=True)
        found.append(torch.autograd.grad((g**2).sum(), z)[0])
    torch.testing.assert_close(*found, atol=1e-3, rtol=1e-3)


def test_what_is_not_served(monkeypatch):
    norm, x = a_norm(16), values((2, 16, 3, 3), 1)
    hooked, patched, learning = (a_norm(16) for _ in range(3))
    hooked.register_forward_hook(lambda m, x, out: out + 1)
    patched.forward = lambda x: x
    learning.requires_grad_(True)
    assert served(norm, x)
    for other, z in ((a_norm(16).train(), x), (hooked, x), (patched, x), (learning, x),
                     (norm, x.contiguous()), (a_norm(16).double(), x.double()), (norm, x[:0]),
                     (a_norm(10), values((2, 10, 3, 3), 1)),
                     (nn.BatchNorm2d(16, affine=False).eval(), x),
                     (nn.BatchNorm2d(16, track_running_stats=False).eval(), x)):
        assert not served(other, z)
    with torch.no_grad():
        assert served(learning, x)  # nobody can ask for gradients
    with native.off():
        assert not served(norm, x)
    monkeypatch.setattr(nn.BatchNorm2d, "forward", lambda layer, x: -x)  # of the class (h13)
    assert not served(norm, x)


@pytest.mark.parametrize("bf16", [False, True])
def test_an_attack_on_a_residual_network(bf16):
    """The same landmarks as PyTorch's, but for what rounding decides; the kernel is asked."""
    model = build("preact_resnet_s")
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean += 0.2 * torch.randn(norm.num_features, generator=g)
            norm.bias += 0.2 * torch.randn(norm.num_features, generator=g)
    x = torch.rand(40, 3, 32, 32, generator=g)
    with torch.no_grad(), frozen(model):
        y = model(x).argmax(1)
    attack = PGD(eps=4 / 255, step_size=1 / 255, steps=4, bf16=bf16)
    fast = attack.walk(model, x, y)
    with native.off():
        slow = attack.walk(model, x, y)
    same = (fast.t_wrong == slow.t_wrong).float().mean()
    assert same >= (0.85 if bf16 else 0.95) and fast.t_wrong.unique().numel() > 1
    assert ((fast.last - slow.last).abs() < 1e-6).float().mean() > (0.8 if bf16 else 0.97)
    assert not torch.equal(fast.last, slow.last)
