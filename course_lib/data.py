"""Data sets by name, as seeded, stratified splits of tensors in memory.

Images stay bytes (uint8) until `batches` serves them as floats in [0, 1]. A loader serves embedded
images where they suffice, and a smaller set only with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.errors import CourseError, integer, pick, resolve, several
from course_lib.inference import check_images

EMBEDDED = Path(__file__).parent / "datasets" / "embedded"

# A loader is a function of (root, limit, seed), or the "module:name" of one, imported when used.
LOADERS: dict[str, str | Callable[..., Dataset]] = {
    "fashion-mnist": "course_lib.datasets.fashion_mnist:load_fashion_mnist",
    "cifar10": "course_lib.datasets.cifar10:load_cifar10",
    "adult": "course_lib.datasets.adult:load_adult",
    "cifar100": "course_lib.datasets.torchvision_sets:load_cifar100",
    "svhn": "course_lib.datasets.torchvision_sets:load_svhn",
    "imagenette": "course_lib.datasets.torchvision_sets:load_imagenette",
}


def load(name: str, *, root: str | os.PathLike[str] | None = None, limit: int | None = None,
         seed: int = 0) -> Dataset:
    """A data set by name, from the files in the folder `root`, the course's cache, or a download.

    `limit` is how many examples to train (80 %) and validate (20 %) on. The stored models
    were trained with seed 0: the `val` of another seed holds images that they have seen.

    >>> data = load("fashion-mnist", limit=1000)
    >>> len(data.train), len(data.val), len(data.test)
    (800, 200, 10000)
    """
    data: Dataset = resolve(pick(LOADERS, name, "data set"))(
        root, None if limit is None else integer(limit, "limit", 1), integer(seed, "seed", 0))
    return data


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test splits. The first two are read when one of them is needed."""

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

    def whole(self) -> Dataset:
        """With the validation examples in the training split, too, as in Experiment 1."""
        return replace(self, training=lambda: (self.train.joined(self.val), self.val))

    def without(self, classes: int | str | Sequence[int | str]) -> Dataset:
        """The data set without these classes (names or numbers); the rest is numbered anew."""
        n, numbers = len(self.classes), {name: c for c, name in enumerate(self.classes)}
        gone = {int(c) if isinstance(c, Integral) else pick(numbers, c, "class")
                for c in several(classes)}
        rest = [c for c in range(n) if c not in gone]
        if len(rest) < 2 or not gone <= set(range(n)):
            raise CourseError(f"Cannot leave out {sorted(gone)} of {n} classes (0 to {n - 1}); two "
                              "must be left.")
        new = torch.full((n,), -1)
        new[rest] = torch.arange(len(rest))

        def change(split: Split) -> Split:
            part = split.take(new[split.y] >= 0)
            return replace(part, y=new[part.y], classes=tuple(self.classes[c] for c in rest))

        test = change(self.test)
        return replace(self, classes=test.classes, test=test,
                       training=lambda: (change(self.train), change(self.val)))


@dataclass(frozen=True)
class Split:
    """Examples and their labels: x [N, C, H, W] as bytes or floats in [0, 1], y [N]. `groups` gives
    each example's number in every named group, for example Adult's "gender"."""

    x: Tensor
    y: Tensor
    classes: tuple[str, ...]
    groups: Mapping[str, Tensor] = field(default_factory=dict)
    hidden: int | None = None  # the place of an example that batches leave out

    @classmethod
    def of(cls, given: Any, y: Any = None, *, classes: Sequence[str] | None = None) -> Split:
        """A split of what you have: images and labels (tensors, NumPy, lists), a pair of them, a
        torch Dataset or a DataLoader. A split is returned as it is.

        >>> Split.of(torch.zeros(2, 28, 28, dtype=torch.uint8), [0, 1]).images().shape
        torch.Size([2, 1, 28, 28])
        """
        if isinstance(given, Split) and y is None and classes is None:
            return given
        return cls(*resolve("course_lib.datasets.own:examples")(given, y, classes))

    def __post_init__(self) -> None:
        check_images(self.x, self.y, stored=True)
        if len(self.y) and self.y.max() >= len(self.classes):
            raise CourseError(f"Labels run to {self.y.max()}, but there are {len(self.classes)} "
                              "classes, numbered from 0.")

    def __len__(self) -> int:
        return len(self.y) - (self.hidden is not None)

    def images(self, index: Any = slice(None)) -> Tensor:
        """The images at `index` as floats in [0, 1]."""
        x = self.x[index]
        return x.float() / 255 if x.dtype == torch.uint8 else x

    def take(self, index: Any) -> Split:
        """The examples at `index` (places, a mask or a slice), without a hidden one."""
        if self.hidden is not None:
            index = torch.arange(len(self.y))[index]
            index = index[index != self.hidden]
        return Split(self.x[index], self.y[index], self.classes,
                     {k: g[index] for k, g in self.groups.items()})

    def joined(self, other: Split) -> Split:
        """The examples of both splits, without a hidden one."""
        if other.classes != self.classes:
            raise CourseError("Only splits of the same classes, in one order, can be joined.")
        parts = self.take(slice(None)), other.take(slice(None))
        return Split(torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts]), self.classes,
                     {k: torch.cat([p.groups[k] for p in parts]) for k in self.groups})

    def masked(self, i: int) -> Split:
        """The same split in the same order without example i, for paired leave-one-out."""
        if self.hidden is not None or not isinstance(i, Integral) or i not in range(len(self)):
            raise CourseError(f"There is no example {i!r:.100} to hide; this split holds "
                              f"{len(self.y)}, and hides at most one.")
        return replace(self, hidden=int(i))

    def per_class(self, n: int) -> Split:
        """The first n examples of each class, which must have as many."""
        rest = self.take(slice(None))
        places = [torch.nonzero(rest.y == c).flatten() for c in range(len(self.classes))]
        if integer(n, "n", 1) > (least := min(map(len, places), default=0)):
            raise CourseError(f"{n:,} examples of each class were asked for; the smallest class has"
                              f" {least:,} here. Ask for fewer.")
        return rest.take(torch.cat([of_class[:n] for of_class in places]).sort().values)

    def digest(self) -> str:
        """sha256 of the images, the labels and the class names."""
        h = hashlib.sha256(json.dumps([list(self.x.shape), str(self.x.dtype), list(self.classes),
                                       self.hidden]).encode())
        for part in (self.x, self.y):
            h.update(part.contiguous().numpy().tobytes())
        return h.hexdigest()


def batches(split: Split, size: int,
            generator: torch.Generator | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields (images in [0, 1], labels) of `size` examples, shuffled when there is a generator. A
    hidden example leaves a gap in its own batch; every other batch stays as it was."""
    n = len(split.y)
    order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
    for places in order.split(integer(size, "batch size", 1)):
        if split.hidden is not None:
            places = places[places != split.hidden]
        if len(places):
            yield split.images(places), split.y[places]


# A change of a training batch x [N, C, H, W] that draws from a generator, as in LOADERS.
AUGMENTATIONS: dict[str, str | Callable[[Tensor, torch.Generator], Tensor]] = {
    "": lambda x, generator: x, "crop-flip": "course_lib.datasets.cifar10:crop_flip"}
