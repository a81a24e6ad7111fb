"""What does a store cost? python -m benchmarks.store_overhead [--seconds 60] [--pairs 3]

Overhead: the same training (LeNet-5, PGD-AT) with and without a store, in turns, at the default interval. Two numbers: the
ratio of the wall times, which the rest of the machine blurs, and the share of the time that went by inside the store's calls.
Start-up: a new process finds, verifies and loads the newest checkpoint, its files out of the page cache where that can be had.
Targets: overhead at most 1 %; start-up under 1 s for LeNet-5 and under 5 s for a module of 11 million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.attacks import PGD
from course_lib.checkpoints import Store
from course_lib.data import Split
from course_lib.methods.pgd_at import PGDAT
from course_lib.models import build
from course_lib.training import Optim, fit

OUT = Path("build/bench/store_overhead.json")
BATCH = 100


class TimedStore(Store):
    """Adds up the seconds that its caller waits in it, from the first call to the last."""

    inside = 0.0
    saves = 0

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name not in ("open", "latest", "save", "close"):
            return value

        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return value(*args)
            finally:
                self.inside += time.perf_counter() - began
                self.saves += name == "save"

        return timed


def train(images: int, epochs: int, store: Store | None) -> float:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (images, 1, 32, 32), dtype=torch.uint8, generator=draw)
    split = Split(x, torch.randint(0, 10, (images,), generator=draw), tuple("abcdefghij"))
    began = time.perf_counter()
    fit(build("lenet5"), PGDAT(PGD(steps=10)), split, epochs=epochs, optim=Optim(batch=BATCH), seed=0, store=store, progress=False)
    return time.perf_counter() - began


def overhead(seconds: float, pairs: int, folder: Path) -> dict[str, Any]:
    """Two epochs in about `seconds`: a save at the end of each, and one for each minute."""
    train(BATCH, 1, None)
    rate = 20 * BATCH / train(20 * BATCH, 1, None)
    images = max(1, round(rate * seconds / 2 / BATCH)) * BATCH
    plain, stored, inside, saves = [], [], [], []
    for i in range(pairs):
        store = TimedStore(folder / f"run{i}", folder / f"mirror{i}")
        for with_store in (False, True) if i % 2 else (True, False):
            (stored if with_store else plain).append(train(images, 2, store if with_store else None))
        inside.append(store.inside / (stored[-1] - store.inside))
        saves.append(store.saves)
    return {
        "seconds without": [round(s, 2) for s in plain],
        "seconds with store and mirror": [round(s, 2) for s in stored],
        "ratio of medians": statistics.median(stored) / statistics.median(plain) - 1,
        "share inside the store, worst": max(inside),
        "saves a run": saves[0],
    }


def large() -> nn.Module:
    """A stack of convolutions with 11 million parameters and a ResNet's number of tensors."""
    widths = [64] * 5 + [128] * 4 + [256] * 4 + [512] * 4
    layers: list[nn.Module] = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv2d(a, b, 3, bias=False), nn.BatchNorm2d(b)]
    return nn.Sequential(*layers)


MODULES = {"lenet5": lambda: build("lenet5"), "11M": large}


def fill(name: str, folder: Path) -> dict[str, float]:
    """Four saves of a module and Adam's moments; the median seconds of one."""
    model = MODULES[name]()
    optimiser = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    store = Store(folder)
    store.open({"model": name}, {})
    times = []
    for step in range(4):
        began = time.perf_counter()
        store.save(step, {"model": model.state_dict(), "optim": optimiser.state_dict(), "history": [0.5] * 1000})
        times.append(time.perf_counter() - began)
    store.close()
    megabytes = max(path.stat().st_size for path in folder.iterdir()) / 1e6
    return {"parameters": sum(p.numel() for p in model.parameters()), "megabytes": megabytes, "save": statistics.median(times)}


def forget(folder: Path) -> None:
    """Ask the kernel to drop the files from its cache, so that they are read from the disk."""
    if hasattr(os, "posix_fadvise"):
        for path in folder.iterdir():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resume(name: str, folder: Path) -> float:
    """Seconds until the newest state is in a module and its optimiser; this runs in a new process."""
    model = MODULES[name]()
    optimiser = torch.optim.Adam(model.parameters())
    began = time.perf_counter()
    store = Store(folder)
    store.open({"model": name}, {})
    found = store.latest()
    if found is None or found[0] != 3:
        raise SystemExit(f"not the newest: {found and found[0]}")
    model.load_state_dict(found[1]["model"])
    optimiser.load_state_dict(found[1]["optim"])
    return time.perf_counter() - began


def start_up(name: str, folder: Path, times: int) -> dict[str, Any]:
    row: dict[str, Any] = fill(name, folder)
    seconds = []
    for _ in range(times):
        forget(folder)
        command = [sys.executable, "-m", "benchmarks.store_overhead", "--resume", name, str(folder)]
        seconds.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return {**row, "start-up, median": statistics.median(seconds), "start-up, worst": max(seconds)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="about how long each training takes")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--resume", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.resume:
        print(resume(args.resume[0], Path(args.resume[1])))
        return
    with tempfile.TemporaryDirectory() as place:
        rows = {name: start_up(name, Path(place) / name, 5) for name in MODULES}
        found = {"overhead": overhead(args.seconds, args.pairs, Path(place)), "start-up": rows}
    print(f"{'module':10}{'parameters':>12}{'file':>10}{'save':>10}{'start-up':>12}{'worst':>10}{'target':>10}")
    for (name, row), target in zip(rows.items(), ("< 1 s", "< 5 s"), strict=True):
        print(
            f"{name:10}{row['parameters']:12,}{row['megabytes']:7.1f} MB{row['save']:8.3f} s{row['start-up, median']:10.3f} s"
            f"{row['start-up, worst']:8.3f} s{target:>10}"
        )
    cost = found["overhead"]
    print(
        f"overhead of a store with a mirror, {cost['saves a run']} saves in {statistics.median(cost['seconds without']):.0f} s of training:"
    )
    print(
        f"  wall times {cost['ratio of medians']:+.2%} (blurred by the machine), inside the store {cost['share inside the store, worst']:.2%}; target <= 1 %"
    )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps({**found, "torch": torch.__version__, "threads": torch.get_num_threads()}, indent=1))


if __name__ == "__main__":
    main()
