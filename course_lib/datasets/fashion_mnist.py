"""Fashion-MNIST, ten kinds of clothes in grey, at 32 x 32.

Embedded are all 10,000 test images and 6,000 training images, stratified.
"""

import gzip
from pathlib import Path

import numpy as np

from course_lib import data
from course_lib.data import Dataset, Split
from course_lib.datasets import sources
from course_lib.errors import CourseError
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
    embeds = folder is None and part == "test"
    return embedded(part) if embeds else read(training_folder(folder), part)


def embedded(part: str) -> Split:
    return read(data.EMBEDDED / "fashion-mnist", part)


def training_folder(folder: Path | None = None) -> Path:
    """Where the published files are: in this folder or below, or in the cache."""
    root = folder or cache_dir()
    places = root, root / "fashion-mnist", root / "FashionMNIST" / "raw"
    try:
        return sources.folder_with(FASHION_MD5, *places)
    except CourseError:
        if folder:
            raise
    sources.opened("FashionMNIST", None, "the files of the 60,000 training images", " Or name "
                   "their folder (root=FOLDER), or ask for the 6,000 embedded ones: limit=6000.")
    return places[-1]


def read(place: Path, part: str) -> Split:
    """The "train" or "test" images of a folder, resized with Pillow's bilinear filter, which gives
    the bytes of torchvision's Resize."""
    from PIL import Image

    prefix = "t10k" if part == "test" else part
    images, labels = (read_idx(place, f"{prefix}-{kind}-ubyte")
                      for kind in ("images-idx3", "labels-idx1"))
    resized = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR))
               for image in images]
    return sources.as_split(np.stack(resized)[:, None], labels, FASHION)


def read_idx(place: Path, name: str) -> np.ndarray:
    """The array in an IDX file: a big-endian int32 for each dimension, then the bytes."""
    if place == data.EMBEDDED / "fashion-mnist":
        body = gzip.decompress(sources.embedded_file(place, f"{name}.gz"))
    else:
        body = sources.checked(place, name, FASHION_MD5[name], method="md5")
    dims = np.frombuffer(body, ">i4", count=body[3], offset=4)
    return np.frombuffer(body, np.uint8, offset=4 + 4 * body[3]).reshape(dims)
