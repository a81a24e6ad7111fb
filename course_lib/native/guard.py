"""Who is served: the kernel may only take the place of what it computes exactly, and only where nobody looks on or rewrites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from course_lib.native.build import library

LAYERS = {"conv1": nn.Conv2d, "conv2": nn.Conv2d, "conv3": nn.Conv2d, "fc1": nn.Linear, "fc2": nn.Linear}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_off: ContextVar[bool] = ContextVar("course_lib.native.off", default=False)


@contextmanager
def off() -> Iterator[None]:
    """PyTorch alone, for comparison."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def switched_off() -> bool:
    return torch.compiler.is_compiling() or _off.get()


def serves(model: nn.Module, x: Tensor) -> bool:
    """Whether the kernel computes exactly what `model(x)` would: x and model are plain float32 on the CPU."""
    if switched_off() or vars(type(model)).get("kernel") != "lenet5":
        return False
    return _fits(x) and _plain(model, x.shape[1]) and not transformed() and library() is not None


def untouched(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether conv(x), a 5 x 5 convolution on the CPU, may be computed in another way."""
    if torch.compiler.is_compiling() or type(x) is not Tensor or x.device.type != "cpu" or x.ndim != 4 or not len(x):
        return False
    return x.shape[2] % 2 == x.shape[3] % 2 == 0 and _plain_layer(conv, nn.Conv2d) and conv.weight.shape[1:] == (x.shape[1], 5, 5) \
        and not hooked(conv) and not transformed()


def plain(*tensors: Tensor) -> bool:
    """Whether the kernel may work on these tensors by themselves, without a model."""
    usual = all(type(t) is Tensor and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    return usual and not switched_off() and not transformed() and library() is not None


def parameters(model: nn.Module) -> list[Tensor]:
    return [p for layer in model.children() for p in layer._parameters.values() if p is not None]


def _fits(x: Tensor) -> bool:
    return type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided \
        and x.ndim == 4 and x.shape[2:] == (32, 32) and len(x) > 0


def _plain(model: nn.Module, channels: int) -> bool:
    """No layer was replaced, changed, moved, parametrised or hooked."""
    layers = dict(model.named_children())
    if "forward" in vars(model) or list(layers) != list(LAYERS) or hooked(model, *layers.values()):
        return False
    if not all(_plain_layer(layers[name], kind) for name, kind in LAYERS.items()):
        return False
    p = parameters(model)
    c = len(p[-1])
    shapes = [(6, channels, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 16, 5, 5), (120,), (84, 120), (84,), (c, 84), (c,)]
    return [tuple(q.shape) for q in p] == shapes and all(_plain_parameter(q) for q in p)


def _plain_layer(m: nn.Module, kind: type[nn.Module]) -> bool:
    if type(m) is not kind or "forward" in vars(m):
        return False
    return not isinstance(m, nn.Conv2d) or (m.stride, m.padding, m.dilation, m.groups) == ((1, 1), (0, 0), (1, 1), 1)


def _plain_parameter(q: Tensor) -> bool:
    return type(q) in (nn.Parameter, Tensor) and q.dtype == torch.float32 and q.device.type == "cpu" and q.layout == torch.strided


def hooked(*modules: nn.Module) -> bool:
    return any(getattr(nn_module, "_global" + hooks) for hooks in HOOKS) or any(getattr(m, hooks) for m in modules for hooks in HOOKS)


def transformed() -> bool:
    """Tracing, autocast, torch.func, forward-mode derivatives and dispatch modes see PyTorch's own operations."""
    return rewritten() or torch.is_autocast_enabled("cpu")


def rewritten() -> bool:
    """As above, but for autocast."""
    return bool(torch.jit.is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None
                or torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0)
