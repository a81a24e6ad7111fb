"""Projected gradient descent: the only one in the project.
 One step of the attack (Madry et al., 2018), in the l-infinity ball of radius eps around x, inside
the box [0, 1]:

    z_{t+1} = Proj_{B(x, eps)}( z_t + a * sign(grad_z L(f(z_t), y)) ),   t = 0 .. K-1
 The walk z_0 .. z_K is the one idea behind four papers: its last iterate is PGD, its first wrong
iterate is FAT's example, the last right and the first wrong one are BAT's boundary pair, the number
of right ones is GAIRAT's kappa.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import native
from course_lib.datasets.adult import UNITS
from course_lib.errors import CourseError, pick, whole
from course_lib.models import Accelerated

Number = float | Tensor


@dataclass(frozen=True)
class Walk:
    """What training wants to know of the walk z_0 .. z_K of each example; z_0 .. z_{K-1} are
    tested."""

    last: Tensor  # z_K: what PGD returns
    first_wrong: Tensor  # the (extra + 1)-th wrong iterate, z_K where there are fewer
    # the iterate before the first wrong one: z_0 where z_0 is wrong, z_{K-1} where none is
    last_right: Tensor
    n_right: Tensor  # how many of z_0 .. z_{K-1} are right (GAIRAT's kappa), int64
    t_wrong: Tensor  # index of the first wrong iterate, K where none of z_0 .. z_{K-1} is, int64


def cross_entropy(logits: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """L = -log p_y(z)"""
    return F.cross_entropy(logits, y, reduction="none")


def kl_to_clean(logits: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """L = KL(p(x) || p(z)), TRADES' inner objective; p(x) is held fixed"""
    return F.kl_div(F.log_softmax(logits, 1), clean, reduction="none", log_target=True).sum(1)


def margin(logits: Tensor, y: Tensor, clean: Tensor) -> Tensor:
    """L = max_{j != y} f_j(z) - f_y(z), Carlini and Wagner's margin: positive where z is wrong"""
    own = F.one_hot(y, logits.shape[1]).bool()
    return logits.masked_fill(own, -torch.inf).amax(1) - logits[own]


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "ce": cross_entropy,
    "kl": kl_to_clean,
    "margin": margin,
}
STARTS = ("uniform", "gaussian", "clean")
GAUSSIAN = 0.001  # TRADES' and BAT's xi


@dataclass(frozen=True)
class PGD:
    """PGD on images in [0, 1] under an l-infinity budget.

    `start`: x + Unif(-eps, eps), x + 0.001 N(0, I) or x itself, projected. `noise`: FAT's omega,
    the deviation of the Gaussian noise added at each step. Gradients are taken in eval mode;
    parameters, modes and the caller's random state stay as they were. Without a generator the same
    noise is drawn each time. `scale` is for tables: `eps` and `step_size` times it, feature by
    feature, is what is added, so that with adult.UNITS both are in the files' own units and may
    exceed 1 (the box [0, 1] holds all the same). With `bf16` both passes compute in bfloat16, and
    whether an iterate is right is told in it too: two to three times as fast on a CPU that has it
    (a CPU that has not is slower), and good enough to train with. Published figures are never made
    with it.

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
        if bad := [s for s in self.scale if not 0 < s < math.inf]:
            raise CourseError(f"scale holds {bad[0]:g}; every feature's scale must be a positive "
                              "number, such as 1 / its range.")
        pick(OBJECTIVES, self.objective, "objective")
        pick(dict.fromkeys(STARTS), self.start, "start")
        whole(self.steps, "steps", 0)
        for word in ("eps", "step_size", "noise"):
            _budget(torch.as_tensor(getattr(self, word), dtype=torch.float64), word,
                    bool(self.scale) and word != "noise")

    def __repr__(self) -> str:
        """Without `scale` and `bf16` as before there were such: checkpoints and finished batches
        are known by it."""
        told = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self)
                if f.name not in ("scale", "bf16") or getattr(self, f.name)]
        return f"PGD({', '.join(told)})"

    def at(self, eps: float) -> PGD:
        """The same attack under another budget."""
        return dataclasses.replace(self, eps=eps)

    def scale_for(self, x: Tensor) -> Tensor | None:
        """[F], or None where there is none."""
        if not self.scale:
            return None
        if x.ndim != 2 or x.shape[1] != len(self.scale):
            raise CourseError(f"scale holds {len(self.scale)} values, one a feature of a table [B, "
                              f"{len(self.scale)}]; the input has the "
                              f"shape {tuple(x.shape)}. Images take an attack without a scale.")
        return torch.tensor(self.scale, dtype=x.dtype, device=x.device)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: Number | None = None,
                 step_size: Number | None = None, generator: torch.Generator
                 | None = None) -> Tensor:
        """The last iterate, z_K. `eps` and `step_size` may hold one value an example."""
        return self.walk(model, x, y, eps=eps, step_size=step_size, generator=generator).last

    def path(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: Number | None = None,
             step_size: Number | None = None, generator: torch.Generator
             | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Every (z_t, is z_t right), t = 0 .. K: the attack to look at, and the oracle of
        `walk`."""
        model = self._computed(model)
        s = _Setting.of(self, model, x, y, eps, step_size, generator)
        z = s.z0
        for t in range(self.steps + 1):
            logits, gradient = s.gradient(model, z)
            yield z, logits.argmax(1) == y
            if t < self.steps:
                z = s.step(z, gradient, t)

    def walk(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: Number | None = None,
             step_size: Number | None = None,
             generator: torch.Generator | None = None, extra: int = 0, stop: bool = False) -> Walk:
        """The walk's landmarks in one pass. With `stop` an example rests once its `first_wrong` is
        found."""
        whole(extra, "extra", 0)
        model = self._computed(model)
        s = _Setting.of(self, model, x, y, eps, step_size, generator)
        # the loop below, as one kernel
        if (fast := native.walk(s, model, extra, stop)) is not None:
            return Walk(*fast)
        with channels_last(model):
            return self._loop(model, s, extra, stop)

    def _computed(self, model: nn.Module) -> nn.Module:
        return Accelerated(model, bf16=True) if self.bf16 else model

    def _loop(self, model: nn.Module, s: _Setting, extra: int, stop: bool) -> Walk:
        """`walk`, step by step: what the kernel must equal."""
        z = before = s.z0
        last, first_wrong, last_right = z.clone(), z.clone(), z.clone()
        n_right, n_wrong = torch.zeros_like(s.y), torch.zeros_like(s.y)
        t_wrong = torch.full_like(s.y, self.steps)
        # the examples still walking, whose rows z, before and s hold
        on = torch.arange(len(z), device=z.device)
        for t in range(self.steps if len(on) else 0):
            logits, gradient = s.gradient(model, z)
            right = logits.argmax(1) == s.y
            n_right[on] += right
            n_wrong[on] += ~right
            new, found = (~right & (n_wrong[on] == k) for k in (1, extra + 1))
            t_wrong[on[new]], last_right[on[new]], first_wrong[on[found]] = t, before[new], z[found]
            if stop and found.any():
                last[on[found]], walking = z[found], ~found
                on, z, gradient, s = on[walking], z[walking], gradient[walking], s.of_these(walking)
            before, z = z, s.step(z, gradient, t)
            if not len(on):
                break
        last[on] = z
        for these, landmark, where in ((n_wrong[on] == 0, last_right, before),
                                       (n_wrong[on] <= extra, first_wrong, z)):
            landmark[on[these]] = where[these]
        return Walk(last, first_wrong, last_right, n_right, t_wrong)


@dataclass(frozen=True)
class _Setting:
    """One call's checked inputs, with budgets shaped [B, 1, 1, 1] (or, scaled, [B, F]) and all
    noise drawn in advance."""

    attack: PGD
    x: Tensor
    y: Tensor
    eps: Tensor
    step_size: Tensor
    z0: Tensor
    noise: Tensor | None  # [K, B, ...]
    clean: Tensor  # log p(x), only for the objective kl
    rows: Tensor | None = None  # of the noise, which stays whole; None is all

    @classmethod
    def of(cls, attack: PGD, model: nn.Module, x: Tensor, y: Tensor, eps: Number | None,
           step_size: Number | None,
           generator: torch.Generator | None) -> _Setting:
        x = check_images(x, y)
        scale = attack.scale_for(x)
        e = _per_example(attack.eps if eps is None else eps, x, "eps", scale)
        a = _per_example(attack.step_size if step_size is None else step_size, x, "step_size",
                         scale)
        g = torch.Generator().manual_seed(0) if generator is None else generator
        z0 = x
        if attack.start == "uniform":
            # x + e (2 r - 1), without temporaries
            z0 = _draw(torch.rand, x.shape, g, x).mul_(2).sub_(1).mul_(e).add_(x)
        elif attack.start == "gaussian":
            z0 = _draw(torch.randn, x.shape, g, x).mul_(GAUSSIAN).add_(x)
        noise = attack.noise * _draw(torch.randn, (attack.steps, *x.shape), g,
                                     x) if attack.noise else None
        clean = x.new_zeros(())
        if attack.objective == "kl":
            with frozen(model), torch.no_grad():
                clean = F.log_softmax(logits_of(model, x, y), 1)
        return cls(attack, x, y, e, a, project(z0, x, e), noise, clean)

    def of_these(self, rows: Tensor) -> _Setting:
        """Some of the examples, by a mask or by their places."""
        places = torch.arange(len(self.x), device=self.x.device) if self.rows is None else self.rows
        clean = self.clean[rows] if self.clean.ndim else self.clean
        return dataclasses.replace(self, x=self.x[rows], y=self.y[rows], eps=self.eps[rows],
                                   step_size=self.step_size[rows], clean=clean,
                                   rows=places[rows])

    def gradient(self, model: nn.Module, z: Tensor) -> tuple[Tensor, Tensor]:
        """f(z) and grad_z L. Each example's gradient is its own: the sum over the batch
        separates."""
        with torch.enable_grad(), frozen(model):
            z = z.detach().requires_grad_()
            logits = logits_of(model, z, self.y)
            loss = OBJECTIVES[self.attack.objective](logits, self.y, self.clean).sum()
            (gradient,) = torch.autograd.grad(loss, z)
        return logits.detach(), gradient

    def step(self, z: Tensor, gradient: Tensor, t: int) -> Tensor:
        """Proj_{B(x, eps)}( z + a sign(gradient) + noise )"""
        z = z + self.step_size * gradient.sign()
        if self.noise is not None:
            z = z + (self.noise[t] if self.rows is None else self.noise[t][self.rows])
        return project(z, self.x, self.eps)


def project(z: Tensor, x: Tensor, eps: Tensor) -> Tensor:
    """The nearest point of the ball around x and of the box [0, 1]."""
    return z.clamp(x - eps, x + eps).clamp_(0, 1)


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode with fixed parameters; every mode and flag is put back afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    wants = [(p, p.requires_grad) for p in model.parameters()]
    try:
        model.eval()
        for p, _ in wants:
            p.requires_grad_(False)
        yield model
    finally:
        for m, mode in modes:
            m.training = mode
        for p, want in wants:
            p.requires_grad_(want)


@contextmanager
def channels_last(model: nn.Module) -> Iterator[nn.Module]:
    """On a CPU convolutions are up to twice as fast when their weights lie channels last;
    afterwards each lies as it did."""
    own = hasattr(model, "kernel")  # a model that arranges things itself
    plain = [p for p in model.parameters() if type(p) is nn.Parameter and p.device.type == "cpu"
             and not own]
    moved = [p for p in plain if p.ndim == 4 and p.dtype == torch.float32]
    before = [p.data for p in moved]
    try:
        for p in moved:
            # contiguous() would leave one input channel as it is
            p.data = p.data.clone(memory_format=torch.channels_last)
        yield model
    finally:
        for p, data in zip(moved, before, strict=True):
            p.data = data


def logits_of(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    """f(x), with plain words where images or labels do not fit the model."""
    try:
        logits = model(x)
    except RuntimeError as e:
        if "shape" not in str(e) and "size" not in str(e) and "channels" not in str(e):
            raise
        raise CourseError(f"{type(model).__name__} cannot take images of shape {tuple(x.shape)}: "
                          f"{e}") from None
    if logits.ndim != 2 or (y is not None and y.numel() and int(y.max()) >= logits.shape[1]):
        top = "" if y is None else f", labels run to {int(y.max())}"
        raise CourseError(
            f"{type(model).__name__} gives logits of shape {tuple(logits.shape)}{top}. "
            "Build it with classes= as the data set has."
        )
    return logits


def predict(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    """The predicted classes, in eval mode."""
    with torch.no_grad(), frozen(model):
        return logits_of(model, check_images(x, y), y).argmax(1)


def check_fit(model: nn.Module, x: Tensor, classes: int) -> None:
    """A CourseError unless the model takes such images and tells just so many classes apart."""
    with torch.no_grad(), frozen(model):
        told = logits_of(model, check_images(x)).shape[1]
    if told != classes:
        raise CourseError(
            f"{type(model).__name__} tells {told} classes apart, the data has {classes} classes. "
            f"Build it with classes={classes}."
        )


def check_images(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Floating-point images in [0, 1], one whole-number label an image, or a CourseError."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        given = str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
        raise CourseError(f"Images must be a floating-point tensor in [0, 1]; this is {given}. Use "
                          "images.float() / 255.")
    if x.ndim < 2:
        raise CourseError(f"Images have shape {tuple(x.shape)}; the first dimension must be the "
                          "batch: [B, C, H, W].")
    x = x.detach()
    if x.numel() and not (x.min() >= 0 and x.max() <= 1):  # NaN fails both
        raise CourseError(f"Images must lie in [0, 1]; these span {x.min():g} to {x.max():g}. "
                          "Divide bytes by 255; undo any normalisation.")
    if y is not None and (not isinstance(y, Tensor) or y.dtype != torch.int64
                          or y.shape != x.shape[:1] or (y < 0).any()):
        given = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y,
            Tensor) else type(y).__name__
        raise CourseError(f"Labels must be {len(x)} whole numbers (int64, from 0), one an image; "
                          f"given: {given}.")
    return x


def _budget(value: Tensor, word: str, own_units: bool = False) -> None:
    allowed = (value >= 0) & ((value < math.inf) if own_units else (value <= 1))
    if not bool(allowed.all()):
        bad = value.reshape(-1)[~allowed.reshape(-1)][0].item()
        rule = ("with a scale it must be a number from 0" if own_units
                else "images lie in [0, 1], so it must be from 0 to 1")
        raise CourseError(f"{word} is {bad:g}; {rule}. "
                          + ("" if own_units else "For 8 grey levels of 255 write 8 / 255."))


def _per_example(value: Number, x: Tensor, word: str, scale: Tensor | None = None) -> Tensor:
    """One number, or one an example, as [B, 1, 1, 1]; times the scale of each feature, [B, F]."""
    v = torch.as_tensor(value, dtype=x.dtype, device=x.device).detach()
    _budget(v, word, scale is not None)
    if v.numel() not in (1, len(x)):
        raise CourseError(f"{word} holds {v.numel()} values for {len(x)} images; give one number, "
                          "or one an image.")
    v = v.reshape(-1, *[1] * (x.ndim - 1)).expand(len(x), *[1] * (x.ndim - 1))
    return v if scale is None else v * scale


def _draw(kind: Callable[..., Tensor], shape: tuple[int, ...], g: torch.Generator,
          x: Tensor) -> Tensor:
    """Noise is drawn where the generator lives, so that every device sees the same."""
    return kind(shape, generator=g, device=g.device, dtype=x.dtype).to(x.device)


ATTACKS: dict[str, PGD] = {
    "pgd20": PGD(steps=20),
    "pgd10": PGD(steps=10),
    "cw20": PGD(steps=20, objective="margin"),
}
# Beside those: the small budgets of Sooksatra and Rivas in steps of an eighth of the smallest, and
# Adult in its files' own units.
NAMED: dict[str, PGD] = {**ATTACKS, "pgd20-fine": PGD(0.01, 0.01 / 8),
                         "pgd20-adult": PGD(10, 10 / 8, scale=UNITS)}
