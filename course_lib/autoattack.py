"""AutoAttack (Croce and Hein, 2020), by pyautoattack as it is published.

Four attacks run one after the other, each on the images that withstood those before: APGD on the
cross-entropy, APGD on the targeted DLR loss, targeted FAB (100 steps each, up to nine targets), and
Square (5,000 queries). An image is robust if none of them succeeds.
"""

import dataclasses
import logging
import sys
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from course_lib.attacks import PGD, project
from course_lib.errors import CourseError, integer, pick, resolve, several
from course_lib.inference import check_images, frozen

STANDARD = ("apgd-ce", "apgd-t", "fab-t", "square")
# the number of classes that each needs: a DLR loss sorts logits
CLASSES = {"apgd-ce": 2, "apgd-dlr": 3, "apgd-t": 4, "fab": 2, "fab-t": 2, "square": 2}
SLACK = 1e-5  # by which rounding may carry an image out of the ball
QUIET = logging.NullHandler()


@dataclass(frozen=True)
class AutoAttack:
    """The standard AutoAttack under an l-infinity budget. `attacks` names others of pyautoattack's
    attacks, for fewer classes say. `evaluate` passes `batch` images at once. Parameters, modes and
    the global random state stay as they were.

    >>> AutoAttack(4 / 255, attacks=("apgd-ce", "fab-t")).at(8 / 255).eps == 8 / 255
    True
    """

    eps: float = 8 / 255
    attacks: tuple[str, ...] = STANDARD
    batch: int = 250

    def __post_init__(self) -> None:
        vars(self).update(eps=PGD(eps=self.eps).eps, attacks=tuple(several(self.attacks)))
        integer(self.batch, "batch", 1)
        for name in self.attacks:
            pick(CLASSES, name, "attack of AutoAttack's")
        if not self.attacks:
            raise CourseError(f"AutoAttack without attacks; name some of {', '.join(CLASSES)}.")

    def at(self, eps: float) -> Self:
        """The same attack under another budget."""
        return dataclasses.replace(self, eps=eps)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator | None = None) -> Tensor:
        """Adversarial images where it finds them, the images themselves elsewhere."""
        if not len(x := check_images(x, y)):
            return x.clone()
        seed = 0 if generator is None else int(torch.randint(
            2**31, (), generator=generator, device=generator.device))
        # pyautoattack seeds the global generators, removes a debugger's tracer and logs to the
        # screen (now only to whoever has set up logging)
        tracer, gpus = sys.gettrace(), range(torch.cuda.device_count())
        logging.getLogger("auto-attack").addHandler(QUIET)
        try:
            with frozen(model), torch.random.fork_rng(devices=gpus):
                judge = self._judge(model, x, seed)
                z, _ = judge.run_standard_evaluation(x, y, batch_size=self.batch)
        finally:
            sys.settrace(tracer)
        if not bool(((z - x).abs() <= self.eps + SLACK).all()):  # NaN fails too
            raise CourseError("AutoAttack left the ball; please report model and versions.")
        return project(z.detach(), x, torch.as_tensor(self.eps, dtype=x.dtype, device=x.device))

    def _judge(self, model: nn.Module, x: Tensor, seed: int) -> Any:
        """pyautoattack's object, with no more targets than there are other classes."""
        try:
            import pyautoattack
        except ImportError as e:
            raise CourseError(f"{e}. Install it: pip install 'pyautoattack>=0.2'") from None
        classes = resolve("course_lib.judge:classes_for")(self.attacks, model, x)
        # "standard" also means one restart of each, where the others have five
        version = ({"version": "standard"} if self.attacks == STANDARD
                   else {"version": "custom", "attacks": list(self.attacks)})
        judge = pyautoattack.AutoAttack(model, norm="Linf", eps=self.eps, seed=seed,
                                        device=x.device, **version)
        judge.apgd_targeted.n_target_classes = judge.fab.n_target_classes = min(9, classes - 1)
        return judge


ATTACK = AutoAttack()
