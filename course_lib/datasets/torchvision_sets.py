"""CIFAR-100, SVHN and Imagenette as torchvision reads them, from a folder or the course's cache.

None is embedded. Imagenette's pictures have all shapes. We cut out the middle square of each and
scale it to 160 x 160, the smallest published size (BAT's paper does not name its size).
"""

from collections import Counter
from pathlib import Path

import numpy as np

from course_lib.data import Dataset, Split
from course_lib.datasets import sources
from course_lib.errors import CourseError
from course_lib.files import cache_dir

IMAGENETTE_SIZE = 160
IMAGENETTE_IMAGES = {  # of each class, as published
    "train": [963, 955, 993, 858, 941, 956, 961, 931, 951, 960],
    "val": [387, 395, 357, 386, 409, 394, 389, 419, 399, 390],
}


def load_cifar100(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    def read(folder: Path | None, part: str) -> Split:
        raw = sources.opened("CIFAR100", folder, "the folder cifar-100-python",
                             train=part == "train")
        return sources.as_split(raw.data.transpose(0, 3, 1, 2), raw.targets, raw.classes)

    return sources.dataset("cifar100", root, limit, seed, read)


def load_svhn(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """SVHN's cropped digits, without the set "extra", as in the papers."""
    def read(folder: Path | None, part: str) -> Split:
        raw = sources.opened("SVHN", folder, f"{part}_32x32.mat", split=part)
        return sources.as_split(raw.data, raw.labels, "0123456789")

    return sources.dataset("svhn", root, limit, seed, read)


def load_imagenette(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    from PIL import Image, ImageOps

    def read(folder: Path | None, part: str) -> Split:
        part = "train" if part == "train" else "val"
        raw = sources.opened("Imagenette", folder, "the folder imagenette2-160 (from "
                             "imagenette2-160.tgz)", split=part, size="160px")
        place, n, size = (folder or cache_dir()) / "imagenette2-160", len(raw), IMAGENETTE_SIZE
        images, labels = np.empty((n, size, size, 3), np.uint8), np.empty(n, np.int64)
        try:
            if [*Counter(c for _, c in raw._samples).values()] != IMAGENETTE_IMAGES[part]:
                raise OSError(f"of {n:,} pictures not so many are of each class as published")
            for i in range(n):  # torchvision accepts a folder that is half unpacked
                image, labels[i] = raw[i]
                images[i] = np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
        except OSError as e:
            raise CourseError(f"{place / part} is damaged ({e}). Delete {place} and unpack or "
                              "fetch it again.") from None
        return sources.as_split(images.transpose(0, 3, 1, 2), labels, [c[0] for c in raw.classes])

    return sources.dataset("imagenette", root, limit, seed, read)
