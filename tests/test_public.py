"""The public face: its names, the cost of importing it, and every example in a docstring."""

import doctest
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import course_lib
from course_lib.machine import kernels

FACE = ("load", "build", "PGD", "fit", "evaluate", "load_model", "RECIPES", "plots")
MODULES = sorted(["course_lib", *(m.name for m in pkgutil.walk_packages(
    course_lib.__path__, "course_lib.") if not m.name.endswith("__main__"))])
HEAVY = ("IPython ipywidgets torchvision pyautoattack dask distributed torchattacks scipy pandas "
         "fairlearn jupytext gdown")
WITH_EXAMPLES = {"course_lib", *(f"course_lib.{room}" for room in (
    "attacks", "data", "models", "zoo"))}


SCRIPT = f"""
import importlib, pkgutil, sys, torch, warnings
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # importing it raises ImportError
warnings.simplefilter("error")
state, threads = torch.get_rng_state(), torch.get_num_threads()
from course_lib import {", ".join(FACE)}
assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
assert not [m for m in {HEAVY.split()} if m in sys.modules]
warnings.simplefilter("ignore")
import course_lib
for m in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    if not m.name.endswith("__main__"):
        importlib.import_module(m.name)
from course_lib import METHODS, Optim, Store
from course_lib.machine import kernels
train = load("fashion-mnist", limit=1000).train.per_class(10)
for _ in range(2):
    model = build("lenet5")
    run = fit(model, METHODS["pgd_at"](PGD(steps=2)), train, epochs=1, optim=Optim(batch=100),
              seed=0, store=Store("saved"), progress=False)
    print(kernels() is None or kernels().library() is None, len(run.history))
print(evaluate(model, train, PGD(steps=2), progress=False).nat.counts)
"""


def test_importing_brings_nothing_heavy_and_all_runs_without_posix_and_without_a_compiler(tmp_path):
    """As on Windows and macOS. The import changes nothing, and brings what the course needs at
    once: that keeps it short."""
    kept = {k: v for k, v in os.environ.items() if k in {"HOME", "SYSTEMROOT", "TMPDIR"}}
    env = {**kept, "PATH": str(tmp_path), "CC": "", "CXX": "", "OMP_NUM_THREADS": "1",
           "COURSE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"True 1\nTrue 1\n{(10,) * 10}\n"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    names = vars(course_lib) | {n: getattr(course_lib, n) for n in course_lib.__all__}
    with mock.patch.dict(course_lib.LOADERS), mock.patch.dict(course_lib.MODELS):
        result = doctest.testmod(importlib.import_module(name),
                                 globs=names if name == "course_lib" else None)
    assert result.failed == 0 and (result.attempted or name not in WITH_EXAMPLES)


WORK = """
import os, resource, sys, torch
torch.set_num_threads(1)
import course_lib.evaluation
from course_lib import models
from course_lib.machine import keep_memory
loaded = ["course_lib.native" in sys.modules]
models.build("lenet5")(torch.zeros(1, 1, 32, 32))
print(loaded[0], "course_lib.native" in sys.modules)
if sys.argv[1] == "kept":
    os.environ["MALLOC_TOP_PAD_"] = "0"
    print(keep_memory())
    del os.environ["MALLOC_TOP_PAD_"]
    print(keep_memory())
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(min(faults() for _ in range(5)))  # the system may take idle pages back at any time
"""


def output(*words, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | more
    return subprocess.run([sys.executable, "-c", WORK, *words], capture_output=True, text=True,
                          check=True, env=env).stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pages_are_kept_unless_the_user_has_set_the_allocator_and_kernels_come_when_asked_for():
    """Nothing imports the kernels before, and COURSE_NATIVE=0 keeps them away altogether."""
    *said, kept = output("kept", COURSE_NATIVE="1")
    early, late, returned = output("untouched", COURSE_NATIVE="0")
    assert said == ["False", "True", "False", "True"] and (early, late) == ("False", "False")
    assert int(kept) < int(returned) / 100 and int(returned) > 9_000
    assert (kernels() is None) == (os.environ.get("COURSE_NATIVE") == "0")
