"""The pictures of notebook 04: confusion matrices, walks across the boundary, attacks side by
side."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle

from course_lib import plots

ABC = ("a", "b", "c")


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def said(ax: plt.Axes) -> dict[tuple[int, int], str]:
    """(row, column) -> text of each cell."""
    return {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text()
            for t in ax.texts}


def test_a_confusion_matrix_says_percents_with_the_class_in_rows() -> None:
    ax = plots.confusion(np.array([[0.9, 0.1, 0.0], [0.004, 0.006, 0.99], [0, 0, 1]]), ABC)
    assert said(ax) == {(0, 0): "90", (0, 1): "10", (0, 2): "·", (1, 0): "·", (1, 1): "1", (1, 2): "99",
                        (2, 0): "·", (2, 1): "·", (2, 2): "100"}  # fmt: skip
    assert ax.get_xlabel() == "taken for" and ax.get_ylabel() == "class"
    assert [t.get_text() for t in ax.get_xticklabels()] == list(ABC)


def test_mistakes_only_leaves_the_diagonal_out_of_text_and_scale() -> None:
    matrix = np.array([[0.9, 0.1], [0.3, 0.7]])
    ax = plots.confusion(matrix, "ab", wrong_only=True)
    assert said(ax) == {(0, 0): "", (0, 1): "10", (1, 0): "30", (1, 1): ""}
    assert ax.images[0].get_clim() == (0, pytest.approx(30))
    assert plots.confusion(matrix, "ab", most=0.5).images[0].get_clim() == (0, pytest.approx(50))
    assert matrix[0, 0] == 0.9  # what was given stays
    plots.confusion(np.eye(2), "ab", wrong_only=True)  # nothing wrong: no failure


def test_numbers_can_be_read_on_every_colour() -> None:
    ax = plots.confusion(np.linspace(0, 1, 121).reshape(11, 11), [str(c) for c in range(11)])

    def light(colour: np.ndarray) -> float:
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    (image,) = ax.images
    for text, value in zip(ax.texts, np.linspace(0, 100, 121), strict=True):
        ground, ink = light(np.array(image.cmap(image.norm(value))[
            :3])), 1.0 if text.get_color() == "white" else 0.0
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) > 4.5


def test_a_walk_frames_the_pair_and_names_every_iterate() -> None:
    z = torch.linspace(0, 1, 4).reshape(4, 1, 1, 1).expand(4, 1, 8, 8)
    ax = plots.boundary_walk({"first": (z, ["A", "A", "B", "B"], 1, 2),
                              "second": (z[:3], ["A", "B", "B"], 0, 1)})
    frames = sorted((round(p.get_y()), round(p.get_x()), p.get_linestyle()) for p in ax.patches
                    if isinstance(p, Rectangle))
    columns = [(x // 12, line) for _, x, line in frames]  # eight pixels and a margin of four
    assert columns == [(1, "-"), (2, "--"), (0, "-"), (1, "--")]
    assert frames[0][0] == frames[1][0] < frames[2][0] == frames[3][0]
    assert same_color(ax.patches[0].get_edgecolor(),
                      plots.COLOURS[0]) and same_color(ax.patches[1].get_edgecolor(),
                                                       plots.COLOURS[5])
    words = [t.get_text() for t in ax.texts]
    assert words.count("A") == 3 and words.count("B") == 4
    assert {"t = 0", "t = 3", "first", "second"} <= set(words)


def test_a_pair_that_is_one_image_shows_both_frames() -> None:
    ax = plots.boundary_walk({"lost at once": (torch.zeros(2, 1, 8, 8), ["B", "B"], 0, 0)})
    outer, inner = (p.get_bbox() for p in ax.patches)
    assert outer.x0 < inner.x0 < inner.x1 < outer.x1 and outer.y0 < inner.y0 < inner.y1 < outer.y1


def test_attacks_stand_side_by_side_and_the_flagged_are_marked() -> None:
    found = {"sound": {"pgd": (0.7, 0.68, 0.72), "aa": (0.69, 0.67, 0.71)},
             "masked": {"aa": (0.5, 0.48, 0.52)}}
    ax = plots.attack_gaps(found, flagged=["masked"])
    points = {(round(float(line.get_xdata()[0])), line.get_marker()) for line in ax.lines
              if len(line.get_xdata()) == 1}
    assert points == {(70, plots.MARKERS[0]), (69, plots.MARKERS[1]), (50, plots.MARKERS[1])}
    spans = sorted(tuple(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2)
    assert spans == [pytest.approx((48, 52)), pytest.approx((67, 71)), pytest.approx((68, 72))]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["sound", "⚑ masked"]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["pgd", "aa"]
    (band,) = ax.patches
    assert band.get_y() < 1 < band.get_y() + band.get_height()
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first model on top


def test_each_class_has_its_point_and_its_name() -> None:
    ax = plots.class_scatter(np.array([1.0, 2, 3]), np.array([5.0, 5, 9]), ABC, xlabel="x",
                             ylabel="y")
    assert list(ax.lines[0].get_xdata()) == [1, 2, 3] and list(ax.lines[0].get_ydata()) == [5, 5, 9]
    assert sorted(t.get_text() for t in ax.texts if t.get_text()) == list(ABC)


def test_functions_of_one_variable_differ_in_colour_and_dashes() -> None:
    ax = plots.lines([0.0, 0.5], {"a": [1.0, 2.0], "b": [3.0, 4.0]}, xlabel="x", ylabel="y")
    assert [list(line.get_ydata()) for line in ax.lines] == [[1, 2],
        [3, 4]] and list(ax.lines[1].get_xdata()) == [0, 0.5]
    assert len({line.get_linestyle() for line in ax.lines}) == len({line.get_color()
        for line in ax.lines}) == 2
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["a", "b"]


def test_every_picture_is_drawn_where_it_is_asked_to() -> None:
    given = plots.panels(5)
    drawn = [
        plots.confusion(np.eye(2), "ab", given[0]),
        plots.boundary_walk({"w": (torch.zeros(2, 1, 8, 8), ["B", "B"], 0, 0)}, given[1]),
        plots.attack_gaps({"m": {"pgd": (0.5, 0.4, 0.6)}}, given[2]),
        plots.class_scatter(np.ones(2), np.ones(2), "ab", given[3]),
        plots.lines([0.0], {"a": [1.0]}, given[4]),
    ]
    assert all(a is b for a, b in zip(drawn, given, strict=True))
