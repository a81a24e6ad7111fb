"""The contest: newer methods on the terms of Experiment 4."""

from __future__ import annotations

from course_lib.experiments.exp4 import equal
from course_lib.methods import METHODS
from course_lib.recipes import Recipe

RECIPES: dict[str, Recipe] = {"contest/dafa": equal("DAFA, trained at 8/255", METHODS["dafa"]())}
