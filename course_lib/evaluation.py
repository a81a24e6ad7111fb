"""A model, a split and an attack give predictions; predictions, counted, give a Report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.attacks import ATTACKS, PGD
from course_lib.data import Split, batches
from course_lib.errors import CourseError, pick, resolve
from course_lib.fairness import Errors, Report
from course_lib.inference import check_fit, predict


class Attack(Protocol):
    """Anything that makes adversarial images: PGD, AutoAttack, a student's own."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator) -> Tensor: ...


NAMED: dict[str, Any] = {
    **ATTACKS,
    "pgd20-fine": PGD(0.01, 0.01 / 8),  # for the small budgets of Sooksatra and Rivas
    "pgd20-adult": "course_lib.datasets.adult:ATTACK",
    "autoattack": "course_lib.autoattack:ATTACK",
}


def named(attack: str, eps: float | None = None) -> Any:
    """A named attack, under its own budget or under `eps`.

    >>> named("autoattack", 4 / 255).eps == 4 / 255
    True
    """
    found = resolve(pick(NAMED, attack, "attack"))
    return found if eps is None else found.at(eps)


def reaches(attack: Any) -> str:
    """A remark on a PGD whose steps are too few or too short for its budget; else nothing.

    >>> reaches(named("pgd20", 8 / 255)), reaches(named("pgd20", 0.5))
    ('', ' (weak: its 20 steps of 0.00784 reach 0.157 at most)')
    """
    if not isinstance(attack, PGD) or not 0 < attack.steps * attack.step_size < attack.eps:
        return ""
    return (f" (weak: its {attack.steps} steps of {attack.step_size:.3g} reach "
            f"{attack.steps * attack.step_size:.3g} at most)")


def evaluate(model: nn.Module, split: Split, attack: Attack | None = None, *, name: str = "",
             early: bool = True, count_clean: bool = True, flips: bool = False, batch: int = 500,
             seed: int = 0, progress: bool = True) -> Report:
    """Per-class standard and robust errors.

    An image is robust if the model is right on it with and without the attack (AutoAttack's
    convention). With `count_clean=False` only the attacked image counts, as in the papers' code.
    With `early` PGD stops at the first wrong iterate; this counts a few more images as wrong,
    those that would have recovered by the last step. `flips` also counts changed predictions, for
    which every image is attacked to the end. So is every image where PGD computes in bfloat16,
    because its first wrong iterate may be right in float32, in which the model is judged.

    >>> from course_lib import load, build
    >>> test = load("fashion-mnist").test.take(slice(0, 200))
    >>> evaluate(build("lenet5"), test, progress=False).nat.counts[0] > 0
    True
    """
    attack = PGD() if attack is None else attack
    found = verdicts(model, split, attack, early=early, count_clean=count_clean, flips=flips,
                     batch=batch, seed=seed, name=name, progress=progress)
    return tally(found, split.classes, name, float(getattr(attack, "eps", 0.0)), flips)


def verdicts(model: nn.Module, split: Split, attack: Attack, *, early: bool = True,
             count_clean: bool = True, flips: bool = False, **options: Any) -> Tensor:
    """[4, N]: label, is it wrong when clean, is it wrong under attack, is the prediction changed?

    The arguments are those of `evaluate`, and the options those of `per_image`.
    """
    # an image that is wrong when clean counts as wrong, whatever the attack does to it
    y, clean, attacked = predictions(model, split, attack, early=early and not flips,
                                     skip_wrong=count_clean and not flips, **options)
    wrong = (attacked != y) | ((clean != y) & count_clean)
    return torch.stack([y, clean != y, wrong, attacked != clean])


def tally(found: Tensor, classes: tuple[str, ...], name: str = "", eps: float = 0.0,
          flips: bool = False) -> Report:
    """The Report of `verdicts`, counted class by class."""
    labels, *kinds = found
    counts = torch.bincount(labels, minlength=len(classes)).tolist()
    if missing := [c for c, n in zip(classes, counts, strict=True) if not n]:
        raise CourseError(f"The split holds no image of {', '.join(missing)}; every class needs at "
                          "least one. Take more images, or drop the class.")
    nat, rob, flipped = (
        Errors(tuple(torch.bincount(labels[wrong.bool()], minlength=len(classes)).tolist()),
               tuple(counts)) for wrong in kinds)
    return Report(nat, rob, classes, name, eps, flipped if flips else None)


def predictions(model: nn.Module, split: Split, attack: Attack, *, early: bool = True,
                skip_wrong: bool = True, seed: int = 0, batch: int = 500,
                **options: Any) -> Tensor:
    """[3, N]: each image's label, its prediction when clean, and its prediction under attack.

    With `early` PGD stops at the first wrong iterate. With `skip_wrong` an image that is already
    wrong when clean is not attacked. The options are those of `per_image`.
    """
    generator = torch.Generator().manual_seed(seed)

    def compute(x: Tensor, y: Tensor) -> Tensor:
        clean = predict(model, x, y)
        attacked, rest = clean.clone(), (clean == y) | (not skip_wrong)
        if rest.any():
            if isinstance(attack, PGD) and early and not attack.bf16:
                z = attack.walk(model, x[rest], y[rest], generator=generator, stop=True).first_wrong
            else:
                z = attack(model, x[rest], y[rest], generator=generator)
            attacked[rest] = predict(model, z, y[rest])
        return torch.stack([y, clean, attacked])

    # a slow attack takes smaller batches, so that the progress bar moves
    return per_image(model, split, compute, batch=getattr(attack, "batch", batch), **options)


def per_image(model: nn.Module, split: Split, compute: Callable[[Tensor, Tensor], Tensor], *,
              batch: int = 500, name: str = "", progress: bool = False,
              tick: Callable[[int], object] | None = None) -> Tensor:
    """compute(x, y) for every batch on the model's device, joined along the last dimension.

    `name` labels the progress bar; `tick` is called with the number of images after each batch.
    """
    if not len(split):
        raise CourseError("The split is empty; take at least one image of each class.")
    device = next(model.parameters(), torch.empty(0)).device
    check_fit(model, split.images(slice(0, 1)).to(device), len(split.classes))
    found: list[Tensor] = []
    with tqdm(total=len(split), unit="image", desc=f"attack {name}".strip(),
              disable=not progress, delay=2) as bar:
        for x, y in batches(split, batch):
            found.append(compute(x.to(device), y.to(device)).cpu())
            bar.update(len(y))
            if tick:
                tick(len(y))
    return torch.cat(found, -1)
