"""Class-wise (un)fairness in adversarial training: a course one can run.

    from course_lib import load, build, PGD, fit, evaluate, load_model, RECIPES, plots

Each name is imported from its room when it is first used; `import course_lib` itself does no work.

One line registers a network of your own, and one a data set, a function of (root, limit, seed):

    >>> from torch import arange, nn, rand
    >>> MODELS["mine"] = lambda classes=2: nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
    >>> mine = Split.of(rand(50, 28, 28), arange(50) % 2, classes=("cat", "dog"))
    >>> LOADERS["mine"] = lambda root, limit, seed: Dataset(
    ...     "mine", mine.classes, mine, lambda: halves(mine, limit, seed))
    >>> build("mine")(load("mine", limit=20).train.x).shape
    torch.Size([16, 2])
"""

import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table below once more, for editors and type checkers
    from course_lib import plots
    from course_lib.attacks import PGD
    from course_lib.autoattack import AutoAttack
    from course_lib.checkpoints import Store
    from course_lib.data import LOADERS, Dataset, Split, load
    from course_lib.datasets.sources import halves
    from course_lib.errors import CourseError
    from course_lib.evaluation import evaluate
    from course_lib.experiments import RECIPES
    from course_lib.explorer import explore
    from course_lib.fairness import Report
    from course_lib.lab.publish import save_model
    from course_lib.methods import METHODS, Method
    from course_lib.models import MODELS, build
    from course_lib.tables import benchmark, compare, list_models, results, score_results
    from course_lib.training import Optim, fit
    from course_lib.zoo import load_model, load_report

__version__ = "0.1.0"

FACE = {name: f"{room}:{name}" for room, names in {  # public name: where it comes from
    "attacks": "PGD", "autoattack": "AutoAttack", "checkpoints": "Store",
    "data": "LOADERS Dataset Split load", "datasets.sources": "halves", "errors": "CourseError",
    "evaluation": "evaluate", "experiments": "RECIPES", "explorer": "explore",
    "fairness": "Report", "lab.publish": "save_model",
    "methods": "METHODS Method", "models": "MODELS build",
    "tables": "benchmark compare list_models results score_results",
    "training": "Optim fit", "zoo": "load_model load_report",
}.items() for name in names.split()} | {"lesson": "lessons.lesson:", "plots": "plots:"}
__all__ = list(FACE)


def __getattr__(name: str) -> Any:
    if name not in FACE:
        raise AttributeError(f"course_lib has no {name!r}. It has: {', '.join(FACE)}.")
    thing, door = map(pkgutil.resolve_name, (f"course_lib.{FACE[name]}",
                                             "course_lib.judge.kinds:door"))
    return thing if isinstance(thing, dict) else door(thing)


def __dir__() -> list[str]:
    return sorted({*FACE, "__doc__", "__version__"})
