"""Adult: does a person earn more than 50,000 dollars a year? A table through the same door as
images.
 Fourteen features in the order of the census files. A category is the place of its word in WORDS
(alphabetical), and every feature is scaled to [0, 1] by its range in RANGES, so that a budget of e
in the files' own units, as Sooksatra and Rivas state theirs, is e * UNITS[j] for feature j (never
more than the whole range).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from course_lib.attacks import PGD
from course_lib.data import EMBEDDED, LOADERS, Dataset, Split, find_file, halves
from course_lib.errors import CourseError

CLASSES = ("<=50K", ">50K")
SHA256 = {  # of the original files
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
RANGES = {  # of the rows without missing values
    "age": (17, 90), "fnlwgt": (13492, 1490400), "education-num": (1, 16),
    "capital-gain": (0, 99999), "capital-loss": (0, 4356), "hours-per-week": (1, 99),
}  # fmt: skip
WORDS = {
    "workclass": ("Federal-gov", "Local-gov", "Never-worked", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov", "Without-pay"),
    "education": ("10th", "11th", "12th", "1st-4th", "5th-6th", "7th-8th", "9th", "Assoc-acdm", "Assoc-voc", "Bachelors", "Doctorate",
                  "HS-grad", "Masters", "Preschool", "Prof-school", "Some-college"),
    "marital-status": ("Divorced", "Married-AF-spouse", "Married-civ-spouse", "Married-spouse-absent", "Never-married", "Separated",
                       "Widowed"),
    "occupation": ("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing", "Handlers-cleaners",
                   "Machine-op-inspct", "Other-service", "Priv-house-serv", "Prof-specialty", "Protective-serv", "Sales", "Tech-support",
                   "Transport-moving"),
    "relationship": ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife"),
    "race": ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"),
    "sex": ("Female", "Male"),
    "native-country": ("Cambodia", "Canada", "China", "Columbia", "Cuba", "Dominican-Republic", "Ecuador", "El-Salvador", "England",
                       "France", "Germany", "Greece", "Guatemala", "Haiti", "Holand-Netherlands", "Honduras", "Hong", "Hungary", "India",
                       "Iran", "Ireland", "Italy", "Jamaica", "Japan", "Laos", "Mexico", "Nicaragua", "Outlying-US(Guam-USVI-etc)", "Peru",
                       "Philippines", "Poland", "Portugal", "Puerto-Rico", "Scotland", "South", "Taiwan", "Thailand", "Trinadad&Tobago",
                       "United-States", "Vietnam", "Yugoslavia"),
}  # fmt: skip
FEATURES = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
BOUNDS = tuple(RANGES.get(f) or (0, len(WORDS[f]) - 1) for f in FEATURES)
UNITS = tuple(1 / (high - low) for low, high in BOUNDS)  # one of the files' units, in scaled ones
ATTACK = PGD(10, 10 / 8, scale=UNITS)  # budgets and steps in the files' own units
# the names behind the numbers in `Split.groups`
GROUPS = {"gender": WORDS["sex"], "race": WORDS["race"]}


def adult(root: str | os.PathLike[str] | None, limit: int | None, seed: int) -> Dataset:
    """The whole data set, embedded: 30,162 rows to train and validate on, 15,060 to test on."""
    folder = _folder(root)
    return Dataset("adult", CLASSES, _part(folder, "adult.test"),
                   lambda: halves(_part(folder, "adult.data"), limit, seed))


def balanced(split: Split) -> Split:
    """Rows of the smaller classes repeated, in order, until each class has as many as the largest
    (the paper's way)."""
    mine = [torch.nonzero(split.y == c).flatten() for c in range(len(split.classes))]
    if empty := [split.classes[c] for c, rows in enumerate(mine) if not len(rows)]:
        raise CourseError(f"No row of {', '.join(empty)} is there to repeat; take more rows.")
    most = max(map(len, mine))
    return split.take(torch.cat([rows.repeat(-(-most // len(rows)))[:most] for rows in mine]))


def rows_of(lines: Iterator[str], name: str) -> Iterator[tuple[list[float], int]]:
    """(scaled features, label) of every row without a missing value."""
    for number, line in enumerate(lines, 1):
        words = [w.strip() for w in line.rstrip(".\n").split(",")]
        # adult.test opens with a remark
        if words == [""] or words[0].startswith("|") or "?" in words:
            continue
        where = f"{name}, line {number}"
        if len(words) != len(FEATURES) + 1 or words[-1] not in CLASSES:
            raise CourseError(f"{where} has {len(words)} values, the last {words[-1]!r}; a row "
                              f"holds {len(FEATURES)} and {CLASSES}.")
        yield [_scaled(f, w, where) for f, w in zip(FEATURES, words[:-1],
                                                    strict=True)], CLASSES.index(words[-1])


def _scaled(feature: str, word: str, where: str) -> float:
    if feature in WORDS:
        if word not in WORDS[feature]:
            raise CourseError(f"{where}: {feature} is {word!r}; known are "
                              f"{', '.join(WORDS[feature])}. '?' stands for a missing value.")
        return WORDS[feature].index(word) / (len(WORDS[feature]) - 1)
    low, high = RANGES[feature]
    try:
        value = float(word)
    except ValueError:
        raise CourseError(f"{where}: {feature} is {word!r}; it must be a number from {low} to "
                          f"{high}.") from None
    if not low <= value <= high:
        raise CourseError(f"{where}: {feature} is {word}; it must lie from {low} to {high}.")
    return (value - low) / (high - low)


def _folder(root: str | os.PathLike[str] | None) -> Path:
    """A folder the user names, or the embedded one."""
    named = root or os.environ.get("COURSE_DATA")
    if not named:
        return EMBEDDED / "adult"
    for place in (Path(named), Path(named) / "adult"):
        if all(find_file(place, n) for n in SHA256):
            return place
    if root is None:  # the variable may name another data set's folder; this one is embedded whole
        return EMBEDDED / "adult"
    raise CourseError(f"{named} does not hold Adult. Put its files there: {', '.join(SHA256)} (or "
                      "the same with .gz), or leave root out.")


def _part(place: Path, name: str) -> Split:
    path = find_file(place, name)
    if path is None:
        raise CourseError(f"{place / name} is not there. Reinstall the course, or name another "
                          "data folder.")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError, zlib.error) as e:
        raise CourseError(
            f"{path} is damaged ({e}). Fetch it again, or reinstall the course.") from None
    if (have := hashlib.sha256(raw).hexdigest()) != SHA256[name]:
        raise CourseError(f"{path} is not the published file: its sha256 is {have[:12]}…, not "
                          f"{SHA256[name][:12]}…. Fetch it again.")
    return split_of(iter(raw.decode("ascii").splitlines()), name)


def split_of(lines: Iterator[str], name: str) -> Split:
    """Rows of text to a split with its groups."""
    found = list(rows_of(lines, name))
    if not found:
        raise CourseError(f"{name} holds no row without a missing value.")
    x = torch.tensor([features for features, _ in found])
    return Split(x, torch.tensor([label for _, label in found]), CLASSES,
                 {"gender": code(x, "sex"), "race": code(x, "race")})


def code(x: Tensor, feature: str) -> Tensor:
    """A category's number, from the scaled column."""
    return (x[:, FEATURES.index(feature)] * (len(WORDS[feature]) - 1)).round().long()


LOADERS["adult"] = adult
