"""Reports to pictures. Every function takes an Axes (or makes one) and returns it; none trains or evaluates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from course_lib.data import Split
from course_lib.errors import CourseError, pick
from course_lib.fairness import Report, Spread, class_spreads

# Okabe and Ito's palette, told apart by readers with any kind of colour vision; hatches and markers say it twice.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y", "grid.alpha": 0.3,
    "axes.axisbelow": True, "font.size": 10, "figure.dpi": 100, "savefig.dpi": 100, "legend.frameon": False, "hatch.linewidth": 0.6,
}
KINDS = {"nat": "standard error", "rob": "robust error", "bnd": "boundary error (robust − standard)"}

Some = Report | Sequence[Report]  # one model, or the seeds of one recipe


def axes(ax: Axes | None, width: float = 8, height: float = 3.6) -> Axes:
    """The given Axes, or one in a new figure in the course's style."""
    if ax is not None:
        return ax
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(width, height), layout="constrained")[1]


def show(ax: Axes, alt: str) -> None:
    """Show the figure with a text for those who cannot see it, and close it so that figures do not pile up."""
    from IPython.display import display

    display(ax.figure, metadata={"image/png": {"alt": alt}})
    plt.close(ax.figure)


def difficulty(reports: Some) -> list[int]:
    """The classes from the smallest standard error to the largest."""
    errors = [r.nat for r in _seeds(reports)]
    return sorted(range(len(errors[0].counts)), key=lambda c: float(np.mean([e.by_class[c] for e in errors])))


def class_bars(models: Mapping[str, Some], ax: Axes | None = None, *, kind: str = "rob", order: Sequence[int] | None = None) -> Axes:
    """Errors by class, one or several models side by side, classes sorted by the first model's standard error.

    Whiskers are 95 % intervals: Wilson's for one model, Student's over the seeds of a recipe.

    >>> class_bars({"natural": load_report("exp1/natural")})  # doctest: +SKIP
    """
    ax, title = axes(ax), pick(KINDS, kind, "kind of error")
    if not models:
        raise CourseError("No model to draw; give a dictionary such as {'natural': load_report('exp1/natural')}.")
    first = next(iter(models.values()))
    order = difficulty(first) if order is None else order
    width = 0.8 / len(models)
    for i, (label, reports) in enumerate(models.items()):
        heights, low, high = _bars([getattr(r, kind) for r in _seeds(reports)])
        at = np.arange(len(order)) + (i - (len(models) - 1) / 2) * width
        ax.bar(at, 100 * heights[order], width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8], edgecolor="white",
               yerr=100 * np.abs(np.stack([low, high])[:, order] - heights[order]), error_kw={"elinewidth": 0.9, "capsize": 2})
    names = _seeds(first)[0].classes
    ax.set_xticks(np.arange(len(order)), [names[c] for c in order], rotation=30, ha="right")
    ax.set(ylabel=f"{title} (%)", xlabel="class, easiest first", ylim=(min(0.0, ax.get_ylim()[0]), None))
    if len(models) > 1:
        ax.legend(ncols=min(4, len(models)), loc="upper left", bbox_to_anchor=(0, 1.14))
    return ax


def _seeds(reports: Some) -> Sequence[Report]:
    return [reports] if isinstance(reports, Report) else reports


def _bars(errors: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Height and interval of each class's bar."""
    if len(errors) > 1:
        spreads = class_spreads(errors)
        return (np.array([getattr(s, k) for s in spreads]) for k in ("mean", "low", "high"))  # type: ignore[return-value]
    height = errors[0].by_class
    if min(errors[0].wrong) < 0:
        return height, height, height
    interval = errors[0].intervals()
    return height, interval[:, 0], interval[:, 1]


def cost_of_robustness(natural: Sequence[Report], robust: Sequence[Report], ax: Axes | None = None) -> Axes:
    """What adversarial training adds to each class's standard error, against how hard the class was before."""
    ax = axes(ax, 5.5, 4)
    before, after = (np.array([s.mean for s in class_spreads([r.nat for r in reports])]) for reports in (natural, robust))
    ax.axhline(0, color="0.5", lw=0.8)
    ax.scatter(100 * before, 100 * (after - before), color=COLOURS[0], zorder=3)
    for c, name in enumerate(natural[0].classes):
        ax.annotate(name, (100 * before[c], 100 * (after[c] - before[c])), xytext=(4, 3), textcoords="offset points", fontsize=8)
    ax.set(xlabel="standard error of the natural model (%)", ylabel="added by adversarial training (points)")
    return ax


def spread_points(rows: Mapping[str, tuple[Spread, float | None]], ax: Axes | None = None, *, xlabel: str = "error (%)") -> Axes:
    """Our mean with its 95 % interval beside a printed figure, one row a quantity."""
    ax = axes(ax, 7, 0.5 + 0.45 * len(rows))
    for i, (label, (ours, theirs)) in enumerate(rows.items()):
        ax.plot([100 * ours.low, 100 * ours.high], [i, i], color=COLOURS[0], lw=2)
        ax.plot(100 * ours.mean, i, "o", color=COLOURS[0], label="ours, mean and 95 % interval" if i == 0 else None)
        if theirs is not None:
            ax.plot(100 * theirs, i, "D", color=COLOURS[5], mfc="none", label="the report's model" if i == 0 else None)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set_xlabel(xlabel)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return ax


def images(x: Tensor, ax: Axes | None = None, *, titles: Sequence[str] = (), columns: int | None = None) -> Axes:
    """Images [N, C, H, W] in [0, 1] in a row (or rows of `columns`), each with its title."""
    n, _, height, width = x.shape
    columns = n if columns is None else columns
    lines = -(-n // columns)
    ax = axes(ax, 1.25 * columns, (1.5 if titles else 1.2) * lines)
    gap = round(0.45 * height) if titles else 2
    sheet = np.ones((lines * (height + gap), columns * (width + 3), 3))
    for i, image in enumerate(x.detach().clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()):
        top, left = (i // columns) * (height + gap) + gap, (i % columns) * (width + 3)
        sheet[top : top + height, left : left + width] = image
        if i < len(titles):
            ax.text(left + width / 2, top - 2, titles[i], ha="center", va="bottom", fontsize=8)
    ax.imshow(sheet, interpolation="nearest")
    ax.set_axis_off()
    return ax


def adversarial(x: Tensor, z: Tensor, ax: Axes | None = None, *, before: str = "clean", after: str = "attacked") -> Axes:
    """One image, what the attack adds (grey is nothing, scaled to the largest change), and the attacked image."""
    change = z - x
    most = float(change.abs().max()) or 1.0
    labels = (before, f"change × {0.5 / most:.0f}" if change.any() else "no change", after)
    return images(torch.stack([x, 0.5 + change * 0.5 / most, z]), ax, titles=labels)


def class_pair(split: Split, a: int | str, b: int | str, ax: Axes | None = None, *, n: int = 8) -> Axes:
    """Two classes one above the other: would you tell them apart?"""
    places = [split.classes.index(c) if isinstance(c, str) else c for c in (a, b)]
    rows = [split.images(torch.nonzero(split.y == c).flatten()[:n]) for c in places]
    ax = images(torch.cat(rows), ax, columns=n)
    height = rows[0].shape[2] + 2
    for i, c in enumerate(places):
        ax.text(-4, i * height + height / 2, split.classes[c], ha="right", va="center", fontsize=9)
    return ax


def probabilities(rows: Mapping[str, Tensor], classes: Sequence[str], ax: Axes | None = None) -> Axes:
    """What the model believes, before and after."""
    ax = axes(ax, 7, 3)
    width = 0.8 / len(rows)
    for i, (label, p) in enumerate(rows.items()):
        at = np.arange(len(classes)) + (i - (len(rows) - 1) / 2) * width
        ax.bar(at, p.detach().cpu().numpy(), width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8], edgecolor="white")
    ax.set_xticks(range(len(classes)), list(classes), rotation=30, ha="right")
    ax.set(ylabel="probability", ylim=(0, 1.02))
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=len(rows))
    return ax


def curves(lines: Mapping[str, Sequence[float]], ax: Axes | None = None, *, xlabel: str = "epoch", ylabel: str = "loss") -> Axes:
    """Histories over epochs, one line each."""
    ax = axes(ax, 6, 3.2)
    for i, (label, values) in enumerate(lines.items()):
        ax.plot(range(1, len(values) + 1), values, marker=MARKERS[i % 8], ms=4, color=COLOURS[i % 8], label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return ax
