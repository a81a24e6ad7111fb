"""Loaded as the twin's Python starts: what Colab has under /content is in a folder of the twin's
own, and a FULL training may be small.
 The course's own code stays as it is. A test must not write to /content, and not train for hours:
after course_lib.colab and course_lib.recipes are loaded, this gives the first other places and the
second a smaller training.
"""

import functools
import importlib.util
import os
import sys
from pathlib import Path


def places(colab):
    machine = Path(os.environ["TWIN_MACHINE"])
    colab.DRIVE = Path(os.environ.get("TWIN_DRIVE_AT", machine / "drive"))
    colab.RESULTS = {**colab.RESULTS, "colab": str(machine / "content" / "results")}


def small(recipes):
    if words := os.environ.get("TWIN_SMALL"):
        limit, epochs = map(int, words.split(","))
        recipes.run = functools.partial(recipes.run, limit=limit, epochs=epochs)


CHANGES = {"course_lib.colab": places, "course_lib.recipes": small}


class Changed:
    """An import hook: the module as it is, and then the change."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in CHANGES or Changed not in sys.meta_path:
            return None
        sys.meta_path.remove(Changed)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, Changed)
        if spec and spec.loader:
            spec.loader.exec_module = functools.partial(execute, name, spec.loader.exec_module)
        return spec


def execute(name, exec_module, module):
    exec_module(module)
    CHANGES[name](module)


if "TWIN_MACHINE" in os.environ:
    sys.meta_path.insert(0, Changed)
