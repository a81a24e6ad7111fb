"""What a model says to each image at each budget of an attack: computed once, stored beside the
models, looked at in an instant.
 serialized_models/curves/manifest.json names, for a recipe and a seed, the file of its predictions
with its sha256, and the sha256 of the weights and of the images they were made from, so that a
curve of other weights is seen.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.attacks import ATTACKS, PGD
from course_lib.data import Split
from course_lib.diagnostics import confusion
from course_lib.errors import CourseError, pick, whole
from course_lib.fairness import Errors, Report
from course_lib.files import StoredFiles
from course_lib.inference import check_fit, predict
from course_lib.lab.publish import add_file
from course_lib.zoo import entry, models_dir

ATTACK = "pgd20"
BUDGETS = tuple(range(0, 33, 2))  # grey levels of 255


@dataclass(frozen=True)
class Curve:
    """Predictions `said` [E, N] for the images at `places` of a test split, one row a budget, the
    first without an attack."""

    attack: str
    eps: tuple[int, ...]  # grey levels of 255
    said: Tensor
    y: Tensor
    places: Tensor
    classes: tuple[str, ...]

    def at(self, eps: int) -> Tensor:
        """The predictions at a budget that was computed."""
        if eps not in self.eps:
            raise CourseError(f"{self.attack} was not computed at {eps}/255. There is: "
                              f"{', '.join(map(str, self.eps))} of 255.")
        return self.said[self.eps.index(eps)]

    def errors(self, eps: int) -> Errors:
        wrong = torch.bincount(self.y[self.at(eps) != self.y], minlength=len(self.classes))
        return Errors(tuple(wrong.tolist()), tuple(torch.bincount(self.y,
            minlength=len(self.classes)).tolist()))

    def report(self, eps: int) -> Report:
        return Report(self.errors(0), self.errors(eps), self.classes, self.attack, eps / 255)

    def confusion(self, eps: int) -> Tensor:
        """[C, C]: how many images of each class (row) are taken for each class (column)."""
        return confusion(self.y, self.at(eps), len(self.classes))

    def cell(self, eps: int, row: int, column: int) -> Tensor:
        """Where in the test split the images of one cell of the confusion matrix are."""
        return self.places[(self.y == row) & (self.at(eps) == column)]


def measure(model: nn.Module, split: Split, attack: str = ATTACK, budgets: Sequence[int] = BUDGETS,
            *, per_class: int | None = None,
            batch: int = 500, seed: int = 0, tick: Callable[[int, int], None] = lambda done,
            total: None) -> Curve:
    """Attack the images (or the first `per_class` of each class) at each budget; `tick(done,
    total)` after every batch.

    As in `evaluate`, an image that is wrong without an attack is attacked no further, and the
    others until they are first wrong: what they are taken for then is what is kept. The same seed
    and batch give the same errors as a stored report.
    """
    places = torch.arange(len(split)) if per_class is None else _first_of_each(split, per_class)
    part = split.take(places)
    where = next(model.parameters(), torch.empty(0)).device
    check_fit(model, part.images(slice(0, 1)).to(where), len(split.classes))
    levels, rows = sorted({0, *(whole(e, "a budget (of 255)", 0) for e in budgets)}), []
    for k, eps in enumerate(levels):
        walker, generator, found = pick(ATTACKS, attack,
                                        "attack").at(eps / 255), torch.Generator().manual_seed(
                                            seed), []
        for i in range(0, len(part), batch):
            x, y = part.images(slice(i, i + batch)).to(where), part.y[i : i + batch].to(where)
            found.append(_said(model, x, y, walker, generator))
            tick(k * len(part) + i + len(y), len(levels) * len(part))
        rows.append(torch.cat(found))
    return Curve(attack, tuple(levels), torch.stack(rows), part.y, places, split.classes)


def _said(model: nn.Module, x: Tensor, y: Tensor, attack: PGD,
          generator: torch.Generator) -> Tensor:
    said = predict(model, x, y)
    right = said == y
    if attack.eps and right.any():
        said[right] = predict(model, attack.walk(model, x[right], y[right], generator=generator,
                                                 stop=True).first_wrong, y[right])
    return said.cpu()


def _first_of_each(split: Split, n: int) -> Tensor:
    """Where the first n images of each class are."""
    places = [torch.nonzero(split.y == c).flatten()[: whole(n, "images of a class", 1)]
              for c in range(len(split.classes))]
    return torch.cat(places).sort().values


def curve_files(root: Path | None = None) -> StoredFiles:
    """The folder of curves, by recipe and seed."""
    return StoredFiles((root or models_dir()) / "curves", "curves",
                       "Restore it (git checkout), or `make curves`.")


def current(name: str, seed: int, data: str, root: Path | None = None) -> dict[str, Any] | None:
    """What the curves' manifest says of a model, if it was made from the weights and the images as
    they are now."""
    what = curve_files(root).entries().get(name, {}).get(str(seed))
    weights = entry(name, seed, root).get("weights", {}).get("sha256")
    return what if what and what.get("weights") == weights and what.get(
        "data") == data and what.get("attack") == ATTACK else None


def load_curve(name: str, split: Split, *, seed: int = 0, root: Path | None = None) -> Curve:
    """The stored predictions of one model on a whole test split, verified."""
    what = current(name, seed, split.digest(), root)
    if what is None:
        state = "is of other weights or images" if str(seed) in curve_files(root).entries().get(name,
            {}) else "is not stored"
        raise CourseError(f"The curve of {name}, seed {seed}, {state}. Make it: make curves; or "
                          "attack now.")
    raw = curve_files(root).read(what)
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
            eps, said = tuple(int(e) for e in stored["eps"]), torch.from_numpy(
                stored["said"]).long()
    except Exception as e:  # the many kinds that zip and NumPy raise
        raise CourseError(f"The curve of {name}, seed {seed}, cannot be read ({type(e).__name__}). "
                          "Make it again: make curves.") from None
    if said.shape != (len(eps), len(split)) or not 0 <= int(said.min()) <= int(said.max()) < len(
            split.classes) or eps[:1] != (0,):
        raise CourseError(f"The curve of {name}, seed {seed}, does not fit the test images. Make "
                          "it again: make curves.")
    return Curve(ATTACK, eps, said, split.y, torch.arange(len(split)), split.classes)


def publish_curve(name: str, seed: int, curve: Curve, split: Split,
                  root: Path | None = None) -> None:
    """Store a curve and name it in the curves' manifest: a reader sees both or neither."""
    packed = io.BytesIO()
    np.savez_compressed(packed, eps=np.array(curve.eps, np.uint8),
                        said=curve.said.numpy().astype(np.uint8))
    add_file(curve_files(root), name, str(seed), f"{name}/seed{seed}.npz", packed.getvalue(),
             attack=curve.attack, data=split.digest(),
             weights=entry(name, seed, root)["weights"]["sha256"])
