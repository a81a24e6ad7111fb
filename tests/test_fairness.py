import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from course_lib.errors import CourseError
from course_lib.fairness import Errors, Report, Spread, class_spreads, t95, wilson
from course_lib.tables import (
    chance_range,
    history,
    interval,
    permuted_ranges,
    prediction,
    verdict,
)
from course_lib.zoo import load_record
from tests.helpers import THREE, report


@pytest.mark.parametrize(("wrong", "n", "low", "high"), [
    # Newcombe (1998), table I, method 3
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
    # by hand: z^2 = 3.8415, so 1/2 -+ 1.96 sqrt(1/400 + z^2/40000) / (1 + z^2/100)
    (50, 100, 0.4038, 0.5962), (20, 20, 0.8389, 1.0),
])
def test_wilson_against_published_intervals(wrong: int, n: int, low: float, high: float) -> None:
    assert wilson(wrong, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys_lies_around_the_rate_and_mirrors(case: tuple[int, int]) -> None:
    wrong, n = case
    low, high = wilson(wrong, n)
    assert (low, high) == pytest.approx(binomtest(wrong, n).proportion_ci(method="wilson"),
                                        abs=1e-12)
    assert 0 <= low <= wrong / n + 1e-12 and wrong / n - 1e-12 <= high <= 1 and low < high
    assert wilson(n - wrong, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@pytest.mark.parametrize(("df", "point"), [
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306),
    (9, 2.262), (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.0),
    (120, 1.98), (10**9, 1.96),
])
def test_t95_against_a_printed_table(df: int, point: float) -> None:
    assert t95(df) == pytest.approx(point, abs=6e-4)


def test_spread_by_hand_and_by_scipy() -> None:
    """Five values 1..5: mean 3, sd sqrt(10/4), half-width 2.776 sd / sqrt(5)."""
    s = Spread.of([1, 2, 3, 4, 5])
    half = 2.7764 * math.sqrt(2.5) / math.sqrt(5)
    assert (s.mean, s.sd, s.low, s.high, s.n) == pytest.approx((3, math.sqrt(2.5), 3 - half,
                                                                3 + half, 5), abs=1e-4)
    assert (s.low, s.high) == pytest.approx(ttest_1samp([1, 2, 3, 4, 5], 0).confidence_interval())
    # a single value claims no interval
    s = Spread.of([0.25])
    assert s.mean == 0.25 and s.n == 1 and str(s) == "25.00"
    assert all(map(math.isnan, (s.sd, s.low, s.high)))
    with pytest.raises(CourseError, match="one value per seed"):
        Spread.of([])


def test_report_by_hand() -> None:
    r = report(nat=(1, 5, 3), rob=(4, 9, 10), counts=(10, 10, 20))
    np.testing.assert_allclose(r.nat.by_class, [0.1, 0.5, 0.15])
    np.testing.assert_allclose(r.rob.by_class, [0.4, 0.9, 0.5])
    np.testing.assert_allclose(r.bnd.by_class, [0.3, 0.4, 0.35])
    assert r.nat.mean == 9 / 40 and r.rob.mean == 23 / 40 and r.bnd.mean == 14 / 40
    assert (r.nat.worst, r.rob.worst, r.rob.worst_class, r.worst_class) == (0.5, 0.9, 1, "dog")
    np.testing.assert_allclose(r.nat.intervals(), [wilson(1, 10), wilson(5, 10), wilson(3, 20)])


def test_class_spreads() -> None:
    seeds = [Errors((1, 4), (10, 10)), Errors((3, 4), (10, 10))]
    assert [(s.mean, s.sd) for s in class_spreads(seeds)] == [
        pytest.approx((0.2, math.sqrt(0.02))), pytest.approx((0.4, 0))]
    for bad in ([], [seeds[0], Errors((1,), (10,))]):
        with pytest.raises(CourseError, match="the same classes"):
            class_spreads(bad)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    n = draw(st.integers(1, 12))
    counts = tuple(draw(st.lists(st.integers(1, 10**7), min_size=n, max_size=n)))
    nat, rob, flips = (Errors(tuple(draw(st.integers(0, c)) for c in counts), counts)
                       for _ in range(3))
    names = tuple(draw(st.lists(st.text(), min_size=n, max_size=n)))
    return Report(nat, rob, names, draw(st.text()), draw(st.floats(0, 1)),
                  draw(st.sampled_from([None, flips])))


@given(reports())
def test_json_both_ways_exactly(r: Report) -> None:
    row = json.loads(json.dumps(r.to_json()))
    assert Report.from_json(row) == r and Report.from_json(row).to_json() == row
    keys = ["attack", "eps", "classes", "counts", "nat", "rob", "flips"]
    assert list(row) == keys[: 7 if r.flips else 6]


@pytest.mark.parametrize("row", [
    {}, [], None, "report", {"nat": []},
    *({**report().to_json(), key: value} for key, value in [
        ("nat", None), ("nat", 3), ("nat", [0.1, 0.2]), ("nat", [0.1, 0.2, math.nan]),
        ("nat", [0.1, 0.2, math.inf]), ("nat", [0.1, 0.2, 1.5]), ("rob", ["a", "b", "c"]),
        ("counts", [10, 10]), ("counts", [10, 10, 0]), ("counts", []), ("counts", None),
        ("classes", ["a"]), ("classes", None), ("eps", "big"), ("eps", None)]),
])
def test_json_that_is_no_report(row: Any) -> None:
    with pytest.raises(CourseError):
        Report.from_json(row)


A, B = Errors((1, 2, 3), (10, 10, 10)), Errors((1, 2, 3), (10, 10, 20))


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Errors((1, 2), (10,)), "2 classes of errors for 1"),
    (lambda: Errors((), ()), "0 classes"),
    (lambda: Errors((0, 0), (10, 0)), "Class 1 holds no image"),
    (lambda: Errors((11,), (10,)), "More wrong images than images"),
    (lambda: Report(A, B, THREE), "different images"),
    (lambda: Report(A, A, THREE[:2]), "2 class names for 3"),
    (lambda: Report(report().bnd, Errors((-1, 0, 0), (10, 10, 20)), THREE), "not below 0"),
    (lambda: Report(A, A, THREE, "pgd20", math.nan), "not below 0"),
])
def test_errors_and_reports_that_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(CourseError, match=says):
        make()


def test_a_report_shows_itself_in_percent() -> None:
    r = report(nat=(1, 5, 3), rob=(4, 9, 10), counts=(10, 10, 20))
    assert repr(r).splitlines()[:3] == ["class  images standard robust boundary",
                                        "  cat      10     10.0   40.0     30.0",
                                        "  dog      10     50.0   90.0     40.0"]
    assert "pgd20 8/255" in str(r) and "error 22.5, worst class dog" in str(r)
    assert r._repr_html_().count("<tr") == 4 and r.frame()["robust"].tolist() == [40, 90, 50]


def test_one_more_training_lies_in_the_prediction_interval_nineteen_times_in_twenty() -> None:
    s = Spread.of([1, 2, 3, 4, 5])
    assert prediction(s) == pytest.approx((3 - 2.7764 * math.sqrt(2.5 * 1.2),
                                           3 + 2.7764 * math.sqrt(2.5 * 1.2)), abs=1e-3)
    draws = np.random.default_rng(0).normal(size=(2000, 4))
    ends = [prediction(Spread.of(row[:3])) for row in draws]
    inside = np.mean([low <= x <= high for (low, high), x in zip(ends, draws[:, 3], strict=True)])
    assert inside == pytest.approx(0.95, abs=0.015)
    assert all(map(math.isnan, prediction(Spread.of([1]))))


@pytest.mark.parametrize(("low", "high", "word"), [
    (0.001, 0.2, "higher"), (-0.2, -0.001, "lower"), (-0.009, 0.01, "no difference"),
    (-0.02, 0.005, "inconclusive"), (-0.3, 0.3, "inconclusive"), (0, 0.005, "no difference")])
def test_a_verdict_in_one_word(low: float, high: float, word: str) -> None:
    s = Spread((low + high) / 2, 0.1, low, high, 5)
    assert verdict(s) == word and verdict(Spread.of([0.3])) == "one seed"
    assert verdict(s, near=1) in {word, "no difference"}
    assert interval(Spread(-0.1, 0.1, -0.25, 0.05, 5), sign="+") == "-10.0 [-25.0, +5.0]"


def test_chance_alone_makes_a_range() -> None:
    """Finding E3: ten equally hard classes, 1,000 images each, at 13.6 % and at 24 %."""
    for p, average, often in ((136, 3.3, 4.8), (240, 4.2, 6.0)):
        mean, point = chance_range(Errors((p,) * 10, (1000,) * 10))
        assert (100 * mean, 100 * point) == pytest.approx((average, often), abs=0.11)
    values, groups = np.arange(2000) % 1000 < 136, np.arange(2000) // 1000
    ranges = permuted_ranges(values, groups, 500)
    want = chance_range(Errors((136, 136), (1000, 1000)))
    assert (ranges.mean(), np.quantile(ranges, 0.95)) == pytest.approx(want, rel=0.1)
    assert permuted_ranges([1, 0], [0, 1], 5).tolist() == [1] * 5


def test_history_is_the_mean_over_seeds() -> None:
    frame = history("exp2/reweight-05", "lam0")
    runs = [load_record("exp2/reweight-05", seed=s)["history"] for s in range(5)]
    assert frame.loc[20, "Shirt"] == pytest.approx(np.mean([r[19]["state"]["lam0"][6]
                                                            for r in runs]))
    assert history("exp2/reweight-05", "rob").shape == (20, 10)
    assert history("exp1/natural")["loss"].is_monotonic_decreasing
    for call in (lambda: history("exp1/natural", "lam0"), lambda: history("exp1/naturel")):
        with pytest.raises(CourseError, match="Unknown|Nothing is called"):
            call()
