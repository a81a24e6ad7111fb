"""CIFAR-100, SVHN and Imagenette as torchvision reads them, from a folder or the course's cache.

None is embedded. Imagenette's pictures have all shapes. We cut out the middle square of each and
scale it to 160 x 160, the smallest published size (BAT's paper does not name its size).
"""

from collections import Counter
from pathlib import Path

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
        return Split.of(raw.data, raw.targets, classes=raw.classes)

    return sources.dataset("cifar100", root, limit, seed, read)


def load_svhn(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """SVHN's cropped digits, without the set "extra", as in the papers."""
    def read(folder: Path | None, part: str) -> Split:
        raw = sources.opened("SVHN", folder, f"{part}_32x32.mat", split=part)
        return Split.of(raw.data, raw.labels, classes=list("0123456789"))

    return sources.dataset("svhn", root, limit, seed, read)


def load_imagenette(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    from PIL import Image, ImageOps

    def square(image: Image.Image) -> Image.Image:
        return ImageOps.fit(image, (IMAGENETTE_SIZE,) * 2, Image.Resampling.BILINEAR)

    def read(folder: Path | None, part: str) -> Split:
        part = "train" if part == "train" else "val"
        raw = sources.opened("Imagenette", folder, "the folder imagenette2-160 (from "
                             "imagenette2-160.tgz)", split=part, size="160px", transform=square)
        try:  # torchvision accepts a folder that is half unpacked
            if [*Counter(c for _, c in raw._samples).values()] != IMAGENETTE_IMAGES[part]:
                raise OSError(f"of {len(raw)} pictures not so many are of each class as published")
            return Split.of(raw, classes=[names[0] for names in raw.classes])
        except OSError as e:
            place = (folder or cache_dir()) / "imagenette2-160"
            raise CourseError(f"{place / part} is damaged ({e}). Delete {place} and unpack or "
                              "fetch it again.") from None

    return sources.dataset("imagenette", root, limit, seed, read)
