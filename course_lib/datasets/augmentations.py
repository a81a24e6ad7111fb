"""Random changes to a training batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from course_lib.errors import CourseError

PADDING = 4  # pixels


def crop_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """CIFAR's usual crop and flip: pad each image with four black pixels on every side, cut out a
    window of the old size anywhere, and mirror half of the windows.

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
