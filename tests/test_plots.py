"""Pictures: what is drawn is what was given, with alt text, readable by everybody, and no figure is
left open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer

from course_lib import CourseError, plots
from course_lib.data import Split
from course_lib.datasets.fashion_mnist import FASHION
from course_lib.fairness import Errors, Report, Spread

N = 1000
EASY = (33, 30, 160, 90, 180, 42, 330, 35, 25, 44)


def report(nat: tuple[int, ...] = EASY, more: int = 100) -> Report:
    return Report(Errors(nat, (N,) * 10), Errors(tuple(n + more for n in nat), (N,) * 10), FASHION,
                  "pgd20", 8 / 255)


def seeds(shift: int = 0) -> list[Report]:
    """Three seeds; `shift` is added to Shirt's standard error."""
    return [report(tuple(n + s + shift * (c == 6) for c, n in enumerate(EASY))) for s in (-3, 0, 3)]


IMAGES = torch.linspace(0, 1, 4 * 32 * 32).reshape(4, 1, 32, 32)
SPLIT = Split(IMAGES, torch.tensor([0, 0, 6, 6]), FASHION)
SPREAD = Spread.of([0.1, 0.2, 0.3])
DRAWN: dict[str, Callable[[Axes | None], Axes]] = {
    "class_bars": lambda ax: plots.class_bars({"a": report(), "b": seeds()}, ax),
    "cost_of_robustness": lambda ax: plots.cost_of_robustness(seeds(), seeds(150), ax),
    "spread_points": lambda ax: plots.spread_points({"x": (SPREAD, 0.2), "y": (SPREAD, None)}, ax),
    "images": lambda ax: plots.images(IMAGES, ax, titles=["one", "two\nlines"], columns=2,
                                      framed=[False, True]),
    "adversarial": lambda ax: plots.adversarial(IMAGES[0], IMAGES[1], ax),
    "class_pair": lambda ax: plots.class_pair(SPLIT, "Shirt", 0, ax, n=2),
    "image_rows": lambda ax: plots.image_rows({"long": IMAGES, "short": IMAGES[:1]}, ax),
    "probabilities": lambda ax: plots.probabilities({"p": torch.full((10,), 0.1)}, FASHION, ax),
    "curves": lambda ax: plots.curves({"loss": [2.0, 1.0]}, ax),
    "walk": lambda ax: plots.walk(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), [True, False], ax,
                                  labels=["own", "rival"]),
    "numbers_by_class": lambda ax: plots.numbers_by_class({"a": torch.rand(10), "b": np.ones(10)},
                                                          FASHION, ax, ylabel="steps"),
    "class_curves": lambda ax: plots.class_curves([[0.1] * 10, [0.2] * 10], FASHION, ax,
                                                  named=["Shirt"]),
    "heat_map": lambda ax: plots.heat_map(np.array([[1.0, np.nan]]), ["a"], ["b", "c"], ax,
                                          marked=[(0, 0)]),
    "pareto": lambda ax: plots.pareto({"m": (SPREAD, SPREAD)}, ax, others={"theirs": (0.1, 0.2)}),
    "budget_curves": lambda ax: plots.budget_curves({0.0: report(), 0.1: report(more=200)}, ax,
                                                    named=["Shirt"]),
    "confusion": lambda ax: plots.confusion(np.eye(2), "ab", ax),
    "boundary_walk": lambda ax: plots.boundary_walk({"first": (IMAGES, ["A", "A", "B", "B"], 1, 2)},
                                                    ax),
    "attack_gaps": lambda ax: plots.attack_gaps({"m":
                                                 {"PGD-20": (0.6, 0.5, 0.7),
                                                  "AutoAttack": (0.5, 0.4, 0.6)}}, ax,
                                                flagged=["m"]),
    "class_scatter": lambda ax: plots.class_scatter(np.arange(10.0), np.arange(10.0) ** 2, FASHION,
                                                    ax),
    "lines": lambda ax: plots.lines([0.0, 0.5], {"a": [1.0, 2.0]}, ax),
}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.parametrize("name", DRAWN)
def test_each_takes_an_axes_or_makes_one_and_returns_it(name: str) -> None:
    with plt.rc_context(plots.STYLE):
        given = plt.subplots()[1]
    assert DRAWN[name](given) is given
    made = DRAWN[name](None)
    assert isinstance(made, Axes)
    assert made is not given
    made.figure.canvas.draw()


def test_every_public_picture_is_tried_here() -> None:
    public = {n for n, f in vars(plots).items() if callable(f)
              and getattr(f, "__module__", "") == plots.__name__ and not n.startswith("_")}
    assert public - set(DRAWN) == {"axes", "panels", "show", "difficulty", "front"}


def test_bars_have_the_heights_of_the_errors_in_the_order_of_difficulty() -> None:
    r = report()
    ax = plots.class_bars({"standard": r, "robust": r}, kind=["nat", "rob"])
    order = plots.difficulty(r)
    assert order == sorted(range(10), key=lambda c: EASY[c])
    heights = [bar.get_height() for bar in ax.patches]
    assert np.allclose(heights, [100 * r.nat.by_class[c] for c in order] + [100 * r.rob.by_class[c]
        for c in order])
    assert [t.get_text() for t in ax.get_xticklabels()] == [FASHION[c] for c in order]
    assert ax.get_ylim()[0] == 0


def test_whiskers_are_wilson_for_one_model_and_student_over_seeds() -> None:
    one, many = report(), seeds()
    for given, low, high in (
        (one, *one.nat.intervals()[6]),
        (many, *((s := Spread.of(r.nat.by_class[6] for r in many)).low, s.high)),
    ):
        (whiskers,) = (c for c in plots.class_bars({"m": given}, kind="nat", order=[6]).containers
                       if isinstance(c, ErrorbarContainer))
        (segment,) = whiskers.lines[2][0].get_segments()
        assert np.allclose(segment[:, 1], [100 * low, 100 * high])


def test_boundary_errors_below_zero_are_seen() -> None:
    assert plots.class_bars({"m": report(more=-20)}, kind="bnd").get_ylim()[0] < 0


@pytest.mark.parametrize(("words", "says"), [
    ({"models": {}}, "No model to draw"),
    ({"models": {"m": report()}, "kind": "standard"}, "Unknown kind of error 'standard'"),
    ({"models": {"m": report()}, "kind": ["nat", "rob"]}, "2 kinds of error for 1 models"),
])
def test_bad_input_is_said_plainly(words: dict[str, Any], says: str) -> None:
    with pytest.raises(CourseError, match=says):
        plots.class_bars(**words)


def test_names_at_points_cover_neither_each_other_nor_the_points() -> None:
    ax = plots.cost_of_robustness(seeds(), seeds(150))
    ax.figure.canvas.draw()
    names = [t for t in ax.texts if t.get_text()]  # the others are the lines to far points
    boxes = [t.get_window_extent() for t in names]
    assert sorted(t.get_text() for t in names) == sorted(FASHION)
    assert not [(a, b) for a, b in combinations(boxes, 2) if a.overlaps(b)]


def test_panels_that_share_an_axis_all_show_their_bars_whole() -> None:
    left, right = plots.panels(2, sharey=True)
    plots.class_bars({"m": report()}, left, kind="nat")
    plots.class_bars({"m": report(more=600)}, right, kind="rob")
    right.figure.canvas.draw()
    assert right.get_ylim()[1] >= 93


def test_show_displays_a_small_picture_with_alt_text_and_closes_the_figure(monkeypatch:
        pytest.MonkeyPatch) -> None:
    import IPython.display

    shown: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda picture,
                        metadata: shown.extend([picture.data, metadata]))
    plots.show(plots.class_bars({"m": report()}), alt="bars")
    data, metadata = shown
    assert metadata["image/png"]["alt"] == "bars"
    assert 1000 < len(data) < 40_000
    assert not plt.get_fignums()


SIGHT = {  # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, sight: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as such eyes see it."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ (sight @ linear).clip(1e-3, 1) / XYZ.sum(1))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_of_the_colours_differ_for_every_kind_of_sight(sight: str) -> None:
    distance = {(a, b): float(np.linalg.norm(lab(a, SIGHT[sight]) - lab(b, SIGHT[sight]))) for a,
                b in combinations(plots.COLOURS, 2)}
    near = {pair: round(d) for pair, d in distance.items() if d < 10}
    assert near == {}


def test_colours_hatches_and_markers_are_as_many() -> None:
    assert len(set(plots.COLOURS)) == len(set(plots.HATCHES)) == len(set(plots.MARKERS)) == 8
