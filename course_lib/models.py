"""Networks by name. Each takes images in [0, 1], normalises them inside, and returns logits."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.errors import integer, pick, resolve

LAYOUT = torch.channels_last  # of images inside convolutional networks; it is fast on a CPU


def scaled(x: Tensor) -> Tensor:
    """Images in [0, 1] as they enter a network, from -1 to 1. Weights keep their usual layout."""
    return (2 * x - 1).contiguous(memory_format=LAYOUT)


class LeNet5(nn.Module):
    """The LeNet-5 of the reproduction report, with tanh and average pooling: 61,706 parameters."""

    def __init__(self, classes: int = 10, channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, 32, 32]
        from course_lib.machine import kernels

        if (kernel := kernels()) and kernel.serves(self, x):
            return kernel.logits(self, x)  # the lines below, several times as fast on a CPU
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)  # [B, 6, 14, 14]
        x = F.avg_pool2d(torch.tanh(self.conv2(x)), 2)  # [B, 16, 5, 5]
        x = torch.tanh(self.conv3(x)).flatten(1)  # [B, 120]
        x = torch.tanh(self.fc1(x))  # [B, 84]
        return self.fc2(x)  # [B, classes]


class SmallCNN(nn.Module):
    """The CIFAR-10 network of Sooksatra and Rivas, whose widths are ours."""

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * (size // 4) ** 2, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, S, S]
        x = F.max_pool2d(torch.relu(self.conv1(scaled(x))), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))  # [B, classes]


class TableMLP(nn.Module):
    """The Adult network of Sooksatra and Rivas: four tanh layers, whose width is ours."""

    def __init__(self, classes: int = 2, features: int = 14, width: int = 64) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(n, width) for n in (features, *[width] * 3))
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, features]
        x = 2 * x - 1
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)  # [B, classes]


def _conv(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def relu_of_norm(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """relu(norm(x)), and x itself for the path beside it: one kernel computes both gradients."""
    kernel = resolve("course_lib.machine:kernels")()
    return kernel.relu_of_norm(norm, x) if kernel else (torch.relu(norm(x)), x)


class ResNet18(nn.Module):
    """torchvision's ResNet18 (He et al., CVPR 2016), with a 3 x 3 stem for small images."""

    def __init__(self, classes: int = 10, channels: int = 3, large: bool = False) -> None:
        super().__init__()
        resolve("course_lib.datasets.sources:torchvision_datasets")()  # so any torch imports it
        from torchvision.models import resnet18

        self.net = resnet18(num_classes=classes)
        if not large:
            self.net.conv1, self.net.maxpool = _conv(channels, 64), nn.Identity()
        elif channels != 3:
            self.net.conv1 = _conv(channels, 64, 7, 2)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return self.net(scaled(x))  # [B, classes]


class Block(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))); where the shape changes, a 1 x 1 convolution of
    relu(bn(x)) takes the place of x."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside), _conv(inside, outside, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), _conv(outside, outside)
        same = inside == outside and stride == 1
        self.shortcut = None if same else _conv(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        a, x = relu_of_norm(self.bn1, x)
        x = x if self.shortcut is None else self.shortcut(a)
        return x + self.conv2(relu_of_norm(self.bn2, self.conv1(a))[0])


class PreActResNet(nn.Module):
    """Stages of `depth` pre-activated blocks (He et al., ECCV 2016) with `widths` channels, on a
    first convolution with `stem` channels. All stages but the first halve the image."""

    def __init__(self, stem: int, widths: tuple[int, ...], depth: int, /, classes: int = 10,
                 channels: int = 3, large: bool = False) -> None:
        super().__init__()
        # drawn for the small stem, too: the initial weights of stored models depend on it
        seven = nn.Sequential(_conv(channels, stem, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.first = seven if large else _conv(channels, stem)
        blocks, inside = [], stem
        for i, width in enumerate(widths):
            for j in range(depth):
                blocks.append(Block(inside, width, 2 if i and not j else 1))
                inside = width
        self.blocks, self.bn = nn.Sequential(*blocks), nn.BatchNorm2d(inside)
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        x, _ = relu_of_norm(self.bn, self.blocks(self.first(scaled(x))))
        return self.fc(x.mean((2, 3)))  # [B, classes]


PREACT18 = partial(PreActResNet, 64, (64, 128, 256, 512), 2)
WIDE28 = partial(PreActResNet, 16, (160, 320, 640), 4)  # Zagoruyko and Komodakis, BMVC 2016
MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5, "small_cnn": SmallCNN, "table_mlp": TableMLP,
    "resnet18": ResNet18, "preact_resnet18": PREACT18,  # 11,173,962 and 11,172,170 parameters
    "preact_resnet_s": partial(PreActResNet, 16, (16, 32, 64), 2),  # 175,066, for a CPU
    "wide_resnet28x10": WIDE28,  # 36,479,194
    # with ImageNet's stem, for images of 160 pixels and more
    "resnet18_imagenet": partial(ResNet18, large=True),
    "preact_resnet18_imagenet": partial(PREACT18, large=True),
    "wide_resnet28x10_imagenet": partial(WIDE28, large=True),
}
# initial weights are drawn from PyTorch's one global generator: one thread at a time
_SEEDING = threading.Lock()


def build(name: str, *, seed: int = 0, **shape: Any) -> nn.Module:
    """A freshly initialised network, the same for the same `seed`. `shape` is what the network
    takes, such as classes= and channels=. The global random state stays as it was.

    >>> sum(p.numel() for p in build("lenet5").parameters())
    61706
    """
    make = pick(MODELS, name, "model")
    shape = resolve("course_lib.judge.kinds:check_shape")(name, make, shape)
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(integer(seed, "seed", 0))  # no GPU's
        model = make(**shape)
    vars(model)["_built"] = (name, shape)  # for save_model
    return model
