"""Exercises of notebook 02: multipliers to weights, one dual update, and differences per seed."""

import math
from functools import partial

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise, noise

# two, none and all above zero; not always ten classes
LAM = [(torch.tensor([0.0, 0.0, 0.3, 0.05]),), (torch.zeros(5),),
       (0.05 * noise(4, 10),)]
WEIGHTS = Exercise(lambda lam: 1 / len(lam) + lam - lam.mean(), cases=LAM, mistakes={
    "1/C is missing, the weight where all multipliers are zero.": lambda lam: lam - lam.mean(),
    "These sum to more than one. Subtract the mean of lam.": lambda lam: 1 / len(lam) + lam,
    "You scale the weights to sum to one. The Lagrangian subtracts the mean of lam.":
        lambda lam: (1 / len(lam) + lam) / (1 + lam.sum()),
    "This is the report's softmax, not the Lagrangian.": lambda lam: torch.softmax(lam, 0),
    "There are not always ten classes: 1/C with C = len(lam).": lambda lam: 0.1 + lam - lam.mean(),
})


def _update(lam: Tensor, err: Tensor, mean: float, tau: float, rate: float, lim: float,
            least: float = 0.0) -> Tensor:
    new = (lam + rate * (err - mean - tau)).clamp(min=least)
    return new * (lim / new.sum()) if new.sum() > lim else new


# multipliers that grow, that fall below zero, and that grow beyond the limit
ERR = torch.tensor([0.05, 0.10, 0.15, 0.50])
STATES = [
    (torch.tensor([0.002, 0.0, 0.01, 0.02]), ERR, 0.2, 0.05, 0.05, 0.5),
    (torch.tensor([0.1, 0.0, 0.1, 0.3]), ERR, 0.2, 0.07, 1.0, 0.5),
    (torch.tensor([0.3, 0.2, 0.0, 0.4]), ERR, 0.2, 0.05, 0.1, 0.3),
    (torch.tensor([0.01, 0, 0, 0.1]), torch.tensor([0.3, 0.1, 0.2, 0.2]), 0.2, 0.0, 2.0, 0.25),
]

UPDATE = Exercise(_update, cases=STATES, mistakes={
    "No multiplier of a constraint is negative. Clamp it at 0.": partial(_update, least=-math.inf),
    "The limit is missing. If the multipliers sum to more than lim, scale all down.":
        lambda lam, e, m, tau, a, lim: _update(lam, e, m, tau, a, math.inf),
    "The tolerance is missing.": lambda lam, e, m, tau, a, lim: _update(lam, e, m, 0.0, a, lim),
    "You do not subtract the average. The gap is how far a class is above the average.":
        lambda lam, e, m, tau, a, lim: _update(lam, e, 0.0, tau, a, lim),
    "You always scale to lim. Scale down only if the sum exceeds lim.":
        lambda lam, e, m, tau, a, lim: (
            (new := _update(lam, e, m, tau, a, math.inf)) * lim / new.sum()),
    "The old multiplier is missing. The new one is the old one plus the step.":
        lambda lam, e, m, tau, a, lim: _update(0 * lam, e, m, tau, a, lim),
})

# five made-up seeds, as many as in the notebook; then three, where pairing helps more
BEFORE = torch.tensor([0.470, 0.512, 0.455, 0.490, 0.438])
PAIRS = [(BEFORE, BEFORE - torch.tensor([0.10, 0.12, 0.09, 0.11, 0.13]), 2.7764),
         (torch.tensor([0.4, 0.5, 0.45]), torch.tensor([0.3, 0.46, 0.33]), 4.3027)]
PAIRED = Exercise(lambda b, a, t: t * (a - b).std() / len(b) ** 0.5, cases=PAIRS, mistakes={
    "This is for two unrelated groups. Pairs share a seed: take the differences first.":
        lambda b, a, t: t * ((b.var() + a.var()) / len(b)) ** 0.5,
    "This is the spread of one change, not of their mean.": lambda b, a, t: t * (a - b).std(),
    "You divide by n. The standard deviation of a mean of n values is smaller by sqrt(n).":
        lambda b, a, t: t * (a - b).std() / len(b),
    "This is one standard error. The 95 % interval reaches t of them to each side.":
        lambda b, a, t: (a - b).std() / len(b) ** 0.5,
    "This is the whole width. Return how far the interval reaches to each side.":
        lambda b, a, t: 2 * t * (a - b).std() / len(b) ** 0.5,
})
