"""Where the explorer's models come from: the package's, and a reader's own, in hand, finished or
half trained.

A folder of one's own is what `run`, `sweep`, `train` and `session.store` write: stores of
checkpoints anywhere below it, and manifests with weights and records. Nothing in it is changed.
"""

import contextlib
import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from course_lib.checkpoints.store import RECORD, Store
from course_lib.data import EMBEDDED, Split, load
from course_lib.datasets.sources import contents
from course_lib.errors import CourseError
from course_lib.explorer.curves import Curve, load_curve
from course_lib.fairness import Report
from course_lib.files import parse_json, read_bytes
from course_lib.inference import check_fit
from course_lib.models import MODELS, build
from course_lib.tables import WIDE, wide
from course_lib.zoo import StoredModel, load_model, load_record, manifest, models_dir

COLUMNS: tuple[str, ...] = ("model", "data", "method", *WIDE)
ADVICE = "Give the folder that trainings wrote to, such as results or runs."


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
    def curve(self) -> Curve:
        return load_curve(self.name, images_of(self.classes), seed=self.seed, root=self.root)


@dataclass(eq=False)
class Checkpoint(Source):
    """The newest checkpoint of a store. Damage is reported when it is chosen."""

    folder: Path = Path()

    @cached_property
    def state(self) -> dict[str, Any]:
        """The training's state, and its identity."""
        path = self.folder / RECORD
        identity = parse_json(read_bytes(path), path)["identity"]
        with warnings.catch_warnings():  # of damaged files
            warnings.simplefilter("ignore")
            if newest := Store(self.folder).latest():
                return {**newest[1], "identity": identity}
        raise CourseError(f"{self.folder} holds no checkpoint that verifies. Train it again.")

    @cached_property
    def record(self) -> dict[str, Any]:
        """The part of a finished training's record that a checkpoint has."""
        done = f"checkpoint after {self.state.get('epoch')} epochs"
        return {**_made(self.state["identity"]["classes"].split(", "), done),
                "history": self.state.get("history", [])}

    @cached_property
    def model(self) -> nn.Module:
        """The network of the kind that the store names, if every shape fits."""
        kind = self.state["identity"]["model"].partition("{")[0]
        for name in (n for n, make in MODELS.items() if getattr(make, "__name__", n) == kind):
            model = build(name, classes=len(self.classes))
            with contextlib.suppress(RuntimeError):  # names or shapes differ
                model.load_state_dict(self.state["model"])
                return model.eval()
        raise CourseError(f"This checkpoint is of {kind}, which fits none of: {', '.join(MODELS)}.")


def _made(classes: Any, method: str) -> dict[str, Any]:
    return {"made_from": {"classes": classes, "recipe": {"method": {"name": method}}}}


def in_hand(label: str, model: nn.Module | str) -> Source:
    """A network of the reader's (or what load_model takes), and the classes that it tells apart:
    those of the first embedded images that fit it."""
    source = Source(label)
    source.model = network = load_model(model) if isinstance(model, str) else model
    for test in embedded() if isinstance(network, nn.Module) else ():
        where = next(network.parameters(), torch.empty(0)).device
        with contextlib.suppress(CourseError):
            check_fit(network, test.images(slice(0, 1)).to(where), len(test.classes))
            source.record = _made(test.classes, "your own")
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
    """The models below a reader's own folder, and stores of checkpoints."""
    base = Path(folder).expanduser()
    if not str(folder) or not os.path.isdir(base):
        raise CourseError(f"There is no folder {str(folder)!r}. {ADVICE}")
    sources: dict[str, Source] = {}
    for path in (*sorted(base.rglob("manifest.json")), *sorted(base.rglob(RECORD))):
        place = path.parent
        prefix = f"{base.name if place == base else place.relative_to(base)}: "
        if path.name == RECORD:
            sources[f"{prefix}checkpoint"] = Checkpoint(f"{prefix}checkpoint", folder=place)
        elif place.resolve() != models_dir().resolve() and place.name != "curves":
            sources |= stored(place, prefix)
    if not sources:
        raise CourseError(f"{base} holds no model and no checkpoint. {ADVICE}")
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
                      "this model the explorer shows scores and training only.")


def table(sources: Mapping[str, Source], sort: str = "model", words: str = "") -> pd.DataFrame:
    """One row per model with its stored errors, sorted by a column; missing values come last. Only
    models whose names, descriptions or errors hold all the `words`."""
    rows, groups = [], dict[Any, list[StoredModel]]()
    for label, source in sorted(sources.items()):
        rows.append({"model": label})
        try:
            recipe = source.record.get("made_from", {}).get("recipe", {})
            reports = [*map(Report.from_json, source.record.get("reports", []))]
            groups.setdefault(source.classes, []).append(
                StoredModel(label, 0, {}, {}, "", "", reports))
            rows[-1] |= {"data": recipe.get("dataset", ""), "about": recipe.get("about", ""),
                         "method": recipe.get("method", {}).get("name", "")}
        except Exception as error:  # a reader's own files may hold anything
            rows[-1]["method"] = f"cannot be read: {error}"
    # the errors in one column are of the same images
    errors = {m.name: found for group in groups.values()
              for m, found in zip(group, wide(group), strict=True)}
    rows = [row | errors.get(row["model"], {}) for row in rows]
    texts = (" ".join(map(str, row.values())).casefold() for row in rows)
    frame = pd.DataFrame([row for row, text in zip(rows, texts, strict=True) if all(
        word in text for word in words.casefold().split())], dtype=object)
    return frame.sort_values(sort, kind="stable") if sort in frame else frame


def as_html(frame: pd.DataFrame) -> str:
    """The table with errors in percent: words to the left, numbers to the right."""
    shown = frame[[c for c in COLUMNS if c in frame]]
    with pd.option_context("display.max_colwidth", None):
        text = shown.to_html(index=False, border=0, na_rep="", justify="right",
                             classes="explorer-table", float_format=lambda v: f"{v:.2f}")
    return ("<style>.explorer-table td {text-align: right} "
            f".explorer-table tr > :nth-child(-n+3) {{text-align: left}}</style>{text}")
