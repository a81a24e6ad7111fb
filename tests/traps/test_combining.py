"""Reports are combined by class name, on the same images, attack and budget, or not at all."""

import itertools
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import CourseError, plots, results
from course_lib.fairness import Errors, Report
from course_lib.zoo import columns, combine, flagged
from tests.helpers import report

pytestmark = pytest.mark.usefixtures("closed")
NAMES = ("cat", "dog", "frog", "bird")
IMAGES = ({}, {}, {}, {"dog": 20}, {"dog": 20, "frog": 5})  # other counts than ten per class


@st.composite
def generated(draw):
    """Often, but not always, as another one: any order of classes, and errors of each its own."""
    classes = draw(st.permutations(NAMES))[: draw(st.sampled_from([4, 4, 4, 3]))]
    images = draw(st.sampled_from(IMAGES))
    counts = tuple(images.get(c, 10) for c in classes)
    nat = tuple(draw(st.integers(0, n)) for n in counts)
    rob = tuple(draw(st.integers(w, n)) for w, n in zip(nat, counts, strict=True))
    return Report(Errors(nat, counts), Errors(rob, counts), tuple(classes),
                  draw(st.sampled_from(["pgd20", "pgd20", "autoattack", ""])),
                  draw(st.sampled_from([8 / 255, 8 / 255, 16 / 255])))


def of(r, kind="rob"):
    return dict(zip(r.classes, getattr(r, kind).by_class.tolist(), strict=True))


def counts(r):
    return dict(zip(r.classes, r.nat.counts, strict=True))


def comparable(a, b, attack=True, budget=True):
    return (counts(a) == counts(b) and (not attack or a.attack == b.attack or
                                        "" in (a.attack, b.attack))
            and (not budget or a.eps == b.eps))


@given(generated(), generated())
def test_two_reports_are_combined_by_name_or_refused(a, b):
    for ignore, may in (("", comparable(a, b)), ("budget", comparable(a, b, budget=False)),
                        ("attack budget", comparable(a, b, False, False))):
        try:
            first, second = combine([a, b], ignore)
        except CourseError as e:
            assert not may and "differ in their" in str(e)
            continue
        assert may and first.classes == second.classes == a.classes
        assert all(of(x, kind) == of(y, kind) and counts(x) == counts(y)
                   for x, y in ((first, a), (second, b)) for kind in ("nat", "rob"))


def heights(ax):
    return [bar.get_height() / 100 for bar in ax.patches]


@settings(max_examples=20)
@given(generated(), generated(), st.sampled_from(["nat", "rob", "bnd"]))
def test_no_picture_mixes_classes(a, b, kind):
    """Finding A1. Every bar, point and line is the error of the class whose name it has."""
    needs = kind != "nat"
    plt.close("all")
    try:
        ax = plots.class_bars({"a": a, "b": b}, kind=kind)
        names = [t.get_text() for t in ax.get_xticklabels()]
        assert heights(ax) == pytest.approx([of(r, kind)[c] for r in (a, b) for c in names])
        mean = plots.class_bars({"seeds": [a, b]}, kind=kind, order=range(len(names)))
        assert heights(mean) == pytest.approx([(of(a, kind)[c] + of(b, kind)[c]) / 2
                                               for c in a.classes])
        assert comparable(a, b, needs, needs)
    except CourseError:
        assert not comparable(a, b, needs, needs)
    try:
        lines = plots.budget_curves({1.0: a, 2.0: b}, named=a.classes).lines[-5:-1]
        assert {line.get_label(): tuple(line.get_ydata()) for line in lines[-len(a.classes):]} == {
            c: (pytest.approx(100 * of(a)[c]), pytest.approx(100 * of(b)[c])) for c in a.classes}
    except CourseError:
        assert not comparable(a, b, budget=False)
    try:
        ax = plots.cost_of_robustness([a], [b])
        points = dict(zip(a.classes, ax.lines[-1].get_xydata() / 100, strict=True))
        assert all(points[c] == pytest.approx([of(a, "nat")[c], of(b, "nat")[c] - of(a, "nat")[c]])
                   for c in a.classes)
    except CourseError:
        assert not comparable(a, b, False, False)


@given(st.lists(st.lists(generated(), max_size=4), max_size=4))
def test_the_reports_of_seeds_are_on_the_same_images(seeds):
    meant = [[m for m in mine if (m.attack, m.eps) == ("pgd20", 8 / 255)] for mine in seeds]
    found = columns(dict(enumerate(seeds)), "pgd20", 8 / 255)
    for column in found:
        assert len({(r.classes, r.nat.counts) for r in column.values()}) == 1
        for seed, r in column.items():
            assert (of(r), counts(r)) in [(of(m), counts(m)) for m in meant[seed]]
    most = max((sum(counts(a) in map(counts, mine) for mine in meant)
                for a in itertools.chain(*meant)), default=0)
    assert max(map(len, found), default=0) == len(found[0] if found else ()) == most


def test_c_one_report_can_be_drawn():
    r = report()
    assert sorted(heights(plots.class_bars(r))) == sorted(r.rob.by_class)
    assert len(r.plot().patches) == 6 and len(r.plot(kind=("nat", "bnd")).patches) == 6


def test_a7_bytes_are_scaled_and_other_numbers_refused():
    x = torch.arange(0, 240, 10, dtype=torch.uint8).reshape(2, 1, 3, 4)
    for draw in (lambda x: plots.images(x), lambda x: plots.image_rows({"a": x, "b": x[:1]}),
                 lambda x: plots.adversarial(x[0], x[1])):
        as_bytes, as_fractions = (draw(v).images[0].get_array() for v in (x, x / 255))
        assert np.allclose(as_bytes, as_fractions, atol=1e-6) and as_bytes[..., 0].std() > 0.1
        for bad in (x.float(), x / 255 - 0.5, x / 255 * torch.nan, x.long()):
            with pytest.raises(CourseError, match="fractions from 0 to 1, or bytes"):
                draw(bad)


def test_e10_the_flag_is_the_average_or_the_worst_class():
    """4 of 40 errors more are 10 points; 1 of 10 in the worst class is 10 points, too."""
    weak = report(rob=(4, 8, 7))
    for rob, says in (((4, 8, 8), False), ((6, 8, 9), True), ((4, 9, 7), True)):
        assert flagged([weak, report(rob=rob, attack="autoattack")]) == says
    assert not flagged([weak, report(rob=(9, 9, 9), counts=(10, 10, 10), attack="autoattack")])
    warned = results("cifar10/*", attack="pgd20").query("warnings != ''")["recipe"]
    assert {*warned} == {"cifar10/bat"}


def test_h12_warnings_stand_below_report_and_figure():
    r = replace(report(), warnings=("all logits are NaN",))
    for text in (repr(r), r._repr_html_(), plots.class_bars(r).get_xlabel()):
        assert "! all logits are NaN" in text
