"""Notebook 02: multipliers into weights, one dual update, and what pairing by seed is worth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _weights(phi: Tensor) -> Tensor:
    return 1 / len(phi) + phi - phi.mean()


def _multipliers() -> list[tuple[Tensor]]:
    """None, one and many above zero; not always ten classes."""
    g = torch.Generator().manual_seed(4)
    return [(torch.tensor([0.0, 0.0, 0.3, 0.05]),), (torch.zeros(5),),
            (0.05 * torch.rand(10, generator=g),)]


def _moved(lam: Tensor, err: Tensor, mean: float, tau: float, rate: float) -> Tensor:
    return lam + rate * (err - mean - tau)


def _scaled(lam: Tensor, lim: float) -> Tensor:
    return lam * (lim / lam.sum()) if lam.sum() > lim else lam


def _update(lam: Tensor, err: Tensor, mean: float, tau: float, rate: float, lim: float) -> Tensor:
    return _scaled(_moved(lam, err, mean, tau, rate).clamp(min=0), lim)


def _states() -> list[tuple[Any, ...]]:
    """Multipliers that grow, that fall below zero, and that grow beyond the limit."""
    err = torch.tensor([0.05, 0.10, 0.15, 0.50])
    return [
        (torch.tensor([0.002, 0.0, 0.01, 0.02]), err, 0.2, 0.05, 0.05, 0.5),
        (torch.tensor([0.1, 0.0, 0.1, 0.3]), err, 0.2, 0.07, 1.0, 0.5),
        (torch.tensor([0.3, 0.2, 0.0, 0.4]), err, 0.2, 0.05, 0.1, 0.3),
        (torch.tensor([0.01, 0.0, 0.0, 0.1]), torch.tensor([0.3, 0.1, 0.2, 0.2]), 0.2, 0.0, 2.0,
         0.25),
    ]


def _half(before: Tensor, after: Tensor, t: float) -> Tensor:
    d = after - before
    return t * d.std() / len(d) ** 0.5


def _pairs() -> list[tuple[Tensor, Tensor, float]]:
    """Five seeds as in the notebook, made up; then three, whose pairs help more."""
    before = torch.tensor([0.470, 0.512, 0.455, 0.490, 0.438])
    return [
        (before, before - torch.tensor([0.10, 0.12, 0.09, 0.11, 0.13]), 2.7764),
        (torch.tensor([0.4, 0.5, 0.45]), torch.tensor([0.3, 0.46, 0.33]), 4.3027),
    ]


EXERCISES = {
    "02.weights": Exercise(
        solution=_weights,
        mistakes={
            "These are the multipliers above their mean. Where nobody has a multiplier, every "
            "class should still weigh 1/C.": lambda phi: (
                phi - phi.mean()
            ),
            "These sum to more than one: what one class gets, all have to give. Take the mean of "
            "phi away.": lambda phi: 1 / len(phi) + phi,
            "The mean of phi is its sum divided by C; you take the whole sum away.": lambda phi: 1
            / len(phi) + phi - phi.sum(),
            "These are scaled to sum to one instead of taking the mean away, which is not the "
            "Lagrangian.": lambda phi: (
                (1 / len(phi) + phi) / (1 / len(phi) + phi).sum()
            ),
            "This is the report's softmax, not the Lagrangian.": lambda phi: torch.softmax(phi, 0),
            "There are not always ten classes: 1/C with C = len(phi).": lambda phi: 0.1 + phi
            - phi.mean(),
            "Every class starts from 1/C, not from 1.": lambda phi: 1 + phi - phi.mean(),
        },
        hints=(
            "It is the last equation of section 2: 1/C, plus the class's own multiplier, minus "
            "what it gives to the others.",
            "(1/C) times the sum of all phi is phi.mean(), and C is len(phi).",
        ),
        cases=_multipliers,
        praise="This line is the whole of the authors' cost-sensitive learning.",
        tolerance=1e-5,
    ),
    "02.update": Exercise(
        solution=_update,
        mistakes={
            "A multiplier of a constraint must not be negative: clamp at 0.": lambda lam, e, m, tau,
            a, lim: _scaled(
                _moved(lam, e, m, tau, a), lim
            ),
            "The limit is missing: scale all down when their sum exceeds lim.": lambda lam, e, m,
            tau, a, lim: _moved(
                lam, e, m, tau, a
            ).clamp(min=0),
            "You clamp the gap. A class that does better than it must should lose weight again.":
            lambda lam, e, m, tau, a, lim: _scaled(
                lam + a * (e - m - tau).clamp(min=0), lim
            ),
            "The tolerance is missing: the gap is err - mean - tau.": lambda lam, e, m, tau, a,
            lim: _update(lam, e, m, 0.0, a, lim),
            "You do not subtract the average: what counts is how far a class is above the others.":
            lambda lam, e, m, tau, a, lim: _update(
                lam, e, 0.0, tau, a, lim
            ),
            "You always scale to lim. Only a sum that exceeds it is scaled down.": lambda lam, e, m,
            tau, a, lim: (
                (v := _moved(lam, e, m, tau, a).clamp(min=0)) * lim / v.sum()
            ),
            "You forget what was there: the new multiplier is the old one plus the step.":
            lambda lam, e, m, tau, a, lim: _update(
                torch.zeros_like(lam), e, m, tau, a, lim
            ),
            "You cap each multiplier at lim; the limit is on their sum.": lambda lam, e, m, tau, a,
            lim: _moved(lam, e, m, tau, a).clamp(
                min=0, max=lim
            ),
            "The sign is wrong: a gap above tau makes the multiplier grow.": lambda lam, e, m, tau,
            a, lim: _update(
                lam, e, m, tau, -a, lim
            ),
        },
        hints=(
            "Three steps: lam + rate * gap with gap = err - mean - tau; not below 0; if the sum is "
            "above lim, times lim / sum.",
            "moved = (lam + rate * (err - mean - tau)).clamp(min=0); then compare moved.sum() with "
            "lim.",
        ),
        cases=_states,
        praise="Dual ascent: a constraint that is violated grows heavier until it is not.",
        tolerance=1e-5,
    ),
    "02.paired": Exercise(
        solution=_half,
        mistakes={
            "This is for two unrelated groups. Here each pair shares a seed: take the differences "
            "first.": lambda b, a, t: (
                t * ((b.var() + a.var()) / len(b)) ** 0.5
            ),
            "This is the spread of one change. A mean of n of them is sqrt(n) times more certain.":
            lambda b, a, t: t * (a - b).std(),
            "You divide by n; the mean of n values has a standard deviation smaller by sqrt(n).":
            lambda b, a, t: (
                t * (a - b).std() / len(b)
            ),
            "This is one standard error; the 95 % interval reaches t of them to each side.":
            lambda b, a, t: (a - b).std() / len(b) ** 0.5,
            "This is the whole width; the question is how far it reaches to each side.": lambda b,
            a, t: 2 * _half(b, a, t),
            "For a sample divide by n - 1 (torch's std does so unless told otherwise).": lambda b,
            a, t: (
                t * (a - b).std(unbiased=False) / len(b) ** 0.5
            ),
            "This is the mean change itself; the question is how uncertain it is.": lambda b, a,
            t: (a - b).mean(),
        },
        hints=(
            "First the five differences after - before. From here on these are your only five "
            "numbers.",
            "t times the standard deviation of the differences, divided by the square root of how "
            "many there are.",
        ),
        cases=_pairs,
        praise="What the two of a pair share cancels in the difference; where they share little, "
        "pairing gains little.",
        tolerance=1e-4,
    ),
}
