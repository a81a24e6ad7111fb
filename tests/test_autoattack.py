import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lib.attacks import ATTACKS
from course_lib.autoattack import STANDARD, AutoAttack
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from course_lib.inference import predict
from tests.helpers import Linear, Small, left_alone, seeded, trained_lenet

QUICK = AutoAttack(attacks=("apgd-ce", "fab-t"))
EPS = 0.068


def linear(n: int = 60) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model of five classes, images far from the walls of the box, and their budgets."""
    model = Linear((1, 6, 6), classes=5, dtype=torch.float32)
    x = 0.3 + 0.4 * torch.rand(n, 1, 6, 6, generator=seeded(1))
    y = predict(model, x)
    with torch.no_grad():
        f, w = model(x), model.weight
        margins = f.gather(1, y[:, None]) - f
        norms = (w[y][:, None] - w[None]).abs().sum(2)
        own = torch.nn.functional.one_hot(y, 5).bool()
    return model, x, y, (margins / norms).masked_fill(own, torch.inf).amin(1)


@pytest.mark.parametrize("attacks", [("apgd-ce", "fab-t"), ("apgd-t",)])
def test_a_linear_model_is_robust_just_where_its_margin_says(attacks: tuple[str, ...]) -> None:
    model, x, y, needed = linear()
    sure = (needed / EPS - 1).abs() > 0.02
    held = predict(model, AutoAttack(EPS, attacks)(model, x, y, generator=seeded(0))) == y
    assert torch.equal(held[sure], needed[sure] > EPS) and 10 < held.sum() < 50
    for n in (0, 1):
        assert AutoAttack(EPS, attacks)(model, x[:n], y[:n]).shape == x[:n].shape


def test_ball_box_and_what_withstands() -> None:
    """Images at the walls of the box; an image that could not be fooled comes back as it was."""
    model, test = trained_lenet()
    x, y = test.images(slice(0, 12)), test.y[:12]
    z = QUICK.at(4 / 255)(model, x, y, generator=seeded(0))
    assert ((z - x).abs().max() <= 4 / 255 + 1e-6 and z.min() >= 0 and z.max() <= 1
            and not z.requires_grad)
    same = (z == x).flatten(1).all(1)
    assert (predict(model, z, y)[~same] != y[~same]).all() and 0 < same.sum() < 12


def test_no_weaker_than_pgd_and_the_same_for_the_same_seed() -> None:
    model, test = trained_lenet()
    part = test.take(slice(0, 40))  # holds all ten classes
    quick, pgd = AutoAttack(2 / 255, ("apgd-ce", "apgd-t")), ATTACKS["pgd20"].at(2 / 255)
    strong, weak, again = (evaluate(model, part, a, progress=False) for a in (quick, pgd, quick))
    assert strong.nat == weak.nat and strong == again
    assert sum(strong.rob.wrong) >= sum(weak.rob.wrong) > sum(weak.nat.wrong)


def test_the_standard_four() -> None:
    """Square, too; on three images, one of which is wrong when clean and not attacked."""
    model, x, y, needed = linear(40)
    order = needed.argsort()[[0, 20, 39]]
    x, y = x[order], y[order].clone()
    y[1] = (y[1] + 1) % 5
    z = AutoAttack(EPS)(model, x, y, generator=seeded(0))
    assert (predict(model, z) == y).tolist() == [False, False, True] and torch.equal(z[1], x[1])


def test_everything_is_left_alone() -> None:
    model, y = Small(4, dropout=0.5).train(), torch.tensor([0, 1, 2, 3, 0, 1])
    x = torch.rand(6, 1, 6, 6, generator=seeded(0))
    before, given, tracer = sys.gettrace(), x.clone(), lambda *_: None
    sys.settrace(tracer)
    try:
        with left_alone(model):
            QUICK(model, x, y, generator=seeded(0))
        assert sys.gettrace() is tracer and torch.equal(x, given)
    finally:
        sys.settrace(before)


def test_the_judge_is_called_as_published() -> None:
    """The standard version with its one restart each, but no more targets than other classes."""
    model, x, _, _ = linear(2)
    judge = AutoAttack(EPS)._judge(model, x, seed=5)
    assert judge.version == "standard" and judge.attacks_to_run == list(STANDARD)
    assert judge.apgd_targeted.n_target_classes == judge.fab.n_target_classes == 4
    assert (judge.apgd.n_restarts, judge.square.n_queries, judge.seed) == (1, 5000, 5)
    assert QUICK._judge(model, x, seed=0).attacks_to_run == ["apgd-ce", "fab-t"]


def test_bad_images_and_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y, _ = linear(4)
    with pytest.raises(CourseError, match="float32 images of shape"):
        QUICK(model, x.flatten(1), y)
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(CourseError, match="pip install 'pyautoattack>=0.2'"):
        QUICK(model, x, y)


def test_what_leaves_the_ball_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wild:
        def run_standard_evaluation(self, x: Tensor, y: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
            return x + EPS + 0.02, y

    model, x, y, _ = linear(4)
    monkeypatch.setattr(AutoAttack, "_judge", lambda *_: Wild())
    with pytest.raises(CourseError, match="left the ball"):
        AutoAttack(EPS)(model, x, y)
    assert torch.allclose(AutoAttack(EPS + 0.02)(model, x, y), x + EPS + 0.02)


@pytest.mark.parametrize(("classes", "attacks", "say"), [
    (2, STANDARD, r"needs 4 classes, the model tells 2 apart. "
                  r"Use AutoAttack\(attacks=\('apgd-ce', 'fab-t', 'square'\)"),
    (3, STANDARD, "needs 4 classes, the model tells 3"), (2, ("apgd-dlr",), "needs 3 classes"),
])
def test_too_few_classes(classes: int, attacks: tuple[str, ...], say: str) -> None:
    model = Linear((1, 6, 6), classes, dtype=torch.float32)
    x, y = torch.rand(5, 1, 6, 6, generator=seeded(0)), torch.zeros(5, dtype=torch.int64)
    with pytest.raises(CourseError, match=say):
        AutoAttack(attacks=attacks)(model, x, y)
    assert QUICK(model, x, y).shape == x.shape  # and these work


@pytest.mark.parametrize(("words", "say"), [
    ({"eps": 8.0}, "For 8 grey levels of 255 write 8 / 255"),
    ({"attacks": ("fgsm",)}, "Unknown attack of AutoAttack's 'fgsm'"),
    ({"attacks": ()}, "without attacks"), ({"batch": 0}, "batch is 0"),
])
def test_bad_words(words: dict[str, Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        AutoAttack(**words)
