import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, ttest_1samp

from course_lib import CourseError
from course_lib.fairness import Errors, Report, Spread
from course_lib.tables import chance_range, permuted_ranges, prediction, verdict
from tests.helpers import THREE, report


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys_lies_around_the_rate_and_mirrors(case):
    wrong, n = case
    low, high = Errors((wrong,), (n,)).intervals()[0]
    assert (low, high) == pytest.approx(binomtest(wrong, n).proportion_ci(method="wilson"),
                                        abs=1e-12)
    assert 0 <= low <= wrong / n + 1e-12 and wrong / n - 1e-12 <= high <= 1 and low < high
    mirrored = Errors((n - wrong,), (n,)).intervals()[0]
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_spread_by_hand_and_by_scipy():
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


@st.composite
def reports(draw):
    n = draw(st.integers(1, 12))
    counts = tuple(draw(st.lists(st.integers(1, 10**7), min_size=n, max_size=n)))
    nat, rob, flips = (Errors(tuple(draw(st.integers(0, c)) for c in counts), counts)
                       for _ in range(3))
    names = tuple(draw(st.lists(st.text(), min_size=n, max_size=n)))
    return Report(nat, rob, names, draw(st.text()), draw(st.floats(0, 1)),
                  draw(st.sampled_from([None, flips])))


@given(reports())
def test_json_both_ways_exactly(r):
    row = json.loads(json.dumps(r.to_json()))
    assert Report.from_json(row) == r and Report.from_json(row).to_json() == row
    keys = ["attack", "eps", "classes", "counts", "nat", "rob", "flips"]
    assert list(row) == keys[: 7 if r.flips else 6]


A, B = Errors((1, 2, 3), (10, 10, 10)), Errors((1, 2, 3), (10, 10, 20))
ROW = report().to_json()


@pytest.mark.parametrize(("make", "says"), [
    (lambda: Errors((1, 2), (10,)), r"images \(1, 2\) of \(10,\); give both"),
    (lambda: Errors((0, 0), (10, 0)), r"of \(10, 0\).*one image or more"),
    (lambda: Errors((11,), (10,)), r"images \(11,\) of \(10,\)"),
    (lambda: Report(A, B, THREE), r"3 class names .*10, 10\) without and \(10, 10, 20\) u"),
    (lambda: Report(A, A, THREE[:2]), "2 class names for counts"),
    (lambda: Report(A, A, THREE, "pgd20", math.nan), "not below 0"),
    *[(lambda row=row: Report.from_json(row), ".") for row in (
        {}, [], None, {**ROW, "nat": None}, {**ROW, "nat": [0.1, 0.2]}, {**ROW, "eps": "big"},
        {**ROW, "nat": [-1] * 3}, {**ROW, "nat": [0.1, 0.2, math.nan]}, {**ROW, "eps": -1.0},
        {**ROW, "eps": math.inf}, {**ROW, "classes": ["a"]})]])
def test_errors_and_reports_that_cannot_be(make, says):
    with pytest.raises(CourseError, match=says):
        make()


def test_a_report_shows_itself_in_percent():
    r = report(nat=(1, 5, 3), rob=(4, 9, 10), counts=(10, 10, 20))
    assert repr(r).splitlines()[:3] == ["class  images standard robust boundary",
                                        "  cat      10     10.0   40.0     30.0",
                                        "  dog      10     50.0   90.0     40.0"]
    assert "pgd20 8/255" in str(r) and "error 22.5, worst class dog" in str(r)
    assert r._repr_html_().count("<tr") == 4 and r.frame()["robust"].tolist() == [40, 90, 50]


def test_one_more_training_lies_in_the_prediction_interval_nineteen_times_in_twenty():
    draws = np.random.default_rng(0).normal(size=(2000, 4))
    ends = [prediction(Spread.of(row[:3])) for row in draws]
    inside = np.mean([low <= x <= high for (low, high), x in zip(ends, draws[:, 3], strict=True)])
    assert inside == pytest.approx(0.95, abs=0.015)
    assert all(map(math.isnan, prediction(Spread.of([1]))))


@pytest.mark.parametrize(("low", "high", "word"), [
    (0.001, 0.2, "higher"), (-0.2, -0.001, "lower"), (-0.009, 0.01, "no difference"),
    (-0.02, 0.005, "inconclusive"), (-0.3, 0.3, "inconclusive"), (0, 0.005, "no difference")])
def test_a_verdict_in_one_word(low, high, word):
    s = Spread((low + high) / 2, 0.1, low, high, 5)
    assert verdict(s) == word and verdict(Spread.of([0.3])) == "one seed"
    assert verdict(s, near=1) in {word, "no difference"}


def test_chance_alone_makes_a_range():
    """Finding E3; ten equally hard classes are in the docstring of `chance_range`."""
    values, groups = np.arange(2000) % 1000 < 136, np.arange(2000) // 1000
    ranges = permuted_ranges(values, groups, 500)
    want = chance_range(Errors((136, 136), (1000, 1000)))
    assert (ranges.mean(), np.quantile(ranges, 0.95)) == pytest.approx(want, rel=0.1)
