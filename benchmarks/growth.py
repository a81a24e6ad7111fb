"""How does the cost of an attack grow with its steps, the batch, the threads and the number of
images?"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.harness import compare, images, main, model, part
from benchmarks.peers import SIDES

PAIR = ("this course", "torchattacks")
GRID = {"steps": [5, 10, 20, 40], "batch": [16, 50, 100, 200, 500], "threads": [1, 2],
        "images": [250, 500, 1000, 2000]}


def times(what: str, value: str) -> dict[str, float]:
    setting = {"steps": 10, "batch": 250, "threads": torch.get_num_threads(),
               "images": 500} | {what: int(value)}
    torch.set_num_threads(setting["threads"])
    x, y = images(max(setting["images"], setting["batch"]))
    pieces = list(zip(x.split(setting["batch"]), y.split(setting["batch"]), strict=True))
    works = {side: [SIDES[side](model(), a, b, setting["steps"]) for a, b in pieces]
             for side in PAIR}
    seconds = compare({side: lambda pieces=pieces: [work() for work in pieces] for side,
                       pieces in works.items()})
    return {side: s / len(x) / setting["steps"] for side, s in seconds.items()}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    rows = []
    for what, values in GRID.items():
        for value in values:
            seconds = part("growth", "equal", "times", what, str(value))
            rows.append([what, value, *[1e6 * seconds[side] for side in PAIR],
                         seconds[PAIR[1]] / seconds[PAIR[0]]])
    return ["changed", "to", "this course, µs a step and image", "torchattacks",
            "ratio"], rows, GRID


if __name__ == "__main__":
    title = ("Growth of the cost (else: 10 steps, batches of 250, 500 images, all threads, "
             "allocator equalised)")
    main("growth", title, whole, {"times": times})
