"""Random changes to the images of a training batch, by name; what is drawn comes from the batch's
own generator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.errors import CourseError, pick

PADDING = 4  # pixels


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """The usual crop and flip of CIFAR: four black pixels around, a window of the old size anywhere
    in it, mirrored half of the time."""
    n, _, height, width = x.shape
    down, right = torch.randint(0, 2 * PADDING + 1, (2, n, 1), generator=generator)
    mirrored = torch.rand(n, 1, generator=generator) < 0.5
    columns = torch.arange(width).expand(n, -1)
    rows, columns = down + torch.arange(height), right + torch.where(mirrored, columns.flip(1),
        columns)
    padded = F.pad(x, [PADDING] * 4)
    # [N, H, W, C]
    picked = padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"": lambda x, g: x,
    "crop-flip": crop_flip}


def augment(x: Tensor, generator: torch.Generator, kind: str) -> Tensor:
    """The batch x [N, C, H, W] changed as `kind` says, the same for the same generator; "" leaves
    it as it is.

    >>> augment(torch.rand(2, 3, 32, 32), torch.Generator().manual_seed(0), "crop-flip").shape
    torch.Size([2, 3, 32, 32])
    """
    change = pick(AUGMENTATIONS, kind, "augmentation")
    if kind and x.ndim != 4:
        raise CourseError(f"Augmentation {kind!r} is for images [N, C, H, W]; these have the shape "
                          f"{tuple(x.shape)}. Leave it out.")
    return change(x, generator)
