"""Results as figures. Every function takes an Axes (or makes one), draws on it, and returns it.

No function here trains or evaluates. Errors are fractions when they come in and percent when they
are drawn; whiskers and crosses are 95 % intervals.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from torch import Tensor

from course_lib.errors import CourseError, pick
from course_lib.fairness import Errors, Report, Spread, class_spreads
from course_lib.zoo import budget, combine

# Okabe and Ito's palette: readers with any kind of colour vision can distinguish any two of these.
# Hatches and markers repeat the distinction for print in black and white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "grid.alpha": 0.3, "axes.axisbelow": True, "font.size": 10, "figure.dpi": 100,
    "savefig.dpi": 100, "legend.frameon": False, "hatch.linewidth": 0.6,
}
SERIES: Any = [{"color": c, "marker": m, "ms": 4} for c, m in zip(COLOURS, MARKERS, strict=True)]
FRAME: Any = {"fill": False, "ec": COLOURS[5], "lw": 2.5}
KINDS = {"nat": "standard error", "rob": "robust error",
         "bnd": "boundary error (robust − standard)"}

Some = Report | Sequence[Report]  # one model, or the seeds of one recipe
Ax = Axes | None  # None makes a new figure
Names = Sequence[str]
Lines = Mapping[str, Sequence[float]]


def axes(ax: Ax, width: float = 7.6, height: float = 3.6) -> Axes:
    """The given Axes, or one in a new figure (in inches) in the course's style."""
    return panels(1, width, height)[0] if ax is None else ax


def panels(n: int, width: float = 7.6, height: float = 3.6, **words: Any) -> list[Axes]:
    """n Axes side by side in one new figure; `words` such as sharey=True go to plt.subplots."""
    with plt.rc_context(STYLE):
        return list(plt.subplots(1, n, figsize=(width, height), layout="constrained", squeeze=False,
                                 **words)[1][0])


def show(ax: Axes, alt: str = "") -> None:
    """Show the figure of `ax`, sharp on any screen, and close it. Readers who cannot see it get
    `alt`, or what `describe` says."""
    from IPython.display import Image, display
    from PIL import Image as Pillow

    packed, figure = io.BytesIO(), cast(Figure, ax.figure)
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(200)
    with plt.rc_context(STYLE):
        canvas.draw()
    drawn = Pillow.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    # 128 colours look the same, and the stored picture is a third as large
    picture = drawn.quantize(128, Pillow.Quantize.FASTOCTREE, dither=Pillow.Dither.NONE)
    picture.save(packed, format="png")
    # Colab's IPython 7 has no Image(alt=...)
    about = {"alt": alt or describe(figure), "width": picture.width // 2,
             "height": picture.height // 2}
    display(Image(packed.getvalue()), metadata={"image/png": about})
    plt.close(figure)


def describe(figure: Figure) -> str:
    """The figure in words: the titles and labels of its axes, and the range of every series."""
    texts = []
    for ax in figure.axes:
        ticks = [tick.get_text() for tick in ax.get_xticklabels()]
        bars = {str(c.get_label()): [p.get_height() for p in c.patches] for c in ax.containers
                if isinstance(c, BarContainer)}
        lines = {str(line.get_label()): [float(v) for v in np.asarray(line.get_ydata(), float)]
                 for line in ax.lines}
        texts.append(". ".join(filter(None, [
            ax.get_title(), f"{ax.get_ylabel()} by {ax.get_xlabel()}".strip(" by"),
            *(_range(name, values, ticks) for name, values in (bars or lines).items()
              if len(values) > 1 and np.isfinite(values).any())])))
    return "; ".join(filter(None, texts)) or "a picture without axes"


def _range(name: str, values: Sequence[float], ticks: Names) -> str:
    """natural: from 3.1 (Trouser) to 97.2 (Shirt)"""
    ends = (int(np.nanargmin(values)), int(np.nanargmax(values)))
    places = [f" ({ticks[i]})" if len(ticks) == len(values) and ticks[i] else "" for i in ends]
    shown = " to ".join(f"{values[i]:.3g}{where}" for i, where in zip(ends, places, strict=True))
    return f"{'' if name.startswith('_') else name + ': '}from {shown}"


def class_bars(models: Some | Mapping[str, Some], ax: Ax = None, *,
               kind: str | Sequence[str] = "rob", order: Sequence[int] | None = None) -> Axes:
    """Errors per class of a model, or of several models side by side.

    `kind` is nat, rob or bnd, or one of them per model. `order` is the first model's `difficulty`
    by default. Whiskers are Wilson's interval for one model, Student's over the seeds of a recipe.

    >>> class_bars({"natural": load_report("exp1/natural")})  # doctest: +SKIP
    """
    models = models if isinstance(models, Mapping) else {"": models}
    seeds = {label: [*m] if isinstance(m, Sequence) else [m] for label, m in models.items()}
    every = [r for reports in seeds.values() for r in reports]
    if not all([seeds, *seeds.values()]) or not all(isinstance(r, Report) for r in every):
        raise CourseError("No model to draw; give a report such as load_report(name), the reports "
                          "of a recipe's seeds, or a dictionary of them: {'natural': report}.")
    kinds = [kind] * len(models) if isinstance(kind, str) else list(kind)
    names = {pick(KINDS, k, "kind of error") for k in kinds}
    if len(kinds) != len(models):
        raise CourseError(f"{len(kinds)} kinds of error for {len(models)} models; give one each.")
    same = iter(combine(every, "attack budget" if {*kinds} == {"nat"} else ""))
    seeds = {label: [next(same) for _ in reports] for label, reports in seeds.items()}
    order = difficulty(next(iter(seeds.values()))) if order is None else order
    rows = {label: _class_intervals([getattr(r, k) for r in reports], order)
            for k, (label, reports) in zip(kinds, seeds.items(), strict=True)}
    ax = bars(rows, [every[0].classes[c] for c in order], axes(ax),
              ylabel=f"{names.pop() if len(names) == 1 else 'error'} (%)")
    _say(ax, every, "class, easiest first")
    # boundary errors can be negative; auto, because panels that share an axis still have to grow
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]), auto=True)
    return ax


def _say(ax: Axes, reports: Iterable[Report], xlabel: str) -> None:
    """The label of the x axis, and below it the warnings about the figures that are drawn."""
    words = dict.fromkeys(w for r in reports for w in getattr(r, "warnings", ()))
    ax.set_xlabel("\n".join([xlabel, *(f"! {w}" for w in words)]))


def side_by_side(models: Mapping[str, Some], *, width: float = 8, height: float = 3.2) -> Axes:
    """One panel per model: its standard error per class beside the robust error, as the figures of
    the reproduction report. The classes are in the order of the first model's `difficulty`."""
    seeds = {label: [m] if isinstance(m, Report) else [*m] for label, m in models.items()}
    same = iter(combine(r for reports in seeds.values() for r in reports))
    seeds = {label: [next(same) for _ in reports] for label, reports in seeds.items()}
    drawn = panels(len(seeds), width, height, sharey=True)
    order = difficulty(next(iter(seeds.values())))
    for ax, (label, reports) in zip(drawn, seeds.items(), strict=True):
        attack = f"{reports[0].attack} {budget(reports[0].eps)}"
        class_bars({"standard": reports, attack: reports}, ax, kind=("nat", "rob"), order=order)
        ax.set(ylim=(0, 100), ylabel=ax.get_ylabel() if ax is drawn[0] else "")
        ax.set_title(label, pad=22, fontsize=11)
    return drawn[-1]


def dumbbells(before: Some, after: Some, ax: Ax = None, *, kind: str = "nat",
              labels: tuple[str, str] = ("before", "after")) -> Axes:
    """Each class's error before and after, hardest class last; vermilion where it rises."""
    first, then = ([m] if isinstance(m, Report) else [*m] for m in (before, after))
    every = combine([*first, *then], "attack budget" if kind == "nat" else "")
    x, y = (100 * np.mean([getattr(r, kind).by_class for r in reports], axis=0)
            for reports in (every[:len(first)], every[len(first):]))
    order, at = np.argsort(x, kind="stable"), np.arange(len(x))
    ax = axes(ax, 5, 3.4)
    ax.vlines(at, x[order], y[order], lw=3, zorder=1,
              color=[COLOURS[5] if up else COLOURS[0] for up in (y > x)[order]])
    ax.plot(at, x[order], "o", ms=6, mfc="white", mec="0.2", label=labels[0])
    ax.plot(at, y[order], "o", ms=6, color="black", label=labels[1])
    _columns(ax, [every[0].classes[c] for c in order])
    return _finish(ax, ylabel=f"{pick(KINDS, kind, 'kind of error')} (%)")


def difficulty(reports: Some) -> list[int]:
    """The classes from the smallest standard error to the largest."""
    seeds = combine([reports] if isinstance(reports, Report) else reports, "attack budget")
    errors = np.mean([r.nat.by_class for r in seeds], axis=0)
    return [int(c) for c in np.argsort(errors, kind="stable")]


def bars(rows: Mapping[str, Sequence[Spread] | Sequence[float]], names: Names, ax: Ax = None, *,
         ylabel: str, scale: float = 100.0) -> Axes:
    """One bar per name, the rows side by side; a Spread adds its interval. `scale` multiplies."""
    if {len(values) for values in rows.values()} != {len(names)}:
        given = ", ".join(f"{len(v)} values of {k}" for k, v in rows.items()) or "Nothing"
        raise CourseError(f"{given} to draw over {len(names)} names; give one value for each.")
    ax, width = axes(ax), 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        spreads = [v if isinstance(v, Spread) else Spread.of([v]) for v in values]
        height, low, high = _ends(spreads, scale)
        reach = np.abs(np.nan_to_num([height - low, high - height]))
        at = np.arange(len(names)) + (i - (len(rows) - 1) / 2) * width
        ax.bar(at, height, width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8],
               edgecolor="white", yerr=reach if reach.any() else None,
               error_kw={"elinewidth": 0.9, "capsize": 2})
    _columns(ax, names)
    return _finish(ax, legend=len(rows) > 1, ylabel=ylabel)


def probabilities(rows: Mapping[str, Tensor], classes: Names, ax: Ax = None) -> Axes:
    """The model's probabilities p [C], for example of the clean and of the attacked image."""
    return _finish(bars({label: p.tolist() for label, p in rows.items()}, classes, axes(ax, 7, 3),
                        ylabel="probability", scale=1), ylim=(0, 1.02))


def cost_of_robustness(natural: Sequence[Report], robust: Sequence[Report], ax: Ax = None) -> Axes:
    """The standard error that adversarial training adds to each class, over the class's difficulty.
    Both lists hold the same seeds in the same order; differences are taken per seed."""
    if len(natural) != len(robust):
        raise CourseError(f"{len(natural)} natural reports for {len(robust)} robust; give pairs.")
    ax, every = axes(ax, 6, 4.4), combine([*natural, *robust], "attack budget")
    ax.axhline(0, color="0.5", lw=0.8)
    before, after = every[:len(natural)], every[len(natural):]
    added = np.array([b.nat.by_class - a.nat.by_class for a, b in zip(before, after, strict=True)])
    x, y = _crosses(ax, class_spreads([r.nat for r in before]), map(Spread.of, added.T),
                    fmt="none", ecolor="0.55")
    ax.set(xlabel="standard error of the natural model (%)",
           ylabel="added by adversarial training (points)")
    return class_scatter(x, y, every[0].classes, ax)


def class_scatter(x: np.ndarray, y: np.ndarray, classes: Names, ax: Ax = None, *,
                  xlabel: str = "", ylabel: str = "") -> Axes:
    """A point per class with its name, moved until it covers neither a point nor a name."""
    offsets = [(4, 7), (4, -7), (-4, 7), (-4, -7), (0, 9), (0, -9), (7, 0), (-7, 0)]
    offsets += [(dx, sign * dy) for dy in range(18, 74, 11) for dx in (9, 30, 50)
                for sign in (1, -1)]
    ax = axes(ax, 5, 4)
    ax.plot(x, y, "o", ms=5, color=COLOURS[0], zorder=3)
    ax.margins(0.12)
    ax.set(xlabel=xlabel or ax.get_xlabel(), ylabel=ylabel or ax.get_ylabel())
    cast(Figure, ax.figure).canvas.draw()  # positions are final only after the layout
    points = ax.transData.transform(np.stack([x, y], 1))
    covered = [Bbox.from_bounds(px - 4, py - 4, 8, 8) for px, py in points]
    for i in np.argsort(x):
        for dx, dy in offsets:
            text = ax.annotate(classes[i], (x[i], y[i]), xytext=(dx, dy), va="center", fontsize=8,
                               ha=("center", "left", "right")[np.sign(dx)],
                               textcoords="offset points")
            box = text.get_window_extent()
            inside = ax.bbox.contains(*box.min) and ax.bbox.contains(*box.max)
            if (inside and not box.count_overlaps(covered)) or (dx, dy) == offsets[-1]:
                break
            text.remove()
        covered.append(box)
        if abs(dy) > 9:  # a line leads to a name that had to go far
            ax.annotate("", (x[i], y[i]), xytext=(dx, dy), textcoords="offset points",
                        arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5})
    return ax


def class_curves(values: Sequence[Sequence[float]], classes: Names, ax: Ax = None, *,
                 named: Names = (), xlabel: str = "epoch", ylabel: str = "", legend: bool = True,
                 start: int = 1) -> Axes:
    """One line per class over epochs from `start`, `values` [T, C]; `named` ones in colour."""
    epochs = range(start, start + len(values))
    ax = _class_lines(axes(ax, 6, 3.2), epochs, values, classes, named)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(ax, legend, xlabel=xlabel, ylabel=ylabel)


def budget_curves(reports: Mapping[float, Report], ax: Ax = None, *, named: Names = ()) -> Axes:
    """Robust error per class, and its average, over budgets; the `named` classes in colour."""
    same, levels = combine(reports.values(), "budget"), [255 * e for e in reports]
    values = 100 * np.array([r.rob.by_class for r in same])
    ax = _class_lines(axes(ax, 6, 3.6), levels, values, same[0].classes, named)
    _say(ax, same, "budget ε (grey levels of 255)")
    ax.plot(levels, [100 * r.rob.mean for r in same], "k--", lw=1.5, label="average")
    return _finish(ax, ylabel="robust error (%)", ylim=(0, 102), xticks=levels)


def curves(lines: Lines, ax: Ax = None, *, xlabel: str = "epoch", ylabel: str = "loss") -> Axes:
    """One line per history, over epochs from 1."""
    ax = axes(ax, 6, 3.2)
    for i, (label, values) in enumerate(lines.items()):
        ax.plot(range(1, len(values) + 1), values, label=label, **SERIES[i % 8])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(ax, xlabel=xlabel, ylabel=ylabel)


def lines(x: Sequence[float], curves: Lines, ax: Ax = None, *, xlabel: str = "",
          ylabel: str = "") -> Axes:
    """Functions of one variable, each with its own colour and dashes."""
    ax = axes(ax, 6, 3.4)
    for i, (label, y) in enumerate(curves.items()):
        ax.plot(x, y, color=COLOURS[i % 8], ls=("-", "--", "-.", ":")[i % 4], lw=2, label=label)
    return _finish(ax, xlabel=xlabel, ylabel=ylabel)


def walk(p: Tensor, right: Sequence[bool] | Tensor, ax: Ax = None, *, labels: Names = ()) -> Axes:
    """Probabilities [T, lines] along an attack; shaded from the first iterate not `right` [T]."""
    ax = axes(ax, 7, 3)
    for i, line in enumerate(p.detach().cpu().T.numpy()):
        ax.plot(line, label=labels[i] if i < len(labels) else None, **SERIES[i % 8])
    first = next((t for t, ok in enumerate(right) if not ok), None)
    if first is not None:
        ax.axvspan(first - 0.5, len(right) - 0.5, color=COLOURS[5], alpha=0.12, lw=0,
                   label="prediction is wrong")
    return _finish(ax, xlabel="step t of the attack", ylabel="probability", ylim=(0, 1.02),
                   xlim=(-0.5, len(right) - 0.5))


def attack_gaps(models: Mapping[str, Mapping[str, tuple[float, float, float] | Spread]],
                ax: Ax = None, *, flagged: Names = (),
                xlabel: str = "robust accuracy (%)") -> Axes:
    """One row per model, one marker per attack: label -> attack -> (value, low, high) in fractions,
    or a Spread. Where the markers lie far apart, a weak attack overstates robustness: `flagged`."""
    attacks = list(dict.fromkeys(a for results in models.values() for a in results))
    labels = [f"⚑ {label}" if label in flagged else label for label in models]
    ax = _rows(axes(ax, 8, 1.1 + 0.42 * len(models)), labels)
    for i, (label, results) in enumerate(models.items()):
        for attack, ends in results.items():
            ends = (ends.mean, ends.low, ends.high) if isinstance(ends, Spread) else ends
            k, (value, *interval) = attacks.index(attack), 100 * np.array(ends)
            at = i + 0.2 * (k - (len(attacks) - 1) / 2)
            ax.plot(interval, [at, at], color=COLOURS[k % 8], lw=1.7)
            ax.plot(value, at, ls="none", label=attack, **SERIES[k % 8])
        if label in flagged:
            ax.axhspan(i - 0.45, i + 0.45, color=COLOURS[5], alpha=0.12, lw=0)
    return _finish(ax, xlabel=xlabel)


def strips(rows: Lines, ax: Ax = None, *, xlabel: str) -> Axes:
    """One point per training, one row per design, and a bar at the mean of each row."""
    ax = _rows(axes(ax, 8, 0.9 + 0.45 * len(rows)), list(rows))
    for i, values in enumerate(rows.values()):
        # multiples of the golden ratio spread the points out, the same way each time
        at = i + 0.22 * (2 * (np.arange(len(values)) * 0.618 % 1) - 1)
        ax.plot(values, at, alpha=0.6, ls="none", **SERIES[i % 8])
        ax.plot([np.mean(values)] * 2, [i - 0.38, i + 0.38], color="black", lw=1.6)
    return _finish(ax, xlabel=xlabel)


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other point dominates: none is at most as large in both and smaller in one.

    >>> front([(1, 3), (2, 2), (2, 3)])
    [True, True, False]
    """
    return [not any(x <= a and y <= b and (x, y) != (a, b) for x, y in points) for a, b in points]


def pareto(points: Mapping[str, tuple[Spread, Spread]], ax: Ax = None, *,
           others: Mapping[str, tuple[float, float]] | None = None,
           xlabel: str = "average error (%)", ylabel: str = "worst class's error (%)") -> Axes:
    """Average against worst class; a ring marks the models that no other model dominates.
    `others` are published models, in fractions: drawn, but not compared."""
    ax = axes(ax, 6, 4.4)
    best = front([(x.mean, y.mean) for x, y in points.values()])
    for i, (label, (x, y)) in enumerate(points.items()):
        at = _crosses(ax, [x], [y], fmt=MARKERS[i % 8], ms=6, color=COLOURS[i % 8], label=label)
        if best[i]:
            ax.plot(*at, "o", ms=14, mfc="none", mec="black", mew=1.2, zorder=1)
    for i, (label, (a, b)) in enumerate((others or {}).items()):
        ax.plot(100 * a, 100 * b, MARKERS[(i + 3) % 8], ms=7, mfc="none", mec="0.35", mew=1.4,
                label=label)
    ax.grid(axis="x", alpha=0.3)
    ax.margins(0.12)
    return _finish(ax, legend=False, xlabel=xlabel, ylabel=ylabel)


def confusion(matrix: np.ndarray, classes: Names, ax: Ax = None, *, wrong_only: bool = False,
              most: float | None = None) -> Axes:
    """Shares [C, C] of each true class (row) by predicted class in percent; "·" is below 0.5.
    `wrong_only` omits the diagonal; `most` is the share with the darkest colour."""
    diagonal = np.eye(len(classes), dtype=bool)
    values = 100 * np.where(diagonal & wrong_only, np.nan, np.asarray(matrix, float))
    high = max(float(np.nanmax(values)) if most is None else 100 * most, 1e-9)
    _cells(ax := axes(ax, 6.4, 5.6), values, classes, classes,
           lambda v: "" if np.isnan(v) else f"{v:.0f}" if v >= 0.5 else "·",
           cmap="Blues", vmin=0, vmax=high)
    return _finish(ax, xlabel="predicted class", ylabel="true class")


def heat_map(values: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], ax: Ax = None, *,
             marked: Sequence[tuple[int, int]] = (), span: tuple[float, float] | None = None,
             xlabel: str = "", ylabel: str = "") -> Axes:
    """Numbers as colours, each written in its cell; dark is large, "–" is missing (NaN).
    `marked` cells (row, column) get a frame; maps with one `span` (low, high) share colours."""
    finite = values[np.isfinite(values)]
    low, high = span or ((float(finite.min()), float(finite.max())) if len(finite) else (0, 1))
    _cells(ax := axes(ax, 1.1 + 0.8 * len(columns), 1.0 + 0.6 * len(rows)), values, rows, columns,
           lambda v: f"{v:.1f}" if np.isfinite(v) else "–",
           cmap="cividis_r", vmin=low, vmax=max(high, low + 1e-9), aspect="auto")
    for i, j in marked:
        ax.add_patch(Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, **FRAME))
    return _finish(ax, xlabel=xlabel, ylabel=ylabel)


def images(x: Tensor, ax: Ax = None, *, titles: Names = (), columns: int | None = None,
           framed: Sequence[bool] | Tensor = ()) -> Axes:
    """Images [N, C, H, W] in [0, 1], or bytes, in rows of `columns` (all in one by default), each
    with its title; `framed` ones get a frame."""
    pixels, columns, (height, width) = _fractions(x), columns or len(x), x.shape[2:]
    above = max((t.count("\n") + 1 for t in titles), default=0)  # lines of title above each image
    ax = axes(ax, 1.25 * columns, (1.2 + 0.18 * above) * -(-len(x) // columns))
    places = [_place(i, x, columns, above) for i in range(len(x))]
    sheet = np.ones((places[-1][0] + height + 2, columns * (width + 4), 3))
    for i, (top, left) in enumerate(places):
        sheet[top : top + height, left : left + width] = pixels[i].permute(1, 2, 0).cpu().numpy()
        if i < len(titles):
            ax.text(left + width / 2, top - 2, titles[i], ha="center", va="bottom", fontsize=8)
        if i < len(framed) and framed[i]:
            ax.add_patch(Rectangle((left - 1, top - 1), width + 1, height + 1, **FRAME))
    ax.imshow(sheet, interpolation="nearest")
    ax.set_axis_off()
    return ax


def adversarial(x: Tensor, z: Tensor, ax: Ax = None, *, before: str = "clean",
                after: str = "attacked") -> Axes:
    """One image, the attack's change (grey is none, scaled to the largest), the attacked image."""
    x, z = _fractions(x), _fractions(z)
    change = z - x
    most = float(change.abs().max()) or 1.0
    labels = (before, f"change × {0.5 / most:.0f}" if change.any() else "no change", after)
    return images(torch.stack([x, 0.5 + change * 0.5 / most, z]), ax, titles=labels)


def image_rows(rows: Mapping[str, Tensor], ax: Ax = None, *, titles: Names = ()) -> Axes:
    """Rows of images [N, C, H, W], each with its label on the left; short rows end in white.
    `titles` stand above the images, row by row."""
    n = max(map(len, rows.values()))
    ax = axes(ax, 0.8 * n + 1.6, 0.85 * len(rows))
    x = torch.cat([torch.cat([r, r.new_ones(n - len(r), *r.shape[1:])])
                   for r in map(_fractions, rows.values())])
    for i, label in enumerate(rows):
        top, _ = _place(i * n, x, n, 2 if titles else 0)
        ax.text(-3, top + x.shape[2] / 2, label, ha="right", va="center", fontsize=9)
    return images(x, ax, columns=n, titles=titles)


def _ends(spreads: Iterable[Spread], scale: float = 100.0) -> np.ndarray:
    """[3, n]: each mean and both ends of its interval, NaN where one seed has none."""
    return scale * np.array([(s.mean, s.low, s.high) for s in spreads]).T


def _class_intervals(seeds: Sequence[Errors], order: Sequence[int]) -> list[Spread]:
    """Each class's error with Student's interval over seeds, or Wilson's for a single model."""
    spreads = class_spreads(seeds)
    # a boundary error below zero is no proportion, so Wilson's interval does not apply
    if len(seeds) == 1 and min(seeds[0].wrong) >= 0:
        spreads = [replace(spread, low=low, high=high)
                   for spread, (low, high) in zip(spreads, seeds[0].intervals(), strict=True)]
    return [spreads[c] for c in order]


def _columns(ax: Axes, names: Names) -> None:
    """The names below the axis, slanted where they are long."""
    slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), list(names), **slanted if sum(map(len, names)) > 40 else {})


def _class_lines(ax: Axes, x: Sequence[float], values: Any, classes: Names, named: Names) -> Axes:
    """`values` [T, C] over x: the named classes in colour, all others grey behind them."""
    of_class = dict(zip(classes, np.asarray(values, float).T, strict=True))
    for name in (c for c in classes if c not in named):
        ax.plot(x, of_class[name], color="0.75", lw=1, zorder=1)
    for i, name in enumerate(named):
        ax.plot(x, pick(of_class, name, "class"), label=name, **SERIES[i % 8])
    return ax


def _crosses(ax: Axes, xs: Iterable[Spread], ys: Iterable[Spread], **style: Any) -> np.ndarray:
    """Points with the intervals of both numbers as a cross; returns the points [2, n]."""
    (x, _, right), (y, _, top) = _ends(xs), _ends(ys)
    ax.errorbar(x, y, xerr=np.nan_to_num(right - x), yerr=np.nan_to_num(top - y), elinewidth=0.9,
                **style)
    return np.stack([x, y])


def _rows(ax: Axes, labels: Names) -> Axes:
    """One row per label, the first on top."""
    ax.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")
    ax.grid(axis="x", alpha=0.3)
    return ax


def _finish(ax: Axes, legend: bool = True, **labels: Any) -> Axes:
    """Set the axes' labels and limits; put a legend above the data, with each label once."""
    ax.set(**labels)
    handles, names = ax.get_legend_handles_labels()
    if legend and (once := dict(zip(names, handles, strict=True))):
        ax.legend(once.values(), once.keys(), loc="lower left", bbox_to_anchor=(0, 1),
                  ncols=min(4, len(once)), borderaxespad=0.2, frameon=False, fontsize=9,
                  columnspacing=1.2, handlelength=1.6)
    return ax


def _cells(ax: Axes, values: np.ndarray, rows: Sequence[Any], columns: Sequence[Any],
           text: Callable[[float], str], **colours: Any) -> None:
    """A matrix as colours, with a text on each cell in black or white, whichever stands out."""
    image, size = ax.imshow(np.ma.masked_invalid(values), **colours), 8 if len(columns) > 7 else 10
    for (i, j), value in np.ndenumerate(values):
        c = np.array(image.cmap(image.norm(value))[:3] if np.isfinite(value) else (1, 1, 1))
        # relative luminance, as the Web Content Accessibility Guidelines define it
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        ink = "black" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"
        ax.text(j, i, text(value), ha="center", va="center", color=ink, fontsize=size)
    _columns(ax, [str(c) for c in columns])
    ax.tick_params(labelsize=size)
    ax.set_yticks(range(len(rows)), [str(r) for r in rows])
    ax.grid(visible=False)


def _fractions(x: Tensor) -> Tensor:
    """Images in [0, 1]; bytes are divided by 255. Other numbers would be drawn as silhouettes."""
    x = (x / 255 if x.dtype == torch.uint8 else x).detach().float()
    if not ((x > -0.01) & (x < 1.01)).all():
        raise CourseError(f"The images hold numbers from {x.min():.3g} to {x.max():.3g}. Give "
                          "fractions from 0 to 1, or bytes (torch.uint8).")
    return x.clamp(0, 1)


def _place(i: int, x: Tensor, columns: int, above: int) -> tuple[int, int]:
    """Top and left edge of the i-th image on a sheet with so many lines of title above each."""
    height, width = x.shape[2:]
    gap = 3 + round(0.15 * height * above)
    return i // columns * (height + gap) + gap, i % columns * (width + 4) + 2


__all__ = [name for name, thing in [*globals().items()]
           if getattr(thing, "__module__", "") == __name__ and name[0] != "_"]


def __dir__() -> list[str]:
    return __all__
