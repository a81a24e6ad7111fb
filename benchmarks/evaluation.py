"""How long does PGD-20 take, beside torchattacks, foolbox and ART, at the same batch?"""

from __future__ import annotations

from typing import Any

from benchmarks.harness import ALLOCATORS, compare, images, main, model, part, peak
from benchmarks.peers import SIDES, Work

BATCHES = {100: 300, 500: 500, 2000: 2000}  # batch: images a measurement


def _work(side: str, batch: int) -> Work:
    x, y = images(BATCHES[batch])
    parts = [SIDES[side](model(), a, b) for a,
             b in zip(x.split(batch), y.split(batch), strict=True)]
    return lambda: [work() for work in parts]


def times(batch: str) -> dict[str, float]:
    return compare({side: _work(side, int(batch)) for side in SIDES})


def memory(side: str, batch: str) -> float:
    SIDES[side](model(), *images(8))()  # what is loaded and built on first use is not the batch's
    return peak(_work(side, int(batch)))


def whole() -> tuple[list[str], list[list[Any]], Any]:
    rows, raw = [], {}
    for batch, n in BATCHES.items():
        seconds = {a: part("evaluation", a, "times", str(batch)) for a in ALLOCATORS}
        mb = {side: part("evaluation", "default", "memory", side, str(batch)) for side in SIDES}
        raw[batch] = {"seconds": seconds, "megabytes": mb, "images": n}
        for side in SIDES:
            ratios = [seconds[a]["torchattacks"] / seconds[a][side] for a in ALLOCATORS]
            rows.append([batch, side, 1e3 * seconds["equal"][side] / n, *ratios, mb[side]])
    head = ["batch", "PGD-20 by", "ms an image", "times as fast as torchattacks",
            "the same, default allocator", "peak MB above the data"]
    return head, rows, raw


if __name__ == "__main__":
    main("evaluation", "PGD-20 evaluation of LeNet-5", whole, {"times": times, "memory": memory})
