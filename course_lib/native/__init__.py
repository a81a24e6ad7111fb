"""C++ kernels for the CPU (lenet.cpp); the mathematics stays in models.py and attacks.py.

`serves` says whether the LeNet-5 kernel may take a model's place, `logits` is its forward pass with
gradients for PyTorch, and `walk` is all of PGD.walk. `relu_of_norm` is for the residual networks.
COURSE_NATIVE=0 or `with off():` turns the kernels off; without a compiler they are off, too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.native.build import Call, fields, library, off, reason
from course_lib.native.guard import parameters, serves
from course_lib.native.norm import relu_of_norm

__all__ = ["library", "logits", "off", "reason", "relu_of_norm", "serves", "walk"]
OBJECTIVES = {"ce": 0, "kl": 1, "margin": 2}
Tensors = list[Tensor] | tuple[Tensor, ...]


class _PassCall(Call):
    _fields_ = fields("parameters x glogits logits gx gparameters kept", "n",
                      "channels classes threads")


class _WalkCall(Call):
    _fields_ = fields("parameters x z0 noise clean eps step_size y last first_wrong last_right "
                      "n_right t_wrong", "n steps extra",
                      "channels classes objective stop threads")


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
        sizes = [q.numel() for q in p]
        gp = x.new_zeros(sum(sizes)) if any(wants[1:]) else None
        _pass(x, p, glogits=g, kept=kept, gx=gx, gparameters=gp)
        parts = gp.split(sizes) if gp is not None else p
        return None, gx, *[part.view(q.shape) if want else None
                           for part, q, want in zip(parts, p, wants[1:], strict=True)]


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
    """The logits and, with `keep`, the activations that the backward pass needs."""
    lib = library()
    assert lib is not None  # it serves
    blocks = -(-len(x) // lib.lenet_lanes())
    kept = x.new_empty(blocks * lib.lenet_kept_size(), dtype=torch.uint8) if keep else None
    out = x.new_empty(len(x), len(p[-1]))
    _pass(x, p, logits=out, kept=kept)
    return out, kept


def _pass(x: Tensor, p: Tensors, **tensors: Tensor | None) -> None:
    call = _PassCall(n=len(x), channels=x.shape[1], classes=len(p[-1]))
    call.run("lenet_pass", p, x=x, **tensors)


def walk(setup: Any, extra: int, stop: bool) -> tuple[Tensor, ...] | None:
    """The five fields of a Walk from a WalkSetup; None where the kernel does not serve."""
    x, y, attack = setup.x, setup.y, setup.attack
    if not attack.steps or attack.scale or not serves(setup.model, x):
        return None
    p = parameters(setup.model)
    if attack.objective not in OBJECTIVES or int(y.max()) >= len(p[-1]):
        return None  # PyTorch raises the error
    z = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(3)]
    n_right, t_wrong = torch.empty_like(y), torch.empty_like(y)
    call = _WalkCall(n=len(x), steps=attack.steps, extra=extra, channels=x.shape[1],
                     classes=len(p[-1]), objective=OBJECTIVES[attack.objective], stop=stop)
    call.run("lenet_walk", p, x=x, y=y, z0=setup.z0, noise=setup.noise, clean=setup.clean.exp(),
             eps=setup.eps.reshape(-1), step_size=setup.step_size.reshape(-1), last=z[0],
             first_wrong=z[1], last_right=z[2], n_right=n_right, t_wrong=t_wrong)
    return *z, n_right, t_wrong
