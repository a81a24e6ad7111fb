"""LeNet-5 and its PGD walk as one C++ kernel for the CPU (lenet.cpp); the mathematics stays in models.py and attacks.py.

`serves` says whether the kernel may take a model's place, `logits` is its forward pass with gradients for PyTorch, `walk`
the whole of PGD.walk. COURSE_NATIVE=0 or `with off():` turns the kernel off; without a compiler it is off by itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ctypes import c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as nn_module

from course_lib.errors import CourseError
from course_lib.native.build import library

if TYPE_CHECKING:
    from course_lib.attacks import _Setting

OBJECTIVES = {"ce": 0, "kl": 1, "margin": 2}
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


def serves(model: nn.Module, x: Tensor) -> bool:
    """Whether the kernel computes exactly what `model(x)` would: a plain float32 LeNet-5 on the CPU that nobody watches or rewrites."""
    if _off.get() or torch.compiler.is_compiling() or vars(type(model)).get("kernel") != "lenet5":
        return False
    return _fits(x) and _plain(model, x.shape[1]) and not _transformed() and library() is not None


def untouched(conv: nn.Module, x: Tensor) -> bool:
    """Whether a convolution's numbers may come by another way on this CPU: nobody changed, hooked or traces it."""
    return type(x) is Tensor and x.device.type == "cpu" and x.ndim == 4 and len(x) > 0 and x.shape[2] % 2 == x.shape[3] % 2 == 0 \
        and not torch.compiler.is_compiling() and not _transformed() and _plain_conv(conv, x.shape[1]) and not _watched(conv)


def _plain_conv(m: nn.Module, channels: int) -> bool:
    return type(m) is nn.Conv2d and "forward" not in vars(m) and type(m._parameters.get("weight")) is nn.Parameter and m.weight.shape[1] == channels \
        and (m.kernel_size, m.stride, m.padding, m.dilation, m.groups) == ((5, 5), (1, 1), (0, 0), (1, 1), 1)


def _watched(*modules: nn.Module) -> bool:
    return any(getattr(nn_module, "_global" + hooks) for hooks in HOOKS) or any(getattr(m, hooks) for m in modules for hooks in HOOKS)


def _fits(x: Tensor) -> bool:
    return type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu" and x.layout == torch.strided \
        and x.ndim == 4 and x.shape[2:] == (32, 32) and len(x) > 0


def _plain(model: nn.Module, channels: int) -> bool:
    """No layer was replaced, changed, moved, parametrised or hooked."""
    layers = model._modules
    if "forward" in vars(model) or list(layers) != list(LAYERS) or _watched(model, *layers.values()):
        return False
    if any(type(layers[name]) is not kind or "forward" in vars(layers[name]) for name, kind in LAYERS.items()):
        return False
    p = [q for layer in layers.values() for q in layer._parameters.values()]
    if any(q is None or type(q) not in (nn.Parameter, Tensor) or q.dtype != torch.float32 or q.device.type != "cpu" for q in p):
        return False
    classes = len(p[9])
    shapes = ((6, channels, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 16, 5, 5), (120,), (84, 120), (84,), (classes, 84), (classes,))
    convolutions = (layers["conv1"], layers["conv2"], layers["conv3"])
    return all(tuple(q.shape) == shape for q, shape in zip(p, shapes)) and all(
        (m.stride, m.padding, m.dilation, m.groups) == ((1, 1), (0, 0), (1, 1), 1) for m in convolutions)


def _transformed() -> bool:
    """Tracing, autocast, torch.func, forward-mode derivatives and dispatch modes see PyTorch's own operations."""
    return bool(torch.jit.is_tracing() or torch.is_autocast_enabled("cpu") or torch._C._functorch.peek_interpreter_stack() is not None
                or torch._C._len_torch_dispatch_stack() or torch.autograd.forward_ad._current_level >= 0)


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """model(x), for a model that the kernel `serves`."""
    p = parameters(model)
    if torch.is_grad_enabled() and (x.requires_grad or any(q.requires_grad for q in p)):
        return _Logits.apply(model, x, *p)
    return _forward(x, p, keep=False)[0]


def parameters(model: nn.Module) -> list[Tensor]:
    return [q for layer in model._modules.values() for q in layer._parameters.values()]


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: Tensor, *p: Tensor) -> Tensor:
        out, kept = _forward(x, p, keep=True)
        ctx.model, ctx.kept = model, kept
        ctx.save_for_backward(x, *p)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, *p = ctx.saved_tensors
        wants = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a derivative of this derivative will be asked for
            return None, *_differentiable(ctx.model, x, p, g, wants)
        gx = torch.empty_like(x, memory_format=torch.contiguous_format) if wants[0] else None
        gp = x.new_zeros(sum(q.numel() for q in p)) if any(wants[1:]) else None
        _pass(x, p, glogits=g.contiguous(), kept=ctx.kept, gx=gx, gparameters=gp)
        if gp is None:
            return None, gx, *[None] * len(p)
        parts = gp.split([q.numel() for q in p])
        return None, gx, *[part.view(q.shape) if want else None for part, q, want in zip(parts, p, wants[1:])]


def _differentiable(model: nn.Module, x: Tensor, p: list[Tensor], g: Tensor, wants: tuple[bool, ...]) -> list[Tensor | None]:
    """The same gradients by PyTorch's own operations, which can be differentiated again."""
    names = [name for name, _ in model.named_parameters()]
    with off():
        out = torch.func.functional_call(model, dict(zip(names, p)), (x,))
    inputs = [t for t, want in zip((x, *p), wants) if want]
    gradients = iter(torch.autograd.grad(out, inputs, g, create_graph=True))
    return [next(gradients) if want else None for want in wants]


def _forward(x: Tensor, p: list[Tensor] | tuple[Tensor, ...], keep: bool) -> tuple[Tensor, Tensor | None]:
    lib = library()
    blocks = -(-len(x) // lib.lenet_lanes())
    kept = torch.empty(blocks * lib.lenet_kept_size(), dtype=torch.uint8) if keep else None
    out = x.new_empty(len(x), len(p[-1]))
    _pass(x, p, logits=out, kept=kept)
    return out, kept


def _pass(x: Tensor, p: list[Tensor] | tuple[Tensor, ...], **tensors: Tensor | None) -> None:
    call = _fill(_PassCall(n=len(x), channels=x.shape[1], classes=len(p[-1]), threads=torch.get_num_threads()), p, x=x.contiguous(), **tensors)
    _call("lenet_pass", call)


def walk(setting: _Setting, model: nn.Module, extra: int, stop: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None:
    """The five fields of Walk, or None where the kernel does not serve."""
    s, x, attack = setting, setting.x, setting.attack
    if not attack.steps or attack.objective not in OBJECTIVES or not serves(model, x):
        return None
    p = parameters(model)
    if int(s.y.max()) >= len(p[-1]):
        return None  # PyTorch has the words for it
    last, first_wrong, last_right = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(3))
    n_right, t_wrong = torch.empty_like(s.y), torch.empty_like(s.y)
    call = _WalkCall(n=len(x), steps=attack.steps, extra=extra, channels=x.shape[1], classes=len(p[-1]),
                     objective=OBJECTIVES[attack.objective], stop=stop, threads=torch.get_num_threads())
    _call("lenet_walk", _fill(
        call, p, x=x.contiguous(), z0=s.z0.contiguous(), noise=None if s.noise is None else s.noise.contiguous(),
        clean=s.clean.exp().contiguous(), eps=s.eps.reshape(-1).contiguous(), step_size=s.step_size.reshape(-1).contiguous(),
        y=s.y.contiguous(), last=last, first_wrong=first_wrong, last_right=last_right, n_right=n_right, t_wrong=t_wrong))
    return last, first_wrong, last_right, n_right, t_wrong


class _WalkCall(ctypes.Structure):
    """mirrors WalkCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("parameters", "x", "z0", "noise", "clean", "eps", "step_size", "y", "last", "first_wrong",
                                              "last_right", "n_right", "t_wrong")]
    _fields_ += [(word, c_int64) for word in ("n", "steps", "extra")]
    _fields_ += [(word, c_int32) for word in ("channels", "classes", "objective", "stop", "threads")]


class _PassCall(ctypes.Structure):
    """mirrors PassCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("parameters", "x", "glogits", "logits", "gx", "gparameters", "kept")]
    _fields_ += [("n", c_int64)] + [(word, c_int32) for word in ("channels", "classes", "threads")]


def _fill(call: Any, p: list[Tensor] | tuple[Tensor, ...], **tensors: Tensor | None) -> Any:
    """The call with its addresses; it holds on to the tensors until it is dropped."""
    weights = [q.detach().contiguous() for q in p]
    addresses = (c_void_p * len(weights))(*[q.data_ptr() for q in weights])
    call.parameters = ctypes.addressof(addresses)
    call.alive = (weights, addresses, tensors)
    for word, tensor in tensors.items():
        setattr(call, word, None if tensor is None else tensor.data_ptr())
    return call


def _call(door: str, call: Any) -> None:
    if getattr(library(), door)(ctypes.byref(call)):
        raise CourseError(f"Out of memory in the LeNet-5 kernel for {call.n} images; use smaller batches.")
