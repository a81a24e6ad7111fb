"""CIFAR-10. Embedded are 2,000 training and 2,000 test images, stratified."""

import io
import os
import warnings
from functools import partial
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib import data
from course_lib.data import Split
from course_lib.datasets import sources
from course_lib.errors import CourseError, CourseWarning
from course_lib.files import cache_dir, sha256_of

# of the images' bytes [N, 3, 32, 32] followed by the labels' (int64)
SHA256 = sources.PUBLISHED["cifar10"]
LARGEST = 200 << 20  # bytes; all images and labels, unpacked, are fewer
PADDING = 4  # pixels, of crop_flip
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def full(folder: Path | None, part: str) -> Split:
    """All 50,000 or 10,000 images, from the user's folder or the course's cache.

    Either may hold torchvision's cifar-10-batches-py, or one cifar10.npz with x_train, y_train,
    x_test and y_test, for machines that reach only a package index. Without a network the test
    images are the embedded ones, and a warning says so.
    """
    path = (folder or cache_dir()) / "cifar10.npz"
    if os.path.isfile(path):
        return from_npz(path, part)
    try:
        raw = sources.opened("CIFAR10", folder, "the folder cifar-10-batches-py", " At most 2,000 "
                             "images are embedded: limit=2000.", train=part == "train")
    except CourseError:
        if folder or part == "train":
            raise
        warnings.warn("CIFAR-10 could not be downloaded, so its test images are the 2,000 that are "
                      "embedded, a stratified fifth of them. For all: connect to the internet, or "
                      "name a folder that holds them, root=FOLDER.", CourseWarning, stacklevel=2)
        return embedded(part)
    return Split.of(raw.data, raw.targets, classes=CIFAR10)


def from_npz(path: Path, part: str) -> Split:
    try:
        with ZipFile(path) as packed:
            if (size := sum(member.file_size for member in packed.infolist())) > LARGEST:
                raise ValueError(f"it unpacks to {size:,} bytes")
        with np.load(path, allow_pickle=False) as arrays:
            split = Split.of(arrays[f"x_{part}"], arrays[f"y_{part}"], classes=CIFAR10)
        have = sha256_of(split.x.numpy().tobytes() + split.y.numpy().tobytes())
        if have != SHA256[part]:
            raise ValueError(f"its {part} part has the sha256 {have}, not the published one")
    except (*sources.FAULTS, MemoryError, BadZipFile) as e:
        raise CourseError(f"{path} is damaged ({type(e).__name__}: {e}). Fetch it again.") from None
    return split


def embedded(part: str) -> Split:
    """An embedded part: one lossless image of all images, line by line, and a file of labels."""
    from PIL import Image

    folder = data.EMBEDDED / "cifar10"
    hashes = sources.contents(folder)["sha256"]
    images, labels = (sources.checked(folder / name, hashes.get(name))
                      for name in (f"{part}.webp", f"{part}-labels"))
    with Image.open(io.BytesIO(images)) as image:
        sheet = np.asarray(image.convert("RGB"))  # [rows * 32, columns * 32, 3]
    x = sheet.reshape(-1, 32, sheet.shape[1] // 32, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
    return Split.of(x, np.frombuffer(labels, np.uint8), classes=CIFAR10)


# a limit up to 2,000 asks for the embedded images, training and test
load_cifar10 = partial(sources.dataset, "cifar10", full, embedded=embedded)


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """CIFAR's usual change of a training batch: pad each image with four black pixels on every
    side, cut out a window of the old size anywhere, and mirror half of the windows.

    >>> crop_flip(torch.rand(2, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3, 32, 32])
    """
    if x.ndim != 4:
        raise CourseError("Augmentation 'crop-flip' is for images [N, C, H, W]; these have the "
                          f"shape {tuple(x.shape)}. Leave it out.")
    n, _, height, width = x.shape
    down, right = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    across = torch.arange(width).expand(n, -1)
    rows = down + torch.arange(height)
    columns = right + torch.where(mirrored, across.flip(1), across)
    padded = F.pad(x, [PADDING] * 4)
    # [N, H, W, C]
    windows = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return windows.permute(0, 3, 1, 2).contiguous()
