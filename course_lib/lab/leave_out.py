"""LUF: train again and again with one example left out: python -m course_lib luf.

Retraining alone changes predictions, so the effect of one example must be separated from noise.
Each design compares a base model (seed 0, nothing left out) with trainings that differ from it in:

    paired    one example left out; same first weights, same order of all others, same draws
    seeds     another seed, nothing left out: the control
    unpaired  one example left out and another seed, as in the paper, it seems

Each training stores its test-set probabilities in a file below `out`. One small record per design
is stored beside the models.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from course_lib.data import Dataset, batches, load
from course_lib.errors import CourseError, integer, matching, pick
from course_lib.experiments import RECIPES
from course_lib.files import StoredFiles, check_writable, json_bytes, parse_json
from course_lib.inference import frozen, logits_of
from course_lib.lab.jobs import Task, piece, run_all
from course_lib.lab.publish import add_file
from course_lib.models import build
from course_lib.recipes import TRANSFORMS, digest, made_from, stored_name
from course_lib.scores import luf
from course_lib.training import fit
from course_lib.zoo import models_dir

# design: does the seed change? is an example left out?
DESIGNS = {"paired": (False, True), "seeds": (True, False), "unpaired": (True, True)}


def leave_out(patterns: Sequence[str], *, left_out: int = 100,
              designs: Sequence[str] = tuple(DESIGNS), out: Path | str = "runs",
              models: Path | str, limit: int | None = None, epochs: int | None = None,
              root: Path | None = None, **running: Any) -> list[dict[str, Any]]:
    """Do the trainings that are missing, store one record per recipe and design, and return them.

    `left_out` is how many examples are left out, one in each training. `running` is as in `sweep`.
    """
    names = [n for n in matching(RECIPES, patterns) if not RECIPES[n].needs]
    if not names:
        raise CourseError(f"No recipe to leave examples out of matches {', '.join(patterns)}. "
                          "Meant for it: luf/*.")
    bases = [Retraining(n, limit=limit, epochs=epochs, root=root) for n in names]
    plan = {(base, design): [base, *retrainings(base, design, left_out)] for base in bases
            for design in designs}

    def store(group: tuple[Retraining, str], results: list[Tensor]) -> dict[str, Any]:
        record = record_of(group[1], plan[group], results)
        if not publish_luf(record, Path(models)):
            tqdm.write(f"{record['recipe']}, {record['design']}: a record of more trainings is "
                       "stored; it stays.", file=sys.stderr)
        return record

    tasks = {group: [training.task(Path(out).absolute()) for training in trainings]
             for group, trainings in plan.items()}
    check_writable(luf_files(Path(models)).folder, 1 << 20)
    return run_all(tasks, store, unit="training", **running)


@dataclass(frozen=True)
class Retraining:
    """One training: its seed, and the place of the example that is left out."""

    recipe: str
    seed: int = 0
    hidden: int | None = None
    limit: int | None = None
    epochs: int | None = None
    root: Path | None = None

    @property
    def label(self) -> str:
        return stored_name(self.recipe, self.limit, self.epochs)

    @property
    def data(self) -> Dataset:
        return _data(self.recipe, self.limit, self.root)[0]

    def task(self, out: Path) -> Task:
        digests = [digest(RECIPES[self.recipe]), _data(self.recipe, self.limit, self.root)[1]]
        return piece(f"{self.label}, seed {self.seed}, without example {self.hidden}", digests,
                     functools.partial(train, self), out)


@functools.lru_cache(maxsize=2)
def _data(recipe: str, limit: int | None, root: Path | None) -> tuple[Dataset, str]:
    """The data and the digest of the training set, once per process."""
    made = RECIPES[recipe]
    data = TRANSFORMS[made.transform](load(made.dataset, root=root, limit=limit))
    return data, data.train.digest()


def retrainings(base: Retraining, design: str, left_out: int) -> list[Retraining]:
    """The trainings that a design compares with its base. The examples left out are the first of a
    seeded shuffle of the training set."""
    reseeded, masked = pick(DESIGNS, design, "design")
    n = len(base.data.train)
    if integer(left_out, "left_out", 1) > n:
        raise CourseError(f"{left_out} examples are to be left out one by one; there are {n}. Ask "
                          "for fewer.")
    gone = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:left_out].tolist()
    return [replace(base, seed=k if reseeded else base.seed, hidden=i if masked else None)
            for k, i in enumerate(gone, base.seed + 1)]


def train(task: Retraining) -> Tensor:
    """The training's probabilities on the test set, F(x) [X, C], as float16."""
    recipe, split = RECIPES[task.recipe], task.data.train
    model = build(recipe.model, seed=task.seed, classes=len(split.classes))
    fit(model, recipe.method, split if task.hidden is None else split.masked(task.hidden),
        epochs=recipe.epochs if task.epochs is None else task.epochs, optim=recipe.optim,
        seed=task.seed, progress=False)
    with torch.no_grad(), frozen(model):
        return torch.cat([logits_of(model, x).softmax(1).half()
                          for x, _ in batches(task.data.test, 1000)])


def record_of(design: str, trainings: Sequence[Retraining],
              results: Sequence[Tensor]) -> dict[str, Any]:
    """LUF, LUF_t, LUF_l and the flips of one design; its base and its probabilities come first."""
    base, *others = trainings
    complete, *without = [p.float() for p in results]
    score, y = luf(complete, torch.stack(without)), base.data.test.y
    right = [float((p.argmax(1) == y).double().mean()) for p in (complete, *without)]
    recipe = RECIPES[base.recipe]
    made = made_from(recipe, base.data, recipe.epochs if base.epochs is None else base.epochs)
    return {"recipe": base.label, "design": design, "base_seed": base.seed,
            "seeds": [t.seed for t in others], "left_out": [t.hidden for t in others],
            "test_examples": len(y), "luf": score.luf, "luf_t": score.luf_t, "luf_l": score.luf_l,
            "flips": list(score.flips), "accuracy": right[0],
            "accuracy_mean": math.fsum(right[1:]) / len(others), "made_from": made}


def luf_files(root: Path | None = None) -> StoredFiles:
    """The folder of stored records, by recipe and design."""
    return StoredFiles((root or models_dir()) / "luf", "luf",
                       "Restore it (git checkout), or make it again: python -m course_lib luf.")


def publish_luf(record: Mapping[str, Any], root: Path | None = None) -> bool:
    """Store a record. False where a record of more such trainings is stored, which stays."""
    name, design, raw = record["recipe"], record["design"], json_bytes(record)
    with contextlib.suppress(CourseError):  # none is stored, or a damaged one
        stored, new = load_luf(name, design, root), parse_json(raw, Path(name))
        if stored["made_from"] == new["made_from"] and len(stored["flips"]) > len(new["flips"]):
            return False
    add_file(luf_files(root), name, design, f"{name.removeprefix('luf/')}/{design}.json", raw)
    return True


def load_luf(name: str, design: str, root: Path | None = None) -> dict[str, Any]:
    """One stored record, verified."""
    files = luf_files(root)
    file = files.entries().get(name, {}).get(design)
    if file is None:
        raise CourseError(f"LUF of {name}, design {design}, is not stored yet. Make it: python -m "
                          f"course_lib luf {name}")
    return parse_json(files.read(file), files.folder / str(file["file"]))
