"""Does an attack in bfloat16 train the same model? PGD-AT on preact_resnet_s, two epochs with the
attack in float32 and in bfloat16.
 Three seeds each on a quarter of CIFAR-10's training images, in two processes; the models are
judged by PGD-20 in float32 on 2,000 test images. Asked is whether the mean of the bfloat16 models
lies within the spread of the float32 ones.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import joblib
import torch

from benchmarks.harness import main, part
from course_lib.attacks import ATTACKS
from course_lib.data import load
from course_lib.evaluation import evaluate
from course_lib.experiments import RECIPES
from course_lib.fairness import Spread
from course_lib.models import build
from course_lib.training import fit

RECIPE, LIMIT, EPOCHS, SEEDS, JUDGED = "cifar10/pgd-at", 12_500, 2, 3, 200
MEASURED = {"average standard error": ("nat", "mean"), "worst class, standard": ("nat", "worst"),
            "average robust error": ("rob", "mean"), "worst class, robust": ("rob", "worst")}


def one(bf16: bool, seed: int) -> dict[str, float]:
    """The errors of one model, and how long it took to train, in CPU seconds."""
    torch.set_num_threads(1)
    recipe: Any = RECIPES[RECIPE]
    method = dataclasses.replace(recipe.method,
                                 attack=dataclasses.replace(recipe.method.attack, bf16=bf16))
    model, began = build(recipe.model, seed=seed), time.process_time()
    fit(model, method, load("cifar10", limit=LIMIT), epochs=EPOCHS, optim=recipe.optim, seed=seed,
        progress=False)
    took = time.process_time() - began
    report = evaluate(model, load("cifar10").test.per_class(JUDGED), ATTACKS["pgd20"],
                      progress=False)
    return {"seconds": took, **{what: getattr(getattr(report, kind), which) for what,
                                (kind, which) in MEASURED.items()}}


def trained() -> dict[str, list[dict[str, float]]]:
    calls = [(bf16, seed) for seed in range(SEEDS) for bf16 in (False, True)]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(one)(*call) for call in calls)
    return {"float32": found[::2], "bfloat16": found[1::2]}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = part("bfloat16", "equal", "trained")
    rows = []
    for what in MEASURED:
        one_way, other = (Spread.of(r[what] for r in raw[side]) for side in ("float32", "bfloat16"))
        within = ("yes" if abs(other.mean - one_way.mean) <= one_way.sd
                  else f"no: {abs(other.mean - one_way.mean) / one_way.sd:.1f} of it")
        rows.append([f"{what} (%)", *(f"{100 * s.mean:.1f} ± {100 * s.sd:.1f}"
                                      for s in (one_way, other)), within])
    seconds = [sum(r["seconds"] for r in raw[side]) / SEEDS for side in ("float32", "bfloat16")]
    rows.append(["CPU seconds of a training", *(f"{s:.0f}" for s in seconds),
                 f"{seconds[0] / seconds[1]:.2f} times as fast"])
    head = [f"{SEEDS} seeds, mean ± standard deviation", "attack in float32", "in bfloat16",
            "difference within the spread of float32?"]
    return head, rows, raw


if __name__ == "__main__":
    main("bfloat16",
         f"The attack in bfloat16: PGD-AT on preact_resnet_s, {EPOCHS} epochs of 10,000 images",
         whole, {"trained": trained})
