"""Least budgets of 10,000 images at a tolerance of 1/2550: what does a step cost there, beside a
step of plain PGD-20?
 The bisection asks for many attacks of 20 steps under budgets of each image's own, of which an
image walks only until it is wrong. A side's cost is told for one step of one image that it asked
for; `the library` is course_lib.scores.least_eps.
"""

from __future__ import annotations

from typing import Any

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
from course_lib.attacks import PGD
from course_lib.scores import grid_eps, least_eps

N, BATCH, ROUNDS = 10_000, 500, 3
TOLERANCE = 1 / 2550
PLAIN = "PGD-20, every step of every image"


def times() -> dict[str, Any]:
    x, y = images(N)
    parts, net, attack = list(zip(x.split(BATCH), y.split(BATCH), strict=True)), model(), PGD(EPS,
        STEP, 20)
    steps: dict[str, int] = {PLAIN: attack.steps * N}

    def searched(name: str, search: Any) -> Any:
        def work() -> None:
            steps[name] = sum(search(net, a, b).steps for a, b in parts)
        return work

    sides = {
        PLAIN: lambda: [attack(net, a, b) for a, b in parts],
        "least eps, bisection": searched("least eps, bisection", lambda n, a,
                                         b: least_eps(n, a, b, tolerance=TOLERANCE)),
        "least eps, increments of 1/255": searched("least eps, increments of 1/255", grid_eps),
    }
    seconds = compare(sides, ROUNDS)
    slow = compare({PLAIN: pytorch_only(lambda: [attack(net, a, b) for a, b in parts[:2]])},
                   1)[PLAIN] * len(parts) / 2
    return {"seconds": seconds, "steps": steps, "PyTorch alone": slow}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = {a: part("least_eps", a, "times") for a in ALLOCATORS}
    rows = []
    for side, seconds in raw["equal"]["seconds"].items():
        each = {a: raw[a]["seconds"][side] / raw[a]["steps"][side] for a in ALLOCATORS}
        plain = {a: raw[a]["seconds"][PLAIN] / raw[a]["steps"][PLAIN] for a in ALLOCATORS}
        rows.append([side, seconds, raw["equal"]["steps"][side] / N, 1e6 * each["equal"],
                     *(each[a] / plain[a] for a in ALLOCATORS)])
    head = ["search", "s for 10,000 images", "steps an image", "µs a step and image",
            "times PGD-20's", "the same, default allocator"]
    return head, rows, raw


if __name__ == "__main__":
    main("least_eps",
         f"Least eps of LeNet-5 (20 steps a budget, tolerance 1/2550, batches of {BATCH})", whole,
         {"times": times})
