"""Residual networks for pictures of any size: the papers' three, and one that two processor cores
can train.
 Each has a twin with ImageNet's stem (a 7 x 7 convolution of stride 2 and max-pooling) for pictures
of 160 pixels and more. Pictures are scaled to [-1, 1] inside, and laid channels last: up to twice
as fast on a CPU, and what a GPU's half-precision convolutions want. Weights lie as they always do,
so checkpoints do not depend on it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from course_lib.models import MODELS
from course_lib.native import relu_of_norm


def _conv(inside: int, outside: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class _Pictures(nn.Module):
    """What the networks here share: pictures in [0, 1] come in, and are scaled and laid for the
    convolutions."""

    large = False  # ImageNet's stem?
    memory_format = torch.channels_last

    def scaled(self, x: Tensor) -> Tensor:
        return (2 * x - 1).contiguous(memory_format=self.memory_format)


class ResNet18(_Pictures):
    """torchvision's ResNet18 (He et al., CVPR 2016); for small pictures with a 3 x 3 stem,
    11,173,962 parameters for ten classes."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        from course_lib.datasets.sources import torchvision_datasets

        # which makes torchvision importable where it does not fit this torch
        torchvision_datasets()
        from torchvision.models import resnet18

        self.net = resnet18(num_classes=classes)
        if not self.large:
            self.net.conv1, self.net.maxpool = _conv(channels, 64), nn.Identity()
        elif channels != 3:
            self.net.conv1 = _conv(channels, 64, 7, 2)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        return self.net(self.scaled(x))  # [B, classes]


class Block(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))); where the shape changes, x comes through a 1 x 1
    convolution of relu(bn(x))."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inside), _conv(inside, outside, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outside), _conv(outside, outside)
        self.shortcut = None if inside == outside and stride == 1 else _conv(inside, outside, 1,
            stride)

    def forward(self, x: Tensor) -> Tensor:
        a, x = relu_of_norm(self.bn1, x)
        x = x if self.shortcut is None else self.shortcut(a)
        return x + self.conv2(relu_of_norm(self.bn2, self.conv1(a))[0])


class PreActResNet(_Pictures):
    """Stages of pre-activated blocks (He et al., ECCV 2016); the second and every later stage
    halves the picture."""

    stem: int = 64  # channels of the first convolution
    widths: tuple[int, ...] = (64, 128, 256, 512)  # and of each stage
    depth: int = 2  # blocks a stage

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        large = nn.Sequential(_conv(channels, self.stem, 7, 2), nn.MaxPool2d(3, 2, 1))
        self.first = large if self.large else _conv(channels, self.stem)
        stages, inside = [], self.stem
        for i, width in enumerate(self.widths):
            for j in range(self.depth):
                stages.append(Block(inside, width, 2 if i and not j else 1))
                inside = width
        self.blocks, self.bn, self.fc = nn.Sequential(*stages), nn.BatchNorm2d(inside), nn.Linear(
            inside, classes)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W]
        # [B, last width, h, w]
        x, _ = relu_of_norm(self.bn, self.blocks(self.first(self.scaled(x))))
        return self.fc(x.mean((2, 3)))  # [B, classes]


class PreActResNet18(PreActResNet):
    """11,172,170 parameters for ten classes."""


class WideResNet28x10(PreActResNet):
    """Wide residual network of 28 layers, ten times as wide (Zagoruyko and Komodakis, BMVC 2016):
    36,479,194 parameters for ten classes."""

    stem, widths, depth = 16, (160, 320, 640), 4


class PreActResNetS(PreActResNet):
    """Widths 16, 32, 64 and two blocks a stage: 175,066 parameters for ten classes, for machines
    without a GPU."""

    stem, widths, depth = 16, (16, 32, 64), 2


class ResNet18ImageNet(ResNet18):
    """torchvision's ResNet18 as it is: 11,689,512 parameters for a thousand classes."""

    large = True


class PreActResNet18ImageNet(PreActResNet18):
    large = True


class WideResNet28x10ImageNet(WideResNet28x10):
    large = True


MODELS.update({
    "resnet18": ResNet18, "preact_resnet18": PreActResNet18, "wide_resnet28x10": WideResNet28x10,
    "preact_resnet_s": PreActResNetS,
    "resnet18_imagenet": ResNet18ImageNet, "preact_resnet18_imagenet": PreActResNet18ImageNet,
    "wide_resnet28x10_imagenet": WideResNet28x10ImageNet,
})
