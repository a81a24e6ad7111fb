"""What channels last, bfloat16 and the kernel for normalisation and ReLU gain on preact_resnet_s.
 Measured are the input gradient (a step of PGD) and the step of training after it, which the kernel
does not serve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import ALLOCATORS, compare, main, part, pytorch_only
from benchmarks.peers import Work
from course_lib import models
from course_lib.data import load
from course_lib.inference import frozen
from course_lib.machine import Accelerated
from course_lib.models import build

BATCH, USUAL = 128, "PyTorch's defaults: float32"
FIRST, LAST = torch.contiguous_format, torch.channels_last
SIDES = {USUAL: (FIRST, False, False), "channels last": (LAST, False, False),
         "channels last, kernel": (LAST, False, True),
         "bfloat16": (FIRST, True, False), "channels last and bfloat16": (LAST, True, False),
         "channels last, bfloat16, kernel: as in PGD(bf16=True)": (LAST, True, True)}
WORKS = ("input gradient", "step of training")


def network(side: str) -> nn.Module:
    net = build("preact_resnet_s")
    return Accelerated(net) if SIDES[side][1] else net


def laid_out(side: str, work: Work) -> Work:
    def inner() -> Any:
        models.LAYOUT = SIDES[side][0]
        return work()
    return inner


def input_gradient(net: nn.Module, x: Tensor, y: Tensor) -> Work:
    def work() -> Any:
        with frozen(net):
            z = x.detach().requires_grad_()
            return torch.autograd.grad(F.cross_entropy(net(z), y, reduction="sum"), z)
    return work


def training_step(net: nn.Module, x: Tensor, y: Tensor) -> Work:
    opt = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9, fused=True)

    def work() -> None:
        net.train()
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
    return work


def sides(make: Callable[[nn.Module, Tensor, Tensor], Work], x: Tensor, y: Tensor) -> dict[str,
        Work]:
    """Each side's work, with the kernel or without."""
    works = {side: laid_out(side, make(network(side), x, y)) for side in SIDES}
    return {side: work if SIDES[side][2] else pytorch_only(work) for side, work in works.items()}


def times() -> dict[str, dict[str, float]]:
    test = load("cifar10", limit=2000).test
    x, y = test.images(slice(0, BATCH)).contiguous(), test.y[:BATCH].clone()
    return {kind: compare(sides(make, x, y)) for kind,
            make in zip(WORKS, (input_gradient, training_step), strict=True)}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = {a: part("resnet", a, "times") for a in ALLOCATORS}
    rows = [[kind, side, 1e3 * raw["equal"][kind][side] / BATCH,
             *(raw[a][kind][USUAL] / raw[a][kind][side] for a in ALLOCATORS)]
            for kind in WORKS for side in SIDES]
    return ["work", "computed in", "ms an image", "times as fast",
            "the same, default allocator"], rows, {"seconds": raw}


if __name__ == "__main__":
    main("resnet", f"preact_resnet_s on CIFAR-10, batches of {BATCH}", whole, {"times": times})
