"""LUF: train again and again with one example left out: python -m course_lib luf.

Retraining alone changes predictions, so the effect of one example must be separated from noise.
Each design compares a base model (seed 0, nothing left out) with trainings that differ from it in:

    paired    one example left out; same first weights, same order of all others, same draws
    seeds     another seed, nothing left out: the control
    unpaired  one example left out and another seed, as in the paper, it seems

Each training stores its test-set probabilities below `out`, each design a record by the models.
"""

import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.data import Dataset, batches, load
from course_lib.errors import CourseError, integer, pick
from course_lib.experiments import RECIPES, TRANSFORMS
from course_lib.files import check_writable, json_bytes
from course_lib.inference import frozen, logits_of
from course_lib.lab.jobs import Task, piece, run_all
from course_lib.lab.publish import add_file
from course_lib.models import build
from course_lib.recipes import digest, made_from, stored_name
from course_lib.scores import luf
from course_lib.training import fit
from course_lib.zoo import matching, model_files

# design: does the seed change? is an example left out?
DESIGNS = {"paired": (False, True), "seeds": (True, False), "unpaired": (True, True)}
Pair = tuple[int, int | None]  # of a training: its seed, and the place of the example left out
Record = dict[str, Any]


def leave_out(patterns: Sequence[str], *, left_out: int = 100,
              designs: Sequence[str] = tuple(DESIGNS), out: Path | str = "runs",
              models: Path | str, limit: int | None = None, root: Path | None = None,
              **running: Any) -> list[Record]:
    """Do the trainings that are missing, store one record per recipe and design, and return them.

    `left_out` is how many examples are left out, one in each training. `running` is as in `sweep`.
    """
    names = [n for n in matching(RECIPES, patterns) if not RECIPES[n].needs]
    if not names:
        raise CourseError(f"No recipe to leave examples out of matches {', '.join(patterns)}. "
                          "Meant for it: luf/*.")
    data = {name: training_data(name, limit, root)[0] for name in names}
    groups = {(name, design): pairs(design, left_out, len(data[name].train))
              for name in names for design in designs}
    check_writable(model_files(models, "luf").folder, 1 << 20)

    def store(group: tuple[str, str], results: list[Tensor]) -> Record:
        name, design = group
        seeds, gone = zip(*groups[group], strict=True)
        record = {"recipe": stored_name(name, limit, None), "design": design, "base_seed": 0,
                  "seeds": list(seeds), "left_out": list(gone),
                  **compared(results, data[name].test.y),
                  "made_from": made_from(RECIPES[name], data[name], RECIPES[name].epochs)}
        publish_luf(record, Path(models))
        return record

    tasks = dict[tuple[str, str], list[Task]]()
    for (name, design), others in groups.items():
        made = [digest(RECIPES[name]), training_data(name, limit, root)[1]]
        tasks[name, design] = [
            piece(f"{stored_name(name, limit, None)}, seed {seed}, without example {hidden}", made,
                  functools.partial(train, name, seed, hidden, limit, root), Path(out).absolute())
            for seed, hidden in [(0, None), *others]]
    return run_all(tasks, store, **running)


@functools.lru_cache(maxsize=2)
def training_data(recipe: str, limit: int | None, root: Path | None) -> tuple[Dataset, str]:
    """The data and the digest of the training set, once per process."""
    made = RECIPES[recipe]
    data = TRANSFORMS[made.transform](load(made.dataset, root=root, limit=limit))
    return data, data.train.digest()


def pairs(design: str, left_out: int, n: int) -> list[Pair]:
    """The trainings that a design compares with its base. The examples left out are the first of a
    seeded shuffle of the n training examples."""
    reseeded, masked = pick(DESIGNS, design, "design")
    if integer(left_out, "left_out", 1) > n:
        raise CourseError(f"{left_out} examples are to be left out one by one; there are {n}. Ask "
                          "for fewer.")
    gone = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:left_out].tolist()
    return [(k if reseeded else 0, i if masked else None) for k, i in enumerate(gone, 1)]


def train(name: str, seed: int, hidden: int | None, limit: int | None,
          root: Path | None) -> Tensor:
    """The training's probabilities on the test set, F(x) [X, C], as float16."""
    recipe, (data, _) = RECIPES[name], training_data(name, limit, root)
    model = build(recipe.model, seed=seed, classes=len(data.classes))
    fit(model, recipe.method, data.train if hidden is None else data.train.masked(hidden),
        epochs=recipe.epochs, optim=recipe.optim, seed=seed, progress=False)
    with torch.no_grad(), frozen(model):
        return torch.cat([logits_of(model, x).softmax(1).half()
                          for x, _ in batches(data.test, 1000)])


def compared(results: list[Tensor], y: Tensor) -> Record:
    """LUF, and the accuracies, of the base's probabilities and those of the other trainings."""
    complete, *without = [p.float() for p in results]
    score = luf(complete, torch.stack(without))
    right = [float((p.argmax(1) == y).double().mean()) for p in (complete, *without)]
    return {"test_examples": len(y), "luf": score.luf, "luf_t": score.luf_t, "luf_l": score.luf_l,
            "flips": list(score.flips), "accuracy": right[0],
            "accuracy_mean": math.fsum(right[1:]) / len(without)}


def publish_luf(record: Record, root: Path | None = None) -> None:
    """Store a record, unless one of more such trainings is stored, which stays."""
    name, design, raw = record["recipe"], record["design"], json_bytes(record)
    try:
        stored = load_luf(name, design, root)
    except CourseError:  # none is stored, or a damaged one
        stored = {"made_from": None}
    if (stored["made_from"] != json.loads(raw)["made_from"]
            or len(stored["flips"]) <= len(record["flips"])):
        file = f"{name.removeprefix('luf/')}/{design}.json"
        add_file(model_files(root, "luf"), name, design, file, raw)


def load_luf(name: str, design: str, root: Path | None = None) -> Record:
    """One stored record, verified.

    >>> load_luf("luf/cifar10-robust", "seeds")["luf_t"]
    0.6731
    """
    files = model_files(root, "luf")
    if file := files.entries().get(name, {}).get(design):
        return files.read_json(file)
    raise CourseError(f"LUF of {name}, {design}, is not stored yet. Make it: python -m course_lib "
                      f"luf {name}")
