"""What does a store cost while training, and how soon does a training go on?
 Overhead: the same training (LeNet-5, PGD-AT, two epochs in about a minute) with a store and a
mirror and without, in turns, at the default interval. Two numbers: the ratio of the wall times,
which whatever else the machine does blurs, and the share of the time that the training spent
waiting in the store's calls. Start-up: a new process finds, verifies and loads the newest
checkpoint, read from the disk and not from the kernel's cache.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import main, part
from course_lib.attacks import PGD
from course_lib.checkpoints import Store
from course_lib.data import Split
from course_lib.methods.pgd_at import PGDAT
from course_lib.models import build
from course_lib.training import Optim, fit

SECONDS, PAIRS, STARTS, BATCH = 60.0, 2, 5, 100


class TimedStore(Store):
    """Adds up the seconds that its caller waits in it."""

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
    fit(build("lenet5"), PGDAT(PGD(steps=10)), split, epochs=epochs, optim=Optim(batch=BATCH),
        seed=0, store=store, progress=False)
    return time.perf_counter() - began


def overhead(seconds: str, pairs: str) -> dict[str, Any]:
    train(BATCH, 1, None)
    rate = 20 * BATCH / train(20 * BATCH, 1, None)
    images = max(1, round(rate * float(seconds) / 2 / BATCH)) * BATCH
    times: dict[bool, list[float]] = {True: [], False: []}
    shares, saves = [], 0
    with tempfile.TemporaryDirectory() as place:
        for i in range(int(pairs)):
            store = TimedStore(Path(place) / f"run{i}", Path(place) / f"mirror{i}")
            for stored in (bool(i % 2), not i % 2):
                times[stored].append(train(images, 2, store if stored else None))
            shares.append(store.inside / (times[True][-1] - store.inside))
            saves = store.saves
    ratio = statistics.median(times[True]) / statistics.median(times[False]) - 1
    return {"with": times[True], "without": times[False], "ratio": ratio, "shares": shares,
            "saves": saves}


def large() -> nn.Module:
    """A stack of convolutions with 11 million parameters and about as many tensors as a
    ResNet-18."""
    widths = [64] * 5 + [128] * 4 + [256] * 4 + [512] * 4
    return nn.Sequential(*[nn.Sequential(nn.Conv2d(a, b, 3, bias=False), nn.BatchNorm2d(b)) for a,
                           b in itertools.pairwise(widths)])


MODULES = {"LeNet-5": lambda: build("lenet5"), "11M": large}


def fill(name: str, folder: str) -> dict[str, float]:
    """Some saves of a module and Adam's moments: parameters, megabytes and seconds of one."""
    model = MODULES[name]()
    optimiser = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    times = []
    with closing(Store(folder)) as store:
        store.open({"model": name}, {})
        for step in range(4):
            began = time.perf_counter()
            store.save(step, {"model": model.state_dict(), "optim": optimiser.state_dict(),
                              "history": [0.5] * 1000})
            times.append(time.perf_counter() - began)
    size = max(path.stat().st_size for path in Path(folder).iterdir())
    forget(folder)
    return {"parameters": sum(p.numel() for p in model.parameters()), "MB": size / 1e6,
            "save": statistics.median(times)}


def forget(folder: str) -> None:
    """Ask the kernel to drop the files from its cache."""
    if hasattr(os, "posix_fadvise"):
        for path in Path(folder).iterdir():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resume(name: str, folder: str) -> float:
    """Seconds until the newest state is in a module and its optimiser."""
    model = MODULES[name]()
    optimiser = torch.optim.Adam(model.parameters())
    began = time.perf_counter()
    with closing(Store(folder)) as store:
        store.open({"model": name}, {})
        step, state = store.latest() or (-1, {})
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optim"])
        seconds = time.perf_counter() - began
    if step != 3:
        raise SystemExit(f"step {step} was found, not the newest")
    forget(folder)
    return seconds


def whole() -> tuple[list[str], list[list[Any]], Any]:
    rows: list[list[Any]] = []
    raw: dict[str, Any] = {}
    for name, target in (("LeNet-5", "< 1 s"), ("11M", "< 5 s")):
        with tempfile.TemporaryDirectory() as place:
            made = part("store_overhead", "equal", "fill", name, place)
            starts = [part("store_overhead", "equal", "resume", name, place) for _ in range(STARTS)]
        raw[name] = {**made, "starts": starts}
        what = f"{name}, {made['parameters'] / 1e6:.2f}M parameters and Adam, {made['MB']:.1f} MB"
        rows += [
            [f"start-up of {what}: slowest of {STARTS}", f"{max(starts):.2f} s", target],
            [f"one save of {what}", f"{made['save']:.3f} s", ""],
        ]
    raw["overhead"] = found = part("store_overhead", "equal", "overhead", str(SECONDS), str(PAIRS))
    what = (f"store and mirror, {found['saves']} saves in "
            f"{statistics.median(found['without']):.0f} s of training")
    rows.append([f"{what}: share of time inside the store, worst of {PAIRS}",
                 f"{max(found['shares']):.2%}", "<= 1 %"])
    rows.append([f"{what}: median wall time, relative to none", f"{found['ratio']:+.2%}", ""])
    return ["what", "measured", "target"], rows, raw


if __name__ == "__main__":
    main(
        "store_overhead",
        "Cost of checkpoints, and start-up of a resumed training",
        whole,
        {"overhead": overhead, "fill": fill, "resume": resume},
    )
