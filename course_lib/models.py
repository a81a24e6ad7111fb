"""Networks by name. Each takes images in [0, 1] (normalisation, where there is one, lives inside)
and returns logits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import native
from course_lib.errors import CourseError, pick, whole


class LeNet5(nn.Module):
    """The LeNet-5 of the reproduction report: tanh, average pooling, 61,706 parameters for ten
    classes."""

    # on the CPU course_lib.native computes this class, though not a subclass, which may differ
    kernel = "lenet5"

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
        x = tanh_pool(self.conv1, x)  # [B, 6, 14, 14]
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)  # [B, 16, 5, 5]
        x = torch.tanh(self.conv3(x)).flatten(1)  # [B, 120]
        x = torch.tanh(self.fc1(x))  # [B, 84]
        return self.fc2(x)  # [B, classes]


def tanh_pool(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """avg_pool2d(tanh(conv(x)), 2) for a 5 x 5 convolution of few channels, in half of PyTorch's
    time on a CPU.

    Its convolutions are slow where there are fewer channels than a register has lanes. So the four
    sums of a pooling window become four output channels, each 2 x 2 block of the image four input
    channels, and the 5 x 5 kernel, in its four places, a 6 x 6 one: 3 x 3 blocks.
    """
    if not native.untouched(conv, x):
        return F.avg_pool2d(torch.tanh(conv(x)), 2)
    w, (out, channels) = conv.weight, conv.weight.shape[:2]
    # [out, 4, channels, 6, 6]
    places = torch.stack([F.pad(w, (j, 1 - j, i, 1 - i)) for i in (0, 1) for j in (0, 1)], 1)
    blocks = places.reshape(4 * out, channels, 3, 2, 3, 2).permute(0, 1, 3, 5, 2,
        4).reshape(4 * out, 4 * channels, 3, 3)
    bias = None if conv.bias is None else conv.bias.repeat_interleave(4)
    sums = F.conv2d(F.pixel_unshuffle(x, 2), blocks, bias)  # [B, 4 out, H / 2 - 2, W / 2 - 2]
    return torch.tanh(sums).unflatten(1, (out, 4)).mean(2)


class SmallCNN(nn.Module):
    """Two convolutions with max-pooling and two dense layers: the CIFAR-10 network of Sooksatra and
    Rivas, whose widths are ours."""

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (size // 4) ** 2, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, S, S]
        x = (2 * x - 1).contiguous(memory_format=torch.channels_last)  # a third faster on a CPU
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))  # [B, classes]


class TableMLP(nn.Module):
    """Four tanh layers: the Adult network of Sooksatra and Rivas, whose width is ours."""

    def __init__(self, classes: int = 2, features: int = 14, width: int = 64) -> None:
        super().__init__()
        sizes = (features, width, width, width, width)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, features]
        x = 2 * x - 1
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)  # [B, classes]


class Accelerated(nn.Module):
    """Another model with its arithmetic in bfloat16, compiled, or both. It shares that model's
    parameters; logits are float32.

    bfloat16 has three significant digits: good enough to attack with and, on GPUs, to train with;
    for figures that are published evaluate without. Compiling takes a minute, and on a GPU makes
    one CUDA graph of the many small operations that a small network waits for.

    >>> from course_lib.models import Accelerated, build
    >>> Accelerated(build("lenet5"), bf16=True)(torch.rand(2, 1, 32, 32)).dtype
    torch.float32
    """

    run: Callable[[Tensor], Tensor]

    def __init__(self, model: nn.Module, *, bf16: bool = False, compiled: bool = False) -> None:
        super().__init__()
        self.model, self.bf16 = model, bf16
        on_gpu = next((p.device.type == "cuda" for p in model.parameters()), False)
        run = torch.compile(model, mode="reduce-overhead" if on_gpu
                            else None) if compiled else model
        # not a part of its own: the parameters would be counted twice
        object.__setattr__(self, "run", run)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            return self.run(x).float()


# initialisation draws from PyTorch's one global generator: one thread at a time
_SEEDING = threading.Lock()
MODELS: dict[str, Callable[..., nn.Module]] = {"lenet5": LeNet5, "small_cnn": SmallCNN,
                                               "table_mlp": TableMLP}


def build(name: str, *, seed: int = 0, **shape: int) -> nn.Module:
    """A freshly initialised network, the same for the same `seed`; the caller's random state is
    left alone.

    >>> sum(p.numel() for p in build("lenet5").parameters())
    61706
    """
    make = pick(MODELS, name, "model")
    for word, value in shape.items():
        whole(value, f"{word} of {name}", 2 if word == "classes" else 1)
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(whole(seed, "seed", 0))
        try:
            return make(**shape)
        except TypeError:
            takes = ", ".join(f"{word}=" for word in inspect.signature(make).parameters)
            raise CourseError(f"{name} cannot be built with {', '.join(sorted(shape))}; it takes "
                              f"{takes}.") from None
