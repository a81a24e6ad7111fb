"""Data sets by name, splits and their batches, stratified orders, and the changes to a training
batch."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from course_lib.checkpoints import Store
from course_lib.data import AUGMENTATIONS, LOADERS, Split, batches, load, stratified
from course_lib.datasets.cifar10 import crop_flip
from course_lib.errors import CourseError, resolve
from course_lib.methods import METHODS
from course_lib.training import Optim, fit
from tests import helpers
from tests.helpers import THREE, Small, images, labels, seeded, split, tiny_dataset

# ------------------------------------------------------------------------------------------ by name


def test_a_loader_is_a_function_or_the_name_of_one(monkeypatch: pytest.MonkeyPatch,
                                                   tmp_path: Path) -> None:
    """In a module that is imported when it is used."""
    assert all(callable(resolve(entry)) for entry in LOADERS.values())
    (tmp_path / "mine_for_this_test.py").write_text("from tests.helpers import tiny_dataset\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(LOADERS, "function", tiny_dataset)
    monkeypatch.setitem(LOADERS, "name", "mine_for_this_test:tiny_dataset")
    assert "mine_for_this_test" not in sys.modules
    assert [len(load(name, limit=7).train) for name in ("function", "name")] == [7, 7]


# ------------------------------------------------------------------------------------------- splits


def test_images_are_served_in_0_to_1() -> None:
    s = Split(torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1), labels(3), THREE)
    assert s.images().flatten().tolist() == pytest.approx([0, 0.2, 1])
    assert s.images(torch.tensor([2])).item() == 1 and torch.equal(split().images(), split().x)


@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 3))
def test_batches_serve_each_example_once(n: int, size: int, seed: int) -> None:
    s = split(n, (1, 1, 1))
    for generator in (None, seeded(seed)):
        served = list(batches(s, size, generator))
        assert [len(y) for _, y in served] == [size] * (n // size) + [n % size] * (n % size > 0)
        x, y = torch.cat([x for x, _ in served]).flatten(), torch.cat([y for _, y in served])
        order = [s.x.flatten().tolist().index(v) for v in x.tolist()]
        assert sorted(order) == list(range(n)) and torch.equal(y, s.y[order])
        assert generator is not None or order == list(range(n))
    orders = [torch.cat([y for _, y in batches(Split(s.x, torch.arange(n), (*"x" * n,)), size,
                                               seeded(i))]).tolist() for i in (1, 1, 2)]
    assert orders[0] == orders[1] and (n < 10 or orders[1] != orders[2])


@given(st.data())
def test_a_masked_example_leaves_every_other_batch_as_it_was(data: Any) -> None:
    n, size = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 12))
    i, seed = data.draw(st.integers(0, n - 1)), data.draw(st.sampled_from([None, 0, 1]))
    s = split(n, (1, 1, 1))
    full, less = (list(batches(part, size, None if seed is None else seeded(seed)))
                  for part in (s, s.masked(i)))
    rest = [(x, y, x.flatten() != s.x[i].item()) for x, y in full]
    expected = [(x[r], y[r]) for x, y, r in rest if r.any()]
    assert len(s.masked(i)) == n - 1 and len(less) == len(expected)
    for (x, y), (ex, ey) in zip(less, expected, strict=True):
        assert torch.equal(x, ex) and torch.equal(y, ey)


def test_digest_tells_splits_apart() -> None:
    s = split()
    changes = ({"classes": ("cat", "dog", "cow")}, {"y": (s.y + 1) % 3}, {"x": s.x.double()},
               {"x": s.x.flip(0)})
    others = [s.masked(0), s.masked(1), s.take(slice(0, 25)), split(seed=1),
              *(dataclasses.replace(s, **change) for change in changes)]
    assert len({s.digest(), *(o.digest() for o in others)}) == 1 + len(others)
    assert s.digest() == split().digest()


def test_take_and_per_class() -> None:
    s = Split(images(9), labels(9), THREE, {"sex": torch.arange(9) % 2})
    assert s.take(s.y == 1).groups["sex"].tolist() == [1, 0, 1]
    few = s.per_class(2)
    assert few.y.tolist() == [0, 1, 2, 0, 1, 2] and torch.equal(few.x, s.x[:6])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor), st.integers(0, 3))
@example(torch.tensor([0] * 60 + [1] * 6), 0)
def test_every_beginning_is_stratified(y: Tensor, seed: int) -> None:
    order = stratified(y, seed)
    assert sorted(order.tolist()) == list(range(len(y))) and torch.equal(order, stratified(y, seed))
    for n in range(1, len(y) + 1):
        share = y[order[:n]].bincount(minlength=5) - n * y.bincount(minlength=5) / len(y)
        # classes differ from their due by at most a few rounded examples
        assert share.abs().max() <= 2.5


def test_whole_joins_and_keeps_the_validation_set() -> None:
    d, w = tiny_dataset(), tiny_dataset().whole()
    assert torch.equal(w.train.x, torch.cat([d.train.x, d.val.x]))
    assert torch.equal(w.train.y, torch.cat([d.train.y, d.val.y]))
    assert w.val.digest() == d.val.digest() and w.test.digest() == d.test.digest()
    a, b = (Split(images(2), labels(2), THREE, {"sex": labels(2) + i}) for i in range(2))
    assert a.joined(b.masked(0)).groups["sex"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("gone", ["dog", 1, ("dog", 1)])
def test_without_drops_and_renumbers(gone: Any) -> None:
    d, less = tiny_dataset(), tiny_dataset().without(gone)
    assert less.classes == less.train.classes == ("cat", "frog")
    for mine, other in ((less.train, d.train), (less.val, d.val), (less.test, d.test)):
        rest = other.y != 1
        assert torch.equal(mine.x, other.x[rest]) and torch.equal(mine.y, other.y[rest] // 2)


WITHOUT = tiny_dataset().without
X, Y = images(3), labels(3)


@pytest.mark.parametrize(("call", "say"), [  # more of them in tests/traps/test_doors.py
    (lambda: Split(X * 255, Y, THREE), r"\[0, 1\].*from 1.* to 254"),
    (lambda: Split(X.masked_fill(X > 0.9, torch.nan), Y, THREE), "nan"),
    (lambda: Split(X, Y.float(), THREE), "int64"), (lambda: Split(X, Y - 1, THREE), "from -1"),
    (lambda: Split(X, Y + 1, THREE), "Labels run to 3, but there are 3 classes"),
    (lambda: load("mnist"), "Unknown data set 'mnist'.*fashion-mnist"),
    *[(lambda v=v: load("cifar10", limit=v), "limit is") for v in (0, 2.5, True)],
    (lambda: WITHOUT(["cow"]), "Unknown class 'cow'.*cat, dog, frog"),
    (lambda: WITHOUT([3]), "0 to 2"), (lambda: WITHOUT([-1]), "0 to 2"),
    (lambda: WITHOUT(["cat", "dog"]), "two must be left"),
    (lambda: split().masked(26), "no example 26 to hide; this split holds 26"),
    (lambda: split().per_class(0), "1 or more"),
    (lambda: next(batches(split(), 0)), "batch size is 0"),
    (lambda: crop_flip(torch.rand(4, 14), seeded(0)), r"have the shape \(4, 14\)")])
def test_bad_arguments(call: Callable[[], object], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        call()


# ------------------------------------------------------------------------------------- augmentation

OPTIM = Optim("sgd", 0.1, 8, momentum=0.9, augment="crop-flip")
PLAIN = dataclasses.replace(OPTIM, augment="")


def train(model: torch.nn.Module, store: Store | None = None, optim: Optim = OPTIM) -> Any:
    fit(model, METHODS["natural"](), split(26), epochs=2, optim=optim, seed=0, store=store,
        progress=False)
    return model


def test_every_picture_is_a_window_of_its_own_padded_one() -> None:
    x, found = images(120, (2, 5, 6)) + 0.1, set()
    z = crop_flip(x, seeded(0))
    for before, after in zip(F.pad(x, [4] * 4), z, strict=True):
        windows = {(i, j, flip): (w.flip(2) if flip else w) for i in range(9) for j in range(9)
                   for flip in (False, True) for w in [before[:, i : i + 5, j : j + 6]]}
        mine = [place for place, w in windows.items() if torch.equal(w, after)]
        assert mine, "no window of the picture"
        found.update(mine if len(mine) == 1 else [])
    for axis, values in enumerate((range(9), range(9), (False, True))):
        assert {place[axis] for place in found} == set(values)


def test_it_depends_on_its_generator_alone_and_draws_for_each_picture() -> None:
    x = images(20, (3, 8, 8))
    before, copy = helpers.random_states(), x.clone()
    first, again, other = (crop_flip(x, seeded(s)) for s in (1, 1, 2))
    assert before == helpers.random_states() and torch.equal(x, copy)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == x.shape and first.is_contiguous()
    z = crop_flip(x[:1].expand(64, -1, -1, -1), seeded(0))
    assert len({p.numpy().tobytes() for p in z}) > 40


def test_a_training_with_it_goes_on_to_the_bit(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the middle of an epoch, it ends with the weights of one that was not; each batch
    of each epoch has draws of its own."""
    full, seeds = train(Small(seed=1)), list[int]()
    # forward passes: one looks whether the model fits, then four batches an epoch
    for call in (2, 7):
        store, model = Store(tmp_path / str(call)), Small(seed=1)
        hook = helpers.fails_at(model, call + 1)
        with pytest.raises(ArithmeticError):
            train(model, store)
        hook.remove()
        assert helpers.same_weights(full, train(Small(seed=1), Store(tmp_path / str(call))))
    assert not helpers.same_weights(full, train(Small(seed=1), optim=PLAIN))
    monkeypatch.setitem(AUGMENTATIONS, "crop-flip",
                        lambda x, g: seeds.append(g.initial_seed()) or x)
    train(train(Small(seed=1)))
    assert seeds[:8] == seeds[8:] and len(set(seeds)) == 8
