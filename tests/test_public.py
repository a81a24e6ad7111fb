"""The public face: its names, what importing it costs, and every example in a docstring."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

import course_lib
from course_lib.zoo import models_dir

FACE = ("load", "build", "PGD", "fit", "evaluate", "load_model", "RECIPES", "plots")
MODULES = sorted(["course_lib", *(m.name for m in pkgutil.walk_packages(
    course_lib.__path__, "course_lib.") if not m.name.endswith("__main__"))])
HEAVY = (
    "IPython",
    "ipywidgets",
    "torchvision",
    "pyautoattack",
    "dask",
    "distributed",
    "torchattacks",
    "scipy",
    "pandas",
    "fairlearn",
    "jupytext",
    "gdown",
)
NEEDS_MODELS = {"course_lib.zoo", "course_lib.tables"}


@pytest.mark.parametrize("name", [*FACE, "CourseError", "Report", "Optim", "list_models",
                                  "load_report", "Method", "Split", "Store", "AutoAttack",
                                  "explore", "Dataset", "LOADERS", "MODELS", "METHODS", "results"])
def test_public_names(name: str) -> None:
    assert getattr(course_lib, name) is not None and name in course_lib.__all__


def test_all_names_are_there() -> None:
    assert len(set(course_lib.__all__)) == len(course_lib.__all__) and all(hasattr(course_lib, n)
        for n in course_lib.__all__)
    assert course_lib.__version__ in (Path(__file__).parent.parent / "pyproject.toml").read_text()


def test_importing_brings_nothing_heavy_and_changes_nothing() -> None:
    """Only what the course needs at once: that is what keeps the import short."""
    script = (
        "import sys, torch, warnings; warnings.simplefilter('error'); state, threads = "
        "torch.get_rng_state(), torch.get_num_threads()\n"
        f"from course_lib import {', '.join(FACE)}\n"
        "assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_the_readmes_import_line_works() -> None:
    namespace: dict[str, object] = {}
    exec(f"from course_lib import {', '.join(FACE)}", namespace)
    assert set(FACE) <= namespace.keys()


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    if name in NEEDS_MODELS and not (models_dir() / "manifest.json").exists():
        pytest.skip("serialized_models/manifest.json is not there yet; `make models` makes it")
    names = vars(course_lib) | {n: getattr(course_lib, n) for n in course_lib.__all__}
    with mock.patch.dict(course_lib.LOADERS), mock.patch.dict(course_lib.MODELS):
        result = doctest.testmod(importlib.import_module(name),
                                 globs=names if name == "course_lib" else None)
    assert result.failed == 0


def test_the_examples_are_found() -> None:
    finder = doctest.DocTestFinder()
    counts = {name: sum(len(t.examples) for t in finder.find(importlib.import_module(name)))
              for name in MODULES}
    assert all(counts[f"course_lib.{room}"]
               for room in ("attacks", "data", "errors", "evaluation", "models", "training", "zoo"))
    assert counts["course_lib"]
