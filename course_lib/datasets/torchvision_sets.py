"""CIFAR-100, SVHN and Imagenette as torchvision reads them, from a folder or the course's cache.

None is embedded. Imagenette's pictures have all shapes. We cut out the middle square of each and
scale it to 160 x 160, the smallest published size (BAT's paper does not name its size).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from course_lib.data import Dataset, Split, halves
from course_lib.datasets import sources
from course_lib.errors import CourseError
from course_lib.files import cache_dir

IMAGENETTE_SIZE = 160
IMAGENETTE_IMAGES = {"train": 9469, "val": 3925}  # as published
OR_DOWNLOAD = "there, or name no folder and connect to the internet."


def load_cifar100(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    def read(place: Path, part: str, download: bool) -> Split:
        remedy = f"Put the folder cifar-100-python {OR_DOWNLOAD}"
        found = sources.opened("CIFAR100", place, remedy, download=download, train=part == "train")
        return sources.as_split(found.data.transpose(0, 3, 1, 2), found.targets, found.classes)

    return dataset("cifar100", read, root, limit, seed)


def load_svhn(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """SVHN's cropped digits, without the set "extra", as in the papers."""
    def read(place: Path, part: str, download: bool) -> Split:
        remedy = f"Put {part}_32x32.mat {OR_DOWNLOAD}"
        found = sources.opened("SVHN", place, remedy, download=download, split=part)
        return sources.as_split(found.data, found.labels, "0123456789")

    return dataset("svhn", read, root, limit, seed)


def load_imagenette(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    return dataset("imagenette", read_imagenette, root, limit, seed)


def read_imagenette(place: Path, part: str, download: bool) -> Split:
    from PIL import Image, ImageOps

    part = "train" if part == "train" else "val"
    remedy = f"Put the folder imagenette2-160 (from imagenette2-160.tgz) {OR_DOWNLOAD}"
    found = sources.opened("Imagenette", place, remedy, download=download, split=part, size="160px")
    folder, n, size = place / "imagenette2-160", len(found), (IMAGENETTE_SIZE, IMAGENETTE_SIZE)
    again = f"Delete {folder} and unpack or fetch it again."
    if n != IMAGENETTE_IMAGES[part]:  # torchvision accepts a folder that is half unpacked
        raise CourseError(f"{folder / part} holds {n:,} of {IMAGENETTE_IMAGES[part]:,} pictures. "
                          f"{again}")
    images, labels = np.empty((n, *size, 3), np.uint8), np.empty(n, np.int64)
    for i in range(n):
        try:
            image, labels[i] = found[i]
        except OSError as e:
            raise CourseError(f"{found._samples[i][0]} is damaged ({e}). {again}") from None
        images[i] = np.asarray(ImageOps.fit(image, size, Image.Resampling.BILINEAR))
    return sources.as_split(images.transpose(0, 3, 1, 2), labels, [c[0] for c in found.classes])


def dataset(name: str, read: Callable[[Path, str, bool], Split], root: sources.Root,
            limit: int | None, seed: int) -> Dataset:
    """The data set whose parts, "train" and "test", `read` gives for (place, part, download)."""
    folder = sources.named_folder(root)
    place, download = folder or cache_dir(), folder is None
    test = read(place, "test", download)
    return Dataset(name, test.classes, test,
                   lambda: halves(read(place, "train", download), limit, seed))
