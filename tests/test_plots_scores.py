"""The pictures of notebook 05: bars with intervals, success over budgets, trainings as points, and
chance."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color

from course_lib import CourseError, plots_scores
from course_lib.fairness import Spread


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_bars_show_means_and_their_intervals() -> None:
    spreads = [Spread.of([0.1, 0.2, 0.3]), Spread.of([0.5, 0.5, 0.5])]
    ax = plots_scores.bars({"A": spreads, "B": [0.4, 0.6]}, ["men", "women"],
                           ylabel="confidence (%)")
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([20, 50, 40, 60])
    (whiskers,) = [c for c in ax.collections if hasattr(c, "get_segments")]
    low, high = whiskers.get_segments()[0][:, 1]
    assert (low, high) == (pytest.approx(100 * spreads[0].low),
                           pytest.approx(100 * spreads[0].high))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["men", "women"] and ax.get_ylabel() == "confidence (%)"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["A", "B"]
    one = plots_scores.bars({"A": [3.0]}, ["x"], ylabel="eps", scale=1)
    assert one.patches[0].get_height() == 3 and one.get_legend() is None


@pytest.mark.parametrize("rows", [{}, {"A": [0.1], "B": [0.1, 0.2]}])
def test_bars_need_one_value_a_name(rows: dict[str, list[float]]) -> None:
    with pytest.raises(CourseError, match="to draw over 2 names"):
        plots_scores.bars(rows, ["men", "women"], ylabel="")


def test_named_classes_stand_out_over_the_budgets() -> None:
    values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.9]])
    ax = plots_scores.by_budget([10, 20], values, ["a", "b", "c"], named=["c"])
    assert [list(line.get_ydata()) for line in ax.lines] == [pytest.approx(v)
        for v in ([10, 40], [20, 50], [30, 90])]
    assert same_color(ax.lines[0].get_color(), "0.75") and not same_color(ax.lines[2].get_color(),
        "0.75")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["c"] and list(
        ax.get_xticks()) == [10, 20]


def test_a_strip_holds_every_training_and_their_mean() -> None:
    ax = plots_scores.strips({"paired": [1, 2, 3], "seeds": [5, 7]}, xlabel="changed")
    points, mean, *_ = ax.lines
    assert sorted(points.get_xdata()) == [1, 2, 3] and list(mean.get_xdata()) == [2, 2]
    assert all(abs(y) <= 0.25 for y in points.get_ydata()) and len(ax.lines) == 4
    assert [t.get_text() for t in ax.get_yticklabels()] == ["paired",
                                                            "seeds"] and ax.get_ylim()[
                                                                0] > ax.get_ylim()[1]


def test_chance_counts_every_permutation_and_marks_what_was_seen() -> None:
    ax = plots_scores.chance(np.linspace(0, 1, 200), 2.0, xlabel="range")
    assert sum(bar.get_height() for bar in ax.patches) == 200
    assert list(ax.lines[0].get_xdata()) == [2, 2] and ax.get_xlabel() == "range"
