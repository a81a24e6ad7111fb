import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.errors import CourseError
from course_lib.machine import device
from course_lib.models import MODELS, build
from tests.helpers import images, random_states, same_weights

SHAPES = {"lenet5": (1, 32, 32), "small_cnn": (3, 32, 32), "table_mlp": (14,)}


@pytest.mark.parametrize("name", MODELS)
def test_build_gives_logits_of_the_asked_classes(name: str) -> None:
    assert build(name, classes=7).eval()(images(2, SHAPES.get(name, (3, 32, 32)))).shape == (2, 7)


@pytest.mark.parametrize("name", MODELS)
def test_build_depends_on_its_seed_alone(name: str) -> None:
    first = build(name, seed=3)
    torch.rand(5)
    before = random_states()
    assert same_weights(first, build(name, seed=3)) and not same_weights(first, build(name, seed=4))
    assert before == random_states()


def test_lenet5_is_the_reports() -> None:
    """6-16-120 of 5 x 5, 84, 10: every layer's parameters, counted by hand."""
    counts = [p.numel() for p in build("lenet5").parameters()]
    by_hand = [6 * 25, 6, 16 * 6 * 25, 16, 120 * 16 * 25, 120, 84 * 120, 84, 10 * 84, 10]
    assert counts == by_hand and sum(by_hand) == 61_706


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("small_cnn", 32 * 28 + 64 * 289 + 64 * (64 * 64 + 1) + 10 * 65),
        ("table_mlp", 64 * 15 + 3 * 64 * 65 + 2 * 65),
    ],
)
def test_sizes_of_the_small_networks(name: str, by_hand: int) -> None:
    assert sum(p.numel() for p in build(name).parameters()) == by_hand < 300_000


def test_lenet5_layer_by_layer() -> None:
    """Against the same network written as a list of torch's own layers."""
    model = build("lenet5", seed=1)
    layers = nn.Sequential(
        model.conv1,
        nn.Tanh(),
        nn.AvgPool2d(2),
        model.conv2,
        nn.Tanh(),
        nn.AvgPool2d(2),
        model.conv3,
        nn.Tanh(),
        nn.Flatten(),
        model.fc1,
        nn.Tanh(),
        model.fc2,
    )
    x = images(3, (1, 32, 32))
    torch.testing.assert_close(model(x), layers(x), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(model(x).sum(1), torch.ones(3))  # logits, not probabilities


def test_input_gradient_reaches_every_pixel() -> None:
    x = images(2, (1, 32, 32)).requires_grad_()
    loss: Tensor = F.cross_entropy(build("lenet5")(x), torch.tensor([0, 1]))
    loss.backward()
    assert (x.grad != 0).all()


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"name": "resnet"}, "lenet5"),
        ({"name": "lenet5", "classes": 1}, "2 or more"),
        ({"name": "lenet5", "classes": 2.5}, "whole number"),
        ({"name": "lenet5", "channels": 0}, "1 or more"),
        ({"name": "lenet5", "seed": -1}, "0 or more"),
        ({"name": "lenet5", "width": 10}, "width; it takes classes=, channels="),
    ],
)
def test_bad_input(words: dict, say: str) -> None:
    with pytest.raises(CourseError, match=say):
        build(**words)


def test_the_device_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, name in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device().type == name
