"""CIFAR-10's embedded part; test_torchvision_sets.py reads the published files."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from course_lib import CourseError, load
from course_lib.datasets import cifar10
from course_lib.datasets.cifar10 import CIFAR10
from course_lib.errors import CourseWarning

# the full set as arrays, on machines where somebody put it
HOME = Path.home() / ".cache" / "course-data" / "cifar10.npz"


def test_the_embedded_part() -> None:
    d, less = load("cifar10", limit=2000), load("cifar10", limit=500)
    parts = (d.train, d.val, d.test)
    assert d.classes == CIFAR10 and d.train.x.shape[1:] == (3, 32, 32)
    assert [s.y.bincount().tolist() for s in parts] == [[n] * 10 for n in (160, 40, 200)]
    assert [s.digest()[:8] for s in parts] == ["f6103935", "244ff066", "7c4dc88c"]
    assert torch.equal(less.train.x, d.train.x[:400]) and torch.equal(less.val.x, d.val.x[:100])


@pytest.mark.skipif(not HOME.is_file(), reason=f"the full CIFAR-10 is not in {HOME}")
def test_the_embedded_images_are_those_of_the_full_set() -> None:
    small, d = load("cifar10", limit=2000), load("cifar10", root=HOME.parent)
    rows = {x.numpy().tobytes() for x in d.test.x}
    # as in stored records
    assert d.train.digest().startswith("a5417ec56887d97f") and len(d.val) == 10_000
    assert torch.equal(d.train.x[:1600], small.train.x) and torch.equal(d.val.x[:400], small.val.x)
    assert all(x.numpy().tobytes() in rows for x in small.test.x)


def test_one_file_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published pixels in one file, recognised by their own hash; anything else is refused."""
    x, y = np.random.default_rng(0).integers(0, 256, (50, 3, 32, 32), np.uint8), np.arange(50) % 10
    path = tmp_path / "cifar10.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(CourseError, match="test part has the sha256 .*not the published one"):
        load("cifar10", root=tmp_path)
    sha256 = hashlib.sha256(x.tobytes() + y.astype(np.int64).tobytes()).hexdigest()
    monkeypatch.setattr(cifar10, "SHA256", {"train": sha256, "test": sha256})
    assert torch.equal(load("cifar10", root=tmp_path).test.x, torch.from_numpy(x))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CourseError, match=r"cifar10.npz is damaged \(BadZipFile"):
        load("cifar10", root=tmp_path)


def test_more_than_is_embedded_is_never_a_smaller_set_without_a_word(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    with pytest.warns(CourseWarning, match="the 2,000 that are embedded.*root=FOLDER"):
        data = load("cifar10", limit=2001)
    assert data.test.digest() == load("cifar10", limit=1).test.digest()
    with pytest.raises(CourseError, match="could not be downloaded.*or connect to the internet."
                       " At most 2,000 images are embedded: limit=2000"):
        data.train  # noqa: B018
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    with pytest.raises(CourseError, match="or name no folder. At most 2,000 images"):
        load("cifar10", limit=10)
