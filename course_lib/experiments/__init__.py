"""The recipes of the course by name, one file per experiment.

    from course_lib.experiments import RECIPES
    RECIPES["exp1/pgd-at"].epochs

Add your own here, or in your own script: RECIPES["mine/x"] = Recipe(...).
"""

from collections.abc import Callable
from dataclasses import replace

from course_lib.data import Dataset
from course_lib.datasets.adult import balanced
from course_lib.experiments import cifar10, contest, exp1, exp2, exp3, exp4, gpu, scores
from course_lib.recipes import Recipe

RECIPES: dict[str, Recipe] = {
    **exp1.RECIPES,
    **exp2.RECIPES, **exp3.RECIPES, **exp2.TRIALS, **exp2.GRID, **exp3.REPORT,
    **exp4.TRIALS, **exp4.RECIPES,
    **contest.TRIALS, **contest.RECIPES,
    **scores.RECIPES,
    **cifar10.TRIALS, **cifar10.RECIPES,
    **gpu.RECIPES,
}

# what a recipe's `transform` does to its data set
TRANSFORMS: dict[str, Callable[[Dataset], Dataset]] = {
    "": lambda d: d,
    "whole": Dataset.whole,
    "validated-on-training": lambda d: replace(d, training=lambda: (
        d.train, d.train.take(slice(0, len(d.val))))),  # on as many training images
    "without-hardest": lambda d: d.without(exp4.HARDEST),
    "without-easiest": lambda d: d.without(exp4.EASIEST),
    "balanced": lambda d: replace(d, training=lambda: (balanced(d.train), d.val)),
}
