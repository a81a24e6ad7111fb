"""How long does an epoch of adversarial training (PGD-10, batches of 128) take, beside the usual
loop?
 The usual loop: a torchvision-like data set of 28 x 28 images, Resize(32) and ToTensor for each
image each time, a DataLoader, torchattacks' PGD, Adam.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.harness import (
    ALLOCATORS,
    EPS,
    STEP,
    compare,
    data,
    main,
    part,
    peak,
    pytorch_only,
    usual_model,
)
from benchmarks.peers import Work
from course_lib.attacks import PGD
from course_lib.data import batches
from course_lib.datasets.sources import torchvision_datasets
from course_lib.models import build

BATCH, STEPS, EXAMPLES = 128, 10, 1280


class Photographs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """What torchvision's FashionMNIST with transforms does."""

    def __init__(self, examples: int) -> None:
        # which makes torchvision importable where it does not fit this torch
        torchvision_datasets()
        from torchvision import transforms as t

        split = data().train.take(slice(0, examples))
        self.pixels, self.y = split.x[:, 0, 2:30, 2:30].numpy().astype(np.uint8), split.y.tolist()
        self.transform = t.Compose([t.Resize(32), t.ToTensor()])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        from PIL import Image

        return self.transform(Image.fromarray(self.pixels[i])), self.y[i]


def _train(net: nn.Module, opt: torch.optim.Optimizer, examples: Iterator[tuple[Tensor, Tensor]],
           attack: Any) -> None:
    for x, y in examples:
        z = attack(x, y)
        net.train()
        opt.zero_grad()
        F.cross_entropy(net(z), y).backward()
        opt.step()


def usual(examples: int = EXAMPLES, batch: int = BATCH) -> Work:
    import torchattacks

    net, loader = usual_model(build("lenet5")), torch.utils.data.DataLoader(Photographs(examples),
        batch, shuffle=True)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    attack = torchattacks.PGD(net, eps=EPS, alpha=STEP, steps=STEPS)
    return lambda: _train(net, opt, iter(loader), attack)


def ours(examples: int = EXAMPLES, batch: int = BATCH) -> Work:
    net, split, g = build("lenet5"), data().train.take(slice(0,
        examples)), torch.Generator().manual_seed(0)
    opt, attack = torch.optim.Adam(net.parameters(), 1e-3, fused=True), PGD(EPS, STEP, STEPS)
    return lambda: _train(net, opt, batches(split, batch, g), lambda x,
                          y: attack(net, x, y, generator=g))


def ours_pytorch(examples: int = EXAMPLES, batch: int = BATCH) -> Work:
    return pytorch_only(ours(examples, batch))


SIDES = {"this course": ours, "this course, PyTorch alone": ours_pytorch, "the usual loop": usual}


def times() -> dict[str, float]:
    return compare({name: make() for name, make in SIDES.items()})


def memory(side: str) -> float:
    SIDES[side](8, 8)()  # what is loaded and built on first use is not the epoch's
    return peak(SIDES[side]())


def whole() -> tuple[list[str], list[list[Any]], Any]:
    seconds = {a: part("epoch", a, "times") for a in ALLOCATORS}
    mb = {side: part("epoch", "default", "memory", side) for side in SIDES}
    rows = []
    for side in SIDES:
        ratios = [seconds[a]["the usual loop"] / seconds[a][side] for a in ALLOCATORS]
        rows.append([side, 1e3 * seconds["equal"][side] * BATCH / EXAMPLES, *ratios, mb[side]])
    head = ["epoch by", "ms a batch of 128", "times as fast", "the same, default allocator",
            "peak MB above the data"]
    return head, rows, {"seconds": seconds, "megabytes": mb}


if __name__ == "__main__":
    main("epoch", "One epoch of adversarial training (PGD-10, batches of 128)", whole,
         {"times": times, "memory": memory})
