"""Reports to pictures. Every function takes an Axes (or makes one) and returns it; none trains or
evaluates."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from torch import Tensor

from course_lib.data import Split
from course_lib.errors import CourseError, pick
from course_lib.fairness import Report, Spread, class_spreads

# Okabe and Ito's palette, told apart by readers with any kind of colour vision; hatches and markers
# say it twice.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "axes.axisbelow": True, "font.size": 10, "figure.dpi": 100, "savefig.dpi": 100,
    "legend.frameon": False, "hatch.linewidth": 0.6,
}
KINDS = {"nat": "standard error", "rob": "robust error",
         "bnd": "boundary error (robust − standard)"}

Some = Report | Sequence[Report]  # one model, or the seeds of one recipe


def axes(ax: Axes | None, width: float = 8, height: float = 3.6) -> Axes:
    """The given Axes, or one in a new figure in the course's style."""
    if ax is not None:
        return ax
    with plt.rc_context(STYLE):
        return plt.subplots(figsize=(width, height), layout="constrained")[1]


def panels(n: int, width: float = 9, height: float = 3.6, **words: Any) -> list[Axes]:
    """n Axes side by side in one figure in the course's style; `words` go to plt.subplots
    (sharey=True)."""
    with plt.rc_context(STYLE):
        return list(plt.subplots(1, n, figsize=(width, height), layout="constrained", squeeze=False,
                                 **words)[1][0])


def show(ax: Axes, alt: str) -> None:
    """Show the figure with a text for those who cannot see it, and close it so that figures do not
    pile up.

    A palette of 128 colours makes the stored picture a third as large, and nobody sees the
    difference.
    """
    from IPython.display import Image, display
    from PIL import Image as Pillow

    drawn, packed, figure = io.BytesIO(), io.BytesIO(), cast(Figure, ax.figure)
    with plt.rc_context(STYLE):
        figure.savefig(drawn, format="png", dpi=100)
    Pillow.open(drawn).convert("RGB").quantize(128, dither=Pillow.Dither.NONE).save(packed,
        format="png", optimize=True)
    # Colab's IPython 7 knows no Image(alt=...)
    display(Image(packed.getvalue()), metadata={"image/png": {"alt": alt}})
    plt.close(figure)


def difficulty(reports: Some) -> list[int]:
    """The classes from the smallest standard error to the largest."""
    errors = [r.nat for r in _seeds(reports)]
    return sorted(range(len(errors[0].counts)),
                  key=lambda c: float(np.mean([e.by_class[c] for e in errors])))


def class_bars(models: Mapping[str, Some], ax: Axes | None = None, *,
               kind: str | Sequence[str] = "rob",
               order: Sequence[int] | None = None) -> Axes:
    """Errors by class, one or several models side by side, classes sorted by the first model's
    standard error.

    `kind` is nat, rob or bnd, or one of them for each model. Whiskers are 95 % intervals: Wilson's
    for one model, Student's over the seeds of a recipe.

    >>> class_bars({"natural": load_report("exp1/natural")})  # doctest: +SKIP
    """
    if not models:
        raise CourseError("No model to draw; give a dictionary such as {'natural': "
                          "load_report('exp1/natural')}.")
    kinds = [kind] * len(models) if isinstance(kind, str) else list(kind)
    titles = [pick(KINDS, k, "kind of error") for k in kinds]
    if len(kinds) != len(models):
        raise CourseError(f"{len(kinds)} kinds of error for {len(models)} models; give one for "
                          "all, or one for each.")
    ax, first = axes(ax), next(iter(models.values()))
    order = difficulty(first) if order is None else order
    width = 0.8 / len(models)
    for i, (label, reports) in enumerate(models.items()):
        heights, low, high = _bars([getattr(r, kinds[i]) for r in _seeds(reports)])
        at = np.arange(len(order)) + (i - (len(models) - 1) / 2) * width
        ax.bar(at, 100 * heights[order], width * 0.92, label=label, color=COLOURS[i % 8],
               hatch=HATCHES[i % 8], edgecolor="white",
               yerr=100 * np.abs(np.stack([low, high])[:, order] - heights[order]),
               error_kw={"elinewidth": 0.9, "capsize": 2})
    names = _seeds(first)[0].classes
    ax.set_xticks(np.arange(len(order)), [names[c] for c in order], rotation=30, ha="right",
                  rotation_mode="anchor")
    title = titles[0] if len(set(kinds)) == 1 else "error"
    ax.set(ylabel=f"{title} (%)", xlabel="class, easiest first")
    # still free to grow when axes are shared
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]), auto=True)
    if len(models) > 1:
        _legend_above(ax)
    return ax


def _legend_above(ax: Axes, columns: int = 4) -> None:
    """A legend outside the data, whatever the data."""
    columns = min(columns, len(ax.get_legend_handles_labels()[1]))
    ax.legend(ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2,
              frameon=False, fontsize=9,
              columnspacing=1.2, handlelength=1.6)


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


def cost_of_robustness(natural: Sequence[Report], robust: Sequence[Report],
                       ax: Axes | None = None) -> Axes:
    """What adversarial training adds to each class's standard error, against how hard the class was
    before.

    Crosses are 95 % intervals over seeds.
    """
    ax = axes(ax, 6, 4.4)
    before = class_spreads([r.nat for r in natural])
    added = [Spread.of(b.nat.by_class[c] - a.nat.by_class[c] for a,
                       b in zip(natural, robust, strict=True)) for c in range(len(before))]
    x, y = (100 * np.array([s.mean for s in spreads]) for spreads in (before, added))
    half = [100 * np.nan_to_num([s.high - s.mean for s in spreads]) for spreads in (before, added)]
    ax.axhline(0, color="0.5", lw=0.8)
    ax.errorbar(x, y, xerr=half[0], yerr=half[1], fmt="o", ms=5, color=COLOURS[0], elinewidth=0.9,
                ecolor="0.55", zorder=3)
    ax.set(xlabel="standard error of the natural model (%)",
           ylabel="added by adversarial training (points)")
    ax.margins(0.12)
    _label_points(ax, x, y, natural[0].classes)
    return ax


def _label_points(ax: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> None:
    """A name at each point, moved around it until it covers neither a point nor another name."""
    places = [(4, 7), (4, -7), (-4, 7), (-4, -7), (0, 9), (0, -9), (7, 0), (-7, 0)]
    places += [(dx, sign * dy) for dy in (18, 29, 40, 51, 62, 73) for dx in (9, 30, 50)
               for sign in (1, -1)]
    assert ax.figure is not None
    ax.figure.canvas.draw()  # the layout is final only now
    taken = [Bbox.from_bounds(px - 4, py - 4, 8, 8) for px,
             py in ax.transData.transform(np.stack([x, y], 1))]
    for i in np.argsort(x):
        for dx, dy in places:
            side = {1: "left", -1: "right", 0: "center"}[(dx > 0) - (dx < 0)]
            text = ax.annotate(names[i], (x[i], y[i]), xytext=(dx, dy), textcoords="offset points",
                               fontsize=8, ha=side, va="center")
            box = text.get_window_extent()
            inside = (ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 and ax.bbox.y0 <= box.y0
                      and box.y1 <= ax.bbox.y1)
            if (inside and not box.count_overlaps(taken)) or (dx, dy) == places[-1]:
                taken.append(box)
                if abs(dy) > 9:
                    line = {"arrowstyle": "-", "color": "0.6", "lw": 0.5}
                    ax.annotate("", (x[i], y[i]), xytext=(dx, dy), textcoords="offset points",
                                arrowprops=line)
                break
            text.remove()


def spread_points(rows: Mapping[str, tuple[Spread, float | None]], ax: Axes | None = None, *,
                  xlabel: str = "error (%)",
                  theirs: str = "the report's model") -> Axes:
    """Our mean with its 95 % interval beside a figure of somebody else's (or None), one row a
    quantity."""
    ax = axes(ax, 7, 0.9 + 0.32 * len(rows))
    for i, (ours, other) in enumerate(rows.values()):
        ax.plot([100 * ours.low, 100 * ours.high], [i, i], color=COLOURS[0], lw=2)
        ax.plot(100 * ours.mean, i, "o", ms=5, color=COLOURS[0], label="" if i
                else "ours: mean and 95 % interval over seeds")
        if other is not None:
            ax.plot(100 * other, i, "D", ms=7, color=COLOURS[5], mfc="none", mew=1.5)
    ax.plot([], [], "D", ms=7, color=COLOURS[5], mfc="none", mew=1.5, label=theirs)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set_xlabel(xlabel)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", alpha=0.3)
    _legend_above(ax, columns=1)
    return ax


def images(x: Tensor, ax: Axes | None = None, *, titles: Sequence[str] = (),
           columns: int | None = None,
           framed: Sequence[bool] | Tensor = ()) -> Axes:
    """Images [N, C, H, W] in [0, 1] in a row (or rows of `columns`), each with its title; `framed`
    ones get a frame."""
    n, _, height, width = x.shape
    columns = n if columns is None else columns
    lines, rows = -(-n // columns), max((t.count("\n") + 1 for t in titles), default=0)
    ax = axes(ax, 1.25 * columns, (1.2 + 0.18 * rows) * lines)
    gap, side = 3 + round(0.15 * height * rows), 4
    sheet = np.ones((lines * (height + gap) + 2, columns * (width + side), 3))
    for i, image in enumerate(x.detach().clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()):
        top, left = (i // columns) * (height + gap) + gap, (i % columns) * (width
            + side) + side // 2
        sheet[top : top + height, left : left + width] = image
        if i < len(titles):
            ax.text(left + width / 2, top - 2, titles[i], ha="center", va="bottom", fontsize=8,
                    linespacing=1.05)
        if i < len(framed) and framed[i]:
            ax.add_patch(Rectangle((left - 1, top - 1), width + 1, height + 1, fill=False,
                                   ec=COLOURS[5], lw=2.5))
    ax.imshow(sheet, interpolation="nearest")
    ax.set_axis_off()
    return ax


def adversarial(x: Tensor, z: Tensor, ax: Axes | None = None, *, before: str = "clean",
                after: str = "attacked") -> Axes:
    """One image, what the attack adds (grey is nothing, scaled to the largest change), and the
    attacked image."""
    change = z - x
    most = float(change.abs().max()) or 1.0
    labels = (before, f"change × {0.5 / most:.0f}" if change.any() else "no change", after)
    return images(torch.stack([x, 0.5 + change * 0.5 / most, z]), ax, titles=labels)


def class_pair(split: Split, a: int | str, b: int | str, ax: Axes | None = None, *,
               n: int = 8) -> Axes:
    """Two classes one above the other: would you tell them apart?"""
    places = [split.classes.index(c) if isinstance(c, str) else c for c in (a, b)]
    return image_rows({split.classes[c]: split.images(torch.nonzero(split.y == c).flatten()[:n])
                       for c in places}, ax)


def image_rows(rows: Mapping[str, Tensor], ax: Axes | None = None) -> Axes:
    """Rows of images [N, C, H, W], each with its label on the left; a short row is filled up with
    white."""
    n = max(len(x) for x in rows.values())
    full = [torch.cat([x, x.new_ones(n - len(x), *x.shape[1:])]) for x in rows.values()]
    ax = images(torch.cat(full), axes(ax, 0.8 * n + 1.6, 0.85 * len(rows)), columns=n)
    step = full[0].shape[2] + 3
    for i, label in enumerate(rows):
        ax.text(-3, i * step + 3 + (step - 3) / 2, label, ha="right", va="center", fontsize=9)
    return ax


def numbers_by_class(rows: Mapping[str, np.ndarray | Tensor], classes: Sequence[str],
                     ax: Axes | None = None, *,
                     ylabel: str = "") -> Axes:
    """One bar a class, one or several rows side by side."""
    ax = axes(ax, 7, 3)
    width = 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        at = np.arange(len(classes)) + (i - (len(rows) - 1) / 2) * width
        heights = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        ax.bar(at, heights, width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8],
               edgecolor="white")
    ax.set_xticks(range(len(classes)), list(classes), rotation=30, ha="right",
                  rotation_mode="anchor")
    ax.set_ylabel(ylabel)
    _legend_above(ax)
    return ax


def probabilities(rows: Mapping[str, Tensor], classes: Sequence[str],
                  ax: Axes | None = None) -> Axes:
    """What the model believes, before and after."""
    ax = numbers_by_class(rows, classes, ax, ylabel="probability")
    ax.set_ylim(0, 1.02)
    return ax


def curves(lines: Mapping[str, Sequence[float]], ax: Axes | None = None, *, xlabel: str = "epoch",
           ylabel: str = "loss") -> Axes:
    """Histories over epochs, one line each."""
    ax = axes(ax, 6, 3.2)
    for i, (label, values) in enumerate(lines.items()):
        ax.plot(range(1, len(values) + 1), values, marker=MARKERS[i % 8], ms=4,
                color=COLOURS[i % 8], label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_above(ax)
    return ax


def walk(p: Tensor, right: Sequence[bool] | Tensor, ax: Axes | None = None, *,
         labels: Sequence[str] = ()) -> Axes:
    """Probabilities [T, lines] along an attack, and the moment its iterates turn wrong (`right`
    [T], for one image)."""
    ax = axes(ax, 7, 3)
    for i, line in enumerate(p.detach().cpu().T.numpy()):
        ax.plot(range(len(line)), line, marker=MARKERS[i % 8], ms=4, color=COLOURS[i % 8],
                label=labels[i] if i < len(labels) else None)
    first = next((t for t, ok in enumerate(right) if not ok), None)
    if first is not None:
        ax.axvspan(first - 0.5, len(right) - 0.5, color=COLOURS[5], alpha=0.12, lw=0,
                   label="prediction is wrong")
    ax.set(xlabel="step t of the attack", ylabel="probability", ylim=(0, 1.02),
           xlim=(-0.5, len(right) - 0.5))
    _legend_above(ax)
    return ax


def budget_curves(reports: Mapping[float, Report], ax: Axes | None = None, *,
                  named: Sequence[str] = ()) -> Axes:
    """Robust error of every class against the attack's budget; the `named` classes in colour, the
    others in grey."""
    ax, first = axes(ax, 6, 3.6), next(iter(reports.values()))
    levels = [255 * e for e in reports]
    for c, name in enumerate(first.classes):
        errors = [100 * r.rob.by_class[c] for r in reports.values()]
        if name not in named:
            ax.plot(levels, errors, color="0.75", lw=1, zorder=1)
            continue
        i = list(named).index(name)
        ax.plot(levels, errors, marker=MARKERS[i % 8], ms=5, color=COLOURS[i % 8], label=name)
    ax.plot(levels, [100 * r.rob.mean for r in reports.values()], "--", color="black", lw=1.5,
            label="average")
    ax.set(xlabel="budget ε (grey levels of 255)", ylabel="robust error (%)", ylim=(0, 102),
           xticks=levels)
    _legend_above(ax)
    return ax


def class_curves(values: Sequence[Sequence[float]], classes: Sequence[str], ax: Axes | None = None,
                 *, named: Sequence[str] = (),
                 xlabel: str = "epoch", ylabel: str = "", legend: bool = True,
                 start: int = 1) -> Axes:
    """One line a class over epochs (from `start`), `values` [T, C]; the `named` classes in colour,
    the others in grey."""
    ax, lines = axes(ax, 6, 3.2), np.asarray(values, float).T
    epochs = range(start, lines.shape[1] + start)
    for name, line in zip(classes, lines, strict=True):
        if name not in named:
            ax.plot(epochs, line, color="0.75", lw=1, zorder=1)
    for i, name in enumerate(named):
        ax.plot(epochs, lines[list(classes).index(name)], marker=MARKERS[i % 8], ms=4,
                color=COLOURS[i % 8], label=name)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if named and legend:
        _legend_above(ax)
    return ax


def heat_map(values: np.ndarray, rows: Sequence[Any], columns: Sequence[Any],
             ax: Axes | None = None, *,
             marked: Sequence[tuple[int, int]] = (), span: tuple[float, float] | None = None,
             xlabel: str = "", ylabel: str = "") -> Axes:
    """Numbers as colours, each written in its cell; dark is much. `marked` cells get a frame, what
    is missing (NaN) a dash."""
    ax = axes(ax, 1.1 + 0.8 * len(columns), 1.0 + 0.6 * len(rows))
    low, high = span or (float(np.nanmin(values)),
                         float(np.nanmax(values))) if np.isfinite(values).any() else (0.0, 1.0)
    ax.imshow(np.ma.masked_invalid(values), cmap="cividis_r", vmin=low, vmax=max(high, low + 1e-9),
              aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        dark = np.isfinite(value) and value > (low + high) / 2
        ax.text(j, i, f"{value:.1f}" if np.isfinite(value) else "–", ha="center", va="center",
                color="white" if dark else "black")
    for i, j in marked:
        ax.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, ec=COLOURS[5], lw=3))
    ax.set_xticks(range(len(columns)), [str(c) for c in columns])
    ax.set_yticks(range(len(rows)), [str(r) for r in rows])
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(visible=False)
    return ax


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other one dominates: none is at most as large in both and smaller in one.

    >>> front([(1, 3), (2, 2), (2, 3)])
    [True, True, False]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def pareto(points: Mapping[str, tuple[Spread, Spread]], ax: Axes | None = None, *,
           others: Mapping[str, tuple[float, float]] | None = None,
           xlabel: str = "average error (%)", ylabel: str = "worst class's error (%)") -> Axes:
    """Average against worst class, crosses are 95 % intervals; a ring marks the models that no
    other one dominates.

    `others` are models of somebody else's, in fractions: shown, but not part of the contest.
    """
    ax = axes(ax, 6, 4.4)
    best = front([(x.mean, y.mean) for x, y in points.values()])
    for i, ((label, (x, y)), ringed) in enumerate(zip(points.items(), best, strict=True)):
        half = [100 * np.nan_to_num(s.high - s.mean) for s in (x, y)]
        ax.errorbar(100 * x.mean, 100 * y.mean, xerr=half[0], yerr=half[1], fmt=MARKERS[i % 8],
                    ms=6, color=COLOURS[i % 8],
                    elinewidth=0.9, label=label)
        if ringed:
            ax.plot(100 * x.mean, 100 * y.mean, "o", ms=14, mfc="none", mec="black", mew=1.2,
                    zorder=1)
    for i, (label, (a, b)) in enumerate((others or {}).items()):
        ax.plot(100 * a, 100 * b, MARKERS[(i + 3) % 8], ms=7, mfc="none", mec="0.35", mew=1.4,
                ls="none", label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(axis="x", alpha=0.3)
    ax.margins(0.12)
    return ax


def confusion(matrix: np.ndarray, classes: Sequence[str], ax: Axes | None = None, *,
              wrong_only: bool = False,
              most: float | None = None) -> Axes:
    """Shares [C, C] of each class (row) that are taken for each class (column), in percent; under
    half a percent a dot.

    `wrong_only` leaves the diagonal out, so that the colours show where mistakes go; `most` is the
    share with the darkest colour, for maps side by side.
    """
    ax, n = axes(ax, 6.4, 5.6), len(classes)
    values = 100 * np.where(np.eye(n, dtype=bool) & wrong_only, np.nan, np.asarray(matrix, float))
    high = max(float(np.nanmax(values)) if most is None else 100 * most, 1e-9)
    image = ax.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=high)
    for (i, j), value in np.ndenumerate(values):
        text = "" if np.isnan(value) else f"{value:.0f}" if value >= 0.5 else "·"
        ax.text(j, i, text, ha="center", va="center", fontsize=8,
                color=_ink(image.cmap(image.norm(value))))
    ax.set_xticks(range(n), list(classes), rotation=45, ha="right", rotation_mode="anchor",
                  fontsize=8)
    ax.set_yticks(range(n), list(classes), fontsize=8)
    ax.set(xlabel="taken for", ylabel="class")
    ax.grid(visible=False)
    return ax


def _ink(ground: Any) -> str:
    """Black or white, whichever stands out more on this colour (relative luminance as the web's
    guidelines define it)."""
    c = np.asarray(ground[:3], float)
    light = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152,
        0.0722]
    return "black" if light > 0.179 else "white"


def boundary_walk(walks: Mapping[str, tuple[Tensor, Sequence[str], int, int]],
                  ax: Axes | None = None) -> Axes:
    """Images walking across the decision boundary, one row a walk: label -> (iterates [T, C, H, W],
    what each is taken for, c, a).

    x_c, the c-th iterate, has a solid blue frame, x_a, the a-th, a broken vermilion one.
    """
    n, rows = max(len(z) for z, *_ in walks.values()), list(walks.items())
    full = [torch.cat([z, z.new_ones(n - len(z), *z.shape[1:])]) for _, (z, *_) in rows]
    titles = [said[t] if t < len(said) else "" for _, (_, said, *_) in rows for t in range(n)]
    ax = images(torch.cat(full), axes(ax, 0.95 * n + 1.2, 1.25 * len(rows)), titles=titles,
                columns=n)
    side = full[0].shape[3]
    gap, step = 3 + round(0.15 * full[0].shape[2]), side + 4
    for t in range(n):
        ax.text(t * step + step / 2, gap - 10, f"t = {t}", ha="center", va="bottom", fontsize=8,
                color="0.4")
    for i, (label, (_, _, c, a)) in enumerate(rows):
        top = i * (full[0].shape[2] + gap) + gap
        ax.text(-3, top + full[0].shape[2] / 2, label, ha="right", va="center", fontsize=9)
        for t, colour, line in ((c, COLOURS[0], "-"), (a, COLOURS[5], "--")):
            # both on one image: one inside the other
            inset = 2.5 if c == a and t == c and colour == COLOURS[5] else 0.0
            ax.add_patch(Rectangle((t * step + 1 + inset, top - 1 + inset), side + 1 - 2 * inset,
                                   side + 1 - 2 * inset, fill=False,
                                   ec=colour, lw=2.5, ls=line))
    return ax


def attack_gaps(models: Mapping[str, Mapping[str, tuple[float, float, float]]],
                ax: Axes | None = None, *, flagged: Sequence[str] = (),
                xlabel: str = "robust accuracy (%)") -> Axes:
    """One row a model, one marker an attack: label -> attack -> (value, low, high) in fractions;
    `flagged` models are marked.

    A weak attack leaves more accuracy than a strong one: the further apart the markers, the less
    the weak one may be believed.
    """
    ax = axes(ax, 8, 1.1 + 0.42 * len(models))
    attacks = list(dict.fromkeys(a for found in models.values() for a in found))
    for i, (label, found) in enumerate(models.items()):
        for k, attack in enumerate(attacks):
            if attack in found:
                value, low, high = (100 * v for v in found[attack])
                y, colour = i + 0.2 * (k - (len(attacks) - 1) / 2), COLOURS[k % 8]
                ax.plot([low, high], [y, y], color=colour, lw=1.5)
                ax.plot(value, y, MARKERS[k % 8], ms=5, color=colour)
        if label in flagged:
            ax.axhspan(i - 0.45, i + 0.45, color=COLOURS[5], alpha=0.12, lw=0)
    for k, attack in enumerate(attacks):
        ax.plot([], [], MARKERS[k % 8], ms=5, color=COLOURS[k % 8], label=attack)
    ax.set_yticks(range(len(models)), [f"⚑ {label}" if label in flagged else label
                                       for label in models])
    ax.set_ylim(len(models) - 0.5, -0.5)
    ax.set_xlabel(xlabel)
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", alpha=0.3)
    _legend_above(ax)
    return ax


def class_scatter(x: np.ndarray, y: np.ndarray, classes: Sequence[str], ax: Axes | None = None, *,
                  xlabel: str = "",
                  ylabel: str = "") -> Axes:
    """One point a class, each with its name: two figures of a class against each other."""
    ax = axes(ax, 5, 4)
    ax.plot(x, y, "o", ms=5, color=COLOURS[0], zorder=3)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.margins(0.12)
    _label_points(ax, np.asarray(x, float), np.asarray(y, float), classes)
    return ax


def lines(x: Sequence[float], curves: Mapping[str, Sequence[float]], ax: Axes | None = None, *,
          xlabel: str = "", ylabel: str = "") -> Axes:
    """Functions of one variable, each with its own colour and dashes."""
    ax = axes(ax, 6, 3.4)
    for i, (label, y) in enumerate(curves.items()):
        ax.plot(x, y, color=COLOURS[i % 8], ls=("-", "--", "-.", ":")[i % 4], lw=2, label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    _legend_above(ax)
    return ax
