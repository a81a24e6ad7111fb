import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib import autoattack, native
from course_lib.attacks import ATTACKS, predict
from course_lib.autoattack import AutoAttack, named
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from tests.helpers import Linear, Small, left_alone, seeded, trained_lenet

QUICK = AutoAttack(attacks=("apgd-ce", "fab-t"))
EPS = 0.068


def linear(n: int = 60) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model of five classes, images far from the box's walls, their labels, and the budget
    each just withstands."""
    model = Linear((1, 6, 6), classes=5, dtype=torch.float32)
    x = 0.3 + 0.4 * torch.rand(n, 1, 6, 6, generator=seeded(1))
    y = predict(model, x)
    with torch.no_grad():
        f, w = model(x), model.weight
        margins = f.gather(1, y[:, None]) - f
        norms = (w[y][:, None] - w[None]).abs().sum(2)
        needed = (margins / norms).masked_fill(torch.nn.functional.one_hot(y, 5).bool(),
                                               torch.inf).amin(1)
    return model, x, y, needed


@pytest.mark.parametrize("attacks", [("apgd-ce", "fab-t"), ("apgd-t",)])
def test_a_linear_model_is_robust_just_where_its_margin_says(attacks: tuple[str, ...]) -> None:
    model, x, y, needed = linear()
    sure = (needed / EPS - 1).abs() > 0.02
    held = predict(model, AutoAttack(EPS, attacks)(model, x, y, generator=seeded(0))) == y
    assert torch.equal(held[sure], needed[sure] > EPS) and 10 < held.sum() < 50


def test_ball_box_and_what_withstands() -> None:
    """Images at the walls of the box; an image that could not be fooled comes back as it was."""
    model, test = trained_lenet()
    x, y = test.images(slice(0, 12)), test.y[:12]
    z = QUICK.at(4 / 255)(model, x, y, generator=seeded(0))
    assert ((z - x).abs().max() <= 4 / 255 + 1e-6 and z.min() >= 0 and z.max() <= 1
            and not z.requires_grad)
    same = (z == x).flatten(1).all(1)
    assert torch.equal(z[same], x[same]) and (predict(model, z,
                                                      y)[~same] != y[
                                                          ~same]).all() and 0 < same.sum() < 12


def test_no_weaker_than_pgd_and_the_same_for_the_same_seed() -> None:
    model, test = trained_lenet()
    part, strong = test.take(slice(0, 40)), named("autoattack", 2 / 255)
    quick = AutoAttack(strong.eps, ("apgd-ce", "apgd-t"))
    told = [evaluate(model, s_part, attack, progress=False)
            for attack in (quick, ATTACKS["pgd20"].at(2 / 255)) for s_part in [whole(part)]]
    assert told[0].nat == told[1].nat and sum(told[0].rob.wrong) >= sum(told[1].rob.wrong) > sum(
        told[0].nat.wrong)
    assert told[0] == evaluate(model, whole(part), quick, progress=False)


def whole(part: Any) -> Any:
    """Each class must have an image: the first forty hold all ten."""
    assert set(part.y.tolist()) == set(range(10))
    return part


def test_the_standard_four() -> None:
    """Square, too, with its 5,000 queries; on three images one of which is wrong when clean and not
    attacked."""
    model, x, y, needed = linear(40)
    order = needed.argsort()[[0, 20, 39]]
    x, y = x[order], y[order].clone()
    y[1] = (y[1] + 1) % 5
    z = AutoAttack(EPS)(model, x, y, generator=seeded(0))
    assert (predict(model, z) == y).tolist() == [False, False, True] and torch.equal(z[1], x[1])


@pytest.mark.parametrize("n", [0, 1])
def test_no_image_and_one(n: int) -> None:
    model, x, y, _ = linear()
    assert QUICK(model, x[:n], y[:n]).shape == x[:n].shape


def test_everything_is_left_alone() -> None:
    model, x, y = Small(4, dropout=0.5).train(), torch.rand(6, 1, 6, 6,
                                                            generator=seeded(0)), torch.tensor([0,
                                                                1, 2, 3, 0, 1])

    def tracer(*_: object) -> None: ...

    before, given = sys.gettrace(), x.clone()
    sys.settrace(tracer)
    try:
        with left_alone(model):
            QUICK(model, x, y, generator=seeded(0))
        assert sys.gettrace() is tracer and torch.equal(x, given)
    finally:
        sys.settrace(before)


@pytest.mark.skipif(native.library() is None, reason="there is no C++ compiler here")
@pytest.mark.parametrize("size", [1, 7, 784])
def test_the_kernels_projection_is_pyautoattacks(size: int) -> None:
    from pyautoattack.fab_projections import projection_linf

    g = torch.Generator().manual_seed(size)
    t = torch.rand(60, size, generator=g)
    t[:, ::3], t[:, 1::5] = 0, 1  # no room on one side
    w = torch.randn(60, size, generator=g)
    w[:, 4::6] = 0
    away = torch.randn(60, generator=g)
    away[:20] *= 1e-3  # near: no pixel at its limit
    away[50:] *= 1e4  # out of reach: the corner
    # rooms of all sizes: many steps to the answer
    t[30:40] = 10 ** (-4 * torch.rand(10, size, generator=g))
    w[30:40] = w[30:40].abs() * 10 ** (4 * torch.rand(10, size, generator=g))
    away[30:40] = 0.5 * (w * t)[30:40].sum(1)
    b = (w * t).sum(1) - away
    theirs, ours = projection_linf(t, w, b), native.nearest_move(t, w, b)
    assert ours is not None
    torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    reached = ((w * (t + ours)).sum(1) - b).abs() < 1e-4
    assert reached[20:50].any() or size == 1
    assert not reached[50:].any()
    torch.testing.assert_close(autoattack._quick(projection_linf)(t, w, b), ours, atol=1e-6, rtol=0)
    with native.off():
        torch.testing.assert_close(autoattack._quick(projection_linf)(t, w, b), theirs, atol=0,
                                   rtol=0)
    doubles = t.double(), w.double(), b.double()
    torch.testing.assert_close(autoattack._quick(projection_linf)(*doubles),
                               projection_linf(*doubles), atol=0, rtol=0)



def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    model, x, y, _ = linear(4)
    with pytest.raises(CourseError, match="pip install 'pyautoattack>=0.2'"):
        QUICK(model, x, y)


def test_what_leaves_the_ball_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wild:
        def run_standard_evaluation(self, x: Tensor, y: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
            return x + EPS + 0.02, y

    model, x, y, _ = linear(4)
    monkeypatch.setattr(AutoAttack, "_made", lambda *_: Wild())
    with pytest.raises(CourseError, match="left the ball"):
        AutoAttack(EPS)(model, x, y)
    assert torch.allclose(AutoAttack(EPS + 0.02)(model, x, y), x + EPS + 0.02)


@pytest.mark.parametrize(
    ("classes", "attack", "say"),
    [
        (2, AutoAttack(), r"needs 4 classes, the model tells 2 apart. Use AutoAttack\(attacks=\('apgd-ce', 'fab-t', 'square'\)"),
        (3, AutoAttack(), "needs 4 classes, the model tells 3"),
        (2, AutoAttack(attacks=("apgd-dlr",)), "needs 3 classes"),
    ],
)
def test_too_few_classes(classes: int, attack: AutoAttack, say: str) -> None:
    model = Linear((1, 6, 6), classes, dtype=torch.float32)
    x, y = torch.rand(5, 1, 6, 6, generator=seeded(0)), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(CourseError, match=say):
        attack(model, x, y)
    assert QUICK(model, x, y).shape == x.shape  # and these work


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"eps": 8.0}, "For 8 grey levels of 255 write 8 / 255"),
        ({"attacks": ("fgsm",)}, "Unknown attack of AutoAttack's 'fgsm'"),
        ({"attacks": ()}, "without attacks"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_bad_words(words: dict[str, Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        AutoAttack(**words)


def test_bad_images_and_names() -> None:
    model, x, y, _ = linear(4)
    with pytest.raises(CourseError, match="float32 images of shape"):
        QUICK(model, x.flatten(1), y)
    with pytest.raises(CourseError, match="Did you mean 'autoattack'"):
        named("autoatack", 8 / 255)
    assert named("cw20", 0.1) == ATTACKS["cw20"].at(0.1) and named("autoattack",
        0.1) == AutoAttack(0.1)
