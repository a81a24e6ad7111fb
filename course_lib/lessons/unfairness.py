"""Exercises of notebook 01: errors per class, the boundary error, and the interval of an error."""

import math

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _share(wrong: Tensor) -> float:
    return float(wrong.float().mean())


def _class_errors(y: Tensor, predicted: Tensor, n: int) -> list[float]:
    return [_share(predicted[y == c] != c) for c in range(n)]


# classes of different sizes, so that a wrong divisor shows
LABELS = [(torch.tensor([0, 0, 0, 0, 1, 2, 2]), torch.tensor([0, 0, 1, 2, 1, 0, 2]), 3),
          (torch.tensor([0, 0, 1, 1, 2, 2, 2, 3]), torch.tensor([0, 1, 1, 0, 2, 3, 3, 3]), 4)]
CLASS_ERRORS = Exercise(_class_errors, cases=LABELS, mistakes={
    "These are accuracies. The error is 1 minus the accuracy.":
        lambda y, p, n: [1 - e for e in _class_errors(y, p, n)],
    "You divide by the number of all images. Divide by the size of the class.":
        lambda y, p, n: [_share((y == c) & (p != c)) for c in range(n)],
    "You take the images predicted as c (1 - precision). Take those whose label is c.":
        lambda y, p, n: [_share(y[p == c] != c) for c in range(n)],
    "These are counts. Divide each by the size of its class.":
        lambda y, p, n: [float(((y == c) & (p != c)).sum()) for c in range(n)],
})

# under attack two right images become wrong, a wrong one right, and one changes its wrong class
PREDICTED = [(torch.tensor([0, 0, 1, 1, 2, 0, 1, 2, 2]),  # labels
              torch.tensor([0, 0, 1, 1, 2, 1, 0, 0, 1]),  # clean
              torch.tensor([0, 0, 1, 2, 0, 0, 0, 0, 0]))]  # attacked
BOUNDARY = Exercise(lambda y, clean, attacked: _share((clean == y) & (attacked != y)),
                    cases=PREDICTED, mistakes={
    "This is the share of predictions that changed, as in the reproduction's code. It also counts "
    "images that went from one wrong class to another.":
        lambda y, clean, attacked: _share(clean != attacked),
    "This is the robust error. It includes the images that were wrong before the attack.":
        lambda y, clean, attacked: _share((clean != y) | (attacked != y)),
    "This is the error under attack. Subtract the images that were wrong before.":
        lambda y, clean, attacked: _share(attacked != y),
    "This counts an image that is wrong when clean and right under attack as -1.":
        lambda y, clean, attacked: _share(attacked != y) - _share(clean != y),
    "This is a share of the images that were right when clean. Divide by all images.":
        lambda y, clean, attacked: _share(attacked[clean == y] != y[clean == y]),
})

RATES = [(0.3, 1000), (0.03, 1000), (0.5, 10_000), (0.12, 250)]
CHANCE = Exercise(lambda p, n: 1.96 * math.sqrt(p * (1 - p) / n), cases=RATES, mistakes={
    "Only one standard error: 95 % needs 1.96 of them.": lambda p, n: math.sqrt(p * (1 - p) / n),
    "Take the root of the whole fraction.": lambda p, n: 1.96 * math.sqrt(p * (1 - p)) / n,
    "The root is missing: p (1 - p) / n is a variance.": lambda p, n: 1.96 * p * (1 - p) / n,
    "This is the whole width. Return how far the interval reaches to each side.":
        lambda p, n: 3.92 * math.sqrt(p * (1 - p) / n),
    "The variance of one yes-or-no draw is p (1 - p), not p.": lambda p, n: 1.96 * math.sqrt(p / n),
})
