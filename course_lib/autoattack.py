"""AutoAttack (Croce and Hein, 2020) by pyautoattack, as an attack like the others.
 Four attacks one after the other, each on what the ones before it left right: APGD on the
cross-entropy, APGD on the targeted DLR loss, targeted FAB (100 steps each, the targeted ones for
each of nine classes), Square with 5,000 queries. An image is robust when none of them succeeds.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from course_lib import native
from course_lib.attacks import NAMED, PGD, check_images, frozen, logits_of, project
from course_lib.errors import CourseError, pick, whole

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
# how many each needs: a DLR loss sorts logits
CLASSES = {"apgd-ce": 2, "apgd-dlr": 3, "apgd-t": 4, "fab": 2, "fab-t": 2, "square": 2}
SLACK = 1e-5  # by which rounding may carry an image out of the ball


@dataclass(frozen=True)
class AutoAttack:
    """The standard AutoAttack under an l-infinity budget; `attacks` names others of pyautoattack's,
    for fewer classes say.

    The images it could not fool come back as they were. The generator only gives the seed;
    parameters, modes and the global random state stay as they were. `batch` is how many images
    `evaluate` passes at once: half a minute on one core.
    """

    eps: float = 8 / 255
    attacks: tuple[str, ...] = STANDARD
    batch: int = 250

    def __post_init__(self) -> None:
        PGD(eps=self.eps)  # its words about budgets
        whole(self.batch, "batch", 1)
        for name in self.attacks:
            pick(CLASSES, name, "attack of AutoAttack's")
        if not self.attacks:
            raise CourseError(f"AutoAttack without attacks; name some of {', '.join(CLASSES)}.")

    def at(self, eps: float) -> AutoAttack:
        """The same attack under another budget."""
        return dataclasses.replace(self, eps=eps)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator | None = None) -> Tensor:
        """Adversarial images where it finds them, the images themselves elsewhere."""
        x = check_images(x, y)
        if not len(x):
            return x.clone()
        with frozen(model), _nobody_notices(x):
            with torch.no_grad():
                classes = logits_of(model, x[:1], y[:1]).shape[1]
            found, _ = self._made(model, x, classes, generator).run_standard_evaluation(x, y,
                batch_size=self.batch)
        if not bool(((found - x).abs() <= self.eps + SLACK).all()):  # NaN fails too
            raise CourseError("AutoAttack left the ball. Please report the model and the versions "
                              "of torch and pyautoattack.")
        return project(found.detach(), x, torch.as_tensor(self.eps, dtype=x.dtype, device=x.device))

    def _made(self, model: nn.Module, x: Tensor, classes: int,
              generator: torch.Generator | None) -> Any:
        """pyautoattack's object, with no more targets than there are classes."""
        self._check(x, classes)
        seed = 0 if generator is None else int(torch.randint(2**31, (), generator=generator,
            device=generator.device))
        words = {"version": "standard"} if self.attacks == STANDARD else {"version": "custom",
            "attacks": list(self.attacks)}
        made = _pyautoattack().AutoAttack(model, norm="Linf", eps=self.eps, seed=seed,
                                          device=x.device, **words)
        made.apgd_targeted.n_target_classes = made.fab.n_target_classes = min(9, classes - 1)
        return made

    def _check(self, x: Tensor, classes: int) -> None:
        if x.ndim != 4 or x.dtype != torch.float32:
            raise CourseError("AutoAttack takes float32 images of shape [B, C, H, W]; these are "
                              f"{x.dtype} of shape {tuple(x.shape)}.")
        if lacking := [name for name in self.attacks if CLASSES[name] > classes]:
            able = tuple(name for name in ("apgd-ce", "apgd-dlr", "fab-t", "square")
                         if CLASSES[name] <= classes)
            raise CourseError(f"{', '.join(lacking)} of AutoAttack needs "
                              f"{max(CLASSES[n] for n in lacking)} classes, the model tells "
                              f"{classes} apart. Use AutoAttack(attacks={able}).")


def _pyautoattack() -> Any:
    try:
        import pyautoattack
    except ImportError as e:
        raise CourseError(f"AutoAttack needs the package pyautoattack ({e}). Install it: pip "
                          "install 'pyautoattack>=0.2'") from None
    logger = logging.getLogger("auto-attack")
    # its remarks go to whoever set up logging, and not to everybody's screen
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return pyautoattack


def _quick(projection: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """FAB's projection sorts the pixels of every image 1,800 times, half of AutoAttack's whole
    time; the kernel need not sort."""
    def nearest(points: Tensor, w: Tensor, b: Tensor) -> Tensor:
        moves = native.nearest_move(points, w, b)
        return projection(points, w, b) if moves is None else moves
    return nearest


@contextmanager
def _nobody_notices(x: Tensor) -> Iterator[None]:
    """pyautoattack seeds the global generators and takes away a debugger's tracer: all of it is put
    back."""
    _pyautoattack()
    from pyautoattack import fab_base

    tracer = sys.gettrace()
    try:
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []), \
                patch.object(fab_base, "projection_linf", _quick(fab_base.projection_linf)):
            yield
    finally:
        sys.settrace(tracer)


EXAMINERS: dict[str, PGD | AutoAttack] = {**NAMED, "autoattack": AutoAttack()}


def named(attack: str, eps: float) -> PGD | AutoAttack:
    """Any attack that models are examined with, by its name.

    >>> named("autoattack", 4 / 255).eps == 4 / 255
    True
    """
    return pick(EXAMINERS, attack, "attack").at(eps)


def reaches(attack: PGD | AutoAttack) -> str:
    """What to say of an attack whose steps are too few or short for its budget; else nothing.

    >>> reaches(named("pgd20", 8 / 255)), reaches(named("pgd20", 0.5))
    ('', ' (weak: its 20 steps of 0.00784 reach 0.157 at most)')
    """
    if not isinstance(attack, PGD) or not 0 < attack.steps * attack.step_size < attack.eps:
        return ""
    return (f" (weak: its {attack.steps} steps of {attack.step_size:.3g} reach "
            f"{attack.steps * attack.step_size:.3g} at most)")
