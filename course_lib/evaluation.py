"""Model + data + attack to Report."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.attacks import PGD, check_fit, predict
from course_lib.data import Split, batches
from course_lib.errors import CourseError
from course_lib.fairness import Errors, Report


class Attack(Protocol):
    """Anything that makes adversarial images: PGD, AutoAttack, a student's own."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator) -> Tensor: ...


def evaluate(model: nn.Module, split: Split, attack: Attack | None = None, *, name: str = "",
             early: bool = True,
             count_clean: bool = True, flips: bool = False, batch: int = 500, seed: int = 0,
             progress: bool = True) -> Report:
    """Per-class standard and robust errors.

    Robust means right on the clean image and right under attack (AutoAttack's convention);
    `count_clean=False` asks only for the second, as the papers' authors do. With `early` an image
    that is already wrong is attacked no further; the two ways differ only in images that would have
    recovered by the last step. `flips` counts changed predictions as well, for which every image
    must be attacked to the end; so must it where the attack computes in bfloat16, since what is
    only just wrong there may be right in float32, in which the model is judged.

    >>> from course_lib import load, build
    >>> evaluate(build("lenet5"), load("fashion-mnist").test.take(slice(0, 200)), progress=False).nat.counts[0] > 0
    True
    """
    attack = PGD() if attack is None else attack
    found = verdicts(model, split, attack, name=name, early=early, count_clean=count_clean,
                     flips=flips, batch=batch, seed=seed,
                     progress=progress)
    return tally(found, split.classes, name, float(getattr(attack, "eps", 0.0)), flips)


def verdicts(model: nn.Module, split: Split, attack: Attack, *, name: str = "", early: bool = True,
             count_clean: bool = True,
             flips: bool = False, batch: int = 500, seed: int = 0, progress: bool = True) -> Tensor:
    """[4, B]: each image's label, whether it is wrong when clean, wrong under attack, and its
    prediction changed; as `evaluate`."""
    if not len(split):
        raise CourseError("The split is empty; an evaluation needs one image of each class at "
                          "least.")
    where = next(model.parameters(), torch.empty(0)).device
    check_fit(model, split.images(slice(0, 1)).to(where), len(split.classes))
    found: list[Tensor] = []
    generator = torch.Generator().manual_seed(seed)
    early = early and not flips
    # an image that is wrong when clean counts as wrong whatever comes: both ways draw the same
    # noise
    spare = count_clean and not flips
    batch = getattr(attack, "batch", batch)  # a slow attack takes fewer, so that the bar moves
    with tqdm(total=len(split), unit="image", desc=f"attack {name}".strip(), disable=not progress,
              delay=2) as bar:
        for x, y in batches(split, batch):
            x, y = x.to(where), y.to(where)
            clean = predict(model, x, y)
            # those still to be attacked
            rest = clean == y if spare else torch.ones_like(y, dtype=torch.bool)
            attacked = clean.clone()
            if rest.any():
                attacked[rest] = _attacked(model, x[rest], y[rest], attack, generator, early)
            wrong = (attacked != y) | ((clean != y) & count_clean)
            found.append(torch.stack([y, clean != y, wrong, attacked != clean]).cpu())
            bar.update(len(y))
    return torch.cat(found, 1)


def tally(found: Tensor, classes: tuple[str, ...], name: str = "", eps: float = 0.0,
          flips: bool = False) -> Report:
    """What `verdicts` found, counted class by class."""
    labels, *kinds = found
    nat, rob, flipped = (_count(wrong.bool(), labels, classes) for wrong in kinds)
    return Report(nat, rob, classes, name, eps, flipped if flips else None)


def _attacked(model: nn.Module, x: Tensor, y: Tensor, attack: Attack, generator: torch.Generator,
              early: bool) -> Tensor:
    """The predictions under attack."""
    if isinstance(attack, PGD) and early and not attack.bf16:
        return predict(model, attack.walk(model, x, y, generator=generator, stop=True).first_wrong,
                       y)
    return predict(model, attack(model, x, y, generator=generator), y)


def _count(wrong: Tensor, y: Tensor, classes: tuple[str, ...]) -> Errors:
    counts = torch.bincount(y, minlength=len(classes))
    if (counts == 0).any():
        empty = [classes[int(c)] for c in torch.nonzero(counts == 0)]
        raise CourseError(
            f"The split holds no image of {', '.join(empty)}; every class needs one at least. Take "
            "more images, "
            "or drop the class."
        )
    return Errors(tuple(torch.bincount(y[wrong], minlength=len(classes)).tolist()),
                  tuple(counts.tolist()))
