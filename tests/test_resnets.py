"""The residual networks: published sizes, blocks by hand, and that memory layout and bfloat16
change nothing but the speed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.attacks import OBJECTIVES, PGD, frozen, predict
from course_lib.data import load
from course_lib.evaluation import evaluate
from course_lib.methods import METHODS
from course_lib.models import MODELS, Accelerated, build
from course_lib.resnets import Block, PreActResNet
from course_lib.training import Optim, fit
from course_lib.zoo import load_model
from tests.helpers import images, left_alone, seeded, split

NETWORKS = [name for name in MODELS if "resnet" in name]
# With ten classes, as published (ImageNet's with a thousand); a 7 x 7 stem of 64 channels has 7,680
# weights more than a 3 x 3 one.
SIZES = {"resnet18": 11_173_962, "preact_resnet18": 11_172_170, "wide_resnet28x10": 36_479_194,
         "preact_resnet_s": 175_066,
         "resnet18_imagenet": 11_689_512, "preact_resnet18_imagenet": 11_172_170 + 7_680,
         "wide_resnet28x10_imagenet": 36_479_194 + 16 * 3 * (49 - 9)}
SMALL = "preact_resnet_s"


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def input_gradient(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with frozen(model):
        z = x.clone().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(model(z), torch.arange(len(x)), reduction="sum"),
                                   z)[0]


def trained_a_little(name: str = SMALL, seed: int = 0) -> nn.Module:
    """After three steps of training batch norm has averages of its own, so that eval mode is
    another function than train mode."""
    model = build(name, seed=seed, classes=3)
    fit(model, METHODS["natural"](), split(24, (3, 8, 8)), epochs=1, optim=Optim(batch=8), seed=0,
        progress=False)
    return model.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_sizes_as_published(name: str) -> None:
    assert size(build(name, classes=1000 if name == "resnet18_imagenet" else 10)) == SIZES[name]


def test_the_small_one_counted_by_hand() -> None:
    # two blocks of two convolutions and two batch norms, of a weight and a bias a channel
    stages = [2 * (2 * 9 * 16 * 16 + 2 * 32)]
    for a, b in ((16, 32), (32, 64)):
        # and the 1 x 1 of the shortcut
        stages.append(9 * a * b + 3 * 9 * b * b + 2 * a + 3 * 2 * b + a * b)
    assert SIZES[SMALL] == 27 * 16 + sum(stages) + 2 * 64 + 65 * 10


@pytest.mark.parametrize("name", NETWORKS)
def test_more_classes_and_channels(name: str) -> None:
    """A class costs a row of the last layer, a channel a slice of the first; nothing else depends
    on them."""
    first, last = {"resnet18": (64, 512), "preact_resnet18": (64, 512),
                   "wide_resnet28x10": (16, 640), SMALL: (16, 64)}[
        name.removesuffix("_imagenet")]
    stem = first * (49 if name.endswith("imagenet") else 9)
    grey = build(name, classes=10, channels=1)
    assert size(build(name, classes=100)) - size(grey) == 90 * (last + 1) + 2 * stem
    assert grey.eval()(images(1, (1, 16, 16))).shape == (1, 10)


@pytest.mark.parametrize(("name", "pixels", "sides"), [
    ("resnet18", 32, [32, 16, 8, 4]), ("resnet18_imagenet", 160, [40, 20, 10, 5]),
    ("preact_resnet18", 32, [32, 16, 8, 4]),
    ("preact_resnet18_imagenet", 160, [40, 20, 10, 5]), ("wide_resnet28x10", 16, [16, 8, 4]),
    (SMALL, 32, [32, 16, 8]),
    (SMALL, 45, [45, 23, 12]),
])
def test_the_picture_shrinks_stage_by_stage(name: str, pixels: int, sides: list[int]) -> None:
    model, seen = build(name, classes=3).eval(), []
    kinds = (Block, *(type(b) for b in [model.net.layer1[0]]
                      if name.startswith("resnet"))) if hasattr(model, "net") else (Block,)
    for module in model.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(lambda m, x, out: seen.append(out.shape[-1]))
    assert model(images(1, (3, pixels, pixels))).shape == (1, 3)
    blocks = 4 if name.startswith("wide") else 2
    assert seen == [side for side in sides for _ in range(blocks)]


def test_resnet18_is_torchvisions() -> None:
    model = build("resnet18_imagenet", classes=7).eval()
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=7).eval()
    theirs.load_state_dict(model.net.state_dict())
    x = images(2, (3, 64, 64))
    torch.testing.assert_close(model(x), theirs(2 * x - 1))


@pytest.mark.parametrize(("inside", "outside", "stride"), [(4, 4, 1), (4, 6, 1), (4, 6, 2)])
def test_a_block_by_hand(inside: int, outside: int, stride: int) -> None:
    block, x = Block(inside, outside, stride).eval(), images(2, (inside, 8, 8)) - 0.5
    with torch.no_grad():
        for bn in (block.bn1, block.bn2):
            bn.running_mean.uniform_(-1, 1), bn.running_var.uniform_(0.5,
                2), bn.weight.uniform_(0.5, 2), bn.bias.uniform_(-1, 1)

    def normal(bn: nn.BatchNorm2d, x: torch.Tensor) -> torch.Tensor:
        rows = [v[:, None, None] for v in (bn.running_mean, bn.running_var, bn.weight, bn.bias)]
        return (x - rows[0]) / (rows[1] + 1e-5).sqrt() * rows[2] + rows[3]

    a = normal(block.bn1, x).relu()
    b = F.conv2d(normal(block.bn2, F.conv2d(a, block.conv1.weight, stride=stride,
                                            padding=1)).relu(), block.conv2.weight, padding=1)
    kept = x if stride == 1 and inside == outside else F.conv2d(a, block.shortcut.weight,
        stride=stride)
    torch.testing.assert_close(block(x), b + kept)


def test_the_layout_in_memory_changes_nothing_but_itself() -> None:
    model, x = trained_a_little(), images(3, (3, 16, 16))
    layouts = []
    hook = model.blocks[0].conv1.register_forward_hook(
        lambda m, given, out: layouts.append(out.is_contiguous(memory_format=torch.channels_last)))
    found = {}
    for layout in (torch.channels_last, torch.contiguous_format):
        model.memory_format = layout
        found[layout] = (model(x), input_gradient(model, x))
    hook.remove()
    assert layouts == [True, True, False, False] and all(p.is_contiguous()
                                                         for p in model.parameters())
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_bfloat16_is_near() -> None:
    """Three significant digits: most signs of the input gradient, which is what an attack takes."""
    model, x = trained_a_little(), images(3, (3, 16, 16))
    fast = Accelerated(model, bf16=True)
    exact, near = input_gradient(model, x), input_gradient(fast, x)
    assert fast(x).dtype == near.dtype == torch.float32 and not torch.equal(exact, near)
    torch.testing.assert_close(fast(x), model(x), rtol=0.05, atol=0.05)
    assert (exact.sign() == near.sign()).float().mean() > 0.9


def test_an_attack_in_bfloat16_is_judged_where_it_ends() -> None:
    """What is only just wrong in bfloat16 is often right in float32: the first such iterate would
    let images off."""
    model, test, attack = load_model("cifar10/pgd-at"), load("cifar10",
        limit=1000).test.per_class(20), PGD(steps=10, bf16=True)
    x, y = test.images(), test.y
    right = predict(model, x, y) == y
    walk = attack.walk(model, x[right], y[right], generator=seeded(0), stop=True)
    let_off = int((predict(model, walk.first_wrong, y[right]) == y[right]).sum())
    to_the_end = int((predict(model, attack(model, x[right], y[right], generator=seeded(0)),
                              y[right]) == y[right]).sum())
    assert to_the_end < let_off
    assert evaluate(model, test, attack, progress=False).rob.mean == pytest.approx(1 - to_the_end
        / len(y))


@pytest.mark.parametrize("objective", ["ce", "kl"])
def test_pgd_in_bfloat16(objective: str) -> None:
    """The same draws and ball as PGD, as strong a walk, a name of its own in records, and it leaves
    the model alone."""
    model, x, y = trained_a_little().train(), images(3, (3, 16, 16)), torch.arange(3)
    fast, exact = PGD(steps=3, objective=objective, bf16=True), PGD(steps=3, objective=objective)
    with left_alone(model):
        walk = fast.walk(model, x, y)
    z, slow = fast(model, x, y), exact(model, x, y)
    assert torch.equal(z, walk.last) and not torch.equal(z,
                                                         slow) and "bf16=True" in repr(
                                                             fast) and fast.at(0.1).bf16
    assert (z - x).abs().max() <= 8 / 255 + 1e-6 and z.min() >= 0 and z.max() <= 1
    clean = model.eval()(x)
    start, low, high = (OBJECTIVES[objective](model(k), y, clean.log_softmax(1)).sum().item()
                        for k in (x, z, slow))
    assert high - start > 0.01 and low - start == pytest.approx(high - start, rel=0.05)
    model.train()
    path = [iterate for iterate, _ in fast.path(model, x, y)]
    assert len(path) == 4 and torch.equal(path[-1], z)


def test_training_in_bfloat16() -> None:
    """A whole model may be trained so as well; its weights stay float32."""
    model = build(SMALL, classes=3)
    before = [p.clone() for p in model.parameters()]
    fit(Accelerated(model, bf16=True), METHODS["pgd_at"](PGD(steps=1)), split(8, (3, 8, 8)),
        epochs=1, optim=Optim(batch=8), seed=0,
        progress=False)
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in model.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_shapes_of_the_family_are_data() -> None:
    class Tiny(PreActResNet):
        stem, widths, depth = 2, (2, 3), 1

    assert [type(m).__name__ for m in Tiny(4).blocks] == ["Block",
                                                          "Block"] and Tiny(4)(images(2,
                                                              (3, 5, 7))).shape == (2, 4)
