"""Class-wise (un)fairness in adversarial training: a course one can run.

    from course_lib import load, build, PGD, fit, evaluate, load_model, RECIPES, plots
"""

from course_lib.attacks import PGD
from course_lib.data import load
from course_lib.errors import CourseError
from course_lib.models import build

__version__ = "0.1.0"

from course_lib import plots
from course_lib.datasets import adult, cifar10, torchvision_sets  # noqa: F401 (they add to `load`)
from course_lib.evaluation import evaluate
from course_lib.experiments import RECIPES
from course_lib.fairness import Report
from course_lib.lessons import lesson  # noqa: F401
from course_lib.training import Optim, fit
from course_lib.zoo import compare, list_models, load_model, load_report

__all__ = [
    "PGD", "RECIPES", "CourseError", "Optim", "Report", "build", "compare", "evaluate", "fit",
    "list_models", "load", "load_model",
    "load_report", "plots",
]
