"""CIFAR-10. Embedded are 2,000 training and 2,000 test images, stratified."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from course_lib import data
from course_lib.data import Dataset, Split, halves
from course_lib.datasets import sources
from course_lib.files import cache_dir

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_cifar10(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """CIFAR-10; a `limit` up to 2,000 asks for the embedded images, training and test."""
    small, folder = data.EMBEDDED / "cifar10", sources.named_folder(root)
    most, _ = sources.contents(small)
    if folder is None and limit is not None and limit <= most:
        return Dataset("cifar10", CIFAR10, embedded(small, "test"), lambda: sources.embedded_halves(
            embedded(small, "train"), limit, seed, most))
    return Dataset("cifar10", CIFAR10, full(folder, "test", most),
                   lambda: halves(full(folder, "train", most), limit, seed))


def full(folder: Path | None, part: str, most: int) -> Split:
    """All 50,000 or 10,000 images, from the user's folder or the course's cache."""
    ways = "or name no folder" if folder else "or connect to the internet"
    remedy = (f"Put the folder cifar-10-batches-py there, {ways}. At most {most:,} images are "
              f"embedded: limit={most}.")
    found = sources.opened("CIFAR10", folder or cache_dir(), remedy, download=folder is None,
                           train=part == "train")
    return sources.as_split(found.data.transpose(0, 3, 1, 2), found.targets, CIFAR10)


def embedded(folder: Path, part: str) -> Split:
    """An embedded part: one lossless image of all images, line by line, and a file of labels."""
    from PIL import Image

    labels = sources.embedded_file(folder, f"{part}-labels")
    with Image.open(io.BytesIO(sources.embedded_file(folder, f"{part}.webp"))) as image:
        sheet = np.asarray(image.convert("RGB"))  # [rows * 32, columns * 32, 3]
    x = sheet.reshape(-1, 32, sheet.shape[1] // 32, 32, 3).transpose(0, 2, 4, 1, 3)
    return sources.as_split(x.reshape(-1, 3, 32, 32), np.frombuffer(labels, np.uint8), CIFAR10)
