"""Which models the LeNet-5 kernel serves: only those that it computes exactly, and only where
nothing observes or rewrites PyTorch's own operations."""

import hashlib
import inspect
from functools import cache
from types import CodeType

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from course_lib.native.build import library

# sha256 of the source of LeNet5.forward, which the kernel replaces
FORWARD = "98c9ba1bdba85316b983d93c7b1ebd5844ec3cbb6de9b2465ef46bbd068b7f83"
OURS = {"LeNet5.forward", "Conv2d.forward", "Linear.forward", "_BatchNorm.forward"}
LAYERS = {"conv1": nn.Conv2d, "conv2": nn.Conv2d, "conv3": nn.Conv2d,
          "fc1": nn.Linear, "fc2": nn.Linear}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def serves(model: nn.Module, x: Tensor) -> bool:
    """Whether the kernel computes model(x) exactly: x and model are plain float32 on the CPU."""
    fits = type(x) is Tensor and _plain_tensor(x) and x.ndim == 4 and x.shape[2:] == (32, 32)
    return (fits and len(x) > 0 and not observed(model, *model.children())
            and not torch.is_autocast_enabled("cpu") and _unedited(type(model).forward.__code__)
            and _plain(model, x.shape[1]) and library() is not None)


def observed(*modules: nn.Module) -> bool:
    """Whether something watches or rewrites PyTorch's operations: hooks, another `forward`,
    tracing, torch.func, forward-mode derivatives, dispatch modes."""
    return bool(
        torch.compiler.is_compiling() or torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0
        or any(getattr(nn_module, "_global" + hooks) for hooks in HOOKS)
        or any(getattr(m, hooks) for m in modules for hooks in HOOKS)
        or any("forward" in vars(m) or type(m).__call__ is not nn.Module.__call__
               or getattr(getattr(m.forward, "__code__", None), "co_qualname", "") not in OURS
               for m in modules))


def parameters(model: nn.Module) -> list[Tensor]:
    return [p for layer in model.children() for p in layer._parameters.values() if p is not None]


@cache
def _unedited(forward: CodeType) -> bool:
    """Has LeNet5.forward the source that the kernel was written for?"""
    try:
        return hashlib.sha256(inspect.getsource(forward).encode()).hexdigest() == FORWARD
    except OSError:  # no source, so that nobody knows
        return False


def _plain(model: nn.Module, channels: int) -> bool:
    """No layer was replaced, changed, moved or parametrised."""
    layers, cls = dict(model.named_children()), type(model)
    if (f"{cls.__module__}.{cls.__qualname__}" != "course_lib.models.LeNet5"
            or {name: type(m) for name, m in layers.items()} != LAYERS
            or any((m.stride, m.padding, m.dilation, m.groups) != ((1, 1), (0, 0), (1, 1), 1)
                   for m in layers.values() if isinstance(m, nn.Conv2d))):
        return False
    p = parameters(model)
    c = len(p[-1])
    shapes = [(6, channels, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 16, 5, 5), (120,), (84, 120),
              (84,), (c, 84), (c,)]
    return [tuple(q.shape) for q in p] == shapes and all(
        type(q) in (nn.Parameter, Tensor) and _plain_tensor(q) for q in p)


def _plain_tensor(t: Tensor) -> bool:
    return t.dtype == torch.float32 and t.device.type == "cpu" and t.layout == torch.strided
