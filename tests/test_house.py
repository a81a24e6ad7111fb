"""The rules of the house that a machine can check: imports, sizes, and how functions are cut."""

import ast
import pkgutil
import re
import statistics
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
         for p in sorted((ROOT / "course_lib").rglob("*.py"))}
TEXT = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
LINES = {name: len(text.splitlines()) for name, text in TEXT.items()}
TREES = {name: ast.parse(text) for name, text in TEXT.items()}
FUNCTIONS = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree)
             if isinstance(node, ast.FunctionDef)]
FLAT = {name for name, path in FILES.items() if path.parent.name == "course_lib"}
FOLDERS = {path.parent.name for path in FILES.values()} - {"course_lib"}
# a student who follows one training of FRL reads these and whatever they import
FRL = ("course_lib.recipes", "course_lib.methods.frl", "course_lib.methods.trades",
       "course_lib.methods.base")


def imported(name: str, nodes: list[ast.AST]) -> set[str]:
    """The modules of the library that these statements of module `name` import."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports are absolute"
            names |= {f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in FILES
                      else str(node.module) for a in node.names}
    return (names & set(FILES)) - {name}


AT_THE_TOP = {name: imported(name, tree.body) for name, tree in TREES.items()}
ANYWHERE = {name: imported(name, list(ast.walk(tree))) for name, tree in TREES.items()}


def closure(graph: dict[str, set[str]], starts: tuple[str, ...]) -> set[str]:
    """Whatever the starts import, directly or through others, and the starts themselves."""
    reached, waiting = set(), list(starts)
    while waiting:
        name = waiting.pop()
        if name not in reached and name != "course_lib":
            reached.add(name)
            waiting += graph[name]
    return reached


def test_the_library_was_found() -> None:
    assert {"course_lib.data", "course_lib.attacks", "course_lib.training"} <= FLAT
    assert "course_lib.errors" in AT_THE_TOP["course_lib.attacks"]
    assert {"methods", "experiments", "datasets", "checkpoints", "native", "explorer", "lessons",
            "files", "lab", "judge", "machine", "tables"} == FOLDERS


def test_there_is_no_ring_of_imports() -> None:
    """Not through `__init__`, not inside functions, not for types."""
    try:
        tuple(TopologicalSorter(ANYWHERE).static_order())
    except CycleError as e:
        pytest.fail(f"a ring: {' -> '.join(e.args[1])}")


@pytest.mark.parametrize("name", sorted(FLAT))
def test_flat_files_reach_a_folder_only_through_its_door(name: str) -> None:
    folders = FOLDERS - {"methods"}
    at_once = {m for m in AT_THE_TOP[name] if m.split(".")[1:2] and m.split(".")[1] in folders}
    if name != "course_lib":  # whose imports for types cost nothing
        assert at_once == set()
    doors = {f"course_lib.{folder}" for folder in FOLDERS}
    behind = {m for m in ANYWHERE[name] - FLAT - doors if ".methods." not in m}
    if name not in {"course_lib", "course_lib.__main__"}:  # the shell is the door of lab/
        assert behind == set()


def test_what_a_text_names_is_there() -> None:
    """Such as "course_lib.files:StoredFiles", which `resolve` imports when it is used."""
    named = {n for text in TEXT.values() for n in re.findall(r'"(course_lib[\w.]*:\w+)"', text)}
    assert len(named) > 20 and all(pkgutil.resolve_name(n) is not None for n in named)


def test_rooms_know_only_their_own_business() -> None:
    reach = {name: closure(AT_THE_TOP, (name,)) for name in FILES}
    assert not {"course_lib.data", "course_lib.training"} & reach["course_lib.attacks"]
    assert "course_lib.evaluation" not in reach["course_lib.training"]
    for room in ("plots", "diagnostics", "scores"):
        assert not {"course_lib.training", "course_lib.recipes"} & reach[f"course_lib.{room}"]
    for name in (n for n in FILES if n.startswith("course_lib.native")):
        assert not {"course_lib.attacks", "course_lib.models"} & ANYWHERE[name]


def test_the_house_is_small() -> None:
    """The aim: 3,700 lines to read, 8,500 in all."""
    assert len(FLAT) <= 19
    assert sum(n for name, n in LINES.items() if name in FLAT or ".methods" in name) <= 3_700
    assert sum(LINES.values()) <= 10_381


def test_one_training_of_frl_is_read_in_a_dozen_files() -> None:
    path = closure(AT_THE_TOP, FRL)
    assert len(path) <= 13 and sum(LINES[name] for name in path) <= 1_740, sorted(path)


def test_functions_are_whole_thoughts() -> None:
    """Neither long nor shredded: few are named once only, beside their definition."""
    length = {f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
              for name, node in FUNCTIONS}
    assert {name: n for name, n in length.items() if n > 40} == {}
    assert 8 <= statistics.median(length.values()) <= 15
    words = Counter(re.findall(r"\w+", "\n".join(TEXT.values())))
    top = [node.name for tree in TREES.values() for node in tree.body
           if isinstance(node, ast.FunctionDef) and node.name.startswith("_")]
    assert len([n for n in top if words[n] == 2]) <= 0.5 * len(top)


@pytest.mark.parametrize("name", sorted(TREES))
def test_no_device_is_written_in(name: str) -> None:
    calls = [node.func for node in ast.walk(TREES[name]) if isinstance(node, ast.Call)]
    assert not [f.lineno for f in calls
                if isinstance(f, ast.Attribute) and f.attr in {"cuda", "manual_seed_all"}]
