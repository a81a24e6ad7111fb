"""Memory and time of PGD-AT (10 steps, 40,000 images of CIFAR-10's size): measured here, and
extrapolated on paper to GPUs.

python -m benchmarks.scaling --docs writes the tables into docs/scaling.md.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.harness import OUT, main, markdown, part
from course_lib import build
from course_lib.attacks import PGD
from course_lib.methods import METHODS
from course_lib.methods.base import Step

# images at a time, as this machine can
BATCHES = {"preact_resnet_s": 32, "preact_resnet18": 8, "wide_resnet28x10": 1}
BATCH, STEPS, IMAGES, EPOCHS = 128, 10, 40_000, 110
# forward and backward to the image for each step; then forward, and backward to image and weights
PASSES = 2 * STEPS + 3
# a second, of one GPU: a quarter of the 156e12 that an A100's data sheet gives for TF32
FLOPS = 40e12
LINK = 100e9  # bytes a second between GPUs
TEXT, MARK = Path("docs/scaling.md"), "<!-- tables: python -m benchmarks.scaling --docs -->"


def saved(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that a backward pass over x needs, besides the parameters."""
    own, kept = {p.data_ptr() for p in model.parameters()}, {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        if t.data_ptr() not in own:
            kept[t.data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        loss = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.int64))
        total = sum(kept.values())
    del loss
    return total


def measure(name: str) -> dict[str, float]:
    torch.set_num_threads(1)
    n, g = BATCHES[name], torch.Generator().manual_seed(0)
    model, method = build(name), METHODS["pgd_at"](PGD(steps=STEPS))
    x, y = torch.rand(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(x)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        method.loss(model, x, y, {}, Step(0, 1, 0, 1, g)).backward()  # type: ignore[union-attr]
        times.append(time.perf_counter() - began)
    parameters = sum(p.numel() for p in model.parameters())
    forward, rate = counted.get_total_flops() / n, n / statistics.median(times)
    return {"parameters": parameters, "flops": forward, "saved": saved(model, x) / n, "rate": rate}


def row(name: str, found: dict[str, float]) -> list[Any]:
    state = 3 * 4 * found["parameters"]  # weights, gradients, momentum
    memory = state + BATCH * found["saved"]
    here = IMAGES / found["rate"] / 3600
    one = IMAGES * PASSES * found["flops"] / FLOPS / 3600
    exchange = IMAGES / BATCH * 2 * 4 * found["parameters"] / LINK / 3600
    size, flops, kept = (f"{found['parameters'] / 1e6:.2f}M", f"{found['flops'] / 1e9:.2f}",
                         f"{found['saved'] / 1e6:.1f} MB")
    return [name, size, flops, kept, f"{memory / 1e9:.2f} GB", f"{found['rate']:.3g}",
            f"{here:.3g} h", f"{EPOCHS * one:.2g} h", f"{EPOCHS * (one / 8 + exchange):.2g} h"]


HEAD = ["network", "parameters", "GFLOP of a forward pass of an image",
        "kept for the backward pass of an image: measured here",
        f"memory at a batch of {BATCH}: on paper", "images a second, one core: measured here",
        f"an epoch of {IMAGES:,} images, one core: "
        "extrapolated from it", f"{EPOCHS} epochs, one GPU: extrapolated on paper",
        f"{EPOCHS} epochs, eight GPUs: extrapolated on paper"]


def whole() -> tuple[list[str], list[list[Any]], Any]:
    found = {name: part("scaling", "equal", "measure", name) for name in BATCHES}
    return HEAD, [row(name, what) for name, what in found.items()], found


def into_docs() -> None:
    """The table of build/bench/scaling.json, and what it supposes."""
    made = json.loads((OUT / "scaling.json").read_text())
    table = markdown([f"**{made['head'][0]}**", *made["head"][1:]], made["rows"])
    cpu, torch_version = made["machine"]["cpu"], made["machine"]["torch"]
    text = f"""\
PGD-AT with {STEPS} steps in float32, 32 x 32 pixels. "Measured here": one core of a machine with
two ({cpu}, torch {torch_version}). "On paper": memory is weights, gradients, momentum and what the
backward pass keeps. Time is {PASSES} passes per image at {FLOPS / 1e12:.0f} TFLOP per second and
GPU (a quarter of an A100's data sheet for TF32), with the gradients over a link of {LINK / 1e9:.0f}
GB per second. It was not tried on a GPU. Small networks will not reach that rate, and neither
validation nor loading is counted."""
    TEXT.write_text(f"{TEXT.read_text().split(MARK)[0]}{MARK}\n\n{text}\n\n{table}\n")


if __name__ == "__main__":
    write = "--docs" in sys.argv
    sys.argv = [word for word in sys.argv if word != "--docs"]
    main("scaling", "Memory and time of PGD-AT on photographs", whole, {"measure": measure})
    if write:
        into_docs()
