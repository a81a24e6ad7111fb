"""Data sets by name, splits and batches, stratified orders, and augmentations."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn import functional as F

from course_lib import METHODS, CourseError, Optim, fit
from course_lib.data import AUGMENTATIONS, Split, batches
from course_lib.datasets.cifar10 import crop_flip
from course_lib.datasets.sources import stratified
from tests.helpers import THREE, Small, images, labels, random_states, seeded, split, tiny_dataset


@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 3))
def test_batches_serve_each_example_once(n, size, seed):
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
def test_a_masked_example_leaves_every_other_batch_as_it_was(data):
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


def test_digest_tells_splits_apart():
    s = split()
    changes = ({"classes": ("cat", "dog", "cow")}, {"y": (s.y + 1) % 3}, {"x": s.x.double()},
               {"x": s.x.flip(0)})
    others = [s.masked(0), s.masked(1), s.take(slice(0, 25)), split(seed=1),
              *(dataclasses.replace(s, **change) for change in changes)]
    assert len({s.digest(), *(o.digest() for o in others)}) == 1 + len(others)
    assert s.digest() == split().digest()


def test_take_and_per_class():
    s = Split(images(9), labels(9), THREE, {"sex": torch.arange(9) % 2})
    assert s.take(s.y == 1).groups["sex"].tolist() == [1, 0, 1]
    few = s.per_class(2)
    assert few.y.tolist() == [0, 1, 2, 0, 1, 2] and torch.equal(few.x, s.x[:6])
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    assert Split(x, labels(3), THREE).images().flatten().tolist() == pytest.approx([0, 0.2, 1])


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor), st.integers(0, 3))
@example(torch.tensor([0] * 60 + [1] * 6), 0)
def test_every_beginning_is_stratified(y, seed):
    order = stratified(y, seed)
    assert sorted(order.tolist()) == list(range(len(y))) and torch.equal(order, stratified(y, seed))
    for n in range(1, len(y) + 1):
        share = y[order[:n]].bincount(minlength=5) - n * y.bincount(minlength=5) / len(y)
        # classes differ from their due by at most a few rounded examples
        assert share.abs().max() <= 2.5


def test_whole_joins_and_keeps_the_validation_set():
    d, w = tiny_dataset(), tiny_dataset().whole()
    assert torch.equal(w.train.x, torch.cat([d.train.x, d.val.x]))
    assert torch.equal(w.train.y, torch.cat([d.train.y, d.val.y]))
    assert w.val.digest() == d.val.digest() and w.test.digest() == d.test.digest()
    a, b = (Split(images(2), labels(2), THREE, {"sex": labels(2) + i}) for i in range(2))
    assert a.joined(b.masked(np.int64(0))).groups["sex"].tolist() == [0, 1, 2]
    with pytest.raises(CourseError, match="the same classes"):
        a.joined(Split(b.x, b.y, THREE[::-1]))


@pytest.mark.parametrize("gone", ["dog", np.int64(1), ("dog", 1)])
def test_without_drops_and_renumbers(gone):
    d, less = tiny_dataset(), tiny_dataset().without(gone)
    assert less.classes == less.train.classes == ("cat", "frog")
    for mine, other in ((less.train, d.train), (less.val, d.val), (less.test, d.test)):
        rest = other.y != 1
        assert torch.equal(mine.x, other.x[rest]) and torch.equal(mine.y, other.y[rest] // 2)


def test_every_picture_is_a_window_of_its_own_padded_one():
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


def test_it_depends_on_its_generator_alone():
    x = images(20, (3, 8, 8))
    before, copy = random_states(), x.clone()
    first, again, other = (crop_flip(x, seeded(s)) for s in (1, 1, 2))
    assert before == random_states() and torch.equal(x, copy)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == x.shape and first.is_contiguous()


def test_each_batch_of_each_epoch_is_changed_by_draws_of_its_own(monkeypatch):
    """tests/test_training.py stops and resumes such a training."""
    seeds = list[int]()
    monkeypatch.setitem(AUGMENTATIONS, "crop-flip",
                        lambda x, g: seeds.append(g.initial_seed()) or x)
    for _ in range(2):
        fit(Small(), METHODS["natural"](), split(26), epochs=2, seed=0, progress=False,
            optim=Optim(batch=8, augment="crop-flip"))
    assert seeds[:8] == seeds[8:] and len(set(seeds)) == 8
