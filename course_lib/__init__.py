"""Class-wise (un)fairness in adversarial training: a course one can run.

    from course_lib import load, build, PGD, fit, evaluate, load_model, RECIPES, plots

Each name is imported from its room when it is first used; `import course_lib` itself does no work.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below once more, for editors and type checkers
    from course_lib import plots
    from course_lib.attacks import PGD
    from course_lib.data import load
    from course_lib.errors import CourseError
    from course_lib.evaluation import evaluate
    from course_lib.experiments import RECIPES
    from course_lib.fairness import Report
    from course_lib.models import build
    from course_lib.training import Optim, fit
    from course_lib.zoo import compare, list_models, load_model, load_report

__version__ = "0.1.0"

FACE = {  # public name: where it comes from
    "PGD": "attacks:PGD", "RECIPES": "experiments:RECIPES", "CourseError": "errors:CourseError",
    "Optim": "training:Optim", "Report": "fairness:Report", "build": "models:build",
    "compare": "zoo:compare", "evaluate": "evaluation:evaluate", "fit": "training:fit",
    "lesson": "lessons.lesson", "list_models": "zoo:list_models", "load": "data:load",
    "load_model": "zoo:load_model", "load_report": "zoo:load_report", "plots": "plots",
    "results": "zoo:results",
}
__all__ = [
    "PGD", "RECIPES", "CourseError", "Optim", "Report", "build", "compare", "evaluate", "fit",
    "list_models", "load", "load_model", "load_report", "plots",
]


def __getattr__(name: str) -> Any:
    if name not in FACE:
        raise AttributeError(f"course_lib has no {name!r}. It has: {', '.join(FACE)}.")
    room, _, attribute = FACE[name].partition(":")
    module = importlib.import_module(f"course_lib.{room}")
    return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted({*globals(), *FACE})
