"""Networks by name. Each takes images in [0, 1] (normalisation, where there is one, lives inside) and returns logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import native
from course_lib.errors import CourseError, pick, whole


class LeNet5(nn.Module):
    """The LeNet-5 of the reproduction report: tanh, average pooling, 61,706 parameters for ten classes."""

    kernel = "lenet5"  # on the CPU course_lib.native computes this class, though not a subclass, which may differ

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, 32, 32]
        if native.serves(self, x):
            return native.logits(self, x)  # the same as the lines below
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)  # [B, 6, 14, 14]
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)  # [B, 16, 5, 5]
        x = torch.tanh(self.conv3(x)).flatten(1)  # [B, 120]
        x = torch.tanh(self.fc1(x))  # [B, 84]
        return self.fc2(x)  # [B, classes]


MODELS: dict[str, Callable[..., nn.Module]] = {"lenet5": LeNet5}


def build(name: str, *, seed: int = 0, **shape: int) -> nn.Module:
    """A freshly initialised network, the same for the same `seed`; the caller's random state is left alone.

    >>> sum(p.numel() for p in build("lenet5").parameters())
    61706
    """
    make = pick(MODELS, name, "model")
    for word, value in shape.items():
        whole(value, f"{word} of {name}", 2 if word == "classes" else 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(whole(seed, "seed", 0))
        try:
            return make(**shape)
        except TypeError:
            words = ", ".join(sorted(shape))
            raise CourseError(f"{name} cannot be built with {words}; it takes classes= and channels=.") from None
