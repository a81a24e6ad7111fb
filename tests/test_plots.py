"""Figures: they draw the numbers they are given, everybody can read them, and none is left open."""

import io
from dataclasses import replace
from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from PIL import Image as Pillow

from course_lib import CourseError, plots
from course_lib.datasets.fashion_mnist import FASHION
from course_lib.fairness import Errors, Report, Spread

pytestmark = pytest.mark.usefixtures("closed")
N = 1000
EASY = (33, 30, 160, 90, 180, 42, 330, 35, 25, 44)
ABC, AB = ("a", "b", "c"), ("a", "b")


def report(nat=EASY, more=100):
    return Report(Errors(nat, (N,) * 10), Errors(tuple(n + more for n in nat), (N,) * 10), FASHION,
                  "pgd20", 8 / 255)


def seeds(shift=0):
    """Three seeds; `shift` is added to Shirt's standard error."""
    return [report(tuple(n + s + shift * (c == 6) for c, n in enumerate(EASY))) for s in (-3, 0, 3)]


IMAGES = torch.linspace(0, 1, 4 * 32 * 32).reshape(4, 1, 32, 32)
SPREAD = Spread.of([0.1, 0.2, 0.3])
GAPS = {"sound": {"pgd": Spread(0.7, 0, 0.68, 0.72, 3), "aa": Spread(0.69, 0, 0.67, 0.71, 3)},
        "masked": {"aa": SPREAD}}
P = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
DRAWN = {  # what each function is given before `ax`
    "class_bars": ({"a": report(), "b": seeds()},), "cost_of_robustness": (seeds(), seeds(150)),
    "probabilities": ({"p": torch.full((10,), 0.1)}, FASHION), "dumbbells": (seeds(), seeds(150)),
    "class_scatter": ([*range(10)], [i**2 for i in range(10)], FASHION),
    "class_curves": ([[0.1] * 10, [0.2] * 10], FASHION), "curves": ({"loss": [2.0, 1.0]},),
    "budget_curves": ({0.0: report(), 0.1: report(more=200)},), "walk": (P, [True, False], AB),
    "lines": ([0.0, 0.5], {"a": [1.0, 2.0]}), "attack_gaps": (GAPS,),
    "pareto": ({"m": (SPREAD, SPREAD)},), "confusion": (np.eye(2), AB), "images": (IMAGES,),
    "heat_map": (np.array([[1.0, np.nan]]), ["a"], ["b", "c"]),
    "adversarial": (IMAGES[0], IMAGES[1]), "bars": ({"a": [SPREAD], "b": [0.1]}, ["x"]),
    "image_rows": ({"long": IMAGES, "short": IMAGES[:1]},), "strips": ({"paired": [1, 2]},)}


def draw(name, ax=None):
    return getattr(plots, name)(*DRAWN[name], ax)


def legend(ax):
    return [] if ax.get_legend() is None else [t.get_text() for t in ax.get_legend().get_texts()]


def ticks(labels):
    return [t.get_text() for t in labels]


@pytest.mark.parametrize("name", DRAWN)
def test_each_takes_an_axes_or_makes_one_and_returns_it(name):
    (given,), made = plots.panels(1), draw(name)
    assert draw(name, given) is given
    assert isinstance(made, Axes) and made is not given
    made.figure.canvas.draw()


def test_every_public_figure_is_tried_here():
    public = {n for n, f in vars(plots).items() if callable(f)
              and getattr(f, "__module__", "") == plots.__name__ and not n.startswith("_")}
    assert public - set(DRAWN) == {"axes", "panels", "png", "show", "describe", "side_by_side"}
    assert len(set(plots.COLOURS)) == len(set(plots.HATCHES)) == len(set(plots.MARKERS)) == 8


def of_bars(ax):
    return [bar.get_height() for bar in ax.patches]


def reordered(r):
    """The same errors with the classes in reverse order."""
    nat, rob = (Errors(e.wrong[::-1], e.counts) for e in (r.nat, r.rob))
    return Report(nat, rob, r.classes[::-1], r.attack, r.eps)


def test_bars_have_the_heights_of_the_errors_and_the_easiest_class_is_first():
    order = sorted(range(10), key=lambda c: EASY[c])
    first, other = report(), report(EASY[::-1], more=200)
    one = plots.class_bars({"standard": first, "robust": first}, kind=["nat", "rob"])
    assert one.get_ylim()[0] == 0 and one.get_ylabel() == "error (%)"
    left, right = plots.side_by_side({"a": first, "b": [reordered(other)]}).figure.axes
    for ax, r in ((one, first), (left, first), (right, other)):
        errors = np.concatenate([r.nat.by_class[order], r.rob.by_class[order]])
        assert of_bars(ax) == pytest.approx(100 * errors)
        assert ticks(ax.get_xticklabels()) == [FASHION[c] for c in order]
    assert legend(right) == ["standard", "pgd20 8/255"] and left.get_title() == "a"
    means = plots.bars({"A": [SPREAD, SPREAD], "B": [0.4, 0.6]}, ["men", "women"], ylabel="")
    assert of_bars(means) == pytest.approx([20, 20, 40, 60]) and legend(means) == ["A", "B"]
    (whiskers,) = [c for c in means.collections if hasattr(c, "get_segments")]
    assert whiskers.get_segments()[0][:, 1] == pytest.approx([100 * SPREAD.low, 100 * SPREAD.high])


def test_a_dumbbell_joins_a_class_before_and_after():
    before, after = report(), report((*(n + 50 for n in EASY[:9]), 10))
    ax = plots.dumbbells(seeds(), reordered(after), kind="rob", labels=("control", "Reweight"))
    order = np.argsort(before.rob.by_class, kind="stable")
    hollow, full = (line.get_ydata() for line in ax.lines)
    assert hollow == pytest.approx(100 * before.rob.by_class[order])
    assert full == pytest.approx(100 * after.rob.by_class[order])
    assert legend(ax) == ["control", "Reweight"]
    (joins,) = ax.collections
    pairs = list(zip(hollow, full, strict=True))
    assert np.allclose([segment[:, 1] for segment in joins.get_segments()], pairs)
    assert [to_hex(c).upper() for c in joins.get_colors()] == [
        plots.COLOURS[5 if b > a else 0] for a, b in pairs]


def test_whiskers_are_wilson_for_one_model_and_student_over_seeds():
    one, many = report(), seeds()
    student = Spread.of(r.nat.by_class[6] for r in many)
    for model, ends in ((one, one.nat.intervals()[6]), (many, (student.low, student.high))):
        (whiskers,) = (c for c in plots.class_bars({"m": model}, kind="nat", order=[6]).containers
                       if isinstance(c, ErrorbarContainer))
        (segment,) = whiskers.lines[2][0].get_segments()
        assert np.allclose(segment[:, 1], 100 * np.array(ends))
    below = plots.class_bars({"m": report(more=-20)}, kind="bnd")
    assert below.get_ylim()[0] < 0 and not below.collections  # no proportion, no interval
    left, right = plots.panels(2, sharey=True)
    for ax, more, kind in ((left, 100, "nat"), (right, 600, "rob")):
        plots.class_bars({"m": report(more=more)}, ax, kind=kind)
    right.figure.canvas.draw()
    assert right.get_ylim()[1] >= 93  # panels that share an axis show their bars to the top


@pytest.mark.parametrize(("call", "says"), [
    (lambda: plots.class_bars({"m": []}), "No model to draw"),
    (lambda: plots.class_bars({"m": report()}, kind="clean"), "Unknown kind of error 'clean'"),
    (lambda: plots.class_bars({"m": report()}, kind=["nat", "rob"]), "2 kinds of error for 1 mo"),
    (lambda: plots.cost_of_robustness(seeds(), seeds()[:2]), "3 natural reports for 2 robust"),
    (lambda: plots.side_by_side({"a": report(), "b": replace(report(), eps=0.1)}), "their budget"),
    (lambda: plots.bars({"A": [0.1], "B": [0.1, 0.2]}, ["men", "women"], ylabel=""),
     "1 values of A, 2 values of B to draw over 2 names"),
    (lambda: plots.class_curves([[1, 5]], AB, named=["x"]), "Unknown class 'x'")])
def test_bad_input_gets_a_sentence(call, says):
    with pytest.raises(CourseError, match=says):
        call()


@pytest.mark.parametrize("name", ["cost_of_robustness", "class_scatter"])
def test_names_at_points_cover_neither_each_other_nor_the_points(name):
    ax = draw(name)
    ax.figure.canvas.draw()
    names = [t for t in ax.texts if t.get_text()]  # the others are the lines to far points
    boxes = [t.get_window_extent() for t in names]
    assert sorted(t.get_text() for t in names) == sorted(FASHION)
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]
    if name == "class_scatter":
        assert [tuple(p) for p in ax.lines[0].get_xydata()] == [(i, i**2) for i in range(10)]


def test_show_displays_a_small_picture_with_alt_text_and_closes_the_figure(monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda picture,
                        metadata: shown.extend([picture.data, metadata]))
    ax = plots.class_bars({"natural": report(), "robust": report(more=200)})
    plots.show(ax)
    data, metadata = shown
    about, (width, _) = metadata["image/png"], Pillow.open(io.BytesIO(data)).size
    assert about["alt"].startswith("robust error (%) by class, easiest first. natural: from ")
    assert f"({ax.get_xticklabels()[0].get_text()})" in about["alt"]
    assert width == pytest.approx(2 * about["width"], abs=1)
    assert 700 < about["width"] < 770 and 1000 < len(data) < 80_000
    assert not plt.get_fignums()
    plots.show(plots.curves({"loss": [3, 1, 2]}))
    assert shown[3]["image/png"]["alt"] == "loss by epoch. loss: from 1 to 3"


def drawn(ax):
    return {str(a.get_label()): (list(a.get_xdata()), pytest.approx(a.get_ydata()))
            for a in ax.lines}


def test_lines_hold_the_numbers_that_they_are_given():
    ax = plots.class_curves(np.array([[1, 5, 9], [2, 6, 8]]), ABC, named=["c", "a"])
    assert [to_hex(a.get_color()) for a in ax.lines] == [
        to_hex(c) for c in ("0.75", *plots.COLOURS[:2])] and legend(ax) == ["c", "a"]
    assert drawn(ax) == {"_child0": ([1, 2], [5, 6]), "c": ([1, 2], [9, 8]), "a": ([1, 2], [1, 2])}
    ax = plots.curves({"long": [3, 2, 1], "short": [4, 5]}, ylabel="y")
    assert drawn(ax)["long"] == ([1, 2, 3], [3, 2, 1]) and legend(ax) == ["long", "short"]
    assert list(ax.lines[1].get_ydata()[:2]) == [4, 5] and np.isnan(ax.lines[1].get_ydata()[2])
    ax = plots.lines([0.0, 0.5], {"a": [1.0, 2.0], "b": [3.0, 4.0]}, xlabel="x")
    assert drawn(ax) == {"a": ([0, 0.5], [1, 2]), "b": ([0, 0.5], [3, 4])}
    assert len({(line.get_linestyle(), line.get_color()) for line in ax.lines}) == 2
    ax = plots.budget_curves({0.0: report(), 8 / 255: report(more=200)}, named=["Shirt"])
    assert len(ax.lines) == 11 and legend(ax) == ["Shirt", "average"]
    for label, error in (("Shirt", EASY[6] / 10), ("average", sum(EASY) / 100)):
        assert drawn(ax)[label] == ([0, 8], [error + 10, error + 20])


def test_a_walk_is_shaded_from_its_first_wrong_iterate():
    p = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4]])
    ax = plots.walk(p, [True, False, True], ["own", "other"])
    assert legend(ax) == ["own", "other", "prediction is wrong"] and ax.patches[0].get_x() == 0.5
    assert not plots.walk(p, [True] * 3, ["own", "other"]).patches


def test_the_attacks_on_a_model_and_the_trainings_of_a_design_are_in_one_row():
    ax = plots.attack_gaps(GAPS)
    points, spans = ([line for line in ax.lines if len(line.get_xdata()) == n] for n in (1, 2))
    assert [(round(line.get_xdata()[0]), line.get_marker()) for line in points] == [
        (70, plots.MARKERS[0]), (69, plots.MARKERS[1]), (20, plots.MARKERS[1])]
    assert np.allclose([line.get_xdata() for line in spans[:2]], [(68, 72), (67, 71)])
    rows = [[line.get_ydata()[0] for line in some] for some in (points, spans)]
    assert rows[0] == rows[1] and len(set(rows[0])) == 3  # each interval behind its own point
    assert ticks(ax.get_yticklabels()) == ["sound", "masked"] and legend(ax) == ["pgd", "aa"]
    training, mean, *_ = plots.strips({"paired": [1, 2, 3], "seeds": [5, 7]}).lines
    assert sorted(training.get_xdata()) == [1, 2, 3] and list(mean.get_xdata()) == [2, 2]


def test_pareto_rings_the_front_and_draws_intervals():
    def around(*middles):
        return tuple(Spread.of([m - 0.01, m, m + 0.01]) for m in middles)

    points = {"front": around(0.1, 0.5), "too": around(0.2, 0.4), "behind": around(0.2, 0.6),
              "level": around(0.3, 0.4), "twin": around(0.1, 0.5),
              "once": (Spread.of([0.3]), Spread.of([0.7]))}  # one seed has no interval
    ax = plots.pareto(points)
    rings = [tuple(line.get_xydata()[0]) for line in ax.lines if line.get_markersize() == 14]
    assert rings == [pytest.approx(p) for p in ((10, 50), (20, 40), (10, 50))]
    across, first = ax.containers[0].lines[2][0].get_segments()[0], points["front"][0]
    assert across[:, 0] == pytest.approx([100 * first.low, 100 * first.high])
    assert set(points) == set(ax.get_legend_handles_labels()[1])


def cells(ax):
    """(row, column) -> text of each cell."""
    return {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text()
            for t in ax.texts}


def test_matrices_show_each_number_in_its_place_and_frame_the_marked():
    ax = plots.confusion(np.array([[0.9, 0.1, 0.0], [0.004, 0.006, 0.99], [0, 0, 1]]), ABC)
    assert [*cells(ax).values()] == ["90", "10", "·", "·", "1", "99", "·", "·", "100"]
    assert ax.get_xlabel() == "predicted class" and ax.get_ylabel() == "true class"
    assert ax.images[0].get_clim() == (0, 100)
    ax = plots.heat_map(np.array([[10.0, 20.04], [np.nan, 40.0]]), ["r1", "r2"], [1, 2],
                        marked=[(1, 0)], xlabel="x", ylabel="y")
    assert cells(ax) == {(0, 0): "10.0", (0, 1): "20.0", (1, 0): "–", (1, 1): "40.0"}
    (frame,) = ax.patches
    assert frame.get_bbox().contains(0, 1) and not frame.get_bbox().contains(1, 0)
    assert ticks(ax.get_xticklabels()) == ["1", "2"] and ticks(ax.get_yticklabels())[1] == "r2"


@pytest.mark.parametrize("draw", [
    lambda v: plots.heat_map(v, range(11), range(11)),
    lambda v: plots.confusion(v / 100, [str(c) for c in range(11)])])
def test_numbers_can_be_read_on_every_colour(draw):
    """Contrast of 4.5 to 1, as for small print on the web, over the whole range."""
    values = np.linspace(0, 100, 121).reshape(11, 11)
    ax = draw(values)
    (image,) = ax.images
    for text, value in zip(ax.texts, values.flat, strict=True):
        rgb = np.array(image.cmap(image.norm(value))[:3])
        rgb = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        lights = float(rgb @ [0.2126, 0.7152, 0.0722]), float(text.get_color() == "white")
        assert (max(lights) + 0.05) / (min(lights) + 0.05) > 4.5


def test_images_are_drawn_at_their_places():
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    ax = plots.images(x, columns=2, titles="abc", framed=[False, True], labels=["one", "two"])
    sheet, gap = ax.images[0].get_array(), 3 + round(0.15 * 8)  # one line of title above each
    assert sheet.shape == (2 * (8 + gap) + 2, 2 * 12, 3)
    for (top, left), image in zip([(gap, 2), (gap, 14), (8 + 2 * gap, 2)], x[:, 0], strict=True):
        assert np.allclose(sheet[top : top + 8, left : left + 8, 0], image)
    places = {t.get_text(): t.get_position() for t in ax.texts}
    assert places["b"] == (18, gap - 2) and places["two"] == (-3, 2 * (8 + gap) - 4)
    assert ax.patches[0].get_xy() == (13, gap - 1)
