"""Fashion-MNIST, ten kinds of clothes in grey, at 32 x 32.

Embedded are all 10,000 test images and 6,000 training images, stratified.
"""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from course_lib import data
from course_lib.data import Split
from course_lib.datasets import sources
from course_lib.errors import CourseError
from course_lib.files import cache_dir

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
           "Bag", "Ankle boot")
SHA256 = sources.PUBLISHED["fashion-mnist"]  # of the published files, unpacked


def full(folder: Path | None, part: str) -> Split:
    """From the user's folder. Without one, all test images are embedded, and the 60,000 training
    images lie in the cache or are downloaded into it."""
    embeds = folder is None and part == "test"
    return embedded(part) if embeds else read(training_folder(folder), part, SHA256)


def embedded(part: str) -> Split:
    folder = data.EMBEDDED / "fashion-mnist"
    return read(folder, part, sources.contents(folder)["sha256"])


def training_folder(folder: Path | None = None) -> Path:
    """Where the published files are: in this folder or below, or in the cache."""
    root = folder or cache_dir()
    downloads = root / "FashionMNIST" / "raw"
    for place in (root, root / "fashion-mnist", downloads):
        if all(os.path.isfile(place / name) for name in SHA256):
            return place
    if folder:
        raise CourseError(f"{folder} lacks Fashion-MNIST. Put all of {', '.join(SHA256)} there.")
    sources.opened("FashionMNIST", None, "the files of the 60,000 training images", " Or name "
                   "their folder (root=FOLDER), or ask for the 6,000 embedded ones: limit=6000.")
    return downloads


def read(place: Path, part: str, hashes: Mapping[str, str]) -> Split:
    """The "train" or "test" images of a folder, resized by Pillow as torchvision's Resize does."""
    from PIL import Image

    prefix = "t10k" if part == "test" else part
    images, labels = (read_idx(place / name, hashes.get(name)) for name in (
        f"{prefix}-images-idx3-ubyte.gz", f"{prefix}-labels-idx1-ubyte.gz"))
    resized = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR))
               for image in images]
    return Split.of(np.stack(resized), labels, classes=FASHION)


def read_idx(path: Path, sha256: str | None) -> np.ndarray:
    """The array in an IDX file: a big-endian int32 for each dimension, then the bytes."""
    body = sources.checked(path, sha256)
    dims = np.frombuffer(body, ">i4", count=body[3], offset=4)
    return np.frombuffer(body, np.uint8, offset=4 + 4 * body[3]).reshape(dims)


# a limit up to 6,000 asks for the embedded training images
load_fashion_mnist = partial(sources.dataset, "fashion-mnist", full, embedded=embedded)
