"""Many tasks in several processes, one thread each: the runner of sweep, examine, score and luf.

A finished task stores its result, and the same command skips it later: a kill costs the tasks that
were running and no others. A task that fails is named at the end and stops no other task. With dask
the processes may run on many machines, which must see the same folders under the same names.
"""

import contextlib
import hashlib
import json
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import joblib
from torch import Tensor
from tqdm.auto import tqdm

from course_lib.checkpoints import Store
from course_lib.errors import CourseError, integer
from course_lib.machine import keep_memory, one_thread

G = TypeVar("G")
R = TypeVar("R")


@dataclass(frozen=True)
class Task:
    """One unit of work. Tasks of the same name are the same and are done once."""

    name: str
    work: Callable[[], Any]  # computes, stores and returns the result; it must pickle
    stored: Callable[[], Any]  # the stored result, or None
    needs: frozenset[str] = frozenset()  # the names of tasks that must be done before


def piece(name: str, made_from: Any, compute: Callable[[], Tensor], out: Path) -> Task:
    """A task whose result is a tensor. It is kept in a store below `out` that is named by a hash.

    `made_from` is plain data that changes with everything the result depends on.
    """
    key = hashlib.sha256(json.dumps([name, made_from]).encode()).hexdigest()[:32]
    folder = out / "pieces" / key

    def work() -> Tensor:
        store = Store(folder)  # an error about the folder comes before the work
        store.save(0, {"result": (result := compute())})
        return result

    def stored() -> Tensor | None:
        newest = Store(folder).latest() if folder.is_dir() else None
        return newest[1]["result"] if newest else None

    return Task(name, work, stored)


def run_all(groups: Mapping[G, Sequence[Task]], finish: Callable[[G, list[Any]], R], *,
            jobs: int = 2, scheduler: str | None = None, progress: bool = True) -> list[R]:
    """Do every task that has no stored result; return what `finish` makes of each group of tasks.

    The tasks run in `jobs` processes (one is this process), or on the workers of the dask scheduler
    at the address `scheduler`. `finish(group, results)` runs in this process, as soon as the
    group's last task is done. What failed is named in one CourseError at the end.
    """
    tasks = {task.name: task for members in groups.values() for task in members}
    waiting = {group: {task.name for task in members} for group, members in groups.items()}
    results, finished, errors = dict[str, Any](), dict[G, R](), list[str]()
    with workers(jobs, scheduler), warnings.catch_warnings():
        # joblib replaces a worker whose memory has grown; no task is lost
        warnings.filterwarnings("ignore", "A worker stopped while")
        for name, result, error in tqdm(_outcomes(tasks), total=len(tasks), disable=not progress):
            if error:
                errors.append(f"{name}: {error}")
                continue
            results[name] = result
            for group in [g for g, names in waiting.items() if name in names]:
                waiting[group].remove(name)
                try:
                    if not waiting[group]:
                        finished[group] = finish(group, [results[t.name] for t in groups[group]])
                except CourseError as e:
                    errors.append(str(e))
    if errors:
        more = [f"... and {len(errors) - 5} more errors"] * (len(errors) > 5)
        raise CourseError("\n".join([*errors[:5], *more]))
    return [finished[group] for group in groups]


def _outcomes(tasks: Mapping[str, Task]) -> Iterator[tuple[str, Any, str]]:
    """Name, result and error of each task: the stored ones first, then the others as they end, in
    rounds: each comes after those that it needs."""
    missing = {}
    for name, task in tasks.items():
        if (result := task.stored()) is None:
            missing[name] = task
        else:
            yield name, result, ""
    while ready := [task for task in missing.values() if not task.needs & missing.keys()]:
        calls = [joblib.delayed(_attempt)(missing.pop(task.name)) for task in ready]
        try:
            yield from joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)
        except BrokenProcessPool:
            raise CourseError("A worker process was killed, perhaps for lack of memory. Finished "
                              "tasks are stored; rerun with fewer jobs.") from None


def _attempt(task: Task) -> tuple[str, Any, str]:
    """In a worker: the task's name and result, or why it failed."""
    keep_memory()
    try:
        with one_thread():
            return task.name, task.work(), ""
    except CourseError as e:
        return task.name, None, str(e)
    except Exception:  # a bug: everything that helps to find it
        return task.name, None, traceback.format_exc()


@contextlib.contextmanager
def workers(jobs: int, scheduler: str | None) -> Iterator[None]:
    """joblib's configuration: processes here, or the workers of a dask scheduler."""
    if not scheduler:
        with joblib.parallel_config("loky", n_jobs=integer(jobs, "jobs", 1)):
            yield
        return
    from distributed import Client

    try:
        client = Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as e:
        raise CourseError(f"No dask scheduler answers at {scheduler} ({e}). Start one: "
                          "`dask scheduler`, then `dask worker ADDRESS`.") from None
    with client, joblib.parallel_config("dask", client=client):
        yield
