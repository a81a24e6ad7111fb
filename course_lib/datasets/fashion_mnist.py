"""Fashion-MNIST, ten kinds of clothes in grey, at 32 x 32.

Embedded are all 10,000 test images and 6,000 training images, stratified.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from course_lib import data
from course_lib.data import Dataset, Split
from course_lib.datasets import sources
from course_lib.files import cache_dir

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
           "Bag", "Ankle boot")
FASHION_MD5 = {  # of the four files' uncompressed content, as published
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def load_fashion_mnist(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """Fashion-MNIST; a `limit` up to 6,000 asks for the embedded training images."""
    return sources.dataset("fashion-mnist", root, limit, seed, full, embedded)


def full(folder: Path | None, part: str) -> Split:
    """From the user's folder. Without one, all test images are embedded, and the 60,000 training
    images lie in the cache or are downloaded into it."""
    if folder:
        folder = sources.folder_with(FASHION_MD5, folder, "fashion-mnist", "FashionMNIST/raw")
        return read(folder, part)
    return embedded("test") if part == "test" else read(training_folder(), part)


def embedded(part: str) -> Split:
    return read(data.EMBEDDED / "fashion-mnist", part)


def training_folder() -> Path:
    """The cache's folder with the published files, downloaded if they are not there."""
    for place in (cache_dir() / "fashion-mnist", cache_dir() / "FashionMNIST" / "raw"):
        if all(sources.find_file(place, name) for name in FASHION_MD5):
            return place
    sources.opened("FashionMNIST", None, "the files of the 60,000 training images",
                   " Or name their folder (root=FOLDER), or ask for the 6,000 embedded ones: "
                   "limit=6000.")
    return place


def read(place: Path, part: str) -> Split:
    """The "train" or "test" images of a folder, resized."""
    prefix = "t10k" if part == "test" else part
    images, labels = (read_idx(place, f"{prefix}-{kind}-ubyte")
                      for kind in ("images-idx3", "labels-idx1"))
    return sources.as_split(resize(images, 32), labels, FASHION)


def read_idx(place: Path, name: str) -> np.ndarray:
    """The array in an IDX file: a big-endian int32 for each dimension, then the bytes."""
    if place == data.EMBEDDED / "fashion-mnist":
        body = gzip.decompress(sources.embedded_file(place, f"{name}.gz"))
    else:
        body = sources.checked(place, name, FASHION_MD5[name], method="md5")
    dims = np.frombuffer(body, ">i4", count=body[3], offset=4)
    return np.frombuffer(body, np.uint8, offset=4 + 4 * body[3]).reshape(dims)


def resize(images: np.ndarray, size: int) -> np.ndarray:
    """Grey images [N, H, W] to [N, 1, size, size] with Pillow's bilinear filter, which gives the
    bytes of torchvision's Resize."""
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    return np.stack([np.asarray(Image.fromarray(image).resize((size, size), bilinear))
                     for image in images])[:, None]
