"""What must not change while the house is rebuilt, as plain data: `python -m tests.frozen.make`
writes face.json."""

import argparse
import contextlib
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch

import course_lib
from course_lib import PGD, Optim, build, fit
from course_lib.__main__ import parser
from course_lib.data import Split

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TEXTS = "\n".join(p.read_text() for p in [*sorted((ROOT / "notebooks").glob("*.py")),
                                          ROOT / "README.md"])
# what notebooks, the README and a reader's own scripts call
CLASSES = {
    "attacks": ("PGD", "Walk"), "data": ("Split", "Dataset"),
    "fairness": ("Errors", "Report", "Spread"),
    "training": ("Optim", "Run"), "checkpoints": ("Store",), "recipes": ("Recipe",),
    "methods": ("Method", "Step"),
}
MODULES = ("plots", "diagnostics", "scores", "lesson", "colab")


def arguments(call: Any) -> list[str]:
    """The names of a call's arguments with their defaults; annotations may be put otherwise."""
    return [p.name if p.default is p.empty else f"{p.name}={p.default!r}"
            for p in inspect.signature(call).parameters.values()]


def public(thing: Any) -> dict[str, list[str] | str]:
    """The public methods and properties of a class, or the functions of a module, that a notebook
    or the README names."""
    found: dict[str, list[str] | str] = {}
    for name, value in vars(thing).items():
        if name.startswith("_") or not re.search(rf"\b{name}\b", TEXTS):
            continue
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(value) and (inspect.isclass(thing) or value.__module__.startswith(
                thing.__name__.removesuffix("s"))):
            found[name] = arguments(value)
        elif isinstance(value, property) or type(value).__name__ == "cached_property":
            found[name] = "property"
    return found


def commands(p: argparse.ArgumentParser) -> dict[str, str]:
    """Each command with its help text, whatever the width of the terminal."""
    (table,) = [a.choices for a in p._actions if isinstance(a, argparse._SubParsersAction)]
    return {name: " ".join(c.format_help().split()) for name, c in table.items()}


def identity() -> dict[str, Any]:
    """What a checkpoint of a small training says of itself."""

    class Caught(Exception):
        pass

    x = torch.linspace(0, 1, 20 * 32 * 32).reshape(20, 1, 32, 32)
    split = Split(x, torch.arange(20) % 10, tuple("abcdefghij"))
    store = Mock(**{"siblings.return_value": [], "open.side_effect": Caught})
    with contextlib.suppress(Caught):
        fit(build("lenet5"), course_lib.RECIPES["exp2/reweight-05"].method, split, epochs=2,
            optim=Optim(), seed=3, store=store, progress=False)
    ((said, _), _) = store.open.call_args
    return {k: v for k, v in said.items() if not k.startswith("the source of")}


def _module(name: str) -> Any:
    """What `from course_lib import name` gives."""
    return getattr(course_lib, name, None) or importlib.import_module(f"course_lib.{name}")


def frozen() -> dict[str, Any]:
    digest = importlib.import_module("course_lib.recipes").digest
    rooms = {m: importlib.import_module(f"course_lib.{m}") for m in CLASSES}
    return {
        "recipes": {name: digest(recipe) for name, recipe in sorted(course_lib.RECIPES.items())},
        "identity": identity(),
        "all": sorted(course_lib.__all__),
        "calls": {name: arguments(getattr(course_lib, name)) for name in sorted(course_lib.__all__)
                  if inspect.isfunction(getattr(course_lib, name))},
        "classes": {f"{m}.{c}": {"fields": arguments(getattr(rooms[m], c)),
                                 **public(getattr(rooms[m], c))}
                    for m, names in CLASSES.items() for c in names},
        "modules": {m: public(_module(m)) for m in MODULES},
        "attack": repr(PGD()),
        "help": commands(parser()),
    }


if __name__ == "__main__":
    (HERE / "face.json").write_text(json.dumps(frozen(), indent=1, sort_keys=True) + "\n")
