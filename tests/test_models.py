"""Every network: its size, layers and seed; memory layout and bfloat16 change only the speed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import METHODS, MODELS, Optim, build, evaluate, fit, load, load_model, models
from course_lib.attacks import OBJECTIVES, PGD
from course_lib.errors import CourseWarning
from course_lib.inference import frozen, predict
from course_lib.machine import Accelerated
from course_lib.models import Block
from tests.helpers import images, left_alone, random_states, same_weights, seeded, split

SHAPES = {"lenet5": (1, 32, 32), "small_cnn": (3, 32, 32), "table_mlp": (14,)}
# as published with ten classes, ImageNet's resnet18 with a thousand; or layer by layer
SIZES = {"lenet5": 6 * 26 + 16 * (6 * 25 + 1) + 120 * (16 * 25 + 1) + 84 * 121 + 10 * 85,
         "small_cnn": 32 * 28 + 64 * 289 + 64 * (64 * 64 + 1) + 10 * 65,
         "table_mlp": 64 * 15 + 3 * 64 * 65 + 10 * 65, "preact_resnet_s": 175_066,
         "resnet18": 11_173_962, "preact_resnet18": 11_172_170, "wide_resnet28x10": 36_479_194,
         "resnet18_imagenet": 11_689_512, "preact_resnet18_imagenet": 11_172_170 + 7_680,
         "wide_resnet28x10_imagenet": 36_479_194 + 16 * 3 * (49 - 9)}


@pytest.mark.parametrize("name", MODELS)
def test_sizes_as_published_and_weights_by_the_seed_alone(name):
    """Of the largest, which take a second to draw, the size alone: `build` draws for all."""
    model = build(name, classes=1000 if name == "resnet18_imagenet" else 10)
    assert sum(p.numel() for p in model.parameters()) == SIZES[name]
    x = images(2, SHAPES.get(name, (3, 32, 32)))
    assert len(model.eval()(x)) == 2
    if SIZES[name] > 12e6:
        return
    first = build(name, seed=3, classes=7)
    torch.rand(5)
    before = random_states()
    assert same_weights(first, build(name, seed=3, classes=7))
    assert not same_weights(first, build(name, seed=4, classes=7))
    assert before == random_states()
    assert first.eval()(x).shape == (2, 7)
    if name != "table_mlp":
        assert build(name, channels=2).eval()(images(1, (2, 32, 32))).shape == (1, 10)


def test_lenet5_layer_by_layer():
    """Against the same network written as a list of torch's own layers."""
    m, x = build("lenet5", seed=1), images(3, (1, 32, 32))
    layers = nn.Sequential(m.conv1, nn.Tanh(), nn.AvgPool2d(2), m.conv2, nn.Tanh(), nn.AvgPool2d(2),
                           m.conv3, nn.Tanh(), nn.Flatten(), m.fc1, nn.Tanh(), m.fc2)
    torch.testing.assert_close(m(x), layers(x), rtol=1e-5, atol=1e-5)
    assert (input_gradient(m, x) != 0).all()  # it reaches every pixel


def input_gradient(model, x):
    with frozen(model):
        z = x.clone().requires_grad_()
        loss = F.cross_entropy(model(z), torch.arange(len(x)), reduction="sum")
        return torch.autograd.grad(loss, z)[0]


def trained_a_little():
    """After three steps of training batch norm has averages of its own, so that eval mode is
    another function than train mode."""
    model = build("preact_resnet_s", classes=3)
    fit(model, METHODS["natural"](), split(24, (3, 8, 8)), epochs=1, optim=Optim(batch=8), seed=0,
        progress=False)
    return model.eval()


def test_resnet18_is_torchvisions():
    model = build("resnet18_imagenet", classes=7).eval()
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=7).eval()
    theirs.load_state_dict(model.net.state_dict())
    x = images(2, (3, 64, 64))
    torch.testing.assert_close(model(x), theirs(2 * x - 1))


@pytest.mark.parametrize(("inside", "outside", "stride"), [(4, 4, 1), (4, 6, 1), (4, 6, 2)])
def test_a_block_by_hand(inside, outside, stride):
    block, x = Block(inside, outside, stride).eval(), images(2, (inside, 8, 8)) - 0.5
    with torch.no_grad():
        for bn in (block.bn1, block.bn2):
            for t, low, high in ((bn.running_mean, -1, 1), (bn.running_var, 0.5, 2),
                                 (bn.weight, 0.5, 2), (bn.bias, -1, 1)):
                t.uniform_(low, high)

    def normal(bn, x):
        mean, var, w, b = (v[:, None, None] for v in (bn.running_mean, bn.running_var, bn.weight,
                                                      bn.bias))
        return (x - mean) / (var + 1e-5).sqrt() * w + b

    a = normal(block.bn1, x).relu()
    b = normal(block.bn2, F.conv2d(a, block.conv1.weight, stride=stride, padding=1)).relu()
    past = x
    if stride > 1 or inside != outside:
        past = F.conv2d(a, block.shortcut.weight, stride=stride)
    torch.testing.assert_close(block(x), F.conv2d(b, block.conv2.weight, padding=1) + past)


def test_the_layout_in_memory_changes_nothing_but_itself(monkeypatch):
    model, x, layouts, found = trained_a_little(), images(3, (3, 16, 16)), [], []
    hook = model.blocks[0].conv1.register_forward_hook(
        lambda m, given, out: layouts.append(out.is_contiguous(memory_format=torch.channels_last)))
    for layout in (torch.channels_last, torch.contiguous_format):
        monkeypatch.setattr(models, "LAYOUT", layout)
        found.append((model(x), input_gradient(model, x)))
    hook.remove()
    assert layouts == [True, True, False, False]
    assert all(p.is_contiguous() for p in model.parameters())
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def test_an_attack_in_bfloat16_is_judged_where_it_ends():
    """The first iterate that is wrong in bfloat16 is often right in float32."""
    model, attack = load_model("cifar10/pgd-at"), PGD(steps=10, bf16=True)
    test = load("cifar10", limit=1000).test.per_class(20)
    right = predict(model, test.images(), test.y) == test.y
    x, y = test.images(right), test.y[right]
    walk = attack.walk(model, x, y, generator=seeded(0), stop=True)
    let_off, to_the_end = (int((predict(model, z, y) == y).sum()) for z in (
        walk.first_wrong, attack(model, x, y, generator=seeded(0))))
    assert to_the_end < let_off
    with pytest.warns(CourseWarning, match="bfloat16, which is for training"):
        rob = evaluate(model, test, attack, progress=False).rob
    assert rob.mean == pytest.approx(1 - to_the_end / len(test))


@pytest.mark.parametrize("objective", ["ce", "kl"])
def test_pgd_in_bfloat16(objective):
    """The same draws and ball as PGD, as strong a walk, and it leaves the model alone."""
    model, x, y = trained_a_little().train(), images(3, (3, 16, 16)), torch.arange(3)
    fast, exact = PGD(steps=3, objective=objective, bf16=True), PGD(steps=3, objective=objective)
    with left_alone(model):
        walk, path = fast.walk(model, x, y), [z for z, _ in fast.path(model, x, y)]
    z, slow = fast(model, x, y), exact(model, x, y)
    assert len(path) == 4 and torch.equal(z, walk.last) and torch.equal(z, path[-1])
    assert not torch.equal(z, slow) and fast.at(0.1).bf16
    assert (z - x).abs().max() <= 8 / 255 + 1e-6 and z.min() >= 0 and z.max() <= 1
    clean = model.eval()(x).log_softmax(1)
    assert Accelerated(model)(x).dtype == torch.float32
    start, low, high = (OBJECTIVES[objective](model(k), y, clean).sum().item()
                        for k in (x, z, slow))
    assert high - start > 0.01 and low - start == pytest.approx(high - start, rel=0.05)
