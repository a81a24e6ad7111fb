"""Evaluate the bundled models anew and compare with their stored reports: python -m
tools.verify_models [exp1/pgd-at ...]
 An error may differ by the rounding of two borderline images of a class, a robust one by 0.3
points: on another processor, or without the C++ kernel, the last digits of an attack differ.
AutoAttack is not run again.
 `--retrain` trains one shortened recipe on one thread instead, which must give the stored weights
to the bit where versions, processor and kernel are those it was stored with, and elsewhere errors
within the stored ones' intervals. `--retrain --store` stores it anew, which is due when the
training itself has changed.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from tqdm.auto import tqdm

from course_lib.data import Split, load
from course_lib.errors import CourseError
from course_lib.evaluation import NAMED, evaluate, named
from course_lib.fairness import Errors, Report
from course_lib.files import cache_dir, inside
from course_lib.lab.publish import publish
from course_lib.machine import keep_memory, one_thread
from course_lib.recipes import run, stored_name
from course_lib.zoo import budget, entry, load_model, load_record, models_dir
from tools.common import every_model

ROUNDING, POINTS = 2, 0.003  # images of a class; share of errors
EMBEDDED = {"cifar10": 2000}  # how many of the test images; of the other data sets all of them
SMALL: dict[str, Any] = {"limit": 3000, "epochs": 2}
RECIPE, SEED = "exp1/pgd-at", 0

Task = tuple[str, int, dict[str, Any], str]  # recipe, seed, stored report, data set


def tasks(patterns: Iterable[str] = (), root: Path | None = None,
          fetched: bool = True) -> list[Task]:
    """Every stored report of a bundled model that can be made again; not `fetched`, on the images
    that come with the course."""
    root, wanted, found = root or models_dir(), tuple(patterns), []
    for model in every_model(root):
        path = inside(root, model.files.get("weights", {}).get("file"))
        if path is None or not os.path.isfile(path) or not model.name.startswith(wanted or ""):
            continue
        data = model.data
        most = len(images_here(data)) if fetched or data not in EMBEDDED else EMBEDDED[data]
        least = most if EMBEDDED.get(data) == most else 0  # those are not the first of each class
        found += [(model.name, model.seed, row, data) for row in model.record["reports"]
                  if row["attack"] in NAMED and row["attack"] != "autoattack"
                  and least <= sum(row["counts"]) <= most]
    return found


@functools.cache
def images_here(data: str) -> Split:
    """The test images on this machine. Of CIFAR-10 only a fifth is embedded; reports on all of it
    are verified where it was fetched."""
    fetched = data not in EMBEDDED or any((cache_dir() / name).exists() for name in
                                          ("cifar-10-batches-py", "cifar10.npz"))
    return load(data, limit=None if fetched else EMBEDDED[data]).test


def sample(todo: list[Task], share: int = 10) -> list[Task]:
    """One model in `share` with one of its reports; others whenever what is stored changes: chosen
    by a hash of it all."""
    told = hashlib.sha256(repr(sorted((n, s, r["eps"], r["nat"], r["rob"]) for n, s, r,
                                      _ in todo)).encode()).hexdigest()
    order = sorted(todo, key=lambda t: hashlib.sha256(f"{told} {t[0]} {t[1]} {t[2]['attack']} "
                                                      f"{t[2]['eps']}".encode()).digest())
    models = {(t[0], t[1]): t for t in reversed(order)}  # each with the report that comes first
    return sorted(models.values(), key=order.index)[: -(-len(models) // share)]


def differences(task: Task, root: Path | None = None, test: Split | None = None) -> list[str]:
    """What differs by more than it may between a stored report and one made now."""
    name, seed, row, data = task
    told, test = Report.from_json(row), images_here(data) if test is None else test
    if sum(told.nat.counts) < len(test) and len(set(told.nat.counts)) == 1:
        test = test.per_class(told.nat.counts[0])  # so was it examined
    if sum(told.nat.counts) != len(test):
        raise CourseError(f"{name}, seed {seed}: its report counts {sum(told.nat.counts)} images, "
                          f"the embedded test set has {len(test)}.")
    attack = named(told.attack, told.eps)
    found = evaluate(load_model(name, seed=seed, root=root), test, attack, name=told.attack,
                     flips=told.flips is not None, progress=False)
    what = f"{name}, seed {seed}, {told.attack} at {budget(told.eps)}"
    return [f"{what}: {line}" for line in [*_standard(told, found), *_robust(told, found)]]


def _standard(told: Report, found: Report) -> Iterator[str]:
    for c, was, now in zip(told.classes, told.nat.wrong, found.nat.wrong, strict=True):
        if abs(now - was) > ROUNDING:
            yield f"standard errors of {c} are {now} images, stored are {was}"


def _robust(told: Report, found: Report) -> Iterator[str]:
    for c, was, now, n in zip(told.classes, told.rob.wrong, found.rob.wrong, told.rob.counts,
                              strict=True):
        if abs(now - was) > max(POINTS * n, ROUNDING):
            yield f"robust error of {c} is {now / n:.2%}, stored is {was / n:.2%}"
    if abs(sum(found.rob.wrong) - sum(told.rob.wrong)) > POINTS * sum(told.rob.counts):
        yield f"average robust error is {found.rob.mean:.2%}, stored is {told.rob.mean:.2%}"


def verify(todo: list[Task], root: Path | None = None) -> list[str]:
    """The differences of all, with a bar that shows how long it takes."""
    found, tests = [], {data: images_here(data) for data in {t[3] for t in todo}}
    with tqdm(todo, unit="report", file=sys.stdout) as bar:
        for task in bar:
            bar.set_description(f"{task[0]} seed {task[1]}")
            new = differences(task, root, tests[task[3]])
            for line in new:
                bar.write(line)
            found += new
    return found


def reference() -> Path:
    """A folder of its own: what is stored there is no result."""
    return models_dir() / "ci"


def retrained() -> tuple[torch.nn.Module, dict[str, Any]]:
    """The small recipe trained on one thread, in a folder that is thrown away."""
    with one_thread(), tempfile.TemporaryDirectory() as out:
        trained, record = run(RECIPE, SEED, out, **SMALL, progress=False)
    return trained.model, record


def same_bits(model: torch.nn.Module, root: Path | None = None) -> bool:
    """Are these the stored weights, to the bit?"""
    label = stored_name(RECIPE, SMALL["limit"], SMALL["epochs"])
    raw = safetensors.torch.save({k: v.contiguous() for k, v in model.state_dict().items()})
    stored = entry(label, SEED, root or reference())["weights"]["sha256"]
    return bool(hashlib.sha256(raw).hexdigest() == stored)


def mismatch(model: torch.nn.Module, record: dict[str, Any], root: Path | None = None) -> str:
    """How the retrained model differs from the stored one; nothing if it is as it should be.

    Equal bits are always right. Other bits are wrong under the same circumstances; elsewhere the
    errors must lie in the stored ones' intervals.
    """
    if same_bits(model, root):
        return ""
    label = stored_name(RECIPE, SMALL["limit"], SMALL["epochs"])
    stored = load_record(label, seed=SEED, root=root or reference())
    if alike(stored, record):
        return "the weights differ from the stored ones, though all else is the same"
    pairs = [(Report.from_json(a), Report.from_json(b))
             for a, b in zip(stored["reports"], record["reports"], strict=True)]
    return "; ".join(line for old, new in pairs for kind in ("nat", "rob")
                     for line in outside(getattr(old, kind), getattr(new, kind)))


def alike(stored: dict[str, Any], record: dict[str, Any]) -> bool:
    """Made under circumstances in which the same bits must come out?"""
    a, b = (dict(r["made_from"]["versions"]) for r in (stored, record))
    for versions in (a, b):
        # the hash of its machine code
        versions["kernel"] = str(versions["kernel"]).rpartition("-")[2]
    return all(a.get(k) == b.get(k) for k in ("torch", "threads", "cpu", "kernel"))


def outside(told: Errors, found: Errors) -> Iterator[str]:
    """The average and each class, when they leave the stored ones' 95 % intervals."""
    every = Errors((sum(told.wrong),), (sum(told.counts),))
    bounds = np.vstack([told.intervals(), every.intervals()])
    for error, (low, high) in zip([*found.by_class, found.mean], bounds, strict=True):
        if not low <= error <= high:
            yield f"an error of {error:.2%} is outside {low:.2%} to {high:.2%}"


def main() -> int:
    p = argparse.ArgumentParser(prog="python -m tools.verify_models", description=__doc__,
                                formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("recipes", nargs="*", help="beginnings of names; all when there is none")
    p.add_argument("--retrain", action="store_true", help="train the small recipe and compare it")
    p.add_argument("--store", action="store_true", help="with --retrain: store what comes out")
    args = p.parse_args()
    keep_memory()
    if args.retrain:
        model, record = retrained()
        if args.store:
            publish(record["recipe"], SEED, model, record, reference())
        wrong = [w] if (w := mismatch(model, record)) else []
        if same_bits(model):
            print("The retrained weights equal the stored ones to the bit.")
    else:
        if not (todo := tasks(args.recipes)):
            raise CourseError(f"No stored model's name begins with {' or '.join(args.recipes)}.")
        wrong = verify(todo)
    print("\n".join(wrong) or "Everything is as it was stored.")
    return bool(wrong)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CourseError as error:
        sys.exit(str(error))
