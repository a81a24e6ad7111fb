"""How many CPU-minutes does one training of each method of the contest take on one thread?

Trainings of a few and of more batches, from the stored weights (FAT's attack stops the sooner the
weaker the network is), give the seconds a batch and those of an epoch's validation. They are CPU
seconds; still, other work on the machine makes them up to a third more. Writes into
serialized_models/contest/minutes.json, all of them or those of one data set: `--of cifar10`.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import time
from statistics import median

import torch

from course_lib import recipes
from course_lib.data import Dataset, load
from course_lib.experiments import RECIPES, TRANSFORMS
from course_lib.files import json_bytes, write_together
from course_lib.lessons.contest import MINUTES, TABLE
from course_lib.training import fit
from course_lib.zoo import load_model, models_dir

FEW, MORE = 8, 40


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
    parser.add_argument("--of", choices=TABLE, nargs="*", default=[*TABLE], help="the data sets")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shown = [name for dataset in args.of for name, *_ in TABLE[dataset].values()]
    names = {*shown, *(need for name in shown for need in RECIPES[name].needs)}
    data = {dataset: load(dataset, root=args.data) for dataset in args.of}
    of = {name: TRANSFORMS[(r := RECIPES[name]).transform](data[r.dataset]) for name in names}
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(args.rounds):  # interleaved
        for name in sorted(names):
            for batches in (FEW, MORE):
                times.setdefault((name, batches), []).append(cpu_seconds(name, of[name], batches))
    own = {}
    for name in names:
        few, more = (median(times[name, n]) for n in (FEW, MORE))
        batch, recipe = (more - few) / (MORE - FEW), RECIPES[name]
        epoch = few - FEW * batch + batch * -(-len(of[name].train) // recipe.optim.batch)
        own[name] = recipe.epochs * epoch / 60
    minutes = {name: round(own[name] + sum(own[need] for need in RECIPES[name].needs), 2)
               for name in shown}
    path = models_dir() / MINUTES
    write_together({path: json_bytes(json.loads(path.read_text()) | minutes)})
    print(path.read_text())


if __name__ == "__main__":
    main()
