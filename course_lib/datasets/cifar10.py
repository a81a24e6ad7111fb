"""CIFAR-10: from a folder, the course's cache, torchvision's download, or the part that is
embedded.
 `opened` is what every set of photographs comes through that torchvision reads. Where COURSE_MIRROR
is set (an address such as https://mirror.example/data), files are looked for under it before their
publisher's; torchvision's md5 decide in both cases.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tarfile
import zipfile
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_lib.data import EMBEDDED, LOADERS, Dataset, Split, contents, embedded_halves, halves, torchvision_datasets
from course_lib.errors import CourseError
from course_lib.files import cache_dir, locked

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SHA256 = {  # of the images' bytes [N, 3, 32, 32] followed by the labels' (int64)
    "train": "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
    "test": "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
}
Part = tuple[np.ndarray, np.ndarray]  # images uint8 [N, 3, 32, 32], labels int64 [N]


def cifar10(root: str | os.PathLike[str] | None, limit: int | None, seed: int) -> Dataset:
    """CIFAR-10. Embedded: 2,000 training and 2,000 test images, stratified; a `limit` up to 2,000
    asks for these and no others."""
    small = EMBEDDED / "cifar10"
    most, _ = contents(small)
    named = root or os.environ.get("COURSE_DATA")
    if limit is not None and limit <= most and not named:
        return Dataset("cifar10", CIFAR10, _sheet(small, "test"),
                       lambda: embedded_halves(_sheet(small, "train"), limit, seed, most))
    place = Path(named) if named else cache_dir()
    return Dataset("cifar10", CIFAR10, _whole(place, "test", not named, most),
                   lambda: halves(_whole(place, "train", not named, most), limit, seed))


def _whole(place: Path, part: str, download: bool, most: int) -> Split:
    """All 50,000 or 10,000 images, checked against the hash of the published ones before they are
    believed."""
    x, y = _from_npz(place / "cifar10.npz",
                     part) if (place / "cifar10.npz").is_file() else _from_torchvision(place, part,
                         download, most)
    if (have := hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()) != CIFAR10_SHA256[part]:
        raise CourseError(f"{place}: the {part} part of CIFAR-10 is not the published one (sha256 "
                          f"{have[:12]}…). Fetch it again.")
    return Split(torch.from_numpy(x), torch.from_numpy(y), CIFAR10)


def _from_npz(path: Path, part: str) -> Part:
    """x_train, y_train, x_test, y_test, in the published order."""
    try:
        with path.open("rb") as f, np.load(f, allow_pickle=False) as z:
            return np.ascontiguousarray(z[f"x_{part}"]), z[f"y_{part}"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as e:
        raise CourseError(f"{path} is damaged ({type(e).__name__}: {e}). Delete it and fetch it "
                          "again.") from None


def _from_torchvision(place: Path, part: str, download: bool, most: int) -> Part:
    """The folder cifar-10-batches-py."""
    wants = "the folder cifar-10-batches-py there, " + (
        f"connect to the internet, or ask for at most the {most:,} embedded images: limit={most}"
        if download else
        f"or name no folder; at most {most:,} images are then the embedded ones")
    data = opened("CIFAR10", place, wants, download=download, train=part == "train")
    return np.ascontiguousarray(data.data.transpose(0, 3, 1, 2)), np.asarray(data.targets, np.int64)


def opened(name: str, place: Path, wants: str, *, download: bool, **words: Any) -> Any:
    """torchvision's data set of this name, which checks its files by md5 before it reads them;
    `wants` says what a user may do.

    Of several processes that miss it one downloads, and the others read what it brought.
    """
    kind, mirror = getattr(torchvision_datasets(), name), os.environ.get("COURSE_MIRROR")
    failed = []
    sources = [(kind, False), *([(mirrored(kind, mirror), True)] if download and mirror else []),
               *([(kind, True)] if download else [])]
    for source, fetch in sources:
        try:
            with locked(place) if fetch else contextlib.nullcontext():
                return source(place, download=fetch, **words)
        except ImportError as e:
            needed = str(e.name).partition(".")[0]
            raise CourseError(
                f"{name} cannot be read without {needed}: pip install {needed}.") from None
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, HTTPException,
                tarfile.TarError, pickle.UnpicklingError) as e:
            if fetch == download:
                failed.append(" ".join(str(e).split()) or type(e).__name__)
    how = "was not downloaded" if download else "nothing is downloaded into a folder that you name"
    raise CourseError(f"{name} is not whole in {place} and {how} ({'; '.join(failed)}). Put "
                      f"{wants}.")


def mirrored(kind: Any, base: str) -> Any:
    """The same data set with its files at another address."""
    def there(url: str) -> str:
        return f"{base.rstrip('/')}/{url.rsplit('/', 1)[1]}"

    words: dict[str, Any] = {"url": there(kind.url)} if hasattr(kind, "url") else {}  # CIFAR
    for name in {"split_list", "_ARCHIVES"} & set(dir(kind)):  # SVHN, Imagenette
        words[name] = {part: (there(url), *rest) for part,
                       (url, *rest) in getattr(kind, name).items()}
    return type(kind.__name__, (kind,), words)


def _sheet(folder: Path, part: str) -> Split:
    """An embedded part: one lossless image that holds them all, line by line, and a file of
    labels."""
    from PIL import Image

    raw = {}
    for name in (f"{part}.webp", f"{part}-labels"):
        try:
            raw[name] = (folder / name).read_bytes()
        except OSError as e:
            raise CourseError(f"{folder / name} cannot be read ({e.strerror}). Reinstall the "
                              "course.") from None
        if (have := hashlib.sha256(raw[name]).hexdigest()) != contents(folder)[1].get(name):
            raise CourseError(f"{folder / name} is damaged: its sha256 is {have[:12]}…. Reinstall "
                              "the course.")
    with Image.open(folder / f"{part}.webp") as image:
        sheet = np.asarray(image.convert("RGB"))
    labels = np.frombuffer(raw[f"{part}-labels"], np.uint8).astype(np.int64)
    return Split(torch.from_numpy(tiles(sheet, 32)), torch.from_numpy(labels), CIFAR10)


def tiles(sheet: np.ndarray, size: int) -> np.ndarray:
    """[rows * size, columns * size, 3] to [rows * columns, 3, size, size]."""
    rows, columns = sheet.shape[0] // size, sheet.shape[1] // size
    cut = sheet.reshape(rows, size, columns, size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(cut.reshape(rows * columns, 3, size, size))


LOADERS["cifar10"] = cifar10
