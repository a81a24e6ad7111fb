"""C++ kernels for the CPU (lenet.cpp); the mathematics stays in models.py and attacks.py.

`serves` says whether the LeNet-5 kernel may take a model's place, `logits` is its forward pass with
gradients for PyTorch, and `walk` is all of PGD.walk. `relu_of_norm` is for the residual networks:
batch normalisation in eval mode, then ReLU, in one pass over memory forward and one back.
COURSE_NATIVE=0 or `with off():` turns the kernels off; without a compiler they are off, too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from course_lib.native.build import library, off, reason, structure
from course_lib.native.guard import observed, parameters, serves

__all__ = ["library", "logits", "off", "reason", "relu_of_norm", "serves", "walk"]
OBJECTIVES = {"ce": 0, "kl": 1, "margin": 2}
LANES = 16  # channels of relu_of_norm are a multiple of a vector's lanes
Pass = structure("parameters x glogits logits gx gparameters kept", "n", "channels classes threads")
Walk = structure("parameters x z0 noise clean eps step_size y last first_wrong last_right n_right "
                 "t_wrong", "n steps extra", "channels classes objective stop threads")
Norm = structure("scale shift x a g past out", "n", "channels half threads")


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
        if torch.is_grad_enabled():
            # a derivative of this derivative will be asked for: PyTorch's own operations have one
            names = [name for name, _ in ctx.model.named_parameters()]
            with off():
                out = torch.func.functional_call(ctx.model, dict(zip(names, p, strict=True)), (x,))
            inputs = [t for t, want in zip((x, *p), wants, strict=True) if want]
            gradients = iter(torch.autograd.grad(out, inputs, g, create_graph=True))
            return None, *(next(gradients) if want else None for want in wants)
        gx = torch.empty_like(x, memory_format=torch.contiguous_format) if wants[0] else None
        sizes = [q.numel() for q in p]
        gp = x.new_zeros(sum(sizes)) if any(wants[1:]) else None
        Pass(n=len(x), channels=x.shape[1], classes=len(p[-1])).run(
            "lenet_pass", p, x=x, glogits=g, kept=kept, gx=gx, gparameters=gp)
        parts = gp.split(sizes) if gp is not None else p
        return None, gx, *[part.view(q.shape) if want else None
                           for part, q, want in zip(parts, p, wants[1:], strict=True)]


def _forward(x: Tensor, p: Any, keep: bool) -> tuple[Tensor, Tensor | None]:
    """The logits and, with `keep`, the activations that the backward pass needs."""
    lib = library()
    assert lib is not None  # it serves
    blocks = -(-len(x) // lib.lenet_lanes())
    kept = x.new_empty(blocks * lib.lenet_kept_size(), dtype=torch.uint8) if keep else None
    out = x.new_empty(len(x), len(p[-1]))
    Pass(n=len(x), channels=x.shape[1], classes=len(p[-1])).run(
        "lenet_pass", p, x=x, logits=out, kept=kept)
    return out, kept


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
    call = Walk(n=len(x), steps=attack.steps, extra=extra, channels=x.shape[1],
                classes=len(p[-1]), objective=OBJECTIVES[attack.objective], stop=stop)
    call.run("lenet_walk", p, x=x, y=y, z0=setup.z0, noise=setup.noise, clean=setup.clean.exp(),
             eps=setup.eps.reshape(-1), step_size=setup.step_size.reshape(-1), last=z[0],
             first_wrong=z[1], last_right=z[2], n_right=n_right, t_wrong=t_wrong)
    return *z, n_right, t_wrong


def relu_of_norm(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(norm(x)), and x for the path beside it: a pre-activated block reads its input twice, and
    both gradients meet in the kernel. PyTorch computes it where the kernel does not serve."""
    if not _serves_norm(norm, x):
        return torch.relu(norm(x)), x
    assert norm.running_mean is not None and norm.running_var is not None
    # w (x - mean) / sqrt(var + e) + b = scale x + shift
    scale = norm.weight.detach() * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias.detach() - norm.running_mean * scale
    if torch.is_grad_enabled() and x.requires_grad:
        return _ReluOfNorm.apply(x, scale, shift)
    return _norm_pass(x, scale, shift=shift, x=x), x


def _serves_norm(norm: nn.BatchNorm2d, x: Tensor) -> bool:
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
        a = _norm_pass(x, scale, shift=shift, x=x)
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
        return _norm_pass(a, scale, a=a, g=g, past=past), None, None


def _norm_pass(like: Tensor, scale: Tensor, **tensors: Tensor | None) -> Tensor:
    """The kernel's output, with the shape of `like`; it reads memory as [pixels, channels]."""
    out = torch.empty_like(like, memory_format=torch.channels_last)
    pixels = {name: t if t is None or name == "shift" else t.permute(0, 2, 3, 1)
              for name, t in {**tensors, "out": out}.items()}
    Norm(n=like.numel() // like.shape[1], channels=like.shape[1],
         half=like.dtype == torch.bfloat16).run("relu_of_norm", scale=scale, **pixels)
    return out
