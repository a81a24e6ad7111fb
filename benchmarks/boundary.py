"""BAT's boundary pair, the last right and the first wrong iterate: one walk beside two attacks that
stop, as BAT's authors do it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import (
    ALLOCATORS,
    EPS,
    STEP,
    compare,
    images,
    main,
    model,
    part,
    pytorch_only,
)
from course_lib.attacks import PGD, WalkSetup
from course_lib.inference import frozen
from course_lib.machine import channels_last

N, BATCH = 1000, 128
ATTACK = PGD(EPS, STEP, steps=10, objective="kl", start="gaussian")  # BAT's
SIDES = {"one walk": "this course", "one walk, PyTorch alone": "this course, PyTorch alone",
         "two passes": "two passes by PyTorch"}


def stopping(net: nn.Module, x: Tensor, y: Tensor, seed: int, *, at_last_right: bool) -> Tensor:
    """One pass, from its own draws: each image rests when it is first wrong, and gives that iterate
    or the one before."""
    s = WalkSetup.of(ATTACK, net, x, y, generator=torch.Generator().manual_seed(seed))
    z, before, on = s.z0.clone(), s.z0.clone(), torch.arange(len(x))
    with frozen(net), channels_last(net):
        for t in range(ATTACK.steps):
            logits, gradient = s.gradient(z[on])
            right = logits.argmax(1) == y[on]
            on, gradient, s = on[right], gradient[right], s.of_these(right)
            if not len(on):
                break
            before[on] = z[on]
            z[on] = s.step(z[on], gradient, t)
    return before if at_last_right else z


def two_passes(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return stopping(net, x, y, 0, at_last_right=True), stopping(net, x, y, 0, at_last_right=False)


def one_walk(net: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    walk = ATTACK.walk(net, x, y, generator=torch.Generator().manual_seed(0), stop=True)
    return walk.last_right, walk.first_wrong


def times() -> dict[str, Any]:
    x, y = images(N)
    parts = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    net = model()
    works = {
        "one walk": lambda: [one_walk(net, a, b) for a, b in parts],
        "one walk, PyTorch alone": pytorch_only(lambda: [one_walk(net, a, b) for a, b in parts]),
        "two passes": pytorch_only(lambda: [two_passes(net, a, b) for a, b in parts]),
    }
    for mine, theirs in zip(works["one walk, PyTorch alone"](), works["two passes"](), strict=True):
        # equal draws give equal examples; convolutions in another order, other last digits
        for a, b in zip(mine, theirs, strict=True):
            apart = ((a - b).abs() > 1e-4).flatten(1).any(1)
            assert apart.float().mean() <= 0.01, f"{int(apart.sum())} of {len(a)} examples differ"
    return compare(works)


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = {a: part("boundary", a, "times") for a in ALLOCATORS}
    rows = [[SIDES[s], 1e3 * raw["equal"][s] / N,
             *(raw[a]["two passes"] / raw[a][s] for a in ALLOCATORS)] for s in SIDES]
    return ["boundary pairs by", "ms an image", "times as fast as two passes",
            "the same, default allocator"], rows, raw


if __name__ == "__main__":
    main("boundary", f"BAT's boundary pair (10 steps, batches of {BATCH})", whole, {"times": times})
