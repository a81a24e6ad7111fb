"""The models one can look at: those beside the package, and a reader's own runs, finished or in the
middle of a training.
 A folder of one's own is what `run`, `sweep`, `train` and `session.store` write: stores of
checkpoints anywhere below it, and manifests with weights and records. Nothing in it is changed.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.checkpoints.store import RECORD, Store
from course_lib.data import EMBEDDED, Split, load
from course_lib.datasets.sources import contents
from course_lib.errors import CourseError
from course_lib.explorer.curves import Curve, load_curve
from course_lib.files import parse_json
from course_lib.models import MODELS, build
from course_lib.zoo import TITLES, figures, load_model, load_record, manifest, models_dir, report_rows


@dataclass(frozen=True)
class Seen:
    """A model one can look at. What it holds is read when it is asked for."""

    label: str
    model: Callable[[], nn.Module]
    # as recipes.run makes it; of a checkpoint, what there is of it
    record: Callable[[], Mapping[str, Any]]
    test: Callable[[], Split]
    curve: Callable[[], Curve]

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(self.record().get("history", []))


@functools.cache
def embedded_images(dataset: str) -> Split:
    """The embedded test images."""
    return load(dataset, limit=contents(EMBEDDED / dataset)[0]).test


def label_of(name: str, seed: int) -> str:
    """exp1/pgd-at is its seed 0."""
    return name if seed == 0 else f"{name} · seed {seed}"


def stored(root: Path | None = None, where: str = "") -> dict[str, Seen]:
    """Every model with weights that a manifest names; `where` is put before the names of a folder
    of one's own."""
    found = {}
    for name, seeds in sorted(manifest(root).items()):
        for seed in sorted(int(s) for s, what in seeds.items() if "weights" in what):
            label = where + label_of(name, seed)
            found[label] = _stored(name, seed, root, label)
    return found


def _stored(name: str, seed: int, root: Path | None, label: str) -> Seen:
    record = functools.cache(lambda: load_record(name, seed=seed, root=root))

    def test() -> Split:
        return images_of(record().get("made_from", {}).get("classes", ()))

    def curve() -> Curve:
        return load_curve(name, test(), seed=seed, root=root)

    return Seen(label, functools.cache(lambda: load_model(name, seed=seed, root=root)), record,
                test, functools.cache(curve))


def from_folder(folder: str | Path) -> dict[str, Seen]:
    """What a reader's own folder holds: manifests of finished models, and stores of checkpoints."""
    base = Path(folder).expanduser()
    if not str(folder).strip() or "\0" in str(folder) or not os.path.isdir(base):
        raise CourseError(f"There is no folder {str(folder)!r}. Give the one that trainings wrote "
                          "to, such as results or runs.")
    found: dict[str, Seen] = {}
    for path in _named(base, "manifest.json"):
        if path.parent.resolve() != models_dir().resolve() and path.parent.name != "curves":
            found |= stored(path.parent, where=f"{_below(path.parent, base)}: ")
    for path in _named(base, RECORD):
        found |= {seen.label: seen for seen in _checkpoint(path.parent, _below(path.parent, base))}
    if not found:
        raise CourseError(f"{base} holds no model and no checkpoint. Give the folder that "
                          "trainings wrote to, such as results or runs.")
    return found


def _named(base: Path, name: str) -> list[Path]:
    try:
        return sorted(base.rglob(name))
    except OSError as e:
        raise CourseError(f"{base} cannot be searched ({e.strerror or e}). Give a folder that you "
                          "may read.") from None


def _below(path: Path, base: Path) -> str:
    return base.name if path == base else str(path.relative_to(base))


def _checkpoint(folder: Path, label: str) -> Iterator[Seen]:
    """The newest checkpoint of a store; what is wrong with it shows when it is chosen."""

    @functools.cache
    def identity() -> dict[str, Any]:
        told = parse_json((folder / RECORD).read_bytes(), folder / RECORD).get("identity")
        return told if isinstance(told, dict) else {}

    newest = functools.cache(lambda: _newest(folder))

    def classes() -> tuple[str, ...]:
        return tuple(str(identity().get("classes", "")).split(", "))

    def record() -> dict[str, Any]:
        step, state = newest()
        done = f"checkpoint: {state.get('epoch')} of {identity().get('epochs')} epochs"
        made = {"classes": classes(), "epochs": state.get("epoch"),
                "recipe": {"method": {"name": done}}}
        return {"recipe": label, "made_from": made, "step": step,
                "history": state.get("history", []), "reports": []}

    def curve() -> Curve:
        raise CourseError(f"No curve of {label} is stored: choose a live attack and press Attack "
                          "now.")

    def model() -> nn.Module:
        return _fitted(newest()[1].get("model", {}), str(identity().get("model", "")),
                       len(classes()))

    yield Seen(f"{label}: checkpoint", functools.cache(model), functools.cache(record),
               lambda: images_of(classes()), curve)


def _newest(folder: Path) -> tuple[int, dict[str, Any]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = Store(folder).latest()
    if found is None:
        why = " ".join(str(w.message) for w in told)
        raise CourseError(f"{folder} holds no checkpoint that verifies. {why}".strip())
    return found


def _fitted(weights: Mapping[str, Any], told: str, classes: int) -> nn.Module:
    """The network that a checkpoint's weights belong to: of the kind its store names, with every
    shape right."""
    kind = told.partition(" ")[0]
    for name in (n for n, make in MODELS.items() if getattr(make, "__name__", n) == kind):
        model = build(name, classes=classes)
        if {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k,
                v in weights.items()}:
            if not all(torch.isfinite(v).all() for v in weights.values()):
                raise CourseError("This checkpoint's weights hold NaN or infinity: the training "
                                  "went wrong. Choose an older run.")
            model.load_state_dict(weights)
            return model.eval()
    raise CourseError(f"This checkpoint is of {kind or 'an unknown network'}, which fits none of: "
                      f"{', '.join(MODELS)}.")


def images_of(classes: Sequence[str]) -> Split:
    """The embedded test images of these classes."""
    # images, not tables
    there = sorted((p.parent.name for p in EMBEDDED.glob("*/contents.json")), reverse=True)
    for dataset in there:
        if (split := embedded_images(dataset)).classes == tuple(classes):
            return split
    told = ", ".join(map(str, classes))
    raise CourseError(f"No embedded images have the classes {told}: of this model the explorer "
                      "shows scores and training only.")


COLUMNS: tuple[str, ...] = ("model", "method", "images", "epochs", *TITLES)


def table(found: Mapping[str, Seen], *, sort: str = "model", down: bool = False,
          words: str = "") -> list[dict[str, Any]]:
    """One row a model with its stored errors, of those whose row holds all the `words`, sorted by a
    column; what is unknown comes last."""
    if sort not in COLUMNS:
        raise CourseError(
            f"There is no column {sort!r} to sort by. There is: {', '.join(COLUMNS)}.")
    rows = [_row(seen) for seen in found.values()]
    rows = [r for r in rows if all(w.casefold() in " ".join(map(str, r.values())).casefold()
                                   for w in words.split())]
    known, unknown = [r for r in rows if sort in r], [r for r in rows if sort not in r]
    return sorted(sorted(known, key=lambda r: str(r["model"])), key=lambda r: r[sort],
                  reverse=down) + unknown


def as_html(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as an HTML table, errors in percent."""
    import pandas as pd

    shown = [c for c in COLUMNS if c in ("model", "method") or any(c in r for r in rows)]
    frame = pd.DataFrame(rows, columns=shown)
    percent = {c: (lambda share: f"{100 * share:.2f}") for c in TITLES if c in frame}
    return str(frame.to_html(index=False, na_rep="", border=0, formatters=percent))


def _row(seen: Seen) -> dict[str, Any]:
    try:
        record = seen.record()
        found = figures({0: report_rows(record, seen.label)})[0]
    except CourseError as error:
        return {"model": seen.label, "method": f"cannot be read: {error}"}
    made = record.get("made_from", {})
    told = {"method": made.get("recipe", {}).get("method", {}).get("name", ""),
            "images": made.get("training_examples"),
            "epochs": made.get("epochs")}
    return {"model": seen.label, **{k: v for k, v in told.items() if v is not None}, **found}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as comma-separated text, every column that any of them has."""
    if not rows:
        raise CourseError("There is no row to write; change what is looked for.")
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(k for r in rows for k in r)),
                            lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
