"""Adult: the published rows, their encoding worked out by hand, and plain words for what is wrong
with a file."""

import gzip
import shutil
from pathlib import Path

import pytest
import torch

from course_lib import CourseError, load
from course_lib.data import Split
from course_lib.datasets.adult import BOUNDS, CLASSES, EMBEDDED, FEATURES, GROUPS, SHA256, UNITS, WORDS, balanced, split_of

ROW = ("39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
       "Male, 2174, 0, 40, United-States, <=50K")


def test_the_rows_of_the_paper() -> None:
    """Counted by hand with awk: 30,162 and 15,060 rows without a '?', 7,508 and 3,700 of them above
    50,000 dollars."""
    d = load("adult")
    assert (len(d.train) + len(d.val), len(d.test)) == (30162, 15060)
    assert int(d.train.y.sum() + d.val.y.sum()) == 7508 and int(d.test.y.sum()) == 3700
    assert d.classes == CLASSES and d.groups == ("gender", "race")
    assert d.test.groups["gender"].bincount().tolist() == [4913, 10147]
    assert [len(GROUPS[k]) for k in d.groups] == [2, 5] and int(d.test.groups["race"].max()) == 4


def test_the_first_row_by_hand() -> None:
    split = split_of(iter([ROW]), "adult.data")
    want = {
        "age": (39 - 17) / 73, "workclass": 6 / 7, "fnlwgt": (77516 - 13492) / 1476908, "education": 9 / 15, "education-num": 12 / 15,
        "marital-status": 4 / 6, "occupation": 0, "relationship": 1 / 5, "race": 1, "sex": 1, "capital-gain": 2174 / 99999,
        "capital-loss": 0, "hours-per-week": 39 / 98, "native-country": 38 / 40,
    }  # fmt: skip
    torch.testing.assert_close(split.x, torch.tensor([[want[f] for f in FEATURES]]))
    assert split.y.tolist() == [0] and split.groups["race"].tolist() == [4] and split.groups[
        "gender"].tolist() == [1]
    # ten years of age, and ten of the files' units of every other feature
    assert 10 * UNITS[0] == pytest.approx(10 / 73) and len(UNITS) == len(BOUNDS) == 14


def test_missing_rows_and_remarks_are_dropped() -> None:
    lines = ["|1x3 Cross validator", "", ROW.replace("State-gov", "?"), ROW + ".",
             ROW.replace("<=50K", ">50K.")]
    assert split_of(iter(lines), "adult.test").y.tolist() == [0, 1]
    with pytest.raises(CourseError, match="holds no row without a missing value"):
        split_of(iter(lines[:3]), "adult.test")


@pytest.mark.parametrize(
    ("old", "new", "say"),
    [
        ("Bachelors", "Batchelors", "line 1: education is 'Batchelors'; known are 10th.*missing"),
        ("39,", "old,", "age is 'old'; it must be a number from 17 to 90"),
        ("39,", "nan,", "age is nan; it must lie from 17 to 90"),
        ("2174", "100000", "capital-gain is 100000; it must lie from 0 to 99999"),
        ("39, ", "", "has 14 values"),
        ("<=50K", "50K", "the last '50K'"),
    ],
)
def test_a_bad_row_is_told(old: str, new: str, say: str) -> None:
    with pytest.raises(CourseError, match=say):
        split_of(iter([ROW.replace(old, new)]), "adult.data")


def test_every_word_of_the_files_is_known_once() -> None:
    assert all(len(set(words)) == len(words) >= 2 and list(words) == sorted(words)
               for words in WORDS.values())
    assert set(WORDS) <= set(FEATURES) and len(set(FEATURES)) == 14


def test_balanced_repeats_the_smaller_class_and_nothing_else() -> None:
    train = load("adult", limit=1000).train
    even = balanced(train)
    assert even.y.bincount().tolist() == [int((train.y == 0).sum())] * 2
    assert {tuple(r.tolist()) for r in even.x} == {tuple(r.tolist()) for r in train.x}
    assert torch.equal(even.groups["gender"],
                       balanced(train).groups["gender"]) and len(even.groups["gender"]) == len(even)
    with pytest.raises(CourseError, match="No row of >50K"):
        balanced(train.take(train.y == 0))


def test_limit_keeps_both_classes_in_proportion() -> None:
    d = load("adult", limit=500)
    assert (len(d.train), len(d.val), len(d.test)) == (400, 100, 15060)
    assert abs(float(d.train.y.float().mean()) - 7508 / 30162) < 0.005


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in SHA256:
        (tmp_path / name).write_bytes(gzip.decompress((EMBEDDED / "adult"
                                                       / f"{name}.gz").read_bytes()))
    return tmp_path


def test_the_original_files_in_a_named_folder(folder: Path) -> None:
    assert load("adult", root=folder, limit=100).train.digest() == load("adult",
        limit=100).train.digest()


def test_a_changed_file_is_refused(folder: Path) -> None:
    text = (folder / "adult.test").read_text()
    (folder / "adult.test").write_text(text.replace("25, Private", "26, Private", 1))
    with pytest.raises(CourseError, match="not the published file"):
        load("adult", root=folder)
    shutil.copy(EMBEDDED / "adult" / "adult.test.gz", folder / "adult.data.gz")
    (folder / "adult.data").unlink()
    (folder / "adult.test").write_text(text)
    with pytest.raises(CourseError, match="not the published file"):
        load("adult", root=folder).train  # noqa: B018
    (folder / "adult.data.gz").write_bytes(b"\x1f\x8b\x08 cut short")
    with pytest.raises(CourseError, match="damaged"):
        load("adult", root=folder).train  # noqa: B018


def test_a_folder_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CourseError, match="does not hold Adult"):
        load("adult", root=tmp_path)
    # of another data set: this one is embedded whole
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    assert len(load("adult").test) == 15060


def test_a_split_keeps_its_groups() -> None:
    test = load("adult").test
    assert isinstance(test, Split) and torch.equal(test.take(test.y == 1).groups["race"],
                                                   test.groups["race"][test.y == 1])
