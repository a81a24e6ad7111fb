"""Crop and flip: every window of the padded picture, seeded, and a training with them that goes on
to the bit."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from course_lib.augmentation import AUGMENTATIONS, PADDING, augment
from course_lib.checkpoints import Store
from course_lib.errors import CourseError
from course_lib.methods import METHODS
from course_lib.training import Optim, fit
from tests.helpers import Small, fails_at, images, random_states, same_weights, seeded, split

OPTIM = Optim("sgd", 0.1, 8, momentum=0.9, augment="crop-flip")


def train(model: torch.nn.Module, store: Store | None = None, optim: Optim = OPTIM,
          seed: int = 0) -> torch.nn.Module:
    fit(model, METHODS["natural"](), split(26), epochs=2, optim=optim, seed=seed, store=store,
        progress=False)
    return model


def test_every_picture_is_a_window_of_its_own_padded_one() -> None:
    x = images(120, (2, 5, 6)) + 0.1
    z, found = augment(x, seeded(0), "crop-flip"), set()
    for before, after in zip(F.pad(x, [PADDING] * 4), z, strict=True):
        windows = {(i, j, flip): (w.flip(2) if flip else w) for i in range(9) for j in range(9)
                   for flip in (False, True)
                   for w in [before[:, i : i + 5, j : j + 6]]}
        mine = [place for place, w in windows.items() if torch.equal(w, after)]
        assert mine, "no window of the picture"
        found.update(mine if len(mine) == 1 else [])
    for axis, values in enumerate((range(9), range(9), (False, True))):
        assert {place[axis] for place in found} == set(values)


def test_it_depends_on_its_generator_alone() -> None:
    x = images(20, (3, 8, 8))
    before, kept = random_states(), x.clone()
    first = augment(x, seeded(1), "crop-flip")
    assert before == random_states() and torch.equal(x, kept)
    assert torch.equal(first, augment(x, seeded(1), "crop-flip")) and not torch.equal(first,
        augment(x, seeded(2), "crop-flip"))
    assert first.shape == x.shape and first.is_contiguous() and augment(x, seeded(1), "") is x


def test_each_picture_has_its_own_draw() -> None:
    z = augment(images(1, (3, 8, 8)).expand(64, -1, -1, -1), seeded(0), "crop-flip")
    assert len({p.numpy().tobytes() for p in z}) > 40


def test_bad_input() -> None:
    with pytest.raises(CourseError, match="Unknown augmentation 'crop'.*crop-flip"):
        Optim(augment="crop")
    with pytest.raises(CourseError, match=r"these have the shape \(4, 14\)"):
        augment(torch.rand(4, 14), seeded(0), "crop-flip")
    assert set(AUGMENTATIONS) == {"", "crop-flip"}


def test_a_training_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch, it ends with the weights of one that was not; each seed
    and epoch has draws of its own."""
    whole = train(Small(seed=1))
    # forward passes: one looks whether the model fits, then one a batch of four an epoch
    for call in (2, 7):
        store, model = Store(tmp_path / str(call)), Small(seed=1)
        hook = fails_at(model, call + 1)
        with pytest.raises(ArithmeticError):
            train(model, store)
        hook.remove()
        assert same_weights(whole, train(Small(seed=5), Store(tmp_path / str(call))))
    assert not same_weights(whole, train(Small(seed=1), optim=Optim("sgd", 0.1, 8, momentum=0.9)))


def test_the_draws_differ_from_batch_to_batch_and_epoch_to_epoch(monkeypatch:
        pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setitem(AUGMENTATIONS, "crop-flip", lambda x, g: seen.append(g.initial_seed()) or x)
    train(Small(seed=1))
    assert len(seen) == len(set(seen)) == 8
    train(Small(seed=1))
    assert seen[:8] == seen[8:]


def test_a_store_of_another_augmentation_is_refused(tmp_path: Path) -> None:
    train(Small(seed=1), Store(tmp_path))
    with pytest.raises(CourseError, match="optim"):
        train(Small(seed=1), Store(tmp_path), Optim("sgd", 0.1, 8, momentum=0.9))
