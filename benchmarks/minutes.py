"""How many CPU-minutes does one training of each method of the contest take on one thread?

Trainings of a few and of more batches, from the stored weights (FAT's attack stops the sooner the
weaker the network is), give the seconds a batch and those of an epoch's validation. They are CPU
seconds; still, other work on the machine makes them up to a third more. Writes
serialized_models/contest/minutes.json.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from statistics import median

import torch

from course_lib import recipes
from course_lib.data import Dataset, load
from course_lib.experiments import RECIPES, TRANSFORMS
from course_lib.files import json_bytes, write_together
from course_lib.lessons.contest import ENTRIES, MINUTES
from course_lib.training import fit
from course_lib.zoo import load_model, models_dir

FEW, MORE, ROUNDS = 8, 40, 5


def cpu_seconds(name: str, data: Dataset, batches: int) -> float:
    """Of one epoch of so many batches, with what the method validates on. Run nothing else."""
    recipe, model = RECIPES[name], load_model(name)
    optim = dataclasses.replace(recipe.optim, lr=1e-6)
    part = data.train.take(slice(0, batches * optim.batch))
    began = time.process_time()
    fit(copy.deepcopy(model), recipe.method, part, epochs=1, optim=optim, seed=0, progress=False,
        validate=recipes._validation(recipe, data.val))
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a folder with the whole data set")
    torch.set_num_threads(1)
    data = load("fashion-mnist", root=parser.parse_args().data)
    names = {name for name, *_ in ENTRIES.values()}
    names |= {need for name in names for need in RECIPES[name].needs}
    of = {name: TRANSFORMS[RECIPES[name].transform](data) for name in names}
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):  # interleaved
        for name in sorted(names):
            for batches in (FEW, MORE):
                times.setdefault((name, batches), []).append(cpu_seconds(name, of[name], batches))
    own = {}
    for name in names:
        few, more = (median(times[name, n]) for n in (FEW, MORE))
        batch, recipe = (more - few) / (MORE - FEW), RECIPES[name]
        epoch = few - FEW * batch + batch * -(-len(of[name].train) // recipe.optim.batch)
        own[name] = recipe.epochs * epoch / 60
    minutes = {label: round(own[name] + sum(own[need] for need in RECIPES[name].needs), 2)
               for label, (name, *_) in ENTRIES.items()}
    path = models_dir() / MINUTES
    write_together({path: json_bytes(minutes)})
    print(path.read_text())


if __name__ == "__main__":
    main()
