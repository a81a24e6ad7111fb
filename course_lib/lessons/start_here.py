"""Notebook 00: one step of PGD, and the moment a walk crosses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _pictures() -> list[tuple[Any, ...]]:
    """Images with dark, bright and middling pixels, iterates inside the ball (and at its edge),
    gradients of any size."""
    g = torch.Generator().manual_seed(1)
    cases = []
    for eps, a in ((8 / 255, 2 / 255), (0.3, 0.2)):
        x = (1.4 * torch.rand(3, 1, 4, 4, generator=g) - 0.2).clamp(0, 1)
        z = (x + eps * (2 * torch.rand(x.shape, generator=g) - 1)).clamp(0, 1)
        cases.append((z, x, torch.randn(x.shape, generator=g), a, eps))
    return cases


def _step(z: Tensor, x: Tensor, gradient: Tensor, a: float, eps: float) -> Tensor:
    return (z + a * gradient.sign()).clamp(x - eps, x + eps).clamp(0, 1)


def _walks() -> list[tuple[list[bool]]]:
    rows = ["1110000", "1111111", "0000000", "1101000", "1111110", "0111111"]
    return [([c == "1" for c in row],) for row in rows]


def _first_wrong(right: list[bool]) -> int:
    return right.index(False) if False in right else len(right) - 1


EXERCISES = {
    "00.step": Exercise(
        solution=_step,
        mistakes={
            "You walk down the loss: an attack wants it larger, so the step is added.":
                lambda z, x, g, a, eps: (z - a * g.sign()).clamp(x - eps, x + eps).clamp(0, 1),
            "The step follows the gradient itself. PGD takes only its sign, so that every pixel "
            "moves by the whole step.":
                lambda z, x, g, a, eps: (z + a * g).clamp(x - eps, x + eps).clamp(0, 1),
            "The result can leave the ball: no pixel may end further than eps from x.":
                lambda z, x, g, a, eps: (z + a * g.sign()).clamp(0, 1),
            "The result can leave the box: some pixels are below 0 or above 1, which no image has.":
                lambda z, x, g, a, eps: (z + a * g.sign()).clamp(x - eps, x + eps),
            "Each step starts from x again. It should start from z, where the last one ended.":
                lambda z, x, g, a, eps: (x + a * g.sign()).clamp(x - eps, x + eps).clamp(0, 1),
        },
        hints=(
            "Three things happen, in this order: a step along gradient.sign(), back into the ball "
            "around x, back into the box [0, 1].",
            "tensor.clamp(low, high) takes tensors as bounds: for the ball they are x - eps and x "
            "+ eps, for the box 0 and 1.",
        ),
        cases=_pictures,
        praise="A step, the ball, the box: these three are the whole of PGD.",
        tolerance=1e-6,
    ),
    "00.crossing": Exercise(
        solution=_first_wrong,
        mistakes={
            "This counts the right iterates. A walk can recover after it first went wrong; the "
            "question is when it first did.":
                lambda r: sum(r),
            "This is the last right iterate before the crossing; the first wrong one comes right "
            "after it.": lambda r: _first_wrong(r) - 1,
            "This is right where the walk does cross. Where it never does, the answer is the last "
            "index, K.":
                lambda r: r.index(False) if False in r else 0,
            "For a walk that never crosses, this is one too many: the iterates are numbered from 0 "
            "to K, so the last is len(right) - 1.":
                lambda r: r.index(False) if False in r else len(r),
            "This raises an error where the walk never crosses; there the answer is the last "
            "index, K.": lambda r: r.index(False),
            "This finds the last wrong iterate; the question is about the first.":
                lambda r: max((t for t, ok in enumerate(r) if not ok), default=len(r) - 1),
        },
        hints=(
            "right[t] says whether the iterate z_t is still classified correctly. Look for the "
            "first False.",
            "right.index(False) finds it, but stops with an error where there is none: test `False "
            "in right` first.",
        ),
        cases=_walks,
        praise="FAT trains on this iterate and BAT on the pair around it: you will meet it again "
        "in notebook 04.",
    ),
}
