"""Where the files of a data set come from, and how they are checked before anything is parsed."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import sys
import tarfile
import types
import zlib
from collections.abc import Collection, Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_lib.data import TRAIN_SHARE, Split, halves
from course_lib.errors import CourseError
from course_lib.files import locked

Root = str | os.PathLike[str] | None
LARGEST = 64 << 20  # bytes; no published file that we unpack is larger
FAULTS = (OSError, RuntimeError, ValueError, KeyError, EOFError, HTTPException, tarfile.TarError,
          pickle.UnpicklingError)


def named_folder(root: Root) -> Path | None:
    """The folder that the user names: `root`, else COURSE_DATA."""
    name = root or os.environ.get("COURSE_DATA")
    return Path(name) if name else None


def find_file(place: Path, name: str) -> Path | None:
    return next((p for p in (place / name, place / f"{name}.gz") if p.is_file()), None)


def folder_with(names: Collection[str], folder: Path, *inside: str) -> Path:
    """The folder, or the first one inside it, that holds all these files, plain or as .gz."""
    for place in (folder, *(folder / name for name in inside)):
        missing = [n for n in names if find_file(place, n) is None]
        if not missing:
            return place
        if len(missing) < len(names):
            raise CourseError(f"{place} lacks {', '.join(missing)} (plain or as .gz). Put all "
                              f"{len(names)} files there.")
    raise CourseError(f"{folder} does not hold the data set. Put its files there, plain or as "
                      f".gz: {', '.join(names)}.")


def checked(place: Path, name: str, want: str | None, *, method: str = "sha256",
            unpack: bool = True) -> bytes:
    """The content of a file once its hash is the published one; a .gz file is unpacked first."""
    path = find_file(place, name) or place / name
    try:
        with gzip.open(path) if unpack and path.suffix == ".gz" else path.open("rb") as f:
            raw = f.read(LARGEST)
        have = hashlib.new(method, raw, usedforsecurity=False).hexdigest()
    except (OSError, EOFError, zlib.error) as e:
        raise CourseError(f"{path} is missing or damaged ({e}). Fetch it again, or reinstall the "
                          "course.") from None
    if have != want:
        raise CourseError(f"{path} is not the published file: its {method} is {have}, not {want}. "
                          "Delete it and fetch it again, or reinstall the course.")
    return raw


def contents(folder: Path) -> tuple[int, dict[str, str]]:
    """What contents.json says of an embedded data set: how many training images it holds, and
    each file's sha256."""
    path = folder / "contents.json"
    try:
        content = json.loads(path.read_text())
        return int(content["training_images"]), dict(content["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise CourseError(f"{path} is missing or damaged ({type(e).__name__}: {e}). Reinstall the "
                          "course.") from None


def embedded_file(folder: Path, name: str) -> bytes:
    """The bytes of an embedded file, as they are stored."""
    return checked(folder, name, contents(folder)[1].get(name), unpack=False)


def embedded_halves(pool: Split, limit: int, seed: int, most: int) -> tuple[Split, Split]:
    """The embedded images as two splits. With seed 0 they split as in the full set: no stored
    model was trained on a validation image."""
    if seed:
        return halves(pool, limit, seed)
    cut, n_train = round(TRAIN_SHARE * most), round(TRAIN_SHARE * limit)
    return pool.take(slice(0, n_train)), pool.take(slice(cut, cut + limit - n_train))


def as_split(x: np.ndarray, y: Any, classes: Iterable[str]) -> Split:
    """NumPy's images [N, C, H, W] and labels as a split."""
    return Split(torch.from_numpy(np.ascontiguousarray(x)),
                 torch.from_numpy(np.asarray(y, np.int64)), tuple(classes))


def opened(name: str, place: Path, remedy: str, *, download: bool, **words: Any) -> Any:
    """torchvision's data set `name` in the folder `place`, downloaded if that is allowed.

    torchvision checks the published md5 of its files before it reads them. `remedy` tells the
    user what to do when the files cannot be had.
    """
    try:
        kind = getattr(torchvision_datasets(), name)
        try:
            return kind(place, download=False, **words)
        except FAULTS:
            if not download:
                raise
        with locked(place):  # one process downloads; the others wait and read its files
            return kind(place, download=True, **words)
    except ImportError as e:
        package = str(e.name).partition(".")[0]
        raise CourseError(
            f"{name} cannot be read without {package}: pip install {package}.") from None
    except FAULTS as e:
        why = " ".join(str(e).split()) or type(e).__name__
        tried = ("could not be downloaded" if download else
                 "nothing is downloaded into a folder that you name")
        raise CourseError(
            f"{name} is not complete in {place}, and {tried} ({why}). {remedy}") from None


def torchvision_datasets() -> Any:
    """torchvision.datasets, also where torchvision's compiled operators do not fit this torch.

    A CUDA build of torchvision beside a CPU build of torch fails at import with "operator
    torchvision::nms does not exist". Data sets use no such operator, so the module that registers
    them may be empty.
    """
    try:
        import torchvision.datasets as datasets
    except RuntimeError as e:
        if "torchvision::nms" not in str(e):
            raise
        for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        empty = "torchvision._meta_registrations"
        sys.modules[empty] = types.ModuleType(empty)
        import torchvision.datasets as datasets
    return datasets
