"""Batch normalisation in eval mode, then ReLU, as one pass over memory forward and one back (relu_of_norm in lenet.cpp).

A pre-activated block reads its input twice: through these two, and past them. Both gradients meet here, so that adding
them costs no pass of its own. Where the kernel does not serve PyTorch computes the same.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.native.build import library
from course_lib.native.guard import hooked, rewritten, switched_off

LANES = 16  # channels are a multiple of a vector's lanes
DTYPES = (torch.float32, torch.bfloat16)


def relu_of_norm(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(norm(x)), and x for what goes past it."""
    if not _serves(norm, x):
        return torch.relu(norm(x)), x
    scale, shift = _scale_and_shift(norm)
    if torch.is_grad_enabled() and x.requires_grad:
        return _ReluOfNorm.apply(x, scale, shift)
    return _pass(scale, shift=shift, x=x), x


def _serves(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """In eval mode, with parameters that nobody wants gradients of, channels last, on the CPU."""
    if norm.training or type(norm) is not nn.BatchNorm2d or norm.running_mean is None or "forward" in vars(norm):
        return False
    if type(x) is not Tensor or x.device.type != "cpu" or x.dtype not in DTYPES or x.ndim != 4 or not x.numel():
        return False
    told = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if any(t is None or t.dtype != torch.float32 or t.shape != x.shape[1:2] for t in told):
        return False
    if torch.is_grad_enabled() and (norm.weight.requires_grad or norm.bias.requires_grad):
        return False
    return x.shape[1] % LANES == 0 and x.is_contiguous(memory_format=torch.channels_last) and not hooked(norm) \
        and not switched_off() and not rewritten() and library() is not None


def _scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """w (x - mean) / sqrt(var + e) + b = scale x + shift"""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight.detach() * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias.detach() - norm.running_mean * scale


class _ReluOfNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        a = _pass(scale, shift=shift, x=x)
        ctx.save_for_backward(a, scale)
        ctx.set_materialize_grads(False)
        return a, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, past: Tensor | None) -> tuple[Tensor | None, None, None]:
        a, scale = ctx.saved_tensors
        if g is None:
            return past, None, None
        if torch.is_grad_enabled():  # a derivative of this derivative will be asked for
            d = torch.where(a.detach() <= 0, torch.zeros_like(g), scale.to(g.dtype).view(1, -1, 1, 1) * g)
            return d if past is None else d + past, None, None
        lies = {"memory_format": torch.channels_last}
        return _pass(scale, a=a, g=g.contiguous(**lies), past=None if past is None else past.contiguous(**lies)), None, None


def _pass(scale: Tensor, **tensors: Tensor | None) -> Tensor:
    like = next(t for word, t in tensors.items() if word in ("x", "a") and t is not None)
    out = torch.empty_like(like, memory_format=torch.channels_last)
    call = _NormCall(n=like.numel() // like.shape[1], channels=like.shape[1], half=like.dtype == torch.bfloat16,
                     threads=torch.get_num_threads())
    for word, t in {"scale": scale, "out": out, **tensors}.items():
        setattr(call, word, None if t is None else t.data_ptr())
    library().relu_of_norm(ctypes.byref(call))  # type: ignore[union-attr]  # it serves, so it is there
    return out


class _NormCall(ctypes.Structure):
    """mirrors NormCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("scale", "shift", "x", "a", "g", "past", "out")]
    _fields_ += [("n", c_int64)] + [(word, c_int32) for word in ("channels", "half", "threads")]
