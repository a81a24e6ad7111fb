"""Where the files of a data set come from, and how they are checked before anything is parsed."""

import gzip
import os
import pickle
import sys
import tarfile
import types
import zlib
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib import data
from course_lib.data import Dataset, Split
from course_lib.errors import CourseError, integer
from course_lib.files import cache_dir, locked, parse_json, read_bytes, sha256_of, within

Root = str | os.PathLike[str] | None
TRAIN_SHARE = 0.8
PUBLISHED = parse_json(read_bytes(path := Path(__file__).with_name("published.json")), path)
LARGEST = 64 << 20  # bytes; no published file that we unpack is larger
SILENCE = 120.0  # seconds in which a download must make a file grow
FAULTS = (OSError, RuntimeError, ValueError, KeyError, EOFError, HTTPException, tarfile.TarError,
          pickle.UnpicklingError, zlib.error)


def dataset(name: str, read: Callable[[Path | None, str], Split], root: Root, limit: int | None,
            seed: int | None, embedded: Callable[[str], Split] | None = None) -> Dataset:
    """The data set from `embedded(part)` where a small limit asks for it, else from
    `read(folder, part)`: "train" or "test", in the folder that the user names, if any."""
    folder = Path(root).expanduser() if root else None
    most = contents(data.EMBEDDED / name)["training_images"] if embedded and not folder else 0
    part: Callable[[str], Split] = partial(read, folder)
    if embedded and limit is not None and limit <= most:
        # they lie as seed 0 orders the full set: no stored model was trained on a validation image
        part, seed = embedded, seed or None
    test = part("test")
    return Dataset(name, test.classes, test, lambda: halves(part("train"), limit, seed))


def stratified(y: Tensor, seed: int) -> Tensor:
    """A seeded order of the examples; any beginning of it holds the classes in proportion."""
    generator = torch.Generator().manual_seed(integer(seed, "seed", 0))
    shuffled = torch.randperm(len(y), generator=generator)
    share = torch.empty(len(y), dtype=torch.float64)
    for c in y.unique():
        mine = torch.nonzero(y[shuffled] == c).flatten()
        # (i + 1/2) / N_c: the i-th example of class c comes this far into the order
        share[mine] = (torch.arange(len(mine), dtype=torch.float64) + 0.5) / len(mine)
    return shuffled[share.argsort(stable=True)]


def halves(pool: Split, limit: int | None, seed: int | None) -> tuple[Split, Split]:
    """80 % to train on, 20 % to validate on, in a seeded order or, with None, as they lie; `limit`
    keeps the beginning of both."""
    n = len(pool) if limit is None else limit
    if n > len(pool):
        raise CourseError(f"limit={n} is more than the {len(pool)} training examples that there "
                          "are. Leave it out, or ask for fewer.")
    order = torch.arange(len(pool.y)) if seed is None else stratified(pool.y, seed)
    cut, n_train = round(TRAIN_SHARE * len(order)), round(TRAIN_SHARE * n)
    return pool.take(order[:n_train]), pool.take(order[cut:][: n - n_train])


def contents(folder: Path) -> dict[str, Any]:
    """What contents.json says of an embedded data set: the sha256 of each file's content, and how
    many training images there are (none in a table)."""
    path = folder / "contents.json"
    return {"training_images": 0, "sha256": {}, **parse_json(read_bytes(path), path)}


def checked(path: Path, sha256: str | None) -> bytes:
    """The content of a file, unpacked if it is a .gz, once its hash is the published one. People
    pack these files anew, so the hash is the content's; no more than LARGEST is unpacked for it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as f:
            raw = f.read(LARGEST)
    except (OSError, EOFError, zlib.error) as e:
        raise CourseError(f"{path} is missing or damaged ({e}). Fetch it again, or reinstall the "
                          "course.") from None
    if (have := sha256_of(raw)) != sha256:
        raise CourseError(f"{path} is not the published file: its sha256 is {have}, not {sha256}. "
                          "Fetch it again, or reinstall the course.")
    return raw


def opened(kind: str, folder: Path | None, files: str, more: str = "", **words: Any) -> Any:
    """torchvision's data set `kind` in the user's folder, or in the cache, downloaded if need be.

    torchvision checks the published md5 of its files before it reads them. Where they cannot be
    had, the error names the `files` to fetch by hand, and what `more` can be done.
    """
    place = folder or cache_dir()
    try:
        make = partial(getattr(torchvision_datasets(), kind), place, **words)
        try:
            return make(download=False)
        except FAULTS:
            if folder:
                raise
        with locked(place):  # one process downloads; the others wait and read its files
            return within(SILENCE, partial(make, download=True),
                          lambda: sum(path.lstat().st_size for path in place.rglob("*")))
    except FAULTS as e:
        why = " ".join(str(e).split()) or type(e).__name__
        tried, other = (("nothing is downloaded into a folder that you name", "name no folder")
                        if folder else ("it could not be downloaded", "connect to the internet"))
        raise CourseError(f"{kind} is not complete in {place}, and {tried} ({why}). Put {files} "
                          f"there, or {other}.{more}") from None


def torchvision_datasets() -> Any:
    """torchvision.datasets, also where torchvision's compiled operators do not fit this torch, as
    a CUDA build beside a CPU build: data sets use none, so their registration may be empty."""
    try:
        import torchvision.datasets as datasets
    except RuntimeError as e:
        if "torchvision::nms" not in str(e):
            raise
        empty = "torchvision._meta_registrations"
        sys.modules[empty] = types.ModuleType(empty)
        import torchvision.datasets as datasets
    return datasets
