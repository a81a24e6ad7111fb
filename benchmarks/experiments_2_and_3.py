"""How long do Experiments 2 and 3 take from nothing on two cores, beside the report's procedure?
 The report's procedure: a DataLoader with Resize and ToTensor for each image each time,
torchattacks' PGD-20 in training, and before *every* batch of 100 its fairness check, 2,100
validation images under PGD-20 at 16/255; one process with all threads. Ours: the recipes as they
stand (fairness once an epoch on all 12,000 validation images), two processes of one thread each.
Neither is run whole: the seconds of a batch, a check and an evaluation are measured on a slice, and
multiplied by how often the experiments need them. Both sides train a hot start and what starts from
it, and examine every network on the 10,000 test images.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.epoch import Photographs
from benchmarks.harness import ALLOCATORS, compare, data, main, model, part, usual_model
from benchmarks.peers import Work
from course_lib.attacks import PGD
from course_lib.data import Split, batches
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from course_lib.experiments import RECIPES
from course_lib.methods import Step
from course_lib.recipes import Recipe
from course_lib.zoo import load_model

HOT = "exp2/hot-start"
# Reweight, Remargin, both; two tolerances
HEADLINE = {name: r for name, r in RECIPES.items() if r.start == HOT and r.weights}
SAME = ("exp2/reweight-05", "exp3/remargin-05")  # what the report has trained, too
TRAIN, VAL, TEST = 48_000, 12_000, 10_000
CHECK, THEIR_BATCH, HOT_EPOCHS = 2_100, 100, 15  # the report's
# its Reweight and its Remargin; ours otherwise
EPOCHS = {"exp2/reweight-05": 20, "exp3/remargin-05": 10}
PART = 5  # batches in a slice
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))  # 1 for a first look
WORKERS = 2


def network() -> nn.Module:
    """The stored hot start: how soon images go wrong decides what may be left out. Its like where
    it is not stored."""
    try:
        return load_model(HOT, seed=0)
    except CourseError:
        return model()


def theirs() -> dict[str, Work]:
    """One slice each: the hot start's batches, FRL's batches, the check."""
    import torchattacks

    net = usual_model(network())
    opt, examples = torch.optim.Adam(net.parameters(), 1e-4), Photographs(PART * THEIR_BATCH)
    hot = torchattacks.PGD(net, eps=8 / 255, alpha=2 / 255, steps=20)
    inner, check = (torchattacks.PGD(net, eps=16 / 255, alpha=a / 255, steps=20) for a in (1, 2))

    def some() -> Any:
        return itertools.islice(torch.utils.data.DataLoader(examples, THEIR_BATCH, shuffle=True),
                                PART)

    def learn(loss: torch.Tensor) -> None:
        opt.zero_grad()
        loss.backward()
        opt.step()

    def start() -> None:
        for x, y in some():
            half = len(y) // 2
            learn(F.cross_entropy(net(torch.cat([x[:half], hot(x[half:], y[half:])])), y))

    def train() -> None:
        for x, y in some():
            z, clean = inner(x, y), net(x)
            learn(F.cross_entropy(clean, y) + F.cross_entropy(net(z), clean.detach().argmax(1)))

    def measure() -> None:
        for x, y in some():
            z = check(x, y)
            with torch.no_grad():
                (net(x).argmax(1) != y).sum(), (net(z).argmax(1) != y).sum()

    return {"hot start": start, "training": train, "check": measure}


def ours() -> dict[str, Work]:
    """The same of our recipes: slices of the hot start's and FRL's batches, of validation, of the
    examination."""
    torch.set_num_threads(1)
    net, split = network(), data().train.take(slice(0, PART * 128))

    def train(recipe: Recipe) -> Work:
        mine = usual_copy(net)
        opt, state = recipe.optim.make(mine), recipe.method.init_state(len(split.classes))

        def work() -> None:
            at = Step(0, 1, 0, 1, torch.Generator().manual_seed(0))
            for x, y in batches(split, recipe.optim.batch, torch.Generator().manual_seed(0)):
                loss = recipe.method.loss(mine, x, y, state, at)
                opt.zero_grad(set_to_none=True)
                (loss[0] if isinstance(loss, tuple) else loss).backward()
                opt.step()
        return work

    def measure(images: Split, attack: PGD) -> Work:
        return lambda: evaluate(net, images, attack, progress=False)

    frl, some = HEADLINE["exp3/reweight-remargin-05"], data().test.take(slice(0, 500))
    tests = {f"test {255 * eps:.0f}": measure(some, PGD(eps=eps)) for _, eps in frl.examination}
    return {"hot start": train(RECIPES[HOT]), "training": train(frl),
            "check": measure(data().val, frl.validation), **tests}


def usual_copy(net: nn.Module) -> nn.Module:
    """A network of its own for each training slice, so that none is trained away from where it
    stands."""
    import copy

    return copy.deepcopy(net).train()


def times(side: str) -> dict[str, float]:
    return compare({"theirs": theirs, "ours": ours}[side](), rounds=ROUNDS)


def ours_side_by_side(allocator: str) -> dict[str, float]:
    """Two processes at once, as a sweep runs them: of each slice the slower one counts."""
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda _: part("experiments_2_and_3", allocator, "times", "ours"),
                              range(WORKERS)))
    return {name: max(times[name] for times in found) for name in found[0]}


def cold_start() -> float:
    """Seconds until the library is imported and its kernel compiled, with an empty cache."""
    with tempfile.TemporaryDirectory() as empty:
        began = time.perf_counter()
        code = "from course_lib import native; import course_lib; native.library()"
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "COURSE_CACHE": empty},
                       check=True, capture_output=True)
        return time.perf_counter() - began


def their_hours(s: dict[str, float], runs: list[str]) -> float:
    """The hot start, then each run with a check before each batch, then 10,000 test images at two
    budgets."""
    per_batch = {name: seconds / PART for name, seconds in s.items()}
    epoch, check = TRAIN / THEIR_BATCH, per_batch["check"] * CHECK / THEIR_BATCH
    total = HOT_EPOCHS * epoch * per_batch["hot start"]
    total += sum(EPOCHS.get(name, HEADLINE[name].epochs) * epoch * (per_batch["training"] + check)
                 for name in runs)
    examined = 2 * TEST / THEIR_BATCH * per_batch["check"]
    return (total + (1 + len(runs)) * examined) / 3600


def our_hours(s: dict[str, float], runs: list[str], cold: float) -> float:
    """The hot start alone, then the runs two at a time."""
    per_example = {name: seconds / (PART * 128) for name, seconds in s.items()
                   if name in ("hot start", "training")}
    examined = VAL / len(data().val) * s["check"] + sum(TEST / 500 * v for name, v in s.items()
                                                        if name.startswith("test"))
    hot = RECIPES[HOT].epochs * TRAIN * per_example["hot start"] + examined
    one = max(HEADLINE[name].epochs for name in runs) * (TRAIN * per_example["training"] + VAL
                                                         / len(data().val) * s["check"]) + examined
    return (cold + hot + math.ceil(len(runs) / WORKERS) * one) / 3600


def whole() -> tuple[list[str], list[list[Any]], Any]:
    mine, cold = ours_side_by_side("equal"), cold_start()
    other = {a: part("experiments_2_and_3", a, "times", "theirs") for a in ALLOCATORS}
    rows = []
    every = {"hot start, Reweight, Remargin": list(SAME),
             f"hot start and all {len(HEADLINE)} headline recipes": list(HEADLINE)}
    for label, runs in every.items():
        hours, others = our_hours(mine, runs, cold), {a: their_hours(s, runs) for a,
                                                      s in other.items()}
        rows.append([label, 60 * hours, others["default"], others["default"] / hours,
                     others["equal"] / hours])
    head = ["one seed of", "ours, minutes", "the report's procedure, hours", "times as fast",
            "the same, our allocator for both"]
    return head, rows, {"ours": mine, "theirs": other, "cold": cold}


if __name__ == "__main__":
    main("experiments_2_and_3",
         "Experiments 2 and 3 from nothing, two cores, extrapolated from slices", whole,
         {"times": times})
