"""Many recipes at once, through joblib: on this machine, or on a cluster with `backend="dask"`.
 A dask scheduler gives what a lost worker was doing to another one, which takes it up at its last
checkpoint. `out` and `models` must then be folders that every worker sees under the same names.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import joblib
from tqdm.auto import tqdm

from course_lib.errors import CourseError, matching, whole
from course_lib.experiments import RECIPES
from course_lib.lab.publish import publish
from course_lib.machine import keep_memory, one_thread
from course_lib.recipes import finished, run, stored_name

Task = tuple[str, int]  # recipe, seed


def tasks(patterns: Sequence[str], seeds: int | None = None) -> list[Task]:
    """Every (recipe, seed) whose name matches a pattern such as exp1/* or exp1, seed by seed."""
    names = matching(RECIPES, patterns)
    if not names:
        raise CourseError(f"No recipe matches {', '.join(patterns)}. There is: "
                          f"{', '.join(RECIPES)}.")
    found = [(n, s) for n in names for s in range(RECIPES[n].seeds if seeds is None
                                                  else whole(seeds, "seeds", 1))]
    return sorted(found, key=lambda task: task[1])


def waves(todo: Sequence[Task]) -> list[list[Task]]:
    """Hot starts, and models that copies fool, before what needs them: those of the same seed."""
    there = set(todo)
    rest = [(n, s) for n, s in todo if {(need, s) for need in RECIPES[n].needs} & there]
    first = [t for t in todo if t not in rest]
    return [first, *waves(rest)] if rest else [first] if first else []


def train_one(name: str, seed: int, *, out: Path, models: Path, **words: Any) -> dict[str, Any]:
    """One task, on one thread, resumed where it was stopped; published when it is whole."""
    keep_memory()
    with one_thread():
        trained, record = run(name, seed, out, models=models, **words)
    label = stored_name(name, words.get("limit"), words.get("epochs"))
    publish(label, seed, trained.model if RECIPES[name].weights else None, record, models)
    return record


@contextmanager
def workers(backend: str, jobs: int, scheduler: str | None) -> Iterator[None]:
    """joblib's configuration; with the address of a dask scheduler, through a client that is closed
    afterwards."""
    if scheduler is not None and backend != "dask":
        raise CourseError(f"A scheduler ({scheduler}) was given with backend {backend!r}; only "
                          "backend='dask' has one.")
    with ExitStack() as stack:
        words: dict[str, Any] = {"n_jobs": whole(jobs, "jobs", 1)}
        if backend == "dask":
            words = {"client": stack.enter_context(connected(scheduler))}
        stack.enter_context(joblib.parallel_config(backend, **words))
        stack.enter_context(warnings.catch_warnings())
        # joblib exchanges one that has grown; no task is lost
        warnings.filterwarnings("ignore", "A worker stopped while")
        yield


def connected(scheduler: str | None) -> Any:
    """A client of the scheduler at this address, or of the one this process is a client of
    already."""
    from distributed import Client, default_client

    try:
        return nullcontext(default_client()) if scheduler is None else Client(scheduler,
            set_as_default=False)
    except (OSError, ValueError) as e:
        what = ("This process has no distributed.Client." if scheduler is None
                else f"No dask scheduler answers at {scheduler}.")
        raise CourseError(f"{what} Start one (`dask scheduler`, then `dask worker ADDRESS`) and "
                          f"pass scheduler=ADDRESS. ({e})") from None


def sweep(patterns: Sequence[str], *, out: Path | str = "runs", models: Path | str,
          seeds: int | None = None, jobs: int = 2,
          backend: str = "loky", scheduler: str | None = None, progress: bool = True,
          **words: Any) -> list[dict[str, Any]]:
    """Train what is not done yet and return every task's record; interrupt it as often as you like.

    `backend` is one of joblib's; "dask" uses the current `distributed.Client`, or the one at the
    address `scheduler`.
    """
    # workers may live in another folder
    out, models = Path(out).absolute(), Path(models).absolute()
    wanted = tasks(patterns, seeds)
    done = {t: finished(stored_name(t[0], words.get("limit"), words.get("epochs")), t[1], models)
            for t in wanted}
    todo = [t for t in wanted if done[t] is None]
    bar = tqdm(total=len(wanted), initial=len(wanted) - len(todo), unit="model",
               disable=not progress)
    with bar, workers(backend, jobs, scheduler):
        for wave in waves(todo):
            calls = [joblib.delayed(train_one)(n, s, out=out, models=models, progress=False,
                                               **words) for n, s in wave]
            for record in joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls):
                done[record["recipe"].partition("@")[0], record["seed"]] = record
                bar.update()
    return [r for r in done.values() if r is not None]
