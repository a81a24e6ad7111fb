"""Where the explorer's models come from: the package's, and a reader's own, in hand or in a folder
that `sweep`, `train` or `save_model` wrote. Nothing in that is changed."""

import contextlib
import functools
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from course_lib.data import EMBEDDED, Split, load
from course_lib.datasets.sources import contents
from course_lib.errors import CourseError
from course_lib.explorer.curves import Curve, load_curve
from course_lib.inference import check_fit
from course_lib.zoo import load_model, load_record, manifest, models_dir

ADVICE = "Give the folder that trainings wrote to, such as runs, or explore({'mine': model})."


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

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.record.get("made_from", {}).get("classes", ()))

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
    """A network of the reader's (or what load_model takes), and the classes that it tells apart:
    those of the first embedded images that fit it."""
    source = Source(label)
    source.model = network = load_model(model) if isinstance(model, str) else model
    for test in embedded() if isinstance(network, nn.Module) else ():
        with contextlib.suppress(CourseError):
            check_fit(network, test)
            source.record = {"made_from": {"classes": test.classes}}
            return source
    raise CourseError(f"{label} is {type(network).__name__}, which takes none of the embedded "
                      "images. Give a torch.nn.Module for Fashion-MNIST or CIFAR-10.")


def stored(root: Path | None = None, prefix: str = "") -> dict[str, Source]:
    """Every model with weights that a manifest names, by label; each label begins with `prefix`."""
    sources = {}
    for name, seed in sorted((name, int(seed)) for name, seeds in manifest(root).items()
                             for seed, files in seeds.items() if "weights" in files):
        label = f"{prefix}{name}" if seed == 0 else f"{prefix}{name} · seed {seed}"
        sources[label] = Source(label, name, seed, root)
    return sources


def from_folder(folder: str | Path) -> dict[str, Source]:
    """The finished models below a reader's own folder."""
    base = Path(folder).expanduser()
    if not str(folder) or not os.path.isdir(base):
        raise CourseError(f"There is no folder {str(folder)!r}. {ADVICE}")
    sources: dict[str, Source] = {}
    for place in (path.parent for path in sorted(base.rglob("manifest.json"))):
        if place.resolve() != models_dir().resolve() and place.name != "curves":
            name = base.name if place == base else place.relative_to(base)
            sources |= stored(place, f"{name}: ")
    if not sources:
        raise CourseError(f"{base} holds no finished model. {ADVICE}")
    return sources


@functools.cache
def embedded() -> tuple[Split, ...]:
    """The embedded test images of every data set."""
    return tuple(load(path.parent.name, limit=contents(path.parent)[0]).test for path in
                 sorted(EMBEDDED.glob("*/contents.json"), reverse=True))  # images, not tables


def images_of(classes: tuple[str, ...]) -> Split:
    """The embedded test images of these classes."""
    for test in embedded():
        if test.classes == classes:
            return test
    raise CourseError(f"No embedded images have the classes {', '.join(map(str, classes))}. For "
                      "this model the explorer shows scores only.")
