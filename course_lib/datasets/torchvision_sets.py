"""CIFAR-100, SVHN and Imagenette as torchvision reads them: from a folder, or from the course's
cache, which a download fills.
 None is embedded. Imagenette's pictures are of all shapes; here the middle of each is cut out and
scaled to 160 x 160, the smallest size in which it is published (BAT does not say which it used).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_lib.data import LOADERS, Dataset, Split, halves
from course_lib.datasets.cifar10 import opened
from course_lib.errors import CourseError
from course_lib.files import cache_dir

IMAGENETTE_SIZE = 160
IMAGENETTE_IMAGES = {"train": 9469, "val": 3925}  # as published
OR_DOWNLOAD = "there, or name no folder and connect to the internet"
# images uint8 [N, 3, H, W], labels, the classes' names
Album = tuple[np.ndarray, Any, tuple[str, ...]]


def _cifar100(place: Path, part: str, download: bool) -> Album:
    wants = f"the folder cifar-100-python (from cifar-100-python.tar.gz) {OR_DOWNLOAD}"
    data = opened("CIFAR100", place, wants, download=download, train=part == "train")
    return data.data.transpose(0, 3, 1, 2), data.targets, tuple(data.classes)


def _svhn(place: Path, part: str, download: bool) -> Album:
    """The cut-out digits; the set "extra" is left alone, as the papers do."""
    data = opened("SVHN", place, f"{part}_32x32.mat {OR_DOWNLOAD}", download=download, split=part)
    return data.data, data.labels, tuple("0123456789")


def _imagenette(place: Path, part: str, download: bool) -> Album:
    part = "train" if part == "train" else "val"
    wants = f"the folder imagenette2-160 (from imagenette2-160.tgz) {OR_DOWNLOAD}"
    data = opened("Imagenette", place, wants, download=download, split=part, size="160px")
    if len(data) != IMAGENETTE_IMAGES[part]:  # torchvision takes a folder that is half unpacked
        raise CourseError(f"{place / 'imagenette2-160' / part} holds {len(data):,} of "
                          f"{IMAGENETTE_IMAGES[part]:,} pictures. "
                          "Delete imagenette2-160 and unpack or fetch it again.")
    images = np.empty((len(data), 3, IMAGENETTE_SIZE, IMAGENETTE_SIZE), np.uint8)
    labels = np.empty(len(data), np.int64)
    for i in range(len(data)):
        images[i], labels[i] = _square(data, i)
    return images, labels, tuple(names[0] for names in data.classes)


def _square(data: Any, i: int) -> tuple[np.ndarray, int]:
    """Picture i, its middle square scaled, and its label."""
    from PIL import Image, ImageOps

    try:
        image, label = data[i]
    except OSError as e:
        raise CourseError(f"Imagenette's picture {data._samples[i][0]} is damaged ({e}). Unpack or "
                          "fetch imagenette2-160 again.") from None
    square = ImageOps.fit(image, (IMAGENETTE_SIZE, IMAGENETTE_SIZE), Image.Resampling.BILINEAR)
    return np.asarray(square).transpose(2, 0, 1), label


def _album(read: Callable[[Path, str, bool], Album], name: str, root: str | os.PathLike[str] | None,
           limit: int | None,
           seed: int) -> Dataset:
    named = root or os.environ.get("COURSE_DATA")
    place = Path(named) if named else cache_dir()

    def part(word: str) -> Split:
        x, y, classes = read(place, word, not named)
        return Split(torch.from_numpy(np.ascontiguousarray(x)),
                     torch.from_numpy(np.asarray(y, np.int64)), classes)

    test = part("test")
    return Dataset(name, test.classes, test, lambda: halves(part("train"), limit, seed))


for _name, _read in {"cifar100": _cifar100, "svhn": _svhn, "imagenette": _imagenette}.items():
    LOADERS[_name] = partial(_album, _read, _name)
