"""Adult: does a person earn more than 50,000 dollars a year? A table, loaded like images.

There are fourteen features in the order of the census files. A category is the place of its word
in WORDS (alphabetical), and every feature is scaled to [0, 1] by its BOUNDS. A budget of e in the
files' own units, as Sooksatra and Rivas state theirs, is e * UNITS[j] for feature j, 1 at most.
"""

import torch

from course_lib import data
from course_lib.attacks import PGD
from course_lib.data import Dataset, Split
from course_lib.datasets import sources
from course_lib.errors import CourseError

CLASSES = ("<=50K", ">50K")
CONTENTS = sources.contents(data.EMBEDDED / "adult")
COLUMNS = CONTENTS["columns"]  # the range of a number, the words of a category
FEATURES = tuple(COLUMNS)
WORDS = {f: tuple(c.split()) for f, c in COLUMNS.items() if isinstance(c, str)}
BOUNDS = tuple((0, len(WORDS[f]) - 1) if f in WORDS else tuple(c) for f, c in COLUMNS.items())
UNITS = tuple(1 / (high - low) for low, high in BOUNDS)  # one of the files' units, scaled
ATTACK = PGD(10, 10 / 8, scale=UNITS)  # budgets and steps in the files' own units
# the names behind the numbers in `Split.groups`
GROUPS = {"gender": WORDS["sex"], "race": WORDS["race"]}


def load_adult(root: sources.Root, limit: int | None, seed: int) -> Dataset:
    """30,162 rows to train and validate on, 15,060 to test on; embedded, so `root` is unused."""
    def read(name: str) -> Split:
        raw = sources.checked(data.EMBEDDED / "adult" / name, CONTENTS["sha256"][name])
        return parse(raw.decode("ascii"))

    return Dataset("adult", CLASSES, read("adult.test.gz"),
                   lambda: sources.halves(read("adult.data.gz"), limit, seed))


def parse(text: str) -> Split:
    """The rows without a missing value ("?"), scaled, with their groups."""
    rows = [line.rstrip(".").split(", ") for line in text.splitlines()]
    # adult.test opens with a remark, and both files end with an empty line
    rows = [row for row in rows if len(row) == len(FEATURES) + 1 and "?" not in row]
    numbers = [[WORDS[feature].index(word) if feature in WORDS else float(word)
                for feature, word in zip(FEATURES, row[:-1], strict=True)] for row in rows]
    low, high = torch.tensor(BOUNDS, dtype=torch.float64).T
    x = ((torch.tensor(numbers, dtype=torch.float64) - low) / (high - low)).float()
    groups = {group: (x[:, FEATURES.index(feature)] * (len(WORDS[feature]) - 1)).round().long()
              for group, feature in (("gender", "sex"), ("race", "race"))}
    return Split(x, torch.tensor([CLASSES.index(row[-1]) for row in rows]), CLASSES, groups)


def balanced(split: Split) -> Split:
    """Rows of the smaller classes repeated, in order, up to the largest class, as in the paper.

    >>> balanced(Split.of([[0.1], [0.2], [0.3]], [0, 0, 1])).y.tolist()
    [0, 0, 1, 1]
    """
    mine = [torch.nonzero(split.y == c).flatten() for c in range(len(split.classes))]
    if empty := [split.classes[c] for c, rows in enumerate(mine) if not len(rows)]:
        raise CourseError(f"{', '.join(empty)} has no row to repeat; take more rows.")
    most = max(map(len, mine))
    return split.take(torch.cat([rows.repeat(-(-most // len(rows)))[:most] for rows in mine]))
