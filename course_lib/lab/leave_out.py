"""LUF: the same training again and again with one example left out, beside trainings that only have
another seed.
 Retraining alone changes predictions, so what one example decides must be told from noise. Three
designs share one base model (seed 0, nothing left out), and every other training differs from it in
this:

    paired    one example left out; same first weights, same order of all others, same draws seeds
    another seed, nothing left out: the control unpaired  one example left out and another seed, as
    whoever retrains without further care (the paper, it seems)
 Each training leaves its test-set probabilities (float16) in a file of its own under `out`, whole
or not at all, so a killed worker costs its task and nothing else. What is kept beside the models is
one small record a design.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.data import Dataset, Split, load
from course_lib.errors import CourseError, matching, pick, whole
from course_lib.experiments import RECIPES
from course_lib.fairness import Spread, t95
from course_lib.files import StoredFiles, json_bytes, parse_json, write_together
from course_lib.inference import frozen, logits_of
from course_lib.lab.publish import add_file
from course_lib.lab.sweep import workers
from course_lib.machine import keep_memory, one_thread
from course_lib.models import build
from course_lib.recipes import TRANSFORMS, digest, made_from, stored_name
from course_lib.scores import luf
from course_lib.training import fit
from course_lib.zoo import models_dir

DESIGNS = ("paired", "seeds", "unpaired")
LEFT_OUT = 100


@dataclass(frozen=True)
class Task:
    """One training: its seed, and the place of the example that is left out of it."""

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
        return _data(self.recipe, self.limit, self.root)

    def made(self) -> dict[str, Any]:
        """What would give other probabilities if it were another."""
        return {"recipe": self.label, "digest": digest(RECIPES[self.recipe]),
                "data": _digest(self.recipe, self.limit, self.root),
                "seed": self.seed, "hidden": self.hidden}

    def file(self, out: Path) -> Path:
        gone = "nothing" if self.hidden is None else str(self.hidden)
        return out / "left-out" / self.label / f"seed{self.seed}-without-{gone}.p16"


@functools.lru_cache(maxsize=2)
def _data(recipe: str, limit: int | None, root: Path | None) -> Dataset:
    """Once a process: a hundred trainings share it."""
    told = pick(RECIPES, recipe, "recipe")
    return pick(TRANSFORMS, told.transform, "transform")(load(told.dataset, root=root, limit=limit))


@functools.lru_cache(maxsize=2)
def _digest(recipe: str, limit: int | None, root: Path | None) -> str:
    return _data(recipe, limit, root).train.digest()


def train_without(task: Task, out: Path) -> Task:
    """One training on one thread; its probabilities are written whole or not at all."""
    keep_memory()
    recipe, train = RECIPES[task.recipe], task.data.train
    with one_thread():
        split = train if task.hidden is None else train.masked(task.hidden)
        model = build(recipe.model, seed=task.seed, classes=len(train.classes))
        epochs = recipe.epochs if task.epochs is None else task.epochs
        fit(model, recipe.method, split, epochs=epochs, optim=recipe.optim, seed=task.seed,
            progress=False)
        found = probabilities(model, task.data.test)
    raw = found.numpy().tobytes()
    head = {"made": task.made(), "shape": list(found.shape),
            "sha256": hashlib.sha256(raw).hexdigest()}
    write_together({task.file(out): json.dumps(head).encode() + b"\n" + raw})
    return task


def probabilities(model: nn.Module, split: Split) -> Tensor:
    """F(x) [X, C] as float16."""
    with torch.no_grad(), frozen(model):
        return torch.cat([logits_of(model, split.images(part)).softmax(1).half()
                          for part in torch.arange(len(split)).split(1000)])


def read(task: Task, out: Path) -> Tensor | None:
    """A training's probabilities, or None where there are none, damaged ones, or those of another
    recipe or data."""
    try:
        head, _, raw = task.file(out).read_bytes().partition(b"\n")
        told = json.loads(head)
        if told["made"] != task.made() or told["sha256"] != hashlib.sha256(raw).hexdigest():
            return None
        return torch.from_numpy(np.frombuffer(raw, np.float16).reshape(told["shape"]).copy())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def tasks_of(base: Task, design: str, left_out: int) -> list[Task]:
    """The trainings of a design beside its base; the examples are the first of a seeded shuffle of
    the training set."""
    n = len(base.data.train)
    if not 1 <= whole(left_out, "left_out", 1) <= n:
        raise CourseError(f"{left_out} examples are to be left out one by one; there are {n}. Ask "
                          "for fewer.")
    gone = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:left_out].tolist()
    design = pick({d: d for d in DESIGNS}, design, "design")
    return [Task(base.recipe, base.seed if design == "paired" else base.seed + 1 + k, None
                 if design == "seeds" else i,
                 base.limit, base.epochs, base.root) for k, i in enumerate(gone)]


def leave_out(patterns: Sequence[str], *, left_out: int = LEFT_OUT,
              designs: Sequence[str] = DESIGNS, out: Path | str = "runs",
              models: Path | str, jobs: int = 2, backend: str = "loky",
              scheduler: str | None = None, progress: bool = True,
              limit: int | None = None, epochs: int | None = None,
              root: Path | None = None) -> list[dict[str, Any]]:
    """Train whatever is not done yet, store a record a recipe and design, and return them;
    interrupt it as often as you like."""
    out, models = Path(out).absolute(), Path(models).absolute()
    names = matching([n for n in RECIPES if not RECIPES[n].needs], patterns)
    if not names:
        raise CourseError(f"No recipe to leave examples out of matches {', '.join(patterns)}. "
                          "Meant for it: luf/*.")
    bases = [Task(n, limit=limit, epochs=epochs, root=root) for n in names]
    plan = {(b, d): tasks_of(b, d, left_out) for b in bases for d in designs}
    wanted = list(dict.fromkeys([*bases, *(t for tasks in plan.values() for t in tasks)]))
    todo = [t for t in wanted if read(t, out) is None]
    bar = tqdm(total=len(wanted), initial=len(wanted) - len(todo), unit="training",
               disable=not progress)
    with bar, workers(backend, jobs, scheduler):
        calls = [joblib.delayed(train_without)(t, out) for t in todo]
        for _ in joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls):
            bar.update()
    records = [record_of(base, design, tasks, out) for (base, design), tasks in plan.items()]
    for record in records:
        if not publish_luf(record, models):
            tqdm.write(f"{record['recipe']}, {record['design']}: a record of more trainings is "
                       "stored; it stays.", file=sys.stderr)
    return records


def record_of(base: Task, design: str, tasks: Sequence[Task], out: Path) -> dict[str, Any]:
    """LUF, LUF_t, LUF_l and the flips of one design."""
    found = [read(t, out) for t in (base, *tasks)]
    if missing := [t.file(out).name for t, p in zip((base, *tasks), found, strict=True)
                   if p is None]:
        raise CourseError(f"{base.label}, {design}: {', '.join(missing[:3])} is not there or "
                          "damaged. Call it again: it is trained anew.")
    whole_set, *without = [p.float() for p in found if p is not None]
    score, y = luf(whole_set, torch.stack(without)), base.data.test.y
    right = [float((p.argmax(1) == y).double().mean()) for p in (whole_set, *without)]
    recipe = RECIPES[base.recipe]
    made = made_from(recipe, base.data, recipe.epochs if base.epochs is None else base.epochs)
    return {"recipe": base.label, "design": design, "base_seed": base.seed,
            "seeds": [t.seed for t in tasks],
            "left_out": [t.hidden for t in tasks], "test_examples": len(y), "luf": score.luf,
            "luf_t": score.luf_t, "luf_l": score.luf_l,
            "flips": list(score.flips), "accuracy": right[0],
            "accuracy_mean": math.fsum(right[1:]) / len(tasks), "made_from": made}


# ------------------------------------------------------------------------------------------ records


def luf_files(root: Path | None = None) -> StoredFiles:
    """The folder of stored records, by recipe and design."""
    return StoredFiles((root or models_dir()) / "luf", "luf",
                       "Restore it (git checkout), or make it again: python -m course_lib luf.")


def publish_luf(record: Mapping[str, Any], root: Path | None = None) -> bool:
    """Store a record; False, and nothing is done, where one of more trainings that was made from
    the same is stored."""
    name, design = str(record["recipe"]), str(record["design"])
    raw = json_bytes(record)
    with contextlib.suppress(CourseError):  # none, or a damaged one
        there = load_luf(name, design, root)
        if there["made_from"] == json.loads(raw)["made_from"] and len(there["flips"]) > len(
                record["flips"]):
            return False
    add_file(luf_files(root), name, design, f"{name.removeprefix('luf/')}/{design}.json", raw)
    return True


def load_luf(name: str, design: str, root: Path | None = None) -> dict[str, Any]:
    """One stored record, verified."""
    what = luf_files(root).entries().get(name, {}).get(design)
    if what is None:
        raise CourseError(f"LUF of {name}, design {design}, is not stored yet. Make it: python -m "
                          f"course_lib luf {name}")
    return parse_json(luf_files(root).read(what), luf_files(root).folder / str(what["file"]))


def excess(record: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """What one design, or training, adds to another: LUF's difference, and the flips' with a 95 %
    interval.

    Where both went through the same seeds one by one, the interval is that of the differences (a
    seed gives both the same first weights, order and draws); otherwise Welch's.
    """
    a, b = (np.asarray(r["flips"], float) for r in (record, control))
    if min(len(a), len(b)) < 2:
        raise CourseError(f"{len(a)} and {len(b)} trainings; an interval needs two of each at "
                          "least.")
    if record["seeds"] == control["seeds"]:
        return {"luf": record["luf"] - control["luf"], "flips": Spread.of(a - b)}
    va, vb = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    difference, se = float(a.mean() - b.mean()), math.sqrt(va + vb)
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1)) if se else 1.0
    half = t95(max(1, int(df))) * se
    flips = Spread(difference, se, difference - half, difference + half, min(len(a), len(b)))
    return {"luf": record["luf"] - control["luf"], "flips": flips}
