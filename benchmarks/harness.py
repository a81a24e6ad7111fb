"""What every benchmark shares: one model, interleaved medians, two allocators, peak memory, a table
and a JSON.
 A script declares its sides, names to functions that do the work once, and asks `compare` for their
times: every side in turn, again and again, so that whatever else the machine does falls on all
alike. The allocator can only be set before Python starts, so each comparison runs in processes of
its own: `both_allocators` starts the script again with --part. Peak memory needs a process a side;
it is what lies above the data, the model and the libraries.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import native
from course_lib.attacks import PGD
from course_lib.data import Dataset, batches, load
from course_lib.models import build

OUT = Path("build/bench")
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296",
           "MALLOC_TOP_PAD_": "67108864"}
ALLOCATORS = {"equal": KEEPING, "default": {}}
ROUNDS = 5
EPS, STEP = 8 / 255, 2 / 255


@functools.cache
def data() -> Dataset:
    return load("fashion-mnist", limit=2000)


def images(n: int) -> tuple[Tensor, Tensor]:
    test = data().test
    if len(test) < n:
        raise SystemExit(f"{n} images are needed, {len(test)} are embedded")
    return test.images(slice(0, n)).contiguous(), test.y[:n].clone()


@functools.cache
def model() -> nn.Module:
    """A LeNet-5, adversarially trained for some seconds and then kept: no attack meets random
    weights in practice."""
    net, kept = build("lenet5"), OUT / "lenet5.pt"
    if kept.is_file():
        net.load_state_dict(torch.load(kept, weights_only=True))
        return net.eval()
    attack, g = PGD(steps=3, step_size=4 / 255), torch.Generator().manual_seed(0)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(4):
        for x, y in batches(data().train, 50, g):
            opt.zero_grad()
            F.cross_entropy(net(attack(net, x, y, generator=g)), y).backward()
            opt.step()
    OUT.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), kept)
    return net.eval()


class UsualLeNet5(nn.Module):
    """The same network as everybody writes it: what the peers get."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5), nn.Conv2d(16,
            120, 5)
        self.fc1, self.fc2 = nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        x = torch.tanh(self.conv3(x)).flatten(1)
        return self.fc2(torch.tanh(self.fc1(x)))


def usual_model(net: nn.Module) -> nn.Module:
    usual = UsualLeNet5()
    usual.load_state_dict(net.state_dict())
    return usual.eval()


def pytorch_only(work: Callable[[], Any]) -> Callable[[], Any]:
    """Without the kernel."""
    def run() -> Any:
        with native.off():
            return work()
    return run


def compare(sides: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each side, interleaved, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, work in sides.items():
            start = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: median(times) for name, times in seconds.items()}


def median_of(call: Callable[[], Any], n: int = 5,
              clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of a call by itself, by a clock; time.process_time counts the CPU's."""
    took = []
    for _ in range(n):
        began = clock()
        call()
        took.append(clock() - began)
    return median(took)


def peak(work: Callable[[], Any]) -> float:
    """MB by which the process's largest resident size while working exceeds its size before."""
    def size(word: str) -> int:
        return next(int(line.split()[1]) for line in Path(
            "/proc/self/status").read_text().splitlines() if line.startswith(word))

    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest size so far
    before = size("VmRSS:")
    work()
    return (size("VmHWM:") - before) / 1024


def part(script: str, allocator: str, *words: str) -> Any:
    """What `script --part words` prints as JSON, in a fresh process under that allocator."""
    env = {k: v for k, v in os.environ.items() if k not in KEEPING} | ALLOCATORS[allocator]
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{script}", "--part", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"benchmarks.{script} {' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


Table = tuple[list[str], list[list[Any]], Any]  # heads, rows, and what they were computed from


def main(script: str, title: str, whole: Callable[[], Table],
         pieces: dict[str, Callable[..., Any]]) -> None:
    """The command line of every script: all of it, or one part for the parent process."""
    words = argparse.ArgumentParser(description=title)
    words.add_argument("--part", nargs="+")
    chosen = words.parse_args().part
    if chosen:
        # one write: several processes may share the pipe
        print(json.dumps(pieces[chosen[0]](*chosen[1:])) + "\n", end="", flush=True)
        return
    head, rows, raw = whole()
    OUT.mkdir(parents=True, exist_ok=True)
    table = markdown(head, rows)
    content = {"title": title, "machine": machine(), "head": head, "rows": rows, "raw": raw}
    (OUT / f"{script}.json").write_text(json.dumps(content, indent=1))
    print(f"{title}\n\n{table}\n")


def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(v: Any) -> str:
        return f"{v:.3g}" if isinstance(v, float) and abs(v) < 100 else f"{v:.0f}" if isinstance(v,
            float) else str(v)

    lines = [[str(h) for h in head], ["---"] * len(head), *[[cell(v) for v in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> dict[str, str]:
    from importlib.metadata import version

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
               platform.processor())
    peers = {name: _version(version, name) for name in ("torch", "torchattacks", "foolbox",
                                                        "adversarial-robustness-toolbox")}
    lib = native.library()
    return {"cpu": cpu, "instructions": torch.backends.cpu.get_cpu_capability(),
            "lanes": str(lib.lenet_lanes() if lib else 0),
            "threads": str(torch.get_num_threads()), "python": platform.python_version(), **peers}


def _version(version: Callable[[str], str], name: str) -> str:
    try:
        return version(name)
    except Exception:
        return "-"
