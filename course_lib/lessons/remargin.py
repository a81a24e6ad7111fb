"""Exercises of notebook 03: multipliers to margins, and shuffled labels."""

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _margins(lam: Tensor, gap: Tensor, rate: float, low: float, high: float) -> Tensor:
    return torch.exp(2 * (lam + rate * gap)).clamp(low, high)


# margins that are free, clipped below, clipped above
STATES = [
    (torch.tensor([0.0, 0.1, 0.3, 0.5]), torch.tensor([0.1, -0.2, 0.3, 0.25]), 0.2, 0.98, 3.0),
    (torch.tensor([-0.2, 0.0, 0.2]), torch.tensor([0.05, 0.0, 0.4]), 0.5, 0.5, 2.0),
    (torch.tensor([0.01, 0.02]), torch.tensor([0.3, -0.02]), 0.1, 0.98, 2.5),
]

MARGINS = Exercise(_margins, cases=STATES, mistakes={
    "The factor 2 in the exponent is missing.":
        lambda lam, gap, rate, low, high: _margins(lam / 2, gap / 2, rate, low, high),
    "The old multiplier is missing. The gap moves it and does not replace it.":
        lambda lam, gap, rate, low, high: _margins(0 * lam, gap, rate, low, high),
    "The margins are not clipped.": lambda lam, gap, a, low, high: torch.exp(2 * (lam + a * gap)),
    "You clip the multiplier. low and high are bounds of the margin.":
        lambda lam, gap, rate, low, high: torch.exp(2 * (lam + rate * gap).clamp(low, high)),
    "The sign is wrong. A class with a gap above the tolerance gets a larger margin.":
        lambda lam, gap, rate, low, high: _margins(lam, -gap, rate, low, high),
})

SHARES = [(0.5, 10), (0.25, 10), (1.0, 4), (0.0, 7), (0.8, 3)]
OPTIMUM = Exercise(lambda share, classes: 1 - share + share / classes, cases=SHARES, mistakes={
    "A random label is right one time in C. Add share / C.": lambda share, classes: 1 - share,
    "This is the probability of all wrong classes.": lambda share, C: share * (1 - 1 / C),
    "A random label is one of C classes, the true one among them: share / C.":
        lambda share, classes: 1 - share + share / (classes - 1),
    "The shares are swapped: `share` has random labels.": lambda share, C: share + (1 - share) / C,
})
