"""Do two processes train twice as fast as one, and what do checkpoints of a large network cost?
 Speed: PGD-AT (10 steps, batches of 128, CIFAR-10's shape) by one and by two processes under
torchrun, one thread each, in turns; images a second from the second batch on. Another network:
COURSE_BENCH_MODEL=preact_resnet18. Checkpoints: natural training of an 11-million-parameter network
under SGD with momentum, at the default interval, in epochs longer than it: the share of the time
that the training spent waiting in the store's calls.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import torch

from benchmarks.harness import KEEPING, main, part
from benchmarks.store_overhead import TimedStore
from course_lib import build
from course_lib.attacks import PGD
from course_lib.checkpoints import Store
from course_lib.data import Split
from course_lib.lab.torchrun import joined
from course_lib.methods import METHODS, Method
from course_lib.training import Optim, fit

MODEL, BATCH, BATCHES, ROUNDS = os.environ.get("COURSE_BENCH_MODEL", "preact_resnet_s"), 128, 10, 3
LARGE, SECONDS = "preact_resnet18", 150.0


def train(name: str, method: Method, images: int, batch: int, store: Store | None = None) -> float:
    """Seconds of one epoch on noise."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=draw)
    split = Split(x, torch.randint(0, 10, (images,), generator=draw), tuple("abcdefghij"))
    optim, model = Optim("sgd", 0.01, batch, momentum=0.9), build(name,
        **({"channels": 3} if name == "lenet5" else {}))
    began = time.perf_counter()
    fit(model, method, split, epochs=1, optim=optim, seed=0, store=store, progress=False)
    return time.perf_counter() - began


def rate(name: str, batches: str) -> float:
    """Images a second of all processes together; in each of them."""
    torch.set_num_threads(1)
    method = METHODS["pgd_at"](PGD(steps=10))
    with joined():
        train(name, method, BATCH, BATCH)
        return int(batches) * BATCH / train(name, method, int(batches) * BATCH, BATCH)


def with_processes(number: int) -> float:
    command = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
               "--nproc-per-node", str(number)]
    command += ["-m", "benchmarks.parallel", "--part", "rate", MODEL, str(BATCHES)]
    env = {**os.environ, **KEEPING, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{number} processes failed:\n{done.stderr[-2000:]}")
    return min(float(json.loads(line)) for line in done.stdout.splitlines() if line.strip())


def checkpoints(name: str, seconds: str) -> dict[str, float]:
    """An epoch of so many seconds, saved by the clock and at its end."""
    torch.set_num_threads(1)
    method, batch = METHODS["natural"](), 16
    train(name, method, batch, batch)
    images = max(1, round(float(seconds) / train(name, method, 2 * batch, batch) * 2)) * batch
    with tempfile.TemporaryDirectory() as place:
        store = TimedStore(place)
        took = train(name, method, images, batch, store)
    parameters = sum(p.numel() for p in build(name).parameters())
    return {"parameters": parameters, "seconds": took, "inside": store.inside, "saves": store.saves,
            "share": store.inside / took}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for number, rates in found.items():
            rates.append(with_processes(number))
    one, two = (statistics.median(rates) for rates in found.values())
    kept = part("parallel", "equal", "checkpoints", LARGE, str(SECONDS))
    size, what = (f"{kept['parameters'] / 1e6:.1f}M parameters",
                  f"{kept['saves']} saves in {kept['seconds']:.0f} s of training")
    rows = [
        [f"{MODEL}, PGD-AT: one process", f"{one:.0f} images a second", ""],
        [f"{MODEL}, PGD-AT: two processes",
         f"{two:.0f} images a second, {two / one:.2f} times as many", ">= 1.7"],
        [f"checkpoints of {LARGE} ({size}), {what}: share of the time", f"{kept['share']:.2%}",
         "<= 1 %"],
    ]
    return ["what", "measured", "target"], rows, {"images a second": found, "checkpoints": kept}


if __name__ == "__main__":
    main("parallel", "Two processes beside one, and checkpoints of a large network", whole,
         {"rate": rate, "checkpoints": checkpoints})
