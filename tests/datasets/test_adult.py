"""Adult: the published rows, their encoding worked out by hand, and what is said of other files."""

import gzip
import shutil
from pathlib import Path

import pytest
import torch

from course_lib import CourseError, load
from course_lib.data import EMBEDDED
from course_lib.datasets import adult

ROW = ("39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
       "Male, 2174, 0, 40, United-States, <=50K")


def test_the_rows_of_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by hand with awk: 30,162 and 15,060 rows without a '?', 7,508 and 3,700 of them above
    50,000 dollars."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))  # another data set's folder: this is embedded
    d = load("adult")
    assert (len(d.train) + len(d.val), len(d.test)) == (30162, 15060)
    assert int(d.train.y.sum() + d.val.y.sum()) == 7508 and int(d.test.y.sum()) == 3700
    # stored records name the digests of what was trained on
    assert [s.digest()[:8] for s in (d.train, d.val)] == ["d2135595", "6c18122c"]
    assert d.classes == adult.CLASSES and [*d.test.groups] == ["gender", "race"]
    assert d.test.groups["gender"].bincount().tolist() == [4913, 10147]
    assert [len(adult.GROUPS[k]) for k in d.test.groups] == [2, 5]
    assert int(d.test.groups["race"].max()) == 4


def test_a_row_by_hand() -> None:
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
    assert len(set(adult.FEATURES)) == 14 and all(
        len(words) >= 2 and sorted(set(words)) == list(words) for words in adult.WORDS.values())


def test_balanced_repeats_the_smaller_class_and_nothing_else() -> None:
    train = load("adult", limit=1000).train
    even = adult.balanced(train)
    assert even.y.bincount().tolist() == [int((train.y == 0).sum())] * 2
    old, new = ({(*x.tolist(), int(race)) for x, race in zip(s.x, s.groups["race"], strict=True)}
                for s in (train, even))
    assert old == new
    with pytest.raises(CourseError, match=">50K has no row to repeat"):
        adult.balanced(train.take(train.y == 0))


@pytest.mark.parametrize("inside", [".", "adult"])
def test_the_original_files_in_a_named_folder(tmp_path: Path, inside: str) -> None:
    """They are read in the folder itself or one below; then a changed file is refused."""
    with pytest.raises(CourseError, match=r"lacks adult\.data, adult\.test\. Put the 2 files"):
        load("adult", root=tmp_path)
    folder, embedded = tmp_path / inside, load("adult", limit=500)
    folder.mkdir(exist_ok=True)
    for name in adult.SHA256:
        packed = EMBEDDED / "adult" / f"{name}.gz"
        (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
    d = load("adult", root=tmp_path, limit=500)
    assert d.train.digest() == embedded.train.digest()
    assert (len(d.train), len(d.val), len(d.test)) == (400, 100, 15060)
    text = (folder / "adult.test").read_text()
    (folder / "adult.test").write_text(text.replace("25, Private", "26, Private", 1))
    with pytest.raises(CourseError, match=r"adult\.test is not the published file"):
        load("adult", root=tmp_path)
    (folder / "adult.test").write_text(text)
    (folder / "adult.data").unlink()
    shutil.copy(EMBEDDED / "adult" / "adult.test.gz", folder / "adult.data.gz")
    with pytest.raises(CourseError, match=r"adult\.data\.gz is not the published file"):
        load("adult", root=tmp_path).train  # noqa: B018
