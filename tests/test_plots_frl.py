"""The pictures of notebooks 02 and 03: class curves, heat maps, Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import same_color, to_hex
from matplotlib.patches import Rectangle

from course_lib import plots
from course_lib.fairness import Spread


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_named_classes_are_drawn_in_colour_with_their_own_values() -> None:
    ax = plots.class_curves([[1, 5, 9], [2, 6, 8]], ("a", "b", "c"), named=["c", "a"],
                            ylabel="weight")
    drawn = {to_hex(line.get_color()): list(line.get_ydata()) for line in ax.lines}
    assert drawn[to_hex("0.75")] == [5, 6]
    assert drawn[plots.COLOURS[0].lower()] == [9, 8] and drawn[plots.COLOURS[1].lower()] == [1, 2]
    assert list(ax.lines[0].get_xdata()) == [1, 2]
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["c", "a"]
    assert plots.class_curves([[1, 5]], ("a", "b"), named=["a"], legend=False).get_legend() is None


def test_a_heat_map_says_each_number_in_its_place_and_frames_the_marked() -> None:
    ax = plots.heat_map(np.array([[10.0, 20.04], [np.nan, 40.0]]), ["r1", "r2"], ["c1", "c2"],
                        marked=[(1, 0)], xlabel="x", ylabel="y")
    said = {tuple(t.get_position()): t.get_text() for t in ax.texts}
    assert said == {(0, 0): "10.0", (1, 0): "20.0", (0, 1): "–", (1, 1): "40.0"}  # x is the column
    (frame,) = [p for p in ax.patches if isinstance(p, Rectangle)]
    assert (frame.get_x() < 0 < frame.get_x() + frame.get_width()
            and frame.get_y() < 1 < frame.get_y() + frame.get_height())
    assert [t.get_text() for t in ax.get_xticklabels()] == ["c1", "c2"] and [t.get_text()
        for t in ax.get_yticklabels()] == ["r1", "r2"]


def test_numbers_on_a_heat_map_can_be_read_on_their_colour() -> None:
    """Contrast of 4.5 to 1, as for small print on the web, over the whole range."""
    ax = plots.heat_map(np.linspace(0, 1, 21)[None], ["r"], range(21))
    (image,) = ax.images

    def light(colour: np.ndarray) -> float:
        linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for text, value in zip(ax.texts, np.linspace(0, 1, 21), strict=True):
        ground, ink = light(np.array(image.cmap(image.norm(value))[
            :3])), 1.0 if text.get_color() == "white" else 0.0
        assert (max(ground, ink) + 0.05) / (min(ground, ink) + 0.05) > 4.5


def test_two_maps_share_a_span_and_an_empty_one_is_no_failure() -> None:
    one, two = (plots.heat_map(np.array([[v, v + 1]]), ["r"], ["a", "b"], span=(0, 50)).images[0]
                for v in (10.0, 30.0))
    assert one.get_clim() == two.get_clim() == (0, 50)
    ax = plots.heat_map(np.full((1, 2), np.nan), ["r"], ["a", "b"])
    assert [t.get_text() for t in ax.texts] == ["–", "–"]


def test_the_front() -> None:
    assert plots.front([(1, 3), (2, 2), (2, 3), (3, 1), (3, 1)]) == [True, True, False, True, True]
    assert plots.front([]) == []


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_front_holds_the_best_of_each_aim_and_dominates_the_rest(points:
        list[tuple[int, int]]) -> None:
    on = plots.front(points)
    best = {p for p, kept in zip(points, on, strict=True) if kept}
    assert min(points) in best
    for a, b in set(points) - best:
        assert any(x <= a and y <= b for x, y in best)
    for a, b in best:
        assert not any((x < a and y <= b) or (x <= a and y < b) for x, y in points)


def test_pareto_rings_those_on_the_front_and_draws_intervals() -> None:
    def seeds(middle: float) -> Spread:
        return Spread.of([middle - 0.01, middle, middle + 0.01])

    points = {"front": (seeds(0.1), seeds(0.5)), "too": (seeds(0.2), seeds(0.4)),
              "behind": (seeds(0.2), seeds(0.6))}
    points["once"] = (Spread.of([0.3]), Spread.of([0.7]))  # one seed has no interval
    ax = plots.pareto(points, others={"theirs": (0.05, 0.05)})
    rings = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in ax.lines
             if line.get_markersize() == 14]
    # theirs is better, but takes no part
    assert rings == [pytest.approx((10, 50)), pytest.approx((20, 40))]
    (crosses, *_) = ax.containers
    across = crosses.lines[2][0].get_segments()[0]
    assert across[0][0] == pytest.approx(100
                                         * points["front"][0].low) and across[1][
                                             0] == pytest.approx(100 * points["front"][0].high)
    assert {"front", "theirs"} <= set(ax.get_legend_handles_labels()[1])
    assert not same_color(ax.containers[0].lines[0].get_color(),
                          ax.containers[1].lines[0].get_color())
