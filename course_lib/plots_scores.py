"""The pictures of the unfairness scores. As in plots.py: every function takes an Axes (or makes
one) and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from course_lib.errors import CourseError
from course_lib.fairness import Spread
from course_lib.plots import COLOURS, HATCHES, MARKERS, _legend_above, axes


def bars(rows: Mapping[str, Sequence[Spread] | Sequence[float]], names: Sequence[str],
         ax: Axes | None = None, *, ylabel: str,
         scale: float = 100.0) -> Axes:
    """A bar a name, the models side by side, in the order given; whiskers are the spreads'
    intervals, where there are any."""
    if not rows or any(len(values) != len(names) for values in rows.values()):
        raise CourseError(
            f"{', '.join(f'{len(v)} values of {k}' for k, v in rows.items()) or 'Nothing'} to draw "
            f"over {len(names)} names; "
                          "give one value for each.")
    ax, width = axes(ax), 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        spreads = [v if isinstance(v, Spread) else Spread.of([v]) for v in values]
        height = scale * np.array([s.mean for s in spreads])
        half = scale * np.nan_to_num([s.high - s.mean for s in spreads])
        at = np.arange(len(names)) + (i - (len(rows) - 1) / 2) * width
        ax.bar(at, height, width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8],
               edgecolor="white",
               yerr=half if half.any() else None, error_kw={"elinewidth": 0.9, "capsize": 2})
    turned: Any = {"rotation": 30, "ha": "right",
                   "rotation_mode": "anchor"} if sum(map(len, names)) > 40 else {}
    ax.set_xticks(np.arange(len(names)), list(names), **turned)
    ax.set_ylabel(ylabel)
    if len(rows) > 1:
        _legend_above(ax)
    return ax


def by_budget(eps: Sequence[float], values: np.ndarray, classes: Sequence[str],
              ax: Axes | None = None, *, named: Sequence[str] = (),
              xlabel: str = "budget ε", ylabel: str = "attack's success (%)") -> Axes:
    """One line a class, `values` [budgets, classes] in fractions; the `named` classes in colour,
    the others in grey."""
    ax = axes(ax, 4.4, 3.4)
    for name, line in zip(classes, 100 * np.asarray(values, float).T, strict=True):
        i = list(named).index(name) if name in named else None
        style = {"color": "0.75", "lw": 1, "zorder": 1} if i is None else {"color": COLOURS[i % 8],
            "marker": MARKERS[i % 8], "label": name}
        ax.plot(eps, line, **style)
    ax.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 102), xticks=list(eps))
    if named:
        _legend_above(ax)
    return ax


def strips(rows: Mapping[str, Sequence[float]], ax: Axes | None = None, *, xlabel: str) -> Axes:
    """One point a training, one row a design, a bar at the mean."""
    ax = axes(ax, 8, 0.9 + 0.45 * len(rows))
    for i, (label, values) in enumerate(rows.items()):
        # spread out, the same each time
        at = i + 0.22 * (2 * (np.arange(len(values)) * 0.618 % 1) - 1)
        ax.plot(values, at, MARKERS[i % 8], ms=4, alpha=0.6, color=COLOURS[i % 8], label=label)
        ax.plot([np.mean(values)] * 2, [i - 0.38, i + 0.38], color="black", lw=1.6)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(xlabel)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", alpha=0.3)
    return ax


def chance(values: Sequence[float] | np.ndarray, seen: float, ax: Axes | None = None, *,
           xlabel: str) -> Axes:
    """What chance alone gives, as a histogram, and what was seen, as a line."""
    ax = axes(ax, 4.4, 2.8)
    ax.hist(values, bins=30, color="0.75", edgecolor="white")
    ax.axvline(seen, color=COLOURS[5], lw=2, label="seen")
    ax.set(xlabel=xlabel, ylabel="permutations")
    _legend_above(ax)
    return ax
