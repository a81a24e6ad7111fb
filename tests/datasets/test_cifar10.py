"""CIFAR-10's embedded part; test_torchvision_sets.py reads the published files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from course_lib import CourseError, data, load
from course_lib.datasets.cifar10 import CIFAR10

# the full set as arrays, on machines where somebody put it
HOME = Path.home() / ".cache" / "course-data" / "cifar10.npz"


def test_the_embedded_part() -> None:
    d = load("cifar10", limit=2000)
    parts = (d.train, d.val, d.test)
    assert d.classes == CIFAR10 and d.train.x.shape[1:] == (3, 32, 32)
    assert [s.y.bincount().tolist() for s in parts] == [[n] * 10 for n in (160, 40, 200)]
    assert [s.digest()[:8] for s in parts] == ["f6103935", "244ff066", "7c4dc88c"]
    less = load("cifar10", limit=500)
    assert torch.equal(less.train.x, d.train.x[:400]) and torch.equal(less.val.x, d.val.x[:100])


@pytest.mark.skipif(not HOME.is_file(), reason=f"the full CIFAR-10 is not in {HOME}")
def test_the_embedded_images_are_those_of_the_full_set() -> None:
    small = load("cifar10", limit=2000)
    with np.load(HOME) as z:
        x, y = torch.from_numpy(z["x_train"]), torch.from_numpy(z["y_train"]).long()
        rows = {x.tobytes() for x in z["x_test"]}
    train, val = data.halves(data.Split(x, y, CIFAR10), None, 0)
    # as in stored records
    assert train.digest().startswith("a5417ec56887d97f") and len(val) == 10_000
    assert torch.equal(train.x[:1600], small.train.x) and torch.equal(val.x[:400], small.val.x)
    assert all(x.numpy().tobytes() in rows for x in small.test.x)


def test_more_than_is_embedded_is_never_a_smaller_set(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    with pytest.raises(CourseError, match="could not be downloaded.*or connect to the internet. "
                       "At most 2,000 images are embedded: limit=2000"):
        load("cifar10", limit=2001)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(CourseError, match="or name no folder. At most 2,000 images"):
        load("cifar10", limit=10)
