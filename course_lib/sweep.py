"""Many recipes at once, through joblib: on this machine, or on a cluster with `backend="dask"`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import joblib
import torch
from tqdm.auto import tqdm

from course_lib.errors import CourseError
from course_lib.recipes import RECIPES, run, stored_name, up_to_date
from course_lib.zoo import entry, load_record, publish, verified

Task = tuple[str, int]  # recipe, seed


def tasks(patterns: Sequence[str], seeds: int | None = None) -> list[Task]:
    """Every (recipe, seed) whose name matches a pattern such as exp1/* or exp1, seed by seed."""
    names = [n for n in RECIPES if any(fnmatch(n, p) or n.startswith(p.rstrip("/") + "/") for p in patterns)]
    if not names:
        raise CourseError(f"No recipe matches {', '.join(patterns)}. There is: {', '.join(RECIPES)}.")
    found = [(n, s) for n in names for s in range(RECIPES[n].seeds if seeds is None else seeds)]
    return sorted(found, key=lambda task: task[1])


def is_done(task: Task, models: Path) -> bool:
    """Stored, verified, and made from the recipe as it stands."""
    try:
        record = load_record(task[0], seed=task[1], root=models)
        if RECIPES[task[0]].weights:
            verified(entry(*task, root=models)["weights"], models)
    except (CourseError, KeyError):
        return False
    return up_to_date(task[0], record)


def waves(todo: Sequence[Task]) -> list[list[Task]]:
    """Hot starts before what starts from them."""
    names = {n for n, _ in todo}
    first = [t for t in todo if RECIPES[t[0]].start not in names]
    rest = [t for t in todo if RECIPES[t[0]].start in names]
    return [first, *waves(rest)] if rest else [first] if first else []


def train_one(name: str, seed: int, *, out: Path, models: Path, **words: Any) -> dict[str, Any]:
    """One task, on one thread, resumed where it was stopped; published when it is whole."""
    torch.set_num_threads(1)
    trained, record = run(name, seed, out, models=models, **words)
    label = stored_name(name, words.get("limit"), words.get("epochs"))
    publish(label, seed, trained.model if RECIPES[name].weights else None, record, models)
    return record


def sweep(patterns: Sequence[str], *, out: Path | str = "runs", models: Path | str, seeds: int | None = None, jobs: int = 2,
          backend: str = "loky", progress: bool = True, **words: Any) -> list[dict[str, Any]]:
    """Train what is not done yet and return every task's record; interrupt it as often as you like."""
    out, models = Path(out), Path(models)
    wanted = tasks(patterns, seeds)
    cut = words.get("limit") is not None or words.get("epochs") is not None
    todo = wanted if cut else [t for t in wanted if not is_done(t, models)]
    made: dict[Task, dict[str, Any]] = {}
    with joblib.parallel_config(backend, n_jobs=jobs), tqdm(total=len(wanted), initial=len(wanted) - len(todo), unit="model", disable=not progress) as bar:
        for wave in waves(todo):
            calls = [joblib.delayed(train_one)(n, s, out=out, models=models, progress=False, **words) for n, s in wave]
            for record in joblib.Parallel(return_as="generator_unordered")(calls):
                made[record["recipe"].split("@")[0], record["seed"]] = record
                bar.update()
    return [made[t] if t in made else load_record(t[0], seed=t[1], root=models) for t in wanted]
