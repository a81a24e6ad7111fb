"""LeNet-5, its PGD walk and FAB's projection as one C++ kernel for the CPU (lenet.cpp); the
mathematics stays in models.py and attacks.py. norm.py has a smaller one of the same file, for the
residual networks.
 `serves` says whether the kernel may take a model's place, `logits` is its forward pass with
gradients for PyTorch, `walk` the whole of PGD.walk. COURSE_NATIVE=0 or `with off():` turns the
kernel off; without a compiler it is off by itself.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError
from course_lib.native.build import library
from course_lib.native.guard import off, parameters, plain, serves, untouched
from course_lib.native.norm import relu_of_norm

if TYPE_CHECKING:
    from course_lib.attacks import _Setting

__all__ = ["library", "logits", "nearest_move", "off", "relu_of_norm", "serves", "untouched",
           "walk"]
OBJECTIVES = {"ce": 0, "kl": 1, "margin": 2}
Tensors = list[Tensor] | tuple[Tensor, ...]


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """model(x), for a model that the kernel `serves`."""
    p = parameters(model)
    if torch.is_grad_enabled() and (x.requires_grad or any(q.requires_grad for q in p)):
        return _Logits.apply(model, x, *p)
    return _forward(x, p, keep=False)[0]


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, model: nn.Module, x: Tensor, *p: Tensor) -> Tensor:
        out, kept = _forward(x, p, keep=True)
        ctx.model = model
        ctx.save_for_backward(x, kept, *p)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kept, *p = ctx.saved_tensors
        wants = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a derivative of this derivative will be asked for
            return None, *_differentiable(ctx.model, x, p, g, wants)
        gx = torch.empty_like(x, memory_format=torch.contiguous_format) if wants[0] else None
        gp = x.new_zeros(sum(q.numel() for q in p)) if any(wants[1:]) else None
        _pass(x, p, glogits=g.contiguous(), kept=kept, gx=gx, gparameters=gp)
        if gp is None:
            return None, gx, *[None] * len(p)
        parts = gp.split([q.numel() for q in p])
        return None, gx, *[part.view(q.shape) if want else None for part, q,
                           want in zip(parts, p, wants[1:], strict=True)]


def _differentiable(model: nn.Module, x: Tensor, p: list[Tensor], g: Tensor,
                    wants: tuple[bool, ...]) -> list[Tensor | None]:
    """The same gradients by PyTorch's own operations, which can be differentiated again."""
    names = [name for name, _ in model.named_parameters()]
    with off():
        out = torch.func.functional_call(model, dict(zip(names, p, strict=True)), (x,))
    inputs = [t for t, want in zip((x, *p), wants, strict=True) if want]
    gradients = iter(torch.autograd.grad(out, inputs, g, create_graph=True))
    return [next(gradients) if want else None for want in wants]


def _forward(x: Tensor, p: Tensors, keep: bool) -> tuple[Tensor, Tensor | None]:
    blocks = -(-len(x) // _call("lenet_lanes"))
    kept = torch.empty(blocks * _call("lenet_kept_size"), dtype=torch.uint8,
                       device="cpu") if keep else None
    out = x.new_empty(len(x), len(p[-1]))
    _pass(x, p, logits=out, kept=kept)
    return out, kept


def _pass(x: Tensor, p: Tensors, **tensors: Tensor | None) -> None:
    call = _PassCall(n=len(x), channels=x.shape[1], classes=len(p[-1]),
                     threads=torch.get_num_threads())
    _run("lenet_pass", _fill(call, p, x=x.contiguous(), **tensors))


def walk(setting: _Setting, model: nn.Module, extra: int, stop: bool) -> tuple[Tensor, Tensor,
        Tensor, Tensor, Tensor] | None:
    """The five fields of Walk, or None where the kernel does not serve."""
    s, x, attack = setting, setting.x, setting.attack
    if not attack.steps or attack.scale or attack.objective not in OBJECTIVES or not serves(model,
            x):
        return None
    p = parameters(model)
    if int(s.y.max()) >= len(p[-1]):
        return None  # PyTorch has the words for it
    last, first_wrong, last_right = (torch.empty_like(x, memory_format=torch.contiguous_format)
                                     for _ in range(3))
    n_right, t_wrong = torch.empty_like(s.y), torch.empty_like(s.y)
    call = _WalkCall(n=len(x), steps=attack.steps, extra=extra, channels=x.shape[1],
                     classes=len(p[-1]),
                     objective=OBJECTIVES[attack.objective], stop=stop,
                     threads=torch.get_num_threads())
    _run("lenet_walk", _fill(
        call, p, x=x.contiguous(), z0=s.z0.contiguous(), noise=None if s.noise is None
        else s.noise.contiguous(),
        clean=s.clean.exp().contiguous(), eps=s.eps.reshape(-1).contiguous(),
        step_size=s.step_size.reshape(-1).contiguous(),
        y=s.y.contiguous(), last=last, first_wrong=first_wrong, last_right=last_right,
        n_right=n_right, t_wrong=t_wrong))
    return last, first_wrong, last_right, n_right, t_wrong


def nearest_move(points: Tensor, w: Tensor, b: Tensor) -> Tensor | None:
    """The smallest l-infinity move of each point onto its plane w . x = b that stays within [0, 1]:
    FAB's projection.

    None where the kernel does not serve.
    """
    if not plain(points, w, b) or not points.numel():
        return None
    moves = torch.empty_like(points, memory_format=torch.contiguous_format)
    call = _HalfspaceCall(n=len(points), size=points.shape[1], threads=torch.get_num_threads())
    _run("fab_nearest", _fill(call, (), points=points.contiguous(), w=w.contiguous(),
                              b=b.contiguous(), moves=moves))
    return moves


class _WalkCall(ctypes.Structure):
    """mirrors WalkCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("parameters", "x", "z0", "noise", "clean", "eps",
                                              "step_size", "y", "last", "first_wrong",
                                              "last_right", "n_right", "t_wrong")]
    _fields_ += [(word, c_int64) for word in ("n", "steps", "extra")]
    _fields_ += [(word, c_int32) for word in ("channels", "classes", "objective", "stop",
                                              "threads")]


class _PassCall(ctypes.Structure):
    """mirrors PassCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("parameters", "x", "glogits", "logits", "gx",
                                              "gparameters", "kept")]
    _fields_ += [("n", c_int64)] + [(word, c_int32) for word in ("channels", "classes", "threads")]


class _HalfspaceCall(ctypes.Structure):
    """mirrors HalfspaceCall in lenet.cpp"""

    _fields_ = [(word, c_void_p) for word in ("points", "w", "b", "moves")] + [(word, c_int64)
        for word in ("n", "size")]
    _fields_ += [("threads", c_int32)]


def _fill(call: Any, p: Tensors, **tensors: Tensor | None) -> Any:
    """The call with its addresses; it holds on to the tensors until it is dropped."""
    weights = [q.detach().contiguous() for q in p]
    addresses = (c_void_p * len(weights))(*[q.data_ptr() for q in weights])
    if weights:
        call.parameters = ctypes.addressof(addresses)
    call.alive = (weights, addresses, tensors)
    for word, tensor in tensors.items():
        setattr(call, word, None if tensor is None else tensor.data_ptr())
    return call


def _run(door: str, call: Any) -> None:
    if _call(door, ctypes.byref(call)):
        raise CourseError(f"Out of memory in the LeNet-5 kernel for {call.n} images; use smaller "
                          "batches.")


def _call(door: str, *words: Any) -> int:
    lib = library()
    if lib is None:  # turned off since the question whether it serves
        raise CourseError("The LeNet-5 kernel was turned off while it ran. Set COURSE_NATIVE "
                          "before, or use `with native.off():`.")
    return int(getattr(lib, door)(*words))
