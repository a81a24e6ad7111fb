"""Notebook 05: the attack's success by class, leave-one-out unfairness, and equalised odds."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.lessons.lesson import Exercise


def _range(rate: Tensor) -> Tensor:
    return rate.max() - rate.min()


def _success(clean: Tensor, attacked: Tensor, counts: Tensor) -> Tensor:
    return _range((attacked - clean) / (counts - clean))


def _counted() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Wrong when clean, wrong under attack, and all; classes of one size and of several."""
    told = [([10, 40, 5], [30, 70, 50], [100, 100, 100]),
            ([3, 0, 8, 1], [9, 4, 10, 2], [12, 10, 11, 9]), ([1, 50], [60, 90], [80, 200])]
    return [tuple(torch.tensor(v, dtype=torch.float64) for v in case) for case in told]  # type: ignore[misc]


Three = tuple[Tensor, Tensor, Tensor]


def _changed(whole: Tensor, without: Tensor) -> Tensor:
    """[L], changed predictions of each model."""
    return (without.argmax(2) != whole.argmax(1)).sum(1)


def _luf(whole: Tensor, without: Tensor) -> Three:
    flips = _changed(whole, without).sum()
    return (without - whole).abs().amax((0, 2)).mean(), flips / len(whole), flips / len(without)


def _mean_of_models(whole: Tensor, without: Tensor) -> Three:
    return (without - whole).abs().amax(2).mean(), *_luf(whole, without)[1:]


def _only_the_winner(whole: Tensor, without: Tensor) -> Three:
    top = whole.argmax(1)
    own = (without[:, torch.arange(len(whole)), top] - whole[torch.arange(len(whole)), top]).abs()
    return own.amax(0).mean(), *_luf(whole, without)[1:]


def _any_model(whole: Tensor, without: Tensor) -> Three:
    luf, _, luf_l = _luf(whole, without)
    return luf, (without.argmax(2) != whole.argmax(1)).any(0).double().mean(), luf_l


def _probabilities() -> list[tuple[Tensor, Tensor]]:
    """Models of different sizes, so that no two of the lengths are the same."""
    found = []
    for seed, (left, n, classes) in enumerate(((3, 7, 4), (5, 6, 3), (2, 9, 3))):
        g = torch.Generator().manual_seed(seed)
        base = torch.randn(n, classes, generator=g, dtype=torch.float64)
        found.append((base.softmax(1), (base + 0.8
                                        * torch.randn(left, n, classes, generator=g,
                                                      dtype=torch.float64)).softmax(2)))
    return found


def _means(confidence: Tensor, y: Tensor, group: Tensor) -> list[Tensor]:
    """For each label the mean confidence of each group."""
    found = []
    for label in (0, 1):
        found.append(torch.stack([confidence[(y == label) & (group == g)].mean()
                                  for g in group.unique()]))
    return found


def _eou(confidence: Tensor, y: Tensor, group: Tensor) -> list[Tensor]:
    return [_range(m) for m in _means(confidence, y, group)]


def _in_group(confidence: Tensor, group: Tensor) -> Tensor:
    return torch.stack([confidence[group == g].mean() for g in group.unique()])


def _people() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Two groups, three, and four of different sizes; every group has both labels."""
    found = []
    for seed, groups in enumerate((2, 3, 4)):
        g = torch.Generator().manual_seed(seed)
        n = 20 * groups
        group, y = torch.arange(n) ** 2 % 7 % groups, torch.randint(0, 2, (n,), generator=g)
        group[: 2 * groups], y[: 2 * groups] = torch.arange(2 * groups) % groups, torch.arange(2
            * groups) // groups
        found.append(((torch.rand(n, generator=g, dtype=torch.float64) + 0.4 * y + 0.1 * group) / 2,
                      y, group))
    return found


ONE_LABEL = ("Condition on the label: one number for the examples of label 0 and one for those of "
             "label 1.")
EXERCISES: dict[str, Exercise] = {
    "05.success": Exercise(
        solution=_success,
        mistakes={
            "This counts all images; asked for is the share of those that are right when clean.": lambda clean, attacked, counts: _range(
                attacked / counts
            ),
            "Right so far above the line; below it stand only the images that are right when clean.": lambda clean, attacked, counts: (
                _range((attacked - clean) / counts)
            ),
            "What is wrong when clean is no success of the attack: take it away above the line, too.": lambda clean, attacked, counts: (
                _range(attacked / (counts - clean))
            ),
            "These are the rates; the score is their range.": lambda clean, attacked, counts: (attacked - clean) / (counts - clean),
            "This is the worst class alone; the score is the range.": lambda clean, attacked, counts: (
                (attacked - clean) / (counts - clean)
            ).max(),
        },
        hints=(
            "Of a class with `counts` images `clean` are wrong already. How many can the attack win, and how many did it win?",
            "rate = (attacked - clean) / (counts - clean), then its largest value minus its smallest.",
        ),
        cases=_counted,
        praise="The same answers, another denominator, another score: papers must say which.",
    ),
    "05.luf": Exercise(
        solution=_luf,
        mistakes={
            "LUF takes the largest change over all left-out examples, not the mean.": _mean_of_models,
            "LUF takes the largest change over all classes, not only over the predicted one.": _only_the_winner,
            "LUF_t counts how many of the models change a prediction, not whether any of them does.": _any_model,
            "LUF_t and LUF_l are the wrong way round.": lambda whole, without: (_luf(whole, without)[0], *_luf(whole, without)[:0:-1]),
            "LUF is a mean over the test examples; this is the largest of all.": lambda whole, without: (
                (without - whole).abs().max(), *_luf(whole, without)[1:]
            ),
        },
        hints=(
            "(without - whole) has the shape [L, X, C]: the largest over the places 0 and 2 is one number a test example.",
            "All changed predictions together, divided by |X| and by |L|. argmax(2) and argmax(1) are the predictions.",
        ),
        cases=_probabilities,
        praise="The last two are one number, counted on two scales.",
    ),
    "05.eou": Exercise(
        solution=_eou,
        mistakes={
            "These are differences of hard decisions. EOU compares mean confidences.": lambda confidence, y, group: _eou(
                (confidence > 0.5).double(), y, group
            ),
            ONE_LABEL: lambda confidence, y, group: [_range(_in_group(confidence, group))] * 2,
            "The two labels are the wrong way round.": lambda confidence, y, group: _eou(confidence, y, group)[::-1],
            "This compares the first group with the last; the score is the range over all groups.": lambda confidence, y, group: [
                (m[0] - m[-1]).abs() for m in _means(confidence, y, group)
            ],
            "This is the gap to the mean of everybody; the score is the range over the groups.": lambda confidence, y, group: [
                (m - confidence[y == label].mean()).abs().max() for label, m in enumerate(_means(confidence, y, group))
            ],
        },
        hints=(
            "For each label, and for each of group.unique(), the mean of confidence[(y == label) & (group == g)].",
            "A list of two numbers: the largest mean minus the smallest, for label 0 and for label 1.",
        ),
        cases=_people,
        praise="No decision was made yet: a gap in confidence may or may not become a gap in decisions.",
    ),
}
