"""A model's prediction of each image at each budget of an attack, computed once and stored.

serialized_models/curves/manifest.json names, per recipe and seed, the file of the predictions with
its sha256. It also holds the sha256 of the weights and of the images, so that a curve of other
weights is not used.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.attacks import ATTACKS
from course_lib.data import Split
from course_lib.diagnostics import confusion
from course_lib.errors import CourseError, pick
from course_lib.evaluation import predictions
from course_lib.fairness import Errors, Report
from course_lib.files import StoredFiles
from course_lib.zoo import entry, models_dir

ATTACK = "pgd20"
BUDGETS = tuple(range(0, 33, 2))  # grey levels of 255


def curve_files(root: Path | None = None) -> StoredFiles:
    """The folder of stored curves."""
    return StoredFiles(Path(root or models_dir()) / "curves", "curves",
                       "Restore it (git checkout), or `make curves`.")


@dataclass(frozen=True)
class Curve:
    """Predictions [E, N] at E budgets for N images of a test split. The first budget is 0."""

    attack: str
    eps: tuple[int, ...]  # grey levels of 255
    predicted: Tensor
    y: Tensor
    places: Tensor  # of the images in the test split
    classes: tuple[str, ...]

    def at(self, eps: int) -> Tensor:
        """The predictions at a budget that was computed."""
        if eps not in self.eps:
            raise CourseError(f"{self.attack} was not computed at {eps}/255. Choose one of "
                              f"{', '.join(map(str, self.eps))} (of 255).")
        return self.predicted[self.eps.index(eps)]

    def confusion(self, eps: int) -> Tensor:
        """[C, C]: how many images of each class (row) are predicted as each class (column)."""
        return confusion(self.y, self.at(eps), len(self.classes))

    def errors(self, eps: int) -> Errors:
        return self.report(eps).rob

    def report(self, eps: int) -> Report:
        """The errors per class, without the attack and under it."""
        nat, rob = (Errors(tuple((m.sum(1) - m.diagonal()).tolist()), tuple(m.sum(1).tolist()))
                    for m in (self.confusion(0), self.confusion(eps)))
        return Report(nat, rob, self.classes, self.attack, eps / 255)

    def cell(self, eps: int, row: int, column: int) -> Tensor:
        """The places in the test split of the images in one cell of the confusion matrix."""
        return self.places[(self.y == row) & (self.at(eps) == column)]


def compute_curve(model: nn.Module, split: Split, attack: str = ATTACK,
                  budgets: Sequence[int] = BUDGETS, *, per_class: int | None = None,
                  batch: int = 500,
                  tick: Callable[[int], object] = lambda images: None) -> Curve:
    """Attack every image, or the first `per_class` of each class, at each budget, as `evaluate`
    with this batch. `tick` gets the number of images of each batch at each budget."""
    places = torch.cat([torch.nonzero(split.y == c).flatten()[:per_class]
                        for c in range(len(split.classes))]).sort().values
    part, walker = split.take(places), pick(ATTACKS, attack, "attack")
    levels = sorted({*budgets} - {0})  # every attack gives the predictions at 0, too
    answers = [predictions(model, part, walker.at(eps / 255), batch=batch, tick=tick)
             for eps in levels or [0]]
    predicted = torch.stack([answers[0][1], *(attacked for _, _, attacked in answers)])
    return Curve(attack, (0, *levels), predicted[: len(levels) + 1], part.y, places, split.classes)


def current(name: str, seed: int, data: str, root: Path | None = None) -> dict[str, Any] | None:
    """A curve's row in the manifest, if weights, images (`data`, a digest) and attack are still the
    same."""
    row = curve_files(root).entries().get(name, {}).get(str(seed))
    weights = row and entry(name, seed, root).get("weights", {}).get("sha256")
    same = {"weights": weights, "data": data, "attack": ATTACK}
    return row if row and same.items() <= row.items() else None


def load_curve(name: str, split: Split, *, seed: int = 0, root: Path | None = None) -> Curve:
    """The stored predictions of one model on a test split, verified."""
    row = current(name, seed, split.digest(), root)
    if row is None:
        raise CourseError("For these weights and images no curve is stored. Choose a live attack "
                          "and press Attack now, or compute the curve: make curves.")
    with np.load(io.BytesIO(curve_files(root).read(row)), allow_pickle=False) as arrays:
        eps, predicted = tuple(arrays["eps"].tolist()), torch.from_numpy(arrays["said"]).long()
    return Curve(ATTACK, eps, predicted, split.y, torch.arange(len(split)), split.classes)
