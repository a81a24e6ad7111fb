"""CIFAR-100, SVHN and Imagenette as torchvision reads them, from a folder or the course's cache.

None is embedded. Imagenette's pictures have all shapes. We cut out the middle square of each and
scale it to 160 x 160, the smallest published size (BAT's paper does not name its size).
"""

from collections import Counter
from functools import partial
from pathlib import Path

from course_lib.data import Split
from course_lib.datasets import sources
from course_lib.errors import CourseError
from course_lib.files import cache_dir

IMAGENETTE_SIZE = 160
IMAGENETTE_IMAGES = sources.PUBLISHED["imagenette"]  # of each class


def cifar100(folder: Path | None, part: str) -> Split:
    raw = sources.opened("CIFAR100", folder, "the folder cifar-100-python", train=part == "train")
    return Split.of(raw.data, raw.targets, classes=raw.classes)


def svhn(folder: Path | None, part: str) -> Split:
    """SVHN's cropped digits, without the set "extra", as in the papers."""
    raw = sources.opened("SVHN", folder, f"{part}_32x32.mat", split=part)
    return Split.of(raw.data, raw.labels, classes=list("0123456789"))


def imagenette(folder: Path | None, part: str) -> Split:
    from PIL import Image, ImageOps

    part = "train" if part == "train" else "val"
    square = partial(ImageOps.fit, size=(IMAGENETTE_SIZE,) * 2, method=Image.Resampling.BILINEAR)
    raw = sources.opened("Imagenette", folder, "the folder imagenette2-160 (from "
                         "imagenette2-160.tgz)", split=part, size="160px", transform=square)
    try:  # torchvision accepts a folder that is half unpacked
        if [*Counter(c for _, c in raw._samples).values()] != IMAGENETTE_IMAGES[part]:
            raise OSError(f"its {len(raw)} pictures are not as many per class as published")
        return Split.of(raw, classes=[names[0] for names in raw.classes])
    except OSError as e:
        place = (folder or cache_dir()) / "imagenette2-160"
        raise CourseError(f"{place / part} is damaged ({e}). Delete {place} and unpack or fetch it "
                          "again.") from None


load_cifar100 = partial(sources.dataset, "cifar100", cifar100)
load_svhn = partial(sources.dataset, "svhn", svhn)
load_imagenette = partial(sources.dataset, "imagenette", imagenette)
