"""Batch normalisation in eval mode, then ReLU: one pass over memory forward and one back.

A pre-activated block reads its input twice: through these two layers, and past them. Both gradients
meet in this kernel, so adding them costs no pass of its own. Where it does not serve, PyTorch
computes the same.
"""

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.native.build import Call, fields, library
from course_lib.native.guard import observed

LANES = 16  # channels are a multiple of a vector's lanes


class _NormCall(Call):
    _fields_ = fields("scale shift x a g past out", "n", "channels half threads")


def relu_of_norm(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(norm(x)), and x for the path beside it."""
    if not _serves(norm, x):
        return torch.relu(norm(x)), x
    assert norm.running_mean is not None and norm.running_var is not None
    # w (x - mean) / sqrt(var + e) + b = scale x + shift
    scale = norm.weight.detach() * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias.detach() - norm.running_mean * scale
    if torch.is_grad_enabled() and x.requires_grad:
        return _ReluOfNorm.apply(x, scale, shift)
    return _pass(x, scale, shift=shift, x=x), x


def _serves(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    """In eval mode, with parameters that need no gradients, channels last, on the CPU."""
    if (norm.training or type(norm) is not nn.BatchNorm2d or type(x) is not Tensor or x.ndim != 4
            or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16)):
        return False
    per_channel = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
    if any(t is None or t.dtype != torch.float32 or t.shape != x.shape[1:2] for t in per_channel):
        return False
    learns = torch.is_grad_enabled() and (norm.weight.requires_grad or norm.bias.requires_grad)
    return (not learns and x.numel() > 0 and x.shape[1] % LANES == 0
            and x.is_contiguous(memory_format=torch.channels_last)
            and not observed(norm) and library() is not None)


class _ReluOfNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        a = _pass(x, scale, shift=shift, x=x)
        ctx.save_for_backward(a, scale)
        ctx.set_materialize_grads(False)
        return a, x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None,
                 past: Tensor | None) -> tuple[Tensor | None, None, None]:
        a, scale = ctx.saved_tensors
        if g is None:
            return past, None, None
        if torch.is_grad_enabled():  # a derivative of this derivative will be asked for
            slope = scale.to(g.dtype).view(1, -1, 1, 1) * g
            d = torch.where(a.detach() <= 0, torch.zeros_like(g), slope)
            return d if past is None else d + past, None, None
        return _pass(a, scale, a=a, g=g, past=past), None, None


def _pass(like: Tensor, scale: Tensor, **tensors: Tensor | None) -> Tensor:
    """The kernel's output, with the shape of `like`; it reads memory as [pixels, channels]."""
    out = torch.empty_like(like, memory_format=torch.channels_last)
    pixels = {name: t if t is None or name == "shift" else t.permute(0, 2, 3, 1)
              for name, t in {**tensors, "out": out}.items()}
    call = _NormCall(n=like.numel() // like.shape[1], channels=like.shape[1],
                     half=like.dtype == torch.bfloat16)
    call.run("relu_of_norm", scale=scale, **pixels)
    return out
