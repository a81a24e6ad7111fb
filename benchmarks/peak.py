"""What fraction of the multiply-adds that the CPU can do at most does an attack do?
 Counted are those of the network's equations: one forward pass and the gradient with respect to the
image, which takes as many again. tanh, softmax, the step itself and moving data are overhead.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import compare, images, main, model, part
from benchmarks.peers import SIDES
from course_lib.native.build import compiler

FORWARD = 28 * 28 * 6 * 25 + 10 * 10 * 16 * 6 * 25 + 120 * 400 + 84 * 120 + 10 * 84
STEPS, N = 20, 512
WHO = ("this course", "this course, PyTorch alone", "torchattacks", "torchattacks on our kernel")


def machine_peak(threads: int) -> Any:
    """A function that measures multiply-adds a second, of all threads together."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "peak.so"
        source = Path(__file__).with_name("fma_peak.cpp")
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run([compiler(), *flags, str(source), "-o", str(out)], check=True)
        lib = ctypes.CDLL(str(out))
    lib.fma_peak.restype, lib.fma_peak.argtypes = ctypes.c_double, [ctypes.c_double]
    pool = ThreadPoolExecutor(threads)
    return lambda: sum(pool.map(lib.fma_peak, [0.2] * threads))


def rates(threads: str) -> dict[str, float]:
    """Multiply-adds a second: the peak, measured before and between, and each side."""
    torch.set_num_threads(int(threads))
    (x, y), measure, found = images(N), machine_peak(int(threads)), []
    sides: dict[str, Any] = {who: SIDES[who](model(), x, y, STEPS) for who in WHO}

    def look() -> None:
        time.sleep(0.1)  # PyTorch's threads spin for a while
        found.append(measure())

    seconds = compare({"peak": look, **sides})
    return {"peak": sorted(found)[len(found) // 2],
            **{who: 2 * FORWARD * STEPS * N / seconds[who] for who in WHO}}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = {t: part("peak", "equal", "rates", t)
           for t in sorted({"1", str(torch.get_num_threads())})}
    rows = [[t, who, r[who] / 1e9, f"{100 * r[who] / r['peak']:.0f} %"] for t, r in raw.items()
            for who in ("peak", *WHO)]
    return ["threads", "PGD-20, 512 images in one batch", "10^9 multiply-adds a second",
            "of the peak"], rows, raw


if __name__ == "__main__":
    main("peak", "Fraction of the CPU's peak", whole, {"rates": rates})
