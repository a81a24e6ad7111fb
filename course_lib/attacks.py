"""Projected gradient descent (PGD), the only one in the project.

One step of the attack (Madry et al., 2018), in the l-infinity ball of radius eps around x, inside
the box [0, 1]:

    z_{t+1} = Proj_{B(x, eps)}( z_t + a * sign(grad_z L(f(z_t), y)) ),   t = 0 .. K-1

Four papers read the same walk z_0 .. z_K. PGD takes its last iterate, FAT the first wrong one, BAT
the last right and the first wrong one, and GAIRAT's kappa counts the right ones.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.errors import CourseError, integer, pick, resolve
from course_lib.inference import check_images, frozen, logits_of

Number = float | Tensor


def margin(logits: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """L = max_{j != y} f_j(z) - f_y(z), Carlini and Wagner's margin: positive where z is wrong"""
    return logits.scatter(1, y[:, None], -torch.inf).amax(1) - logits.gather(1, y[:, None])[:, 0]


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    # L = -log p_y(z)
    "ce": lambda logits, y, clean: F.cross_entropy(logits, y, reduction="none"),
    # L = KL(p(x) || p(z)), TRADES' inner objective; `clean` is log p(x), held fixed
    "kl": lambda logits, y, clean: F.kl_div(
        F.log_softmax(logits, 1), clean, reduction="none", log_target=True).sum(1),
    "margin": margin}
# z_0 before it is projected: x + Unif(-eps, eps), x + 0.001 N(0, I) as in TRADES and BAT, or x
STARTS: dict[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]] = {
    "uniform": lambda x, eps, g: _draw(torch.rand, x.shape, g, x).mul_(2).sub_(1).mul_(eps).add_(x),
    "gaussian": lambda x, eps, g: _draw(torch.randn, x.shape, g, x).mul_(0.001).add_(x),
    "clean": lambda x, eps, g: x}


@dataclass(frozen=True)
class Walk:
    """The landmarks of each example's walk z_0 .. z_K. Only z_0 .. z_{K-1} are classified."""

    last: Tensor  # z_K: what PGD returns
    first_wrong: Tensor  # the (extra + 1)-th wrong iterate; z_K where there are fewer
    last_right: Tensor  # the iterate before the first wrong one: z_0 if z_0 is wrong, else z_{K-1}
    n_right: Tensor  # how many are right (GAIRAT's kappa), int64
    t_wrong: Tensor  # the index of the first wrong iterate, int64; K where none is wrong


@dataclass(frozen=True)
class PGD:
    """PGD on images in [0, 1] under an l-infinity budget, for a model in eval mode.

    `noise` is FAT's omega, the deviation of Gaussian noise added at each step. Without a generator
    all noise is the same each time. The model and the global random state stay as they were.
    `scale` is for tables: it multiplies `eps` and `step_size` feature by feature. `bf16` walks in
    bfloat16: twice as fast on a CPU that supports it, but not for published figures.

    >>> from course_lib.models import build
    >>> x, y = torch.rand(4, 1, 32, 32), torch.arange(4)
    >>> PGD(eps=8 / 255, step_size=2 / 255, steps=20)(build("lenet5"), x, y).shape
    torch.Size([4, 1, 32, 32])
    """

    eps: float = 8 / 255
    step_size: float = 2 / 255
    steps: int = 20
    objective: str = "ce"
    start: str = "uniform"
    noise: float = 0.0
    scale: tuple[float, ...] = ()
    bf16: bool = False

    def __post_init__(self) -> None:
        pick(OBJECTIVES, self.objective, "objective")
        pick(STARTS, self.start, "start")
        integer(self.steps, "steps", 0)
        scales = self.scale if isinstance(self.scale, tuple | list) else (None,)
        if bad := [s for s in scales if not (isinstance(s, Real) and 0 < s < math.inf)]:
            raise CourseError(f"scale holds {bad[0]}; give a positive number for each feature.")
        one, scale = torch.ones(1, dtype=torch.float64), torch.ones(1) if self.scale else None
        for name in ("eps", "step_size", "noise"):
            value = _budget(getattr(self, name), one, name, None if name == "noise" else scale)
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, value.item())

    def __repr__(self) -> str:
        """Omits `scale` and `bf16` at their defaults, so that older records still match."""
        shown = (f"{name}={value!r}" for name, value in vars(self).items()
                 if value or name not in ("scale", "bf16"))
        return f"PGD({', '.join(shown)})"

    def at(self, eps: float) -> Self:
        """The same attack under another budget; its step grows alike where it would not reach."""
        a, other = self.step_size, replace(self, eps=eps)
        if 0 < self.eps <= self.steps * a < other.eps:
            a = min(a * other.eps / self.eps, other.eps)
        return replace(other, step_size=a)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        """The last iterate, z_K. The options are those of `path`."""
        return self.walk(model, x, y, **options).last

    def path(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: Number | None = None,
             step_size: Number | None = None,
             generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Each iterate z_t, t = 0 .. K, and whether the model classifies it correctly. `eps` and
        `step_size` replace the attack's own; they may hold one value per example."""
        setup = WalkSetup.of(self, model, x, y, eps, step_size, generator)
        z = setup.z0
        for t in range(self.steps + 1):
            logits, gradient = setup.gradient(z)
            yield z, logits.argmax(1) == y
            if t < self.steps:
                z = setup.step(z, gradient, t)

    def walk(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: Number | None = None,
             step_size: Number | None = None, generator: torch.Generator | None = None,
             extra: int = 0, stop: bool = False) -> Walk:
        """The landmarks of `path` in one pass; with `stop` an example rests at `first_wrong`."""
        from course_lib.machine import channels_last, enough_memory, kernels

        integer(extra, "extra", 0)
        setup = WalkSetup.of(self, model, x, y, eps, step_size, generator)
        if (kernel := kernels()) and (fields := kernel.walk(setup, extra, stop)):
            return Walk(*fields)  # the loop below, as one kernel
        with channels_last(setup.model), enough_memory():
            return _walk(setup, extra, stop)

    def scale_for(self, x: Tensor) -> Tensor | None:
        """The scale as a tensor [F] that fits the table x [B, F]; None if there is no scale."""
        if self.scale and (x.ndim != 2 or x.shape[1] != len(self.scale)):
            raise CourseError(f"scale holds {len(self.scale)} values, for a table [B, "
                              f"{len(self.scale)}]; given: {tuple(x.shape)}. Images take no scale.")
        return torch.tensor(self.scale, dtype=x.dtype, device=x.device) if self.scale else None


@dataclass(frozen=True)
class WalkSetup:
    """All that a walk needs: checked inputs, and its noise drawn in advance."""

    attack: PGD
    model: nn.Module
    x: Tensor
    y: Tensor
    eps: Tensor  # [B, 1, 1, 1], or scaled [B, F]; so is the step size
    step_size: Tensor
    z0: Tensor
    noise: Tensor | None  # [K, B, ...]
    clean: Tensor  # log p(x) for the objective kl, else [B, 0]
    top: Tensor  # the largest label, on the CPU; none where labels were checked before

    @classmethod
    def of(cls, attack: PGD, model: nn.Module, x: Tensor, y: Tensor, eps: Number | None = None,
           step_size: Number | None = None, generator: torch.Generator | None = None) -> Self:
        model = resolve("course_lib.machine:Accelerated")(model) if attack.bf16 else model
        x, scale = check_images(x, () if y is None else y), attack.scale_for(x)
        e = _budget(attack.eps if eps is None else eps, x, "eps", scale)
        a = _budget(attack.step_size if step_size is None else step_size, x, "step_size", scale)
        g = 0 if generator is None else generator
        if not isinstance(g, torch.Generator):
            g = torch.Generator().manual_seed(integer(g, "generator", 0))
        z0 = project(STARTS[attack.start](x, e, g), x, e)
        noise, clean = None, x.new_zeros(len(x), 0)
        top = y.amax(0, True).cpu() if resolve("course_lib.machine:unseen")(y) else torch.empty(0)
        if attack.noise:
            noise = attack.noise * _draw(torch.randn, (attack.steps, *x.shape), g, x)
        if attack.objective == "kl":
            with frozen(model), torch.no_grad():
                clean = F.log_softmax(logits_of(model, x, top), 1)
        return cls(attack, model, x, y, e, a, z0, noise, clean, top)

    def of_these(self, rows: Tensor) -> Self:
        """The setup of some of the examples, by a mask or by their indices."""
        noise = None if self.noise is None else self.noise[:, rows]
        return replace(self, x=self.x[rows], y=self.y[rows], eps=self.eps[rows], noise=noise,
                       step_size=self.step_size[rows], z0=self.z0[rows], clean=self.clean[rows])

    def gradient(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """f(z) and grad_z L. The loss is a sum, so each example's gradient is its own."""
        with torch.enable_grad(), frozen(self.model):
            z = z.detach().requires_grad_()
            logits = logits_of(self.model, z, self.top)
            if not logits.requires_grad:
                raise CourseError("PGD needs a gradient, and the model's logits have none.")
            loss = OBJECTIVES[self.attack.objective](logits, self.y, self.clean).sum()
            (gradient,) = torch.autograd.grad(loss, z)
        return logits.detach(), gradient

    def step(self, z: Tensor, gradient: Tensor, t: int) -> Tensor:
        """Proj_{B(x, eps)}( z + a sign(gradient) + noise )"""
        z = z + self.step_size * gradient.sign()
        return project(z if self.noise is None else z + self.noise[t], self.x, self.eps)


def _walk(s: WalkSetup, extra: int, stop: bool) -> Walk:
    """`PGD.walk` in PyTorch, step by step: the kernel must equal it."""
    z, before = s.z0, s.z0
    first_wrong, last_right = z.clone(), z.clone()
    n_right, t_wrong = torch.zeros_like(s.y), torch.full_like(s.y, s.attack.steps)
    # a GPU takes along the examples that rest: the host would have to wait to know which they are
    leave, column = stop and z.device.type == "cpu", (-1, *[1] * (z.ndim - 1))
    on: Any = torch.arange(len(z)) if leave else slice(None)  # those walking: the rows of z and s
    for t in range(s.attack.steps):
        if not len(z):
            break
        logits, gradient = s.gradient(z)
        right = (logits.argmax(1) == s.y) & (not stop or t - n_right[on] <= extra)
        n_right[on] += right
        new, enough = (~right & (t + 1 - n_right[on] == k) for k in (1, extra + 1))
        t_wrong[on] = torch.where(new, t, t_wrong[on])
        last_right[on] = torch.where(new.reshape(column), before, last_right[on])
        first_wrong[on] = torch.where(enough.reshape(column), z, first_wrong[on])
        if leave and enough.any():
            on, z, gradient, s = *(v[~enough] for v in (on, z, gradient)), s.of_these(~enough)
        before, z = z, s.step(z, gradient, t)
    n_wrong = (s.attack.steps - n_right[on]).reshape(column)
    last_right[on] = torch.where(n_wrong == 0, before, last_right[on])
    first_wrong[on] = torch.where(n_wrong <= extra, z, first_wrong[on])
    return Walk(first_wrong if stop else z, first_wrong, last_right, n_right, t_wrong)


def project(z: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """The nearest point of the ball around x and of the box [0, 1]."""
    return z.clamp(x - eps, x + eps).clamp_(0, 1)


def _budget(value: Number, x: Tensor, name: str, scale: Tensor | None) -> Tensor:
    """One number, or one per example of x, as [B, 1, 1, 1]; with a scale as [B, F]."""
    try:
        value = float(Fraction(value)) if isinstance(value, str) else value
        v = torch.as_tensor(value, dtype=x.dtype).detach().reshape(-1)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        raise CourseError(f"{name} is {value!r}; give a number, 8 / 255 or '8/255'.") from None
    allowed = (v >= 0) & ((v <= 1) if scale is None else v.isfinite())
    if resolve("course_lib.machine:unseen")(v) and not allowed.all():
        raise CourseError(f"{name} is {v[~allowed][0]:g}; images lie in [0, 1], so it must be from "
                          "0 to 1 (from 0 with a scale). For 8 grey levels of 255 write 8 / 255.")
    if len(v) not in (1, len(x)):
        raise CourseError(f"{name} holds {len(v)} values for {len(x)} images; give one number, or "
                          "one per image.")
    ones = [1] * (x.ndim - 1)  # and below: a number needs no copy to a GPU
    v = x.new_full((1,), v.item()) if len(v) == 1 and v.device != x.device else v.to(x.device)
    v = v.reshape(-1, *ones).expand(len(x), *ones)
    return v if scale is None else v * scale


def _draw(kind: Callable[..., Tensor], shape: tuple[int, ...], g: torch.Generator,
          x: Tensor) -> Tensor:
    """Noise is drawn on the generator's device, so that it is the same on every device."""
    return kind(shape, generator=g, device=g.device, dtype=x.dtype).to(x.device)


ATTACKS = {"pgd20": PGD(steps=20), "pgd10": PGD(steps=10),
           "cw20": PGD(steps=20, objective="margin")}
