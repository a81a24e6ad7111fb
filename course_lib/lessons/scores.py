"""Exercises of notebook 05: the attack's success per class, LUF, and equalised odds."""

from __future__ import annotations

import torch
from torch import Tensor

from course_lib.lessons.lesson import Cases, Exercise


def _range(rate: Tensor) -> Tensor:
    return rate.max() - rate.min()


def _success(clean: Tensor, attacked: Tensor, counts: Tensor) -> Tensor:
    return (attacked - clean) / (counts - clean)


# wrong when clean, wrong under attack, and all; classes of one size and of several
COUNTS = (([10, 40, 5], [30, 70, 50], [100, 100, 100]),
          ([3, 0, 8, 1], [9, 4, 10, 2], [12, 10, 11, 9]), ([1, 50], [60, 90], [80, 200]))
SUCCESS = Exercise(lambda clean, attacked, counts: _range(_success(clean, attacked, counts)),
                   cases=[tuple(map(torch.DoubleTensor, case)) for case in COUNTS], mistakes={
    "You divide by all images. Divide by the images that are right when clean, and count only "
    "these in the numerator.": lambda clean, attacked, counts: _range(attacked / counts),
    "The numerator is right. Divide by the images that are right when clean.":
        lambda clean, attacked, counts: _range((attacked - clean) / counts),
    "An image that is wrong when clean is no success of the attack. Subtract these images in the "
    "numerator, too.": lambda clean, attacked, counts: _range(attacked / (counts - clean)),
    "These are the rates. The score is their range.": _success,
    "This is the worst class alone. The score is the range.":
        lambda clean, attacked, counts: _success(clean, attacked, counts).max(),
}, hints=(
    "Of the `counts` images of a class, `clean` are wrong already. How many can the attack still "
    "win, and how many did it win?",
    "rate = (attacked - clean) / (counts - clean), then its maximum minus its minimum.",
), praise="The same predictions with another denominator give another score. Papers must say which "
    "one they use.")


def _flips(full: Tensor, without: Tensor) -> Tensor:
    """[L, X], where leaving out an example changes the prediction."""
    return without.argmax(2) != full.argmax(1)


def _luf(full: Tensor, without: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    flips = _flips(full, without).sum()
    return (without - full).abs().amax((0, 2)).mean(), flips / len(full), flips / len(without)


def _probabilities() -> Cases:
    """Models of different sizes, so that no two of the lengths are the same."""
    cases = []
    for seed, (left, n, classes) in enumerate(((3, 7, 4), (5, 6, 3), (2, 9, 3))):
        g = torch.Generator().manual_seed(seed)
        full = torch.randn(n, classes, generator=g, dtype=torch.float64)
        noise = torch.randn(left, n, classes, generator=g, dtype=torch.float64)
        cases.append((full.softmax(1), (full + 0.8 * noise).softmax(2)))
    return cases


LUF = Exercise(_luf, cases=_probabilities(), mistakes={
    "LUF takes the largest change over all left-out examples, not the mean.":
        lambda full, without: ((without - full).abs().amax(2).mean(), *_luf(full, without)[1:]),
    "LUF takes the largest change over all classes, not only over the predicted one.":
        lambda full, without: (
            (without - full)[:, torch.arange(len(full)), full.argmax(1)].abs().amax(0).mean(),
            *_luf(full, without)[1:]),
    "LUF_t counts how many models change a prediction, not whether any of them does.":
        lambda full, without: (
            (luf := _luf(full, without))[0], _flips(full, without).any(0).double().mean(), luf[2]),
    "LUF_t and LUF_l are swapped.":
        lambda full, without: (_luf(full, without)[0], *_luf(full, without)[:0:-1]),
    "LUF is a mean over the test examples. This is the largest change of all.":
        lambda full, without: ((without - full).abs().max(), *_luf(full, without)[1:]),
}, hints=(
    "(without - whole) has the shape [L, X, C]. Its maximum over the dimensions 0 and 2 is one "
    "number per test example.",
    "Count all changed predictions, then divide by |X| and by |L|. argmax(2) and argmax(1) are the "
    "predictions.",
), praise="The last two scores are one count, divided by two different numbers.")


def _means(confidence: Tensor, group: Tensor) -> Tensor:
    """The mean confidence of each group."""
    return torch.stack([confidence[group == g].mean() for g in group.unique()])


def _by_label(confidence: Tensor, y: Tensor, group: Tensor) -> list[Tensor]:
    """For each label the mean confidence of each group."""
    return [_means(confidence[y == label], group[y == label]) for label in (0, 1)]


def _eou(confidence: Tensor, y: Tensor, group: Tensor) -> list[Tensor]:
    return [_range(m) for m in _by_label(confidence, y, group)]


def _people() -> Cases:
    """Two groups, three, and four of different sizes; every group has both labels."""
    cases = []
    for seed, k in enumerate((2, 3, 4)):
        g, n, both = torch.Generator().manual_seed(seed), 20 * k, torch.arange(2 * k)
        group, y = torch.arange(n) ** 2 % 7 % k, torch.randint(0, 2, (n,), generator=g)
        group[: 2 * k], y[: 2 * k] = both % k, both // k
        noise = torch.rand(n, generator=g, dtype=torch.float64)
        cases.append(((noise + 0.4 * y + 0.1 * group) / 2, y, group))
    return cases


EOU = Exercise(_eou, cases=_people(), mistakes={
    "These are differences of hard decisions. EOU compares mean confidences.":
        lambda p, y, group: _eou((p > 0.5).double(), y, group),
    "Condition on the label: one number for the examples of each label.":
        lambda p, y, group: [_range(_means(p, group))] * 2,
    "The two labels are swapped.": lambda p, y, group: _eou(p, y, group)[::-1],
    "This compares the first group with the last. The score is the range over all groups.":
        lambda p, y, group: [(m[0] - m[-1]).abs() for m in _by_label(p, y, group)],
    "This is the distance from the overall mean. The score is the range over the groups.":
        lambda p, y, group: [(m - p[y == label].mean()).abs().max()
                             for label, m in enumerate(_by_label(p, y, group))],
}, hints=(
    "For each label, and for each of group.unique(), take the mean of confidence[(y == label) & "
    "(group == g)].",
    "A list of two numbers: the largest mean minus the smallest, for label 0 and label 1.",
), praise="No decision is made yet. A gap in confidence need not become a gap in decisions.")
