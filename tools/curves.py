"""Compute the explorer's curves that are missing or of other weights: python -m tools.curves
[beginning of a recipe] [--seeds all]
 PGD-20 at 0, 2, 4 ... 32 of 255 on the whole embedded test set, for seed 0 of every stored recipe
of images with weights: about 20 CPU-seconds for a LeNet-5, minutes for a ResNet, though of CIFAR-10
only a fifth of the test images is embedded. Interrupt it as often as you like: each model is stored
when it is done.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from course_lib.data import EMBEDDED, Split
from course_lib.datasets.sources import contents
from course_lib.errors import CourseError
from course_lib.explorer.curves import (
    BUDGETS,
    Curve,
    compute_curve,
    current,
    images_of,
)
from course_lib.lab.publish import add_file
from course_lib.machine import keep_memory
from course_lib.zoo import entry, load_model, load_record, manifest, model_files


def wanted(prefix: str, every_seed: bool) -> Iterator[tuple[str, int, Split]]:
    """The models to do, each with its test images. Of a table, or of images that do not come with
    the course, there is nothing to show."""
    if not any(name.startswith(prefix) for name in manifest()):
        raise CourseError(f"No stored model's name begins with {prefix}.")
    for name, seeds in manifest().items():
        for seed in sorted(map(int, seeds)):
            if not name.startswith(prefix) or "@" in name or "weights" not in seeds[str(seed)] or (
                    seed and not every_seed):
                continue
            made = load_record(name, seed=seed)["made_from"]
            data = EMBEDDED / made["recipe"]["dataset"]
            if not data.is_dir() or not contents(data)["training_images"]:
                continue
            split = images_of(tuple(made["classes"]))
            if current(name, seed, split.digest()) is None:
                yield name, seed, split


def publish_curve(name: str, seed: int, curve: Curve, split: Split,
                  root: Path | None = None) -> None:
    """Store a curve and name it in the manifest. A reader sees both or neither."""
    packed = io.BytesIO()
    np.savez_compressed(packed, eps=np.array(curve.eps, np.uint8),
                        said=curve.predicted.numpy().astype(np.uint8))
    add_file(model_files(root, "curves"), name, str(seed), f"{name}/seed{seed}.npz",
             packed.getvalue(), attack=curve.attack, data=split.digest(),
             weights=entry(name, seed, root)["weights"]["sha256"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("prefix", nargs="?", default="",
                        help="the beginning of a recipe's name, e.g. exp2; all of them without it")
    parser.add_argument("--seeds", choices=("first", "all"), default="first")
    words = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)  # the figures of a stored report, to the last image
    todo = list(wanted(words.prefix, words.seeds == "all"))
    for n, (name, seed, split) in enumerate(todo, 1):
        with tqdm(total=len(BUDGETS[1:]) * len(split), desc=f"[{n}/{len(todo)}] {name} seed {seed}",
                  unit="image") as bar:
            curve = compute_curve(load_model(name, seed=seed), split, tick=bar.update)
        publish_curve(name, seed, curve, split)
    print(f"{len(todo)} curves made; all others are as they should be.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CourseError as error:
        sys.exit(str(error))
