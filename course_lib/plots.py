"""Results as figures. Every function takes an Axes (or makes one), draws on it, and returns it.

No function here trains or evaluates. Errors are fractions when they come in and percent when they
are drawn; whiskers and crosses are 95 % intervals. `labels` such as xlabel or ylim go to ax.set().
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from course_lib.errors import CourseError, pick, several
from course_lib.fairness import Report, Spread, class_spreads, undominated
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


def axes(ax: Ax, width: float = 7.6, height: float = 3.6) -> Axes:
    """The given Axes, or one in a new figure (in inches) in the course's style."""
    return panels(1, width, height)[0] if ax is None else ax


def panels(n: int, width: float = 7.6, height: float = 3.6, **words: Any) -> list[Axes]:
    """n Axes side by side in one new figure; `words` such as sharey=True go to plt.subplots."""
    with plt.rc_context(STYLE):
        return list(plt.subplots(1, n, figsize=(width, height), layout="constrained", squeeze=False,
                                 **words)[1][0])


def png(figure: Figure) -> bytes:
    """The figure as a picture that is sharp at half its size, 100 dots per inch, on any screen."""
    canvas, packed = FigureCanvasAgg(figure), io.BytesIO()
    figure.set_dpi(200)
    with plt.rc_context(STYLE):
        canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    # 128 colours look the same, and the stored picture is a third as large
    drawn.quantize(128, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(packed, "png")
    return packed.getvalue()


def show(ax: Axes, alt: str = "") -> None:
    """Show and close the figure of `ax`. Its alt text is `alt`, its label, or `describe`."""
    from IPython import display

    figure: Any = ax.figure
    width, height = map(int, 100 * figure.get_size_inches())
    # Colab's IPython 7 has no Image(alt=...)
    about = {"alt": alt or figure.get_label() or describe(figure), "width": width, "height": height}
    display.display(display.Image(png(figure)), metadata={"image/png": about})
    plt.close(figure)


def describe(figure: Figure) -> str:
    """The figure in words: the titles and labels of its axes, and the range of every series."""
    texts = []
    for ax in figure.axes:
        names = [tick.get_text() for tick in ax.get_xticklabels()]
        bars: Any = {c.get_label(): [p.get_height() for p in c.patches] for c in ax.containers
                     if hasattr(c, "patches")}
        series = bars or {a.get_label(): np.asarray(a.get_ydata(), float) for a in ax.lines}
        words = [ax.get_title(), f"{ax.get_ylabel()} by {ax.get_xlabel()}".strip(" by")]
        for label, values in series.items():
            if len(values) > 1 and np.isfinite(values).any():  # from 3.1 (Trouser) to 97.2 (Shirt)
                at = names if len(names) == len(values) else [""] * len(values)
                ends = " to ".join(f"{values[i]:.3g}" + f" ({at[i]})" * bool(at[i])
                                   for i in (np.nanargmin(values), np.nanargmax(values)))
                words.append(f"from {ends}" if label[0] == "_" else f"{label}: from {ends}")
        texts.append(". ".join(filter(None, words)))
    return "; ".join(filter(None, texts)) or "a picture without axes"


def _alike(models: Mapping[str, Some], *kinds: str) -> tuple[dict[str, list[Report]], Any]:
    """The reports of each model's seeds, all with the same classes in the same places, and these
    from the first model's smallest standard error to its largest."""
    seeds = {label: several(m) for label, m in models.items()}
    every = [r for reports in seeds.values() for r in reports]
    if not all([seeds, *seeds.values()]) or not all(isinstance(r, Report) for r in every):
        raise CourseError("No model to draw; give a report such as load_report(name), the reports "
                          "of a recipe's seeds, or a dictionary of them: {'natural': report}.")
    same = iter(combine(every, "attack budget" if {*kinds} == {"nat"} else ""))
    seeds = {label: [next(same) for _ in reports] for label, reports in seeds.items()}
    first = next(iter(seeds.values()))
    return seeds, np.argsort(np.mean([r.nat.by_class for r in first], axis=0), kind="stable")


def class_bars(models: Some | Mapping[str, Some], ax: Ax = None, *,
               kind: str | Sequence[str] = "rob", order: Sequence[int] | None = None) -> Axes:
    """Errors per class of a model, or of several: class_bars({"natural": load_report(name)}).
    `kind` is nat, rob or bnd, or one of them per model. By default the first model's easiest class
    is first. Whiskers are Wilson's interval for one model, Student's over the seeds of a recipe."""
    models = models if isinstance(models, Mapping) else {"": models}
    kinds = [kind] * len(models) if isinstance(kind, str) else list(kind)
    names = {pick(KINDS, k, "kind of error") for k in kinds}
    if len(kinds) != len(models):
        raise CourseError(f"{len(kinds)} kinds of error for {len(models)} models; give one each.")
    seeds, easiest_first = _alike(models, *kinds)
    order, every = easiest_first if order is None else order, [r for m in seeds.values() for r in m]
    rows = {}
    for k, (label, reports) in zip(kinds, seeds.items(), strict=True):
        spreads = class_spreads(errors := [getattr(r, k) for r in reports])
        if len(errors) == 1 and min(errors[0].wrong) >= 0:  # below zero it is no proportion
            spreads = [replace(s, low=low, high=high)
                       for s, (low, high) in zip(spreads, errors[0].intervals(), strict=True)]
        rows[label] = [spreads[c] for c in order]
    ax = bars(rows, [every[0].classes[c] for c in order], ax,
              xlabel=_warned("class, easiest first", every),
              ylabel=f"{names.pop() if len(names) == 1 else 'error'} (%)")
    # boundary errors can be negative; auto, because panels that share an axis still have to grow
    ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]), auto=True)
    return ax


def side_by_side(models: Mapping[str, Some], *, height: float = 3.2) -> Axes:
    """One panel per model: standard beside robust errors, as in the reproduction report. The first
    model's easiest class is first in every panel."""
    seeds, order = _alike(models)
    drawn = panels(len(seeds), 8, height, sharey=True)
    for ax, (label, reports) in zip(drawn, seeds.items(), strict=True):
        attack = f"{reports[0].attack} {budget(reports[0].eps)}"
        class_bars({"standard": reports, attack: reports}, ax, kind=("nat", "rob"), order=order)
        ax.set(ylim=(0, 100), ylabel=ax.get_ylabel() if ax is drawn[0] else "")
        ax.set_title(label, pad=22, fontsize=11)
    return drawn[-1]


def dumbbells(before: Some, after: Some, ax: Ax = None, *, kind: str = "nat",
              labels: tuple[str, str] = ("before", "after")) -> Axes:
    """Each class's error before and after, hardest class last; vermilion where it rises."""
    title, (seeds, _) = pick(KINDS, kind, "kind of error"), _alike({"": before, " ": after}, kind)
    x, y = (100 * np.mean([getattr(r, kind).by_class for r in reports], axis=0)
            for reports in seeds.values())
    ax, order, at = axes(ax, 5, 3.4), np.argsort(x, kind="stable"), np.arange(len(x))
    ax.vlines(at, x[order], y[order], lw=3, zorder=1,
              color=[COLOURS[5] if up else COLOURS[0] for up in (y > x)[order]])
    ax.plot(at, x[order], "o", ms=6, mfc="white", mec="0.2", label=labels[0])
    ax.plot(at, y[order], "o", ms=6, color="black", label=labels[1])
    return _finish(ax, [seeds[""][0].classes[c] for c in order], ylabel=f"{title} (%)")


def bars(rows: Mapping[str, Sequence[Spread] | Sequence[float]], names: Names, ax: Ax = None, *,
         scale: float = 100.0, **labels: Any) -> Axes:
    """One bar per name, the rows side by side; a Spread adds its interval. `scale` multiplies."""
    if {len(values) for values in rows.values()} != {len(names)}:
        given = ", ".join(f"{len(v)} values of {k}" for k, v in rows.items()) or "Nothing"
        raise CourseError(f"{given} to draw over {len(names)} names; give one value for each.")
    ax, width = axes(ax), 0.8 / len(rows)
    for i, (label, values) in enumerate(rows.items()):
        height, low, high = _ends([v if isinstance(v, Spread) else Spread.of([v]) for v in values],
                                  scale)
        reach = np.abs(np.nan_to_num([height - low, high - height]))
        at = np.arange(len(names)) + (i - (len(rows) - 1) / 2) * width
        ax.bar(at, height, width * 0.92, label=label, color=COLOURS[i % 8], hatch=HATCHES[i % 8],
               edgecolor="white", yerr=reach if reach.any() else None,
               error_kw={"elinewidth": 0.9, "capsize": 2})
    return _finish(ax, names, legend=len(rows) > 1, **labels)


def probabilities(rows: Mapping[str, Tensor], classes: Names, ax: Ax = None) -> Axes:
    """The model's probabilities p [C], for example of the clean and of the attacked image."""
    return bars({label: p.tolist() for label, p in rows.items()}, classes, axes(ax, 7, 3), scale=1,
                ylabel="probability", ylim=(0, 1.02))


def cost_of_robustness(natural: Sequence[Report], robust: Sequence[Report], ax: Ax = None) -> Axes:
    """The standard error that adversarial training adds to each class, over the class's difficulty.
    Both lists hold the same seeds in the same order; differences are taken per seed."""
    before, after = _alike({"natural": natural, "robust": robust}, "nat")[0].values()
    if len(before) != len(after):
        raise CourseError(f"{len(before)} natural reports for {len(after)} robust; give pairs.")
    added = np.array([b.nat.by_class - a.nat.by_class for a, b in zip(before, after, strict=True)])
    ax = axes(ax, 6, 4.4)
    ax.axhline(0, color="0.5", lw=0.8)
    x, y = _crosses(ax, class_spreads([r.nat for r in before]), map(Spread.of, added.T),
                    fmt="none", ecolor="0.55")
    return class_scatter(x, y, before[0].classes, ax, ylabel="added by adversarial training "
                         "(points)", xlabel="standard error of the natural model (%)")


def class_scatter(x: Any, y: Any, classes: Names, ax: Ax = None, **labels: Any) -> Axes:
    """A point per class with its name, moved until it covers neither a point nor a name."""
    offsets = [(4, 7), (4, -7), (-4, 7), (-4, -7), (0, 9), (0, -9), (7, 0), (-7, 0)]
    offsets += [(dx, sign * dy) for dy in range(18, 74, 11) for dx in (9, 30, 50)
                for sign in (1, -1)]
    ax = axes(ax, 5, 4)
    ax.plot(x, y, "o", ms=5, color=COLOURS[0], zorder=3)
    ax.margins(0.12)
    ax.set(**labels)
    ax.figure.canvas.draw()  # positions are final only after the layout
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


def class_curves(values: Any, classes: Names, ax: Ax = None, *, named: Names = (),
                 x: Sequence[float] | None = None, **labels: Any) -> Axes:
    """One line per class of `values` [T, C] over x, or over epochs from 1. The `named` classes are
    in colour, all others grey behind them."""
    ax, x = axes(ax, 6, 3.2), range(1, len(values) + 1) if x is None else x
    of_class = dict(zip(classes, np.asarray(values, float).T, strict=True))
    for name in (c for c in classes if c not in named):
        ax.plot(x, of_class[name], color="0.75", lw=1, zorder=1)
    for i, name in enumerate(named):
        ax.plot(x, pick(of_class, name, "class"), label=name, **SERIES[i % 8])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _finish(ax, **{"xlabel": "epoch"} | labels)


def budget_curves(reports: Mapping[float, Report], ax: Ax = None, *, named: Names = ()) -> Axes:
    """Robust error per class, and its average, over budgets; the `named` classes in colour."""
    same, levels = combine(reports.values(), "budget"), [255 * e for e in reports]
    ax = class_curves([100 * r.rob.by_class for r in same], same[0].classes, axes(ax, 6, 3.6),
                      named=named, x=levels, ylabel="robust error (%)", ylim=(0, 102))
    ax.plot(levels, [100 * r.rob.mean for r in same], "k--", lw=1.5, label="average")
    return _finish(ax, xlabel=_warned("budget ε (grey levels of 255)", same), xticks=levels)


def curves(lines: Mapping[str, Sequence[float]], ax: Ax = None, **labels: Any) -> Axes:
    """One line per history, over epochs from 1."""
    values = [*zip_longest(*lines.values(), fillvalue=np.nan)]
    return class_curves(values, [*lines], ax, named=[*lines], **{"ylabel": "loss"} | labels)


def lines(x: Sequence[float], curves: Mapping[str, Any], ax: Ax = None, **labels: Any) -> Axes:
    """Functions of one variable, each with its own colour and dashes."""
    ax = axes(ax, 6, 3.4)
    for i, (label, y) in enumerate(curves.items()):
        ax.plot(x, y, color=COLOURS[i % 8], ls=("-", "--", "-.", ":")[i % 4], lw=2, label=label)
    return _finish(ax, **labels)


def walk(p: Tensor, right: Sequence[bool] | Tensor, labels: Names, ax: Ax = None) -> Axes:
    """Probabilities [T, lines] along an attack; shaded from the first iterate not `right` [T]."""
    ax = class_curves(p.detach().cpu(), labels, axes(ax, 7, 3), named=labels, x=range(len(p)))
    if (first := next((t for t, ok in enumerate(right) if not ok), None)) is not None:
        ax.axvspan(first - 0.5, len(right) - 0.5, color=COLOURS[5], alpha=0.12, lw=0,
                   label="prediction is wrong")
    return _finish(ax, xlabel="step t of the attack", ylabel="probability", ylim=(0, 1.02),
                   xlim=(-0.5, len(right) - 0.5))


def attack_gaps(models: Mapping[str, Mapping[str, Spread]], ax: Ax = None, **labels: Any) -> Axes:
    """One row per model, one marker per attack. Where the markers of a model lie far apart, a weak
    attack overstates its robustness."""
    attacks = [*dict.fromkeys(a for results in models.values() for a in results)]
    ax = axes(ax, 8, 1.1 + 0.42 * len(models))
    for i, results in enumerate(models.values()):
        for attack, (value, *interval) in zip(results, _ends(results.values()).T, strict=True):
            k = attacks.index(attack)
            at = i + 0.2 * (k - (len(attacks) - 1) / 2)
            ax.plot(interval, [at, at], color=COLOURS[k % 8], lw=1.7)
            ax.plot(value, at, ls="none", label=attack, **SERIES[k % 8])
    return _finish(ax, rows=[*models], **{"xlabel": "robust accuracy (%)"} | labels)


def strips(rows: Mapping[str, Sequence[float]], ax: Ax = None, **labels: Any) -> Axes:
    """One point per training, one row per design, and a bar at the mean of each row."""
    ax = axes(ax, 8, 0.9 + 0.45 * len(rows))
    for i, values in enumerate(rows.values()):
        # multiples of the golden ratio spread the points out, the same way each time
        at = i + 0.22 * (2 * (np.arange(len(values)) * 0.618 % 1) - 1)
        ax.plot(values, at, alpha=0.6, ls="none", **SERIES[i % 8])
        ax.plot([np.mean(values)] * 2, [i - 0.38, i + 0.38], color="black", lw=1.6)
    return _finish(ax, rows=[*rows], **labels)


def pareto(points: Mapping[str, tuple[Spread, Spread]], ax: Ax = None, **labels: Any) -> Axes:
    """Average against worst class. A ring marks the `undominated` models."""
    ax = axes(ax, 6, 4.4)
    best = undominated([(x.mean, y.mean) for x, y in points.values()])
    for i, (label, (x, y)) in enumerate(points.items()):
        at = _crosses(ax, [x], [y], fmt=MARKERS[i % 8], ms=6, color=COLOURS[i % 8], label=label)
        if best[i]:
            ax.plot(*at, "o", ms=14, mfc="none", mec="black", mew=1.2, zorder=1)
    ax.grid(axis="x", alpha=0.3)
    ax.margins(0.12)
    return _finish(ax, legend=False, **{"xlabel": "average error (%)",
                                        "ylabel": "worst class's error (%)"} | labels)


def confusion(matrix: Any, classes: Names, ax: Ax = None) -> Axes:
    """Shares [C, C] of each true class (row) by predicted class in percent; "·" is below 0.5."""
    ax = heat_map(100 * np.asarray(matrix, float), classes, classes, axes(ax, 6.4, 5.6),
                  text="{:.0f}", xlabel="predicted class", ylabel="true class", cmap="Blues",
                  aspect="equal", vmin=0, vmax=100)
    for text in ax.texts:
        text.set_text("·" if text.get_text() == "0" else text.get_text())
    return ax


def heat_map(values: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], ax: Ax = None, *,
             marked: Sequence[tuple[int, int]] = (), text: str = "{:.1f}", xlabel: str = "",
             ylabel: str = "", **colours: Any) -> Axes:
    """Numbers as colours, each as `text` in its cell; dark is large, "–" is missing (NaN).
    `marked` cells (row, column) get a frame; `colours` go to imshow."""
    ax = axes(ax, 1.1 + 0.8 * len(columns), 1.0 + 0.6 * len(rows))
    image = ax.imshow(np.ma.masked_invalid(values), **{"cmap": "cividis_r", "aspect": "auto",
                                                       **colours})
    size = 8 if len(columns) > 7 else 10
    for (i, j), value in np.ndenumerate(values):
        c = np.array(image.cmap(image.norm(value))[:3] if np.isfinite(value) else (1, 1, 1))
        # by the relative luminance of the Web Content Accessibility Guidelines, nearly
        ink = "black" if c**2.2 @ [0.2126, 0.7152, 0.0722] > 0.179 else "white"
        ax.text(j, i, text.format(value) if np.isfinite(value) else "–", ha="center", va="center",
                color=ink, fontsize=size, in_layout=False)
    for i, j in marked:
        ax.add_patch(plt.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, **FRAME))
    ax.set_yticks(range(len(rows)), [str(r) for r in rows])
    ax.grid(visible=False)
    ax.tick_params(labelsize=size)
    return _finish(ax, [str(c) for c in columns], xlabel=xlabel, ylabel=ylabel)


def images(x: Tensor, ax: Ax = None, *, titles: Names = (), columns: int | None = None,
           framed: Sequence[bool] | Tensor = (), labels: Names = ()) -> Axes:
    """Images [N, C, H, W] in [0, 1], or bytes, in rows of `columns` (all in one by default), each
    with its title; `framed` ones get a frame. `labels` are on the left of the rows."""
    columns, (height, width) = columns or len(x), x.shape[2:]
    lines = max((t.count("\n") + 1 for t in titles), default=0)  # of title above each image
    ax = axes(ax, 1.25 * columns, (1.2 + 0.18 * lines) * -(-len(x) // columns))
    gap = 3 + round(0.15 * height * lines)
    x = F.pad(_fractions(x).expand(-1, 3, -1, -1), (2, 2, gap, 0), value=1.0)
    x = torch.cat([x, x.new_ones(-len(x) % columns, *x.shape[1:])])
    # [rows, columns, 3, H, W] -> [rows, H, columns, W, 3]
    sheet = x.unflatten(0, (-1, columns)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    ax.imshow(F.pad(sheet, (0, 0, 0, 0, 0, 2), value=1.0).cpu().numpy(), interpolation="nearest")
    for i, (title, frame) in enumerate(zip_longest(titles, framed)):
        left, top = i % columns * (width + 4) + 2, i // columns * (height + gap) + gap
        ax.text(left + width / 2, top - 2, title or "", ha="center", va="bottom", fontsize=8)
        if frame:
            ax.add_patch(plt.Rectangle((left - 1, top - 1), width + 1, height + 1, **FRAME))
    for i, label in enumerate(labels):
        ax.text(-3, (i + 1) * (height + gap) - height / 2, label, ha="right", va="center",
                fontsize=9)
    ax.set_axis_off()
    return ax


def adversarial(x: Tensor, z: Tensor, ax: Ax = None) -> Axes:
    """One image, the attack's change (grey is none, scaled to the largest), the attacked image."""
    x, z = _fractions(x), _fractions(z)
    change = z - x
    most = float(change.abs().max()) or 1.0
    scaled = f"change × {0.5 / most:.0f}" if change.any() else "no change"
    return images(torch.stack([x, 0.5 + change * 0.5 / most, z]), ax,
                  titles=("clean", scaled, "attacked"))


def image_rows(rows: Mapping[str, Tensor], ax: Ax = None, *, titles: Names = ()) -> Axes:
    """Rows of images [N, C, H, W], with a label on the left of each; short rows end in white."""
    n = max(map(len, rows.values()))
    x = torch.cat([torch.cat([r, r.new_ones(n - len(r), *r.shape[1:])])
                   for r in map(_fractions, rows.values())])
    return images(x, axes(ax, 0.8 * n + 1.6, 0.85 * len(rows)), titles=titles, columns=n,
                  labels=[*rows])


def _ends(spreads: Iterable[Spread], scale: float = 100.0) -> np.ndarray:
    """[3, n]: each mean and both ends of its interval, NaN where one seed has none."""
    return scale * np.array([(s.mean, s.low, s.high) for s in spreads]).T


def _crosses(ax: Axes, xs: Iterable[Spread], ys: Iterable[Spread], **style: Any) -> np.ndarray:
    """Points with the intervals of both numbers as a cross; returns the points [2, n]."""
    (x, _, right), (y, _, top) = _ends(xs), _ends(ys)
    ax.errorbar(x, y, xerr=np.nan_to_num(right - x), yerr=np.nan_to_num(top - y), elinewidth=0.9,
                **style)
    return np.stack([x, y])


def _finish(ax: Axes, names: Names = (), *, rows: Names = (), legend: bool = True,
            **labels: Any) -> Axes:
    """Names below the axis, slanted where they are long, or beside one row each, the first on top;
    labels and limits; and a legend above the data, with each label once."""
    slanted: Any = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    if len(names):
        ax.set_xticks(range(len(names)), names, **slanted if len("".join(names)) > 40 else {})
    if len(rows):
        ax.set(yticks=range(len(rows)), yticklabels=rows, ylim=(len(rows) - 0.5, -0.5))
        ax.grid(visible=False, axis="y")
        ax.grid(axis="x", alpha=0.3)
    ax.set(**labels)
    handles, texts = ax.get_legend_handles_labels()
    if legend and (once := dict(zip(texts, handles, strict=True))):
        ax.legend(once.values(), once.keys(), loc="lower left", bbox_to_anchor=(0, 1),
                  ncols=min(4 if len("".join(once)) < 110 else 2, len(once)), borderaxespad=0.2,
                  frameon=False, fontsize=9, columnspacing=1.2, handlelength=1.6)
    return ax


def _warned(label: str, reports: Iterable[Report]) -> str:
    """The label of the x axis, and below it the warnings about the figures that are drawn."""
    return "\n".join([label, *dict.fromkeys(f"! {w}" for r in reports for w in r.warnings)])


def _fractions(x: Tensor) -> Tensor:
    """Images in [0, 1]; bytes are divided by 255. Other numbers would be drawn as silhouettes."""
    x = (x / 255 if x.dtype == torch.uint8 else x).detach().float()
    if not ((x > -0.01) & (x < 1.01)).all():
        raise CourseError(f"The images hold numbers from {x.min():.3g} to {x.max():.3g}. Give "
                          "fractions from 0 to 1, or bytes (torch.uint8).")
    return x.clamp(0, 1)


__all__ = [name for name, thing in [*globals().items()]
           if getattr(thing, "__module__", "") == __name__ and name[0] != "_"]


def __dir__() -> list[str]:
    return __all__
