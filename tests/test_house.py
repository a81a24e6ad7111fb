"""The house rules that a machine can check, over every file of the library."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY = sorted((ROOT / "course_lib").rglob("*.py"))
NAMES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in LIBRARY]
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name,
         path in zip(NAMES, LIBRARY, strict=True)}
FUNCTIONS = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree)
             if isinstance(node, ast.FunctionDef)]
FACE = ("course_lib", "course_lib.__init__", "course_lib.__main__")


def rooms_at_the_top(tree: ast.Module) -> Iterator[str]:
    """The rooms a file imports when it is imported itself; what a function imports when it is
    called does not count."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_lib"):
            yield from (f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in TREES
                        else str(node.module) for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("course_lib"))


IMPORTS = {name.removesuffix(".__init__"): set(rooms_at_the_top(tree)) - set(FACE) for name,
           tree in TREES.items() if name not in FACE}


def test_the_library_was_found() -> None:
    assert {"course_lib.data", "course_lib.attacks", "course_lib.training"} <= set(IMPORTS)
    assert "course_lib.errors" in IMPORTS["course_lib.attacks"]


def test_functions_are_short() -> None:
    lines = {f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1 for name,
             node in FUNCTIONS}
    assert {name: n for name, n in lines.items() if n > 40} == {}
    assert statistics.median(lines.values()) <= 12


def test_rooms_import_only_from_rooms_above() -> None:
    tuple(TopologicalSorter(IMPORTS).static_order())  # raises CycleError where there is a ring
    assert "course_lib.evaluation" not in IMPORTS["course_lib.training"]
    assert not {"course_lib.training", "course_lib.recipes",
                "course_lib.lab.sweep"} & IMPORTS["course_lib.plots"]
    assert not {"course_lib.training", "course_lib.recipes",
                "course_lib.methods"} & IMPORTS["course_lib.diagnostics"]


@pytest.mark.parametrize("name", sorted(set(TREES) - {"course_lib.__main__"}))
def test_no_print_and_no_device_written_in(name: str) -> None:
    calls = [node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)]
    assert not [f.lineno for f in calls if isinstance(f, ast.Name) and f.id == "print"]
    assert not [f.lineno for f in calls if isinstance(f, ast.Attribute)
                and f.attr in {"cuda", "manual_seed_all"}]


def test_public_functions_are_typed() -> None:
    def bare(node: ast.FunctionDef) -> bool:
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        return node.returns is None or any(a.annotation is None for a in named
                                           if a.arg not in {"self", "cls"})

    assert [f"{name}.{node.name}" for name, node in FUNCTIONS if not node.name.startswith("_")
            and bare(node)] == []


def test_importing_the_library_does_no_work() -> None:
    """What is slow to import waits until somebody asks for it."""
    script = ("import sys, course_lib; print(sorted({'torchvision', 'ipywidgets', 'joblib', "
              "'dask', 'gdown'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True,
                          check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.strip() == "[]"
