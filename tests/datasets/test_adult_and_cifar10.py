"""Adult's published rows and their encoding by hand; CIFAR-10's embedded part."""

import hashlib

import numpy as np
import pytest
import torch

from course_lib import CourseError, load
from course_lib.datasets import adult, cifar10
from course_lib.errors import CourseWarning

ROW = ("39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
       "Male, 2174, 0, 40, United-States, <=50K")


def test_the_rows_of_the_paper():
    """Counted with awk: 30,162 and 15,060 rows without a '?', 7,508 and 3,700 above 50,000."""
    d = load("adult")
    assert (len(d.train) + len(d.val), len(d.test)) == (30162, 15060)
    assert int(d.train.y.sum() + d.val.y.sum()) == 7508 and int(d.test.y.sum()) == 3700
    # stored records name the digests of what was trained on
    assert [s.digest()[:8] for s in (d.train, d.val)] == ["d2135595", "6c18122c"]
    assert d.classes == adult.CLASSES and [*d.test.groups] == ["gender", "race"]
    assert d.test.groups["gender"].bincount().tolist() == [4913, 10147]
    assert [len(adult.GROUPS[k]) for k in d.test.groups] == [2, 5]
    assert int(d.test.groups["race"].max()) == 4


def test_a_row_by_hand():
    """Rows with a missing value, and remarks, are dropped."""
    lines = ["|1x3 Cross validator", "", ROW.replace("State-gov", "?"), ROW + ".",
             ROW.replace("<=50K", ">50K.")]
    split = adult.parse("\n".join(lines))
    want = {
        "age": (39 - 17) / 73, "workclass": 6 / 7, "fnlwgt": (77516 - 13492) / 1476908,
        "education": 9 / 15, "education-num": 12 / 15, "marital-status": 4 / 6, "occupation": 0,
        "relationship": 1 / 5, "race": 1, "sex": 1, "capital-gain": 2174 / 99999,
        "capital-loss": 0, "hours-per-week": 39 / 98, "native-country": 38 / 40,
    }  # fmt: skip
    torch.testing.assert_close(split.x, torch.tensor([[want[f] for f in adult.FEATURES]] * 2))
    assert split.y.tolist() == [0, 1] and {k: g.tolist() for k, g in split.groups.items()} == {
        "gender": [1, 1], "race": [4, 4]}
    # ten years of age, and ten of the files' units of every other feature
    assert 10 * adult.UNITS[0] == pytest.approx(10 / 73) and len(adult.UNITS) == 14


def test_balanced_repeats_the_smaller_class_and_nothing_else():
    train = load("adult", limit=1000).train
    even = adult.balanced(train)
    assert even.y.bincount().tolist() == [int((train.y == 0).sum())] * 2
    old, new = ({(*x.tolist(), int(race)) for x, race in zip(s.x, s.groups["race"], strict=True)}
                for s in (train, even))
    assert old == new
    with pytest.raises(CourseError, match=">50K has no row to repeat"):
        adult.balanced(train.take(train.y == 0))


def test_the_embedded_part():
    d, less = load("cifar10", limit=2000), load("cifar10", limit=500)
    parts = (d.train, d.val, d.test)
    assert [s.digest()[:8] for s in parts] == ["f6103935", "244ff066", "7c4dc88c"]
    assert torch.equal(less.train.x, d.train.x[:400]) and torch.equal(less.val.x, d.val.x[:100])


def test_one_file_of_arrays(tmp_path, monkeypatch):
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


def test_more_than_is_embedded_is_never_a_smaller_set_without_a_word(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    with pytest.warns(CourseWarning, match="the 2,000 that are embedded.*root=FOLDER"):
        data = load("cifar10", limit=2001)
    assert data.test.digest() == load("cifar10", limit=1).test.digest()
    with pytest.raises(CourseError, match="could not be downloaded.*or connect to the internet."
                       " At most 2,000 images are embedded: limit=2000"):
        data.train  # noqa: B018
    with pytest.raises(CourseError, match="or name no folder. At most 2,000 images"):
        load("cifar10", root=tmp_path, limit=10)
