"""Notebook 05: the paper's figures beside ours, and exercises on LUF and equalised odds."""

from functools import partial
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor

from course_lib.fairness import Spread
from course_lib.lab.leave_out import load_luf
from course_lib.lessons.lesson import Cases, Exercise, from_paper, noise
from course_lib.tables import compare_scores

PRINTED = from_paper("scores")  # score, data -> standard, robust


def spreads(table: DataFrame) -> dict[str, Spread]:
    """The differences in a table of one comparison per figure, as fractions by figure and data."""
    columns = table[["difference", "sd", "low", "high"]].to_numpy(float) / 100
    return {f"{figure}, {data}": Spread(d, sd, low, high, n) for figure, data, n, (d, sd, low, high)
            in zip(table["figure"], table["data"], table["n"], columns, strict=True)}


def differences() -> dict[str, Spread]:
    """What PRINTED is about in the stored models: robust minus standard, paired by seed."""
    tables = (compare_scores(f"scores/{data}-standard", f"scores/{data}-robust")
              for data in ("cifar10", "adult"))
    robust, standard = (load_luf(f"luf/cifar10-{kind}", "seeds") for kind in ("robust", "standard"))
    flips = dict(zip(standard["seeds"], standard["flips"], strict=True))
    share = [(n - flips[seed]) / robust["test_examples"] for seed, n in
             zip(robust["seeds"], robust["flips"], strict=True) if seed in flips]
    return {k: s for t in tables for k, s in spreads(t).items()} | {
        "LUF_t, cifar10": Spread.of(share)}


def _luf(full: Tensor, without: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    flips = (without.argmax(2) != full.argmax(1)).sum()
    return (without - full).abs().amax((0, 2)).mean(), flips / len(full), flips / len(without)


# models of different sizes, so that no two of the lengths are the same
SIZES = ((3, 7, 4), (5, 6, 3), (2, 9, 3))
LOGITS = [(4 * noise(seed, n, classes), 3 * noise(seed + 9, left, n, classes))
          for seed, (left, n, classes) in enumerate(SIZES)]
PROBABILITIES = [(full.softmax(1), (full + change).softmax(2)) for full, change in LOGITS]
LUF = Exercise(_luf, cases=PROBABILITIES, mistakes={
    "LUF takes the largest change over all left-out examples, not the mean.":
        lambda full, without: ((without - full).abs().amax(2).mean(), *_luf(full, without)[1:]),
    "LUF takes the largest change over all classes, not only over the predicted one.":
        lambda full, without: (
            (without - full)[:, torch.arange(len(full)), full.argmax(1)].abs().amax(0).mean(),
            *_luf(full, without)[1:]),
    "LUF_t counts how many models change a prediction, not whether any of them does.":
        lambda full, without: (
            (luf := _luf(full, without))[0],
            (without.argmax(2) != full.argmax(1)).any(0).double().mean(), luf[2]),
    "LUF_t and LUF_l are swapped.": lambda F, G: (_luf(F, G)[0], *_luf(F, G)[:0:-1]),
})


def _eou(confidence: Tensor, y: Tensor, group: Tensor,
         score: Any = lambda m: m.max() - m.min()) -> list[Tensor]:
    """For each label the score of the groups' mean confidences."""
    means = [torch.stack([confidence[(y == label) & (group == g)].mean() for g in group.unique()])
             for label in (0, 1)]
    return [score(m) for m in means]


def _people() -> Cases:
    """Two groups, three, and four of different sizes; every group has both labels."""
    cases = []
    for k in (2, 3, 4):
        i = torch.arange(20 * k)
        y, group = i // k % 2, torch.where(i < 2 * k, i % k, i**2 % 7 % k)
        cases.append(((noise(k, len(i)) + 0.4 * y + 0.1 * group) / 2, y, group))
    return cases


EOU = Exercise(_eou, cases=_people(), mistakes={
    "These are differences of hard decisions. EOU compares mean confidences.":
        lambda p, y, group: _eou((p > 0.5).double(), y, group),
    "Condition on the label: one number for the examples of each label.":
        lambda p, y, group: _eou(torch.cat([p, p]), torch.arange(2).repeat_interleave(len(p)),
                                 torch.cat([group, group])),
    "The two labels are swapped.": lambda p, y, group: _eou(p, y, group)[::-1],
    "This compares the first group with the last. The score is the range over all groups.":
        partial(_eou, score=lambda m: (m[0] - m[-1]).abs()),
})
