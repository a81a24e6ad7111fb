"""How long does Experiment 1 take from nothing on two cores, beside the usual loop?
 Three trainings of 15 epochs, natural, half attacked by PGD-20 (the report's) and all attacked by
PGD-10, one seed, and the examination of each model on 10,000 test images under PGD-20 at two
budgets. The usual loop: a DataLoader with Resize and ToTensor for each image each time,
torchattacks. Neither side is run whole: a slice of each training and of the examination is
measured, the sides in turn, and multiplied by how often the experiment needs it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.epoch import Photographs
from benchmarks.harness import ALLOCATORS, compare, images, main, model, part, usual_model
from benchmarks.harness import data as small
from benchmarks.peers import Work
from course_lib.attacks import PGD
from course_lib.evaluation import evaluate
from course_lib.experiments import RECIPES
from course_lib.models import build
from course_lib.recipes import EXAMINATION
from course_lib.training import fit

NAMES = ("exp1/natural", "exp1/pgd-at-mixed", "exp1/pgd-at")
EXAMPLES = {"exp1/natural": 60_000, "exp1/pgd-at-mixed": 60_000, "exp1/pgd-at": 48_000}
SLICE, TEST = 640, 10_000  # images of a slice; images examined


def ours(name: str) -> Work:
    recipe, split = RECIPES[name], small().train.take(slice(0, SLICE))
    net = build("lenet5")
    return lambda: fit(net, recipe.method, split, epochs=1, optim=recipe.optim, seed=0,
                       progress=False)


def usual(name: str) -> Work:
    import torchattacks

    recipe, net = RECIPES[name], usual_model(build("lenet5"))
    loader = torch.utils.data.DataLoader(Photographs(SLICE), recipe.optim.batch, shuffle=True)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    mix, steps = getattr(recipe.method, "mix", 1.0), getattr(recipe.method, "attack", PGD()).steps
    attack = torchattacks.PGD(net, eps=8 / 255, alpha=2 / 255, steps=steps)

    def work() -> None:
        for x, y in loader:
            clean = round(mix * len(y))
            z = x if clean == len(y) else torch.cat([x[:clean], attack(x[clean:], y[clean:])])
            net.train()
            opt.zero_grad()
            F.cross_entropy(net(z), y).backward()
            opt.step()

    return work


def examined_by_us() -> None:
    for _, eps in EXAMINATION:
        evaluate(model(), small().test.take(slice(0, SLICE)), PGD(eps=eps), progress=False)


def examined_usually() -> None:
    import torchattacks

    net, (x, y) = usual_model(model()), images(SLICE)
    for _, eps in EXAMINATION:
        z = torchattacks.PGD(net, eps=eps, alpha=2 / 255, steps=20)(x, y)
        with torch.no_grad():
            (net(x).argmax(1) != y).sum(), (net(z).argmax(1) != y).sum()


def times() -> dict[str, float]:
    sides = {f"{side} {name}": make(name) for name in NAMES for side,
             make in (("ours", ours), ("usual", usual))}
    return compare({**sides, "ours test": examined_by_us, "usual test": examined_usually})


def minutes(seconds: dict[str, float], side: str) -> list[float]:
    """Of each training, and of the three examinations."""
    trained = [seconds[f"{side} {n}"] * EXAMPLES[n] / SLICE * RECIPES[n].epochs / 60 for n in NAMES]
    return [*trained, seconds[f"{side} test"] * TEST / SLICE * len(NAMES) / 60]


def whole() -> tuple[list[str], list[list[Any]], Any]:
    seconds = {a: part("experiment_1", a, "times") for a in ALLOCATORS}
    rows = []
    labels = [*NAMES, "examination of the three", "all of Experiment 1"]
    sides = {(a, s): minutes(seconds[a], s) for a in ALLOCATORS for s in ("ours", "usual")}
    sides = {key: [*m, sum(m)] for key, m in sides.items()}
    for i, label in enumerate(labels):
        mine, equal, default = (sides[key][i]
                                for key in (("equal", "ours"), ("equal", "usual"),
                                            ("default", "usual")))
        rows.append([label, mine, equal, default, equal / mine,
                     default / sides["default", "ours"][i]])
    head = ["one seed, two threads", "this course, minutes", "the usual loop, minutes",
            "the same, default allocator", "times as fast",
            "the same, default allocator for both"]
    return head, rows, {"seconds": seconds}


if __name__ == "__main__":
    main("experiment_1", "Experiment 1 from nothing, extrapolated from slices", whole,
         {"times": times})
