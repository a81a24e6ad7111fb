"""Where people wait: python -m benchmarks.waits

Each wait is the median of three to five processes of its own, on an idle machine. "Cold" is without
what the course keeps: the compiled kernel, executed notebooks. The nine models are three of
Experiment 1, hot start, control, Reweight, Remargin, both, and BAT: one epoch on 4,800 images and
1,200 for validation, multiplied by how many images and epochs the recipe has.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import KEEPING, images, main, median_of
from course_lib.autoattack import AutoAttack
from course_lib.data import load
from course_lib.experiments import RECIPES
from course_lib.machine import one_thread
from course_lib.models import build
from course_lib.recipes import _validation
from course_lib.training import fit
from course_lib.zoo import load_model
from tools.execute import KEPT

NINE = ("exp1/natural", "exp1/pgd-at-mixed", "exp1/pgd-at", "exp2/hot-start", "exp2/control",
        "exp2/reweight-05", "exp3/remargin-05", "exp3/reweight-remargin-05", "exp4/bat-code")
FULL, SLICE = 48_000, 4_800  # training images
ATTACK = ("from course_lib import PGD, build; import torch; x = torch.rand(10, 1, 32, 32); import "
          "time; t = time.perf_counter(); PGD()(build('lenet5'), x, torch.arange(10)); "
          "print(time.perf_counter() - t)")


def python(code: str, **env: str) -> str:
    words = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(words, env={**os.environ, **KEEPING, **env}, capture_output=True,
                          text=True, check=True)
    return done.stdout


def printed(code: str, cold: bool, n: int = 3) -> float:
    """The median of the seconds that the code prints; cold is with an empty cache each time."""
    took = []
    for _ in range(n):
        with tempfile.TemporaryDirectory() as empty:
            took.append(float(python(code, **({"COURSE_CACHE": empty} if cold else {}))))
    return statistics.median(took)


def first_figure() -> None:
    """The set-up cell of 00 and the cells after it, until one has shown a picture; prints the
    seconds, with those in which the kernel of the notebook starts."""
    import jupytext
    from nbclient import NotebookClient

    began, source = time.perf_counter(), Path("notebooks/00_start_here.py")
    notebook = jupytext.read(source)
    client = NotebookClient(notebook, kernel_name="python3",
                            resources={"metadata": {"path": str(source.parent)}})
    with client.setup_kernel(env=dict(os.environ)):
        for i, cell in enumerate(notebook.cells):
            done = client.execute_cell(cell, i)
            if any("image/png" in o.get("data", {}) for o in done.get("outputs", [])):
                print(time.perf_counter() - began)
                return


def in_processes() -> Iterator[list[Any]]:
    torch_alone, course = (median_of(lambda code=code: python(code)) for code in (
        "import torch", "import torch, course_lib"))
    yield ["import course_lib, beyond torch", course - torch_alone, "s", 0.3]
    shell = [sys.executable, "-m", "course_lib", "--help"]
    yield ["course-lib --help", median_of(lambda: subprocess.run(shell, stdout=-3)), "s", 0.25]
    warm = printed(ATTACK, cold=False)
    yield ["first attack ever, beyond a later one", printed(ATTACK, cold=True) - warm, "s", 2]
    code = "from benchmarks.waits import first_figure; first_figure()"
    for cold, must in ((True, 10), (False, None)):
        state = "cold" if cold else "warm"
        yield [f"00 opened to first figure, {state}", printed(code, cold), "s", must]
    command = ["make", "--no-print-directory", "run"]
    shutil.rmtree(KEPT, ignore_errors=True)
    for what, must in (("all notebooks anew", 50), ("nothing changed", 5)):
        began = time.perf_counter()
        subprocess.run(command, stdout=-3, stderr=-3, check=True)
        yield [f"make run, {what}", time.perf_counter() - began, "s", must]
    for path in sorted(KEPT.glob("*.ipynb")):
        took = json.loads(path.read_text())["metadata"]["course"]["seconds"]
        yield [f"{path.stem}, Run all, two notebooks at a time", took, "s", 15]
    with tempfile.TemporaryDirectory() as out:
        again = [sys.executable, "-m", "course_lib", "train", "exp1/natural", "--limit", "200",
                 "--epochs", "1", "--out", out]
        subprocess.run(again, stdout=-3, stderr=-3, check=True)
        took = median_of(lambda: subprocess.run(again, stdout=-3, stderr=-3, check=True))
    yield ["a finished training, asked for again", took, "s", 2]


def on_one_thread() -> Iterator[list[Any]]:
    small, total = load("fashion-mnist", limit=SLICE * 5 // 4), 0.0
    for name in NINE:
        recipe = RECIPES[name]

        def work(recipe: Any = recipe) -> None:
            fit(build("lenet5"), recipe.method, small.train, epochs=1, optim=recipe.optim, seed=0,
                validate=_validation(recipe, small.val), progress=False)

        work()
        took, whole = median_of(work, 3, time.process_time), recipe.transform == "whole"
        minutes = took * recipe.epochs * (FULL * (1.25 if whole else 1)) / SLICE / 60
        total += minutes
        yield [f"{name}, one seed", minutes, "CPU-minutes", None]
    yield ["Experiments 1 to 3 and BAT: nine models of one seed", total, "CPU-minutes", 18]
    x, y = images(200)
    judge, net = AutoAttack(batch=200), load_model("exp1/pgd-at")
    took = median_of(lambda: judge(net, x, y), 1, time.process_time) / len(x)
    yield ["AutoAttack as published, an image of exp1/pgd-at", took, "CPU-s", 0.09]


def whole() -> tuple[list[str], list[list[Any]], Any]:
    rows = [*in_processes()]
    with one_thread():
        rows += on_one_thread()
    return ["wait", "measured", "unit", "must be at most"], [
        [what, took, unit, "" if must is None else must] for what, took, unit, must in rows], None


if __name__ == "__main__":
    main("waits", "Where people wait", whole, {})
