"""The explorer's models, and each one's predictions at every budget of an attack, computed once.

serialized_models/curves/manifest.json names, per recipe and seed, the file of the predictions with
its sha256. It also holds the sha256 of the weights and of the images, so that a curve of other
weights is not used. Models are the package's, or a reader's own, in hand or in a folder that
`sweep`, `train` or `save_model` wrote; nothing in that is changed.
"""

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.attacks import ATTACKS
from course_lib.data import EMBEDDED, Split, load
from course_lib.datasets.sources import contents
from course_lib.diagnostics import confusion
from course_lib.errors import CourseError, pick
from course_lib.evaluation import counted, predictions
from course_lib.fairness import Report
from course_lib.inference import check_fit
from course_lib.zoo import entry, load_model, load_record, manifest, model_files, models_dir

ATTACK = "pgd20"
BUDGETS = tuple(range(0, 33, 2))  # grey levels of 255
ADVICE = "Give the folder that trainings wrote to, such as runs, or explore({'mine': model})."


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

    def report(self, eps: int) -> Report:
        """The errors per class, without the attack and under it."""
        answers = torch.stack([self.y, self.at(0), self.at(eps)])
        return counted(answers, self.classes, self.attack, eps / 255)

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
    """A curve's row in the manifest, if its weights, images (a digest) and attack are the same."""
    row = model_files(root, "curves").entries().get(name, {}).get(str(seed))
    weights = row and entry(name, seed, root).get("weights", {}).get("sha256")
    same = {"weights": weights, "data": data, "attack": ATTACK}
    return row if row and same.items() <= row.items() else None


def load_curve(name: str, split: Split, *, seed: int = 0, root: Path | None = None) -> Curve:
    """The stored predictions of one model on a test split, verified."""
    row = current(name, seed, split.digest(), root)
    if row is None:
        raise CourseError("For these weights and images no curve is stored. Choose a live attack "
                          "and press Attack now, or compute the curve: make curves.")
    with np.load(io.BytesIO(model_files(root, "curves").read(row)), allow_pickle=False) as arrays:
        eps, predicted = tuple(arrays["eps"].tolist()), torch.from_numpy(arrays["said"]).long()
    return Curve(ATTACK, eps, predicted, split.y, torch.arange(len(split)), split.classes)


@dataclass(eq=False)
class Source:
    """A model that a manifest names. Each part is read when it is first used."""

    label: str
    name: str = ""
    seed: int = 0
    root: Path | None = None
    live: dict[Any, Curve] = field(default_factory=dict)  # predictions by attack, budget, images

    @cached_property
    def model(self) -> nn.Module:
        return load_model(self.name, seed=self.seed, root=self.root)

    @cached_property
    def record(self) -> dict[str, Any]:
        return load_record(self.name, seed=self.seed, root=self.root)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Those of the record, or of the first embedded images that fit the network."""
        if classes := self.record.get("made_from", {}).get("classes"):
            return tuple(classes)
        for test in embedded() if isinstance(self.model, nn.Module) else ():
            with contextlib.suppress(CourseError):
                check_fit(self.model, test)
                return test.classes
        return ()

    @cached_property
    def words(self) -> str:
        """The name, the data set, the method and the description, in small letters."""
        words = self.label
        with contextlib.suppress(CourseError, LookupError, TypeError):  # one's own has no recipe
            recipe = self.record["made_from"]["recipe"]
            words += f" {recipe['dataset']} {recipe['method']['name']} {recipe['about']}"
        return words.casefold()

    @cached_property
    def curve(self) -> Curve:
        return load_curve(self.name, images_of(self.classes), seed=self.seed, root=self.root)


def in_hand(label: str, model: nn.Module | str) -> Source:
    """A network of the reader's, or what load_model takes."""
    source = Source(label)
    source.model = network = load_model(model) if isinstance(model, str) else model
    source.record = {}
    if not source.classes:
        raise CourseError(f"{label} is {type(network).__name__}, which takes none of the embedded "
                          "images. Give a torch.nn.Module for Fashion-MNIST or CIFAR-10.")
    return source


def stored(root: Path | None = None, prefix: str = "") -> dict[str, Source]:
    """Every model with weights that a manifest names, by label; each label begins with `prefix`."""
    sources = {}
    for name, seed in sorted((name, int(seed)) for name, seeds in manifest(root).items()
                             for seed, files in seeds.items() if "weights" in files):
        label = f"{prefix}{name}" if seed == 0 else f"{prefix}{name} · seed {seed}"
        sources[label] = Source(label, name, seed, root)
    return sources


def from_folder(folder: str | Path, known: Iterable[Source] = ()) -> dict[str, Source]:
    """The finished models below a reader's own folder. Labels give the whole path where those of
    `known` models in another folder begin with the same name."""
    base = Path(folder).expanduser()
    if not str(folder) or not os.path.isdir(base):
        raise CourseError(f"There is no folder {str(folder)!r}. {ADVICE}")
    sources: dict[str, Source] = {}
    for place in (path.parent for path in sorted(base.rglob("manifest.json"))):
        if place.resolve() != models_dir().resolve() and place.name not in ("curves", "luf"):
            name = base.name if place == base else place.relative_to(base)
            taken = any(s.label.startswith(f"{name}: ") and s.root != place for s in known)
            sources |= stored(place, f"{place if taken else name}: ")
    if not sources:
        raise CourseError(f"{base} holds no finished model. {ADVICE}")
    return sources


@functools.cache
def embedded() -> tuple[Split, ...]:
    """The embedded test images of every data set."""
    sizes = {path.parent.name: contents(path.parent)["training_images"]
             for path in sorted(EMBEDDED.glob("*/contents.json"), reverse=True)}
    return tuple(load(name, limit=n).test for name, n in sizes.items() if n)  # images, not tables


def images_of(classes: tuple[str, ...]) -> Split:
    """The embedded test images of these classes."""
    for test in embedded():
        if test.classes == classes:
            return test
    raise CourseError(f"No embedded images have the classes {', '.join(map(str, classes))}. For "
                      "this model the explorer shows scores only.")
