"""What people have, as images, labels and class names: the work behind `Split.of`."""

from collections.abc import Iterable, Mapping, Set
from operator import length_hint
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from course_lib.errors import CourseError

MOST = 10_000  # classes that are numbered unasked
CHANNELS = (1, 3, 4)  # grey, colours, and colours with transparency
GIVE = ("Give images and labels (tensors, NumPy arrays or lists), a pair (x, y) of them, a torch "
        "Dataset of (image, label), a DataLoader of (images, labels), or a split of a data set of "
        "the course, such as data.test.")


def examples(given: Any, y: Any, classes: Any) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """x [N, C, H, W] or [N, F] as bytes or float32, y [N], and the names of the classes: those
    given, those of a torch Dataset, or "0", "1" and so on."""
    known = getattr(getattr(given, "dataset", given), "classes", None)
    if y is None:
        pair = isinstance(given, tuple | list) and len(given) == 2
        given, y = given if pair and not isinstance(given[0], tuple) else collected(given)
    x, y = in_order(numbers(given)), numbers(y)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.is_complex() or not y.numel() or not (
            (y == y.long()) & (y >= 0) & (y.long() < MOST)).all():  # 10,000 is no byte
        raise CourseError("Labels must number the classes from 0, one per image; these have shape "
                          f"{tuple(y.shape)}, first {y.flatten()[:5].tolist()}. Else take "
                          "np.unique(y, return_inverse=True)[1].")
    if classes is None:
        named = isinstance(known, list | tuple) and len(known) > y.max()
        classes = known if named else range(int(y.max()) + 1)
    if (isinstance(classes, str | Set | Mapping) or not hasattr(classes, "__len__")
            or not getattr(classes, "ndim", 1)):
        raise CourseError(f"classes is {classes!r:.100}; give a list with the name of each class.")
    return x, y.long(), tuple(map(str, classes))


def collected(given: Any) -> tuple[Tensor, Tensor]:
    """All images and labels of a torch Dataset or a DataLoader, with a progress bar."""
    kind, pieces = type(given), given
    if isinstance(given, Tensor | np.ndarray):
        pieces = ()
    elif not isinstance(given, Iterable):
        indexed = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
        pieces = (given[i] for i in range(len(given))) if indexed else ()
    xs, ys = [], []
    for piece in tqdm(pieces, total=length_hint(given, 0) or None, desc="reading", delay=2):
        if not (isinstance(piece, tuple | list) and len(piece) == 2):
            raise CourseError(f"A {kind.__name__} of {type(piece).__name__} was given. {GIVE}")
        xs.append(numbers(piece[0]))
        ys.append(numbers(piece[1]))
    if not xs:
        raise CourseError(f"A {kind.__name__} without pairs of images and labels was given. {GIVE}")
    join = torch.cat if isinstance(given, DataLoader) else torch.stack
    try:
        return join(xs), join(ys)
    except RuntimeError as e:
        raise CourseError(f"The images or labels differ in shape ({e}). Bring all to one, such as "
                          "with torchvision's Resize and CenterCrop.") from None


def numbers(given: Any) -> Tensor:
    """A tensor, an array, a picture or lists as a tensor of bytes, int64, float32 or bool."""
    try:
        if isinstance(given, list | tuple) and given and isinstance(given[0], Image.Image | Tensor):
            return torch.stack([numbers(part) for part in given])
        if isinstance(given, Image.Image):  # [H, W] or [H, W, C] to [C, H, W]
            mode = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
            array = np.asarray(given.convert(mode[given.mode]))
            given = np.atleast_3d(array).transpose(2, 0, 1)
        if not isinstance(given, Tensor):
            array = np.asarray(given)
            kind = {"b": bool, "f": np.float64, "u": np.int64, "i": np.int64}[array.dtype.kind]
            given = torch.from_numpy(array.astype(np.uint8 if array.dtype == np.uint8 else kind))
        t = given.detach().cpu().to_dense()
        as_it_is = t.is_complex() or t.dtype in (torch.uint8, torch.bool)
        return t if as_it_is else t.float() if t.is_floating_point() else t.long()
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as e:
        raise CourseError(f"This {type(given).__name__} does not hold numbers of one shape "
                          f"({type(e).__name__}: {e!s:.100}). {GIVE}") from None


def in_order(x: Tensor) -> Tensor:
    """Images [N, H, W], [N, H, W, C] or [N, C, H, W] as [N, C, H, W]; a table [N, F] as it is."""
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[3] in CHANNELS and x.shape[1] not in CHANNELS:
        x = x.permute(0, 3, 1, 2)
    elif x.ndim not in (2, 4):
        raise CourseError(f"Images have the shape {tuple(x.shape)}; give [N, C, H, W], "
                          "[N, H, W, C], [N, H, W], or a table [N, F].")
    if x.dtype == torch.int64 and x.numel() and x.min() >= 0 and 1 < x.max() <= 255:
        x = x.to(torch.uint8)
    if x.dtype == torch.uint8 and x.numel() and x.max() == 1:
        raise CourseError("The images are bytes of 0 and 1, which is nearly black, since 255 is "
                          "white. Give booleans, such as x > 0, or 255 * x.")
    return (x.float() if x.dtype == torch.bool else x).contiguous()
