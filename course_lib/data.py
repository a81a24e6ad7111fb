"""Data sets by name, as seeded, stratified splits of tensors in memory.
 Images stay bytes (uint8) until a batch is served; `batches` gives floats in [0, 1]. Sources, in
order: a folder the user names, the course's cache, torchvision's download where more is asked for
than is embedded, the embedded data. What is not to be had is an error, never a silently smaller
set.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.errors import CourseError, pick, whole
from course_lib.files import cache_dir, locked

EMBEDDED = Path(__file__).parent / "datasets" / "embedded"
TRAIN_SHARE = 0.8


@dataclass(frozen=True)
class Split:
    """Examples and their labels: x [N, C, H, W] as bytes or floats in [0, 1], y [N]."""

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    groups: Mapping[str, Tensor] = field(default_factory=dict)
    hidden: int | None = None  # the place of an example that batches leave out

    def __post_init__(self) -> None:
        if self.x.dtype != torch.uint8 and not self.x.is_floating_point():
            raise CourseError(f"Images are {self.x.dtype}; they must be bytes (uint8) or floats in "
                              "[0, 1].")
        if self.x.is_floating_point() and self.x.numel() and not (self.x.min() >= 0
                and self.x.max() <= 1):
            raise CourseError(f"Images must lie in [0, 1]; these span {self.x.min():g} to "
                              f"{self.x.max():g}. Divide by the largest value.")
        if self.y.dtype != torch.int64 or self.y.shape != self.x.shape[:1]:
            raise CourseError(f"{len(self.x)} images need {len(self.x)} labels of type int64; "
                              f"given: {self.y.dtype} {tuple(self.y.shape)}.")
        if len(self.y) and not 0 <= int(self.y.min()) <= int(self.y.max()) < len(self.classes):
            raise CourseError(
                f"Labels run from {self.y.min()} to {self.y.max()}, "
                f"but there are {len(self.classes)} classes (0 to {len(self.classes) - 1})."
            )

    def __len__(self) -> int:
        return len(self.y) - (self.hidden is not None)

    def images(self, index: Any = slice(None)) -> Tensor:
        """The images at `index` as floats in [0, 1]."""
        x = self.x[index]
        return x.float() / 255 if x.dtype == torch.uint8 else x

    def take(self, index: Any) -> Split:
        """A new split of the examples at `index` (a tensor of places, a mask or a slice)."""
        return Split(self.x[index], self.y[index], self.classes,
                     {k: g[index] for k, g in self.groups.items()})

    def masked(self, i: int) -> Split:
        """The same split in the same order, with one example gone: for leave-one-out in pairs."""
        if not 0 <= i < len(self.y):
            raise CourseError(f"There is no example {i}; this split holds {len(self.y)}, from 0.")
        return Split(self.x, self.y, self.classes, self.groups, hidden=i)

    def per_class(self, n: int) -> Split:
        """The first n examples of each class."""
        places = [torch.nonzero(self.y == c).flatten()[: whole(n, "n", 1)]
                  for c in range(len(self.classes))]
        return self.take(torch.cat(places).sort().values)

    def digest(self) -> str:
        """sha256 of the images, the labels and the class names."""
        h = hashlib.sha256(json.dumps([list(self.x.shape), str(self.x.dtype), list(self.classes),
                                       self.hidden]).encode())
        for part in (self.x, self.y):
            h.update(part.contiguous().numpy().tobytes())
        return h.hexdigest()


@dataclass(frozen=True)
class Dataset:
    """Train, validation and test splits. The training part is read when it is first asked for."""

    name: str
    classes: tuple[str, ...]
    test: Split
    training: Callable[[], tuple[Split, Split]] = field(repr=False)

    @cached_property
    def _halves(self) -> tuple[Split, Split]:
        return self.training()

    @property
    def train(self) -> Split:
        return self._halves[0]

    @property
    def val(self) -> Split:
        return self._halves[1]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.test.groups)

    def mapped(self, change: Callable[[Split], Split]) -> Dataset:
        """The same change made to each split."""
        test = change(self.test)
        return Dataset(self.name, test.classes, test,
                       lambda: (change(self.train), change(self.val)))

    def whole(self) -> Dataset:
        """Validation examples join the training set (and are still there to look at): the report's
        Experiment 1."""

        def joined() -> tuple[Split, Split]:
            t, v = self.train, self.val
            groups = {k: torch.cat([t.groups[k], v.groups[k]]) for k in t.groups}
            return Split(torch.cat([t.x, v.x]), torch.cat([t.y, v.y]), t.classes, groups), v

        return Dataset(self.name, self.classes, self.test, joined)

    def without(self, classes: Iterable[int | str]) -> Dataset:
        """The data set with some classes gone and the others renumbered in order."""
        gone = {c if isinstance(c, int) else self.classes.index(pick({n: n for n in self.classes},
            c, "class")) for c in classes}
        left = [c for c in range(len(self.classes)) if c not in gone]
        if len(left) < 2 or not gone <= set(range(len(self.classes))):
            raise CourseError(
                f"Cannot leave out {sorted(gone)} of {len(self.classes)} classes (0 to "
                f"{len(self.classes) - 1}); "
                "two must be left."
            )
        number = torch.full((len(self.classes),), -1)
        number[left] = torch.arange(len(left))

        def change(split: Split) -> Split:
            kept = split.take(number[split.y] >= 0)
            return Split(kept.x, number[kept.y], tuple(self.classes[c] for c in left), kept.groups)

        return self.mapped(change)


def batches(split: Split, size: int, generator: torch.Generator
            | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [0, 1], labels) of `size` examples, shuffled when there is a generator.

    A hidden example leaves a gap in its own batch; every other batch stays as it was.
    """
    n = len(split.y)
    order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
    for places in order.split(whole(size, "batch size", 1)):
        if split.hidden is not None:
            places = places[places != split.hidden]
        if len(places):
            yield split.images(places), split.y[places]


def stratified(y: Tensor, seed: int) -> Tensor:
    """A seeded order of the examples in which every beginning holds the classes in their
    proportions."""
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(whole(seed, "seed",
        0)))
    share = torch.empty(len(y), dtype=torch.float64)
    for c in y.unique():
        mine = torch.nonzero(y[shuffled] == c).flatten()
        share[mine] = (torch.arange(len(mine), dtype=torch.float64) + 0.5) / len(mine)
    return shuffled[share.argsort(stable=True)]


def halves(pool: Split, limit: int | None, seed: int) -> tuple[Split, Split]:
    """80 % to train on, 20 % to validate on; `limit` keeps the beginning of both."""
    order = stratified(pool.y, seed)
    cut = round(TRAIN_SHARE * len(order))
    n = len(order) if limit is None else limit
    n_train = round(TRAIN_SHARE * n)
    return pool.take(order[:cut][:n_train]), pool.take(order[cut:][: n - n_train])


# ------------------------------------------------------------------------------------------------ Fashion-MNIST

FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker",
           "Bag", "Ankle boot")
FASHION_MD5 = {  # of the four files' uncompressed content, as published
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}


def fashion_mnist(root: str | os.PathLike[str] | None, limit: int | None, seed: int) -> Dataset:
    """Fashion-MNIST at 32 x 32. Embedded: all 10,000 test images and 6,000 training images,
    stratified."""
    folder = _named_folder(root)
    small = EMBEDDED / "fashion-mnist"
    most, _ = contents(small)

    def training() -> tuple[Split, Split]:
        if folder is None and limit is not None and limit <= most:
            return embedded_halves(_fashion_part(small, "train", small), limit, seed, most)
        place = folder or _fashion_full(most)
        return halves(_fashion_part(place, "train"), limit, seed)

    test = _fashion_part(folder, "t10k") if folder else _fashion_part(small, "t10k", small)
    return Dataset("fashion-mnist", FASHION, test, training)


def embedded_halves(pool: Split, limit: int, seed: int, most: int) -> tuple[Split, Split]:
    """With seed 0 the embedded images split as they do in the full set: no validation image was
    ever trained on."""
    if seed:
        return halves(pool, limit, seed)
    cut, n_train = round(TRAIN_SHARE * most), round(TRAIN_SHARE * limit)
    return pool.take(slice(0, n_train)), pool.take(slice(cut, cut + limit - n_train))


def _named_folder(root: str | os.PathLike[str] | None) -> Path | None:
    named = root or os.environ.get("COURSE_DATA")
    if not named:
        return None
    for place in (Path(named), Path(named) / "fashion-mnist", Path(named) / "FashionMNIST" / "raw"):
        missing = [n for n in FASHION_MD5 if find_file(place, n) is None]
        if not missing:
            return place
        if len(missing) < len(FASHION_MD5):
            raise CourseError(
                f"{place} holds only some of Fashion-MNIST's four files; missing: "
                f"{', '.join(missing)} (or the same with .gz)."
            )
    raise CourseError(f"{named} does not hold Fashion-MNIST. Put its four files there: "
                      f"{', '.join(FASHION_MD5)} (or the same with .gz).")


def _fashion_full(most: int) -> Path:
    """The folder of the course's cache that holds the full set, filled by torchvision when it is
    not there."""
    for place in (cache_dir() / "fashion-mnist", cache_dir() / "FashionMNIST" / "raw"):
        if all(find_file(place, n) for n in FASHION_MD5):
            return place
    try:
        source = torchvision_datasets()
        with locked(cache_dir()):  # of several processes one downloads
            source.FashionMNIST(cache_dir(), download=True)
    except (OSError, RuntimeError) as e:
        raise CourseError(
            "Fashion-MNIST's 60,000 training images are not on this machine and could not be "
            f"downloaded ({e}). Connect to the internet, "
            "name a folder that holds them (root=... or COURSE_DATA), or ask for at most the "
            f"{most:,} embedded ones: limit={most}."
        ) from None
    return cache_dir() / "FashionMNIST" / "raw"


def _fashion_part(place: Path, part: str, hashes: Path | None = None) -> Split:
    """Read, verify and resize the train or t10k files of a folder."""
    images, labels = (_read_idx(place, f"{part}-{kind}-ubyte", hashes)
                      for kind in ("images-idx3", "labels-idx1"))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise CourseError(f"{place}: {part} holds images of shape {images.shape} and labels of "
                          f"shape {labels.shape}; they do not match.")
    return Split(resize(images, 32), torch.from_numpy(labels.astype(np.int64)), FASHION)


def resize(images: np.ndarray, size: int) -> Tensor:
    """Grey images [N, H, W] to [N, 1, size, size] with Pillow's bilinear filter: the bytes of
    torchvision's Resize."""
    from PIL import Image

    out = np.empty((len(images), 1, size, size), np.uint8)
    for i, image in enumerate(images):
        out[i, 0] = np.asarray(Image.fromarray(image).resize((size, size),
            Image.Resampling.BILINEAR))
    return torch.from_numpy(out)


def contents(folder: Path) -> tuple[int, dict[str, str]]:
    """What an embedded data set says of itself: how many training images there are, and each file's
    sha256."""
    path = folder / "contents.json"
    try:
        content = json.loads(path.read_text())
        return int(content["training_images"]), dict(content["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise CourseError(f"{path} is missing or damaged ({type(e).__name__}: {e}). Reinstall the "
                          "course.") from None


def find_file(place: Path, name: str) -> Path | None:
    return next((p for p in (place / name, place / f"{name}.gz") if p.is_file()), None)


def _read_idx(place: Path, name: str, hashes: Path | None) -> np.ndarray:
    """An IDX file, checked against its published md5 (or, embedded, its sha256) before it is
    believed."""
    path = find_file(place, name)
    if path is None:
        raise CourseError(f"{place / name} is not there. Reinstall the course, or name another "
                          "data folder.")
    raw = path.read_bytes()
    if hashes is not None:
        want, have = contents(hashes)[1].get(path.name), hashlib.sha256(raw).hexdigest()
    try:
        body = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, ValueError, zlib.error) as e:
        raise CourseError(f"{path} is damaged ({e}). Delete it and fetch it again, or reinstall "
                          "the course.") from None
    if hashes is None:
        want, have = FASHION_MD5[name], hashlib.md5(body, usedforsecurity=False).hexdigest()
    if want != have:
        raise CourseError(f"{path} is not the published file: its hash is {have}, not {want}. "
                          "Delete it and fetch it again.")
    dims = np.frombuffer(body, ">i4", count=body[3], offset=4)
    return np.frombuffer(body, np.uint8, offset=4 + 4 * body[3]).reshape(dims)


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
        sys.modules["torchvision._meta_registrations"] = types.ModuleType(
            "torchvision._meta_registrations")
        import torchvision.datasets as datasets
    return datasets


LOADERS: dict[str, Callable[[str | os.PathLike[str] | None, int | None, int],
                            Dataset]] = {"fashion-mnist": fashion_mnist}


def load(name: str, *, root: str | os.PathLike[str] | None = None, limit: int | None = None,
         seed: int = 0) -> Dataset:
    """A data set by name. `limit` bounds the training examples (train + validation) and may be
    small enough to be embedded.

    >>> data = load("fashion-mnist", limit=1000)
    >>> len(data.train), len(data.val), len(data.test)
    (800, 200, 10000)
    """
    make = pick(LOADERS, name, "data set")
    if limit is not None:
        whole(limit, "limit", 1)
    return make(root, limit, whole(seed, "seed", 0))
