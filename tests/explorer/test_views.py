"""The explorer without widgets: curves that equal the stored reports, drawings that say what they
show, runs of one's own."""

import shutil

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from course_lib import RECIPES, CourseError, build, diagnostics, evaluate, load, plots
from course_lib.attacks import ATTACKS
from course_lib.explorer import curves
from course_lib.explorer.curves import Source, compute_curve, current, from_folder, load_curve
from course_lib.explorer.views import SLOW, VIEWS, Choice, Explorer
from course_lib.lab.publish import publish
from course_lib.scores import cru_s
from course_lib.zoo import load_report, load_reports, manifest, model_files, models_dir
from tests.helpers import Linear, counted, split
from tools.curves import publish_curve

FASHION = load("fashion-mnist").test
PAIR = ("exp1/natural", "exp1/pgd-at")


@pytest.fixture(scope="module")
def explorer():
    return Explorer()


def heights(drawing):
    return sorted(bar.get_height() for bar in drawing.patches)


def test_every_headline_model_has_a_current_curve():
    """`make curves` computes what is missing. Tables have no images to show, so no curves."""
    of_images = [n for n in RECIPES if RECIPES[n].dataset != "adult"]
    wanted = {n: Source(n, n) for n, seeds in manifest().items() if n in of_images
              and "weights" in seeds.get("0", {})}
    assert [n for n, source in wanted.items()
            if current(n, 0, curves.images_of(source.classes).digest()) is None] == []
    assert sum(p.stat().st_size for p in (models_dir() / "curves").rglob("*")
               if p.is_file()) < 2_000_000


@pytest.mark.parametrize("name", [n for n in sorted(model_files(kind="curves").entries())
                                  if n.startswith("exp")])
def test_a_curve_is_the_stored_report(name):
    curve = load_curve(name, FASHION)
    assert curve.eps == curves.BUDGETS
    for eps in (8, 16):
        found, report = curve.report(eps), load_report(name, eps=eps / 255)
        assert found.nat.counts == report.nat.counts
        assert np.abs(found.nat.by_class - report.nat.by_class).max() <= 0.001
        assert np.abs(found.rob.by_class - report.rob.by_class).max() <= 0.003, "on any CPU"


def test_a_curve_agrees_with_evaluate_and_grows_with_the_budget():
    part, ticks, small = split(60), list[int](), Linear((1, 6, 6), 3, dtype=torch.float32)
    curve = compute_curve(small, part, "pgd20", (4, 64, 16), tick=ticks.append)
    for eps in (4, 16, 64):
        assert curve.report(eps).rob == evaluate(small, part, ATTACKS["pgd20"].at(eps / 255),
                                             progress=False).rob
    assert curve.eps == (0, 4, 16, 64) and sum(ticks) == 180
    means = [curve.report(eps).rob.mean for eps in (0, 16, 64)]
    assert means == sorted(means) and means[0] < means[2]
    wrong = curve.at(0) != curve.y
    assert torch.equal(curve.at(64)[wrong], curve.at(0)[wrong]), "a wrong image is not attacked"
    few = compute_curve(small, part, "pgd20", (4,), per_class=5)
    assert few.report(4).rob.counts == (5, 5, 5) and torch.equal(part.y[few.places], few.y)
    none = compute_curve(small, part, "pgd20", (0,))
    assert none.eps == (0,) and torch.equal(none.at(0), curve.at(0))


def test_a_cell_holds_the_images_the_matrix_counts():
    curve = load_curve("exp1/pgd-at", FASHION)
    matrix = curve.confusion(8)
    assert (matrix.sum(1) == 1000).all()
    for row, column in ((6, 0), (0, 0), (1, 9)):
        places = curve.cell(8, row, column)
        assert len(places) == matrix[row, column] and (FASHION.y[places] == row).all()


def test_a_stored_curve_comes_back_and_a_stale_or_damaged_one_is_refused(tmp_path):
    def refused(message, seed=0):
        with pytest.raises(CourseError, match=message):
            load_curve("mine/one", split(30, (1, 32, 32), FASHION.classes, seed), root=tmp_path)

    part, record = split(30, (1, 32, 32), FASHION.classes), {"made_from": {}, "reports": []}
    publish("mine/one", 0, build("lenet5"), record, tmp_path)
    curve = compute_curve(build("lenet5"), part, budgets=(8,))
    publish_curve("mine/one", 0, curve, part, tmp_path)
    again = load_curve("mine/one", part, root=tmp_path)
    assert torch.equal(again.predicted, curve.predicted)
    assert (again.eps, again.classes) == (curve.eps, part.classes)
    refused(r"these weights and images.*make curves", seed=1)
    file = tmp_path / "curves" / "mine" / "one" / "seed0.npz"
    good = file.read_bytes()
    for raw in (good[:-7], good + b"\0"):
        file.write_bytes(raw)
        refused("is damaged")
    file.write_bytes(good)
    publish("mine/one", 0, build("lenet5", seed=1), record, tmp_path)
    refused("For these weights")


def test_a_cell_shows_its_own_images_page_by_page(explorer, monkeypatch):
    """Those of the class in the row that are taken for the class in the column."""
    drawn = counted(monkeypatch, plots, "images", lambda x, *_, **words: (x, words))
    ax = explorer.look("cell", "exp1/pgd-at", row="Shirt", column="Coat", number=14)
    alt = ax.figure.get_label()
    places = load_curve("exp1/pgd-at", FASHION).cell(8, 6, 4)
    ((x, words),) = drawn
    assert torch.equal(x, FASHION.images(places[12:24])) and words["framed"] == [
        n == 14 for n in range(13, 25)] and words["titles"] == [str(n) for n in range(13, 25)]
    assert f"{len(places)} images of Shirt are taken for Coat by exp1/pgd-at" in alt


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_draws_and_says_what_it_shows(explorer, view):
    for models in (PAIR, ("exp3/remargin-05",)):
        drawing = explorer.look(view, *models, eps=4)
        assert len(plots.png(drawing.figure)) > 8_000
        assert models[0] in drawing.figure.get_label() or view == "cell"
        assert "4/255" in drawing.figure.get_label() or view == "scores"


@pytest.mark.parametrize("seeds", [False, True])
def test_errors_are_those_of_the_stored_reports(explorer, seeds):
    """Clean and attacked, both models beside each other, each with its average as a line."""
    one = explorer.look("errors", *PAIR, eps=16, seeds=seeds)
    reports = [load_reports(n, eps=16 / 255)[: 9 if seeds else 1] for n in PAIR]
    means = [np.mean([getattr(r, k).by_class for r in of_model], axis=0)
             for of_model in reports for k in ("nat", "rob")]
    assert heights(one) == pytest.approx(sorted(100 * np.concatenate(means)), abs=0.3)
    clean = next(c for c in one.containers if str(c.get_label()).endswith("clean"))
    assert sum(bar.get_height() for bar in clean) == pytest.approx(100 * sum(means[0]), 0.01)
    averages = [line.get_ydata()[0] for line in one.lines if line.get_linestyle() == "--"]
    assert averages == pytest.approx([100 * rob.mean() for rob in means[1::2]], abs=0.3)
    text = one.figure.get_label()
    assert f"{averages[0]:.1f} %" in text and "worst class Shirt" in text
    assert ("5 seeds" in text) == seeds
    two = explorer.look("errors", "exp1/natural", eps=0)
    assert two.figure is one.figure and len(two.figure.axes) == 1
    assert plt.get_fignums() == [], "nothing that a notebook would show by itself"


def test_source_and_target_are_the_diagnoses(explorer):
    model, part = explorer.source("exp1/natural"), FASHION.per_class(2)
    drawing = explorer.look("fairness", "exp1/natural", per_class=2)
    target = diagnostics.targets(model.curve.confusion(8), own=False)
    steps = diagnostics.class_means(*diagnostics.steps_to_wrong(model.model, part, SLOW), 10)
    for ax, values in zip(drawing.figure.axes, (steps, 100 * target), strict=True):
        assert [bar.get_height() for bar in ax.patches] == pytest.approx(values.tolist())
    moved = f"; an even spread would change {diagnostics.from_uniform(target):.0%} of them"
    assert moved in drawing.figure.get_label()


def test_the_path_of_an_image_says_where_it_crosses(explorer):
    drawing = explorer.look("image", "exp1/natural", eps=16)
    (shade,) = drawing.figure.axes[2].patches
    step = shade.get_x() + 0.5
    assert f"first wrong at step {step:.0f}" in drawing.figure.get_label() and 0 < step <= 20
    chosen = explorer.look("image", "exp1/natural", eps=16, row="Bag", column="Shirt", number=2)
    places = explorer.source("exp1/natural").curve.cell(16, 8, 6)
    assert f"Test image {places[1]}, Bag" in chosen.figure.get_label()


NONE = {"eps": 0, "row": "Trouser", "column": "Bag"}


@pytest.mark.parametrize(("words", "named", "message"), [
    ("nonsense exp1/natural", {}, "Unknown view"), ("errors exp9/x", {}, "Unknown model"),
    ("errors exp1/natural", {"eps": 7}, "not computed at 7"),
    ("cell exp1/natural", {"row": "Shoe"}, "Unknown class 'Shoe'"),
    ("image exp1/natural cifar10/pgd-at", {}, "different classes"),
    ("cell exp1/pgd-at", NONE, "0 images of Trouser are taken for Bag.* another"),
    ("image exp1/pgd-at", NONE, "0 images .* another"),
    ("errors exp1/natural", {"eps": 10, "seeds": True}, "Stored: pgd20 at 8/255")])
def test_bad_words_are_answered(explorer, words, named, message):
    with pytest.raises(CourseError, match=message):
        explorer.look(*words.split(), **named)


def scored(folder, name, **changes):
    """A stored model of people with every kind of score."""
    classes = ["<=50K", ">50K"]
    report = {"attack": "pgd20-adult", "eps": 10.0, "classes": classes, "counts": [50, 50],
              "nat": [0.1, 0.3], "rob": [0.2, 0.9]}
    fewer = {**report, "counts": [10, 10], "rob": [1.0, 1.0]}
    least = {"score": "CRU_eps", "estimator": "bisection", "classes": classes,
             "by_class": [7.5, 2.5], "value": 5.0, "cap": 128.0}
    means = {"score": "EOU", "group": "gender", "groups": ["Female", "Male"],
             "means": [[0.1, 0.4], [0.6, 0.5]], "value": [0.3, 0.1]}
    record = {"made_from": {"classes": classes, "model": "table_mlp"},
              "reports": [report, fewer], "scores": [means, least]}
    publish(name, 0, build("table_mlp"), {**record, **changes}, folder)


def test_stored_scores_are_split_into_their_parts(tmp_path, explorer):
    scored(tmp_path, "mine/people")
    scored(tmp_path, "mine/none", reports=[], scores=[])
    scored(tmp_path, "mine/other", scores=[])
    x, hard = Explorer(), "CRU_s, pgd20-adult at 10 units"
    x.models |= curves.stored(tmp_path)
    assert x.scores(["mine/people"]) == ["CAU", hard, "EOU, gender", "CRU_eps, bisection"]
    assert x.scores(["mine/people", "mine/other"]) == ["CAU", hard]
    for score, says, bars in (
            ("", "CAU: accuracy of each class (%). mine/people: 20 between", [70, 90]),
            (hard, ": 70 between", [20, 90]),
            ("EOU, gender", ": 30 and 10 between", [10, 40, 50, 60]),
            ("CRU_eps, bisection", "at most 128. mine/people: 5 between", [2.5, 7.5])):
        drawing = x.look("scores", "mine/people", score=score)
        assert says in drawing.figure.get_label() and heights(drawing) == pytest.approx(bars)
    alt = explorer.look("scores", *PAIR, score="CRU_s, pgd20 at 16/255").figure.get_label()
    assert all(f"{n}: {100 * cru_s(load_report(n, eps=16 / 255)):.4g} between" in alt for n in PAIR)
    for view, other, score, message in (("scores", "mine/none", "", "no stored score in common"),
                                        ("scores", "", "LUF", "Unknown score 'LUF'"),
                                        ("errors", "", "", "shows scores only")):
        with pytest.raises(CourseError, match=message):
            x.look(view, "mine/people", other, score=score)


def test_finished_models_of_ones_own_and_what_is_none(tmp_path):
    for odd in ("", str(tmp_path / "nowhere"), "\0", "x" * 5000):
        with pytest.raises(CourseError, match="There is no folder"):
            from_folder(odd)
    with pytest.raises(CourseError, match="no finished model"):
        from_folder(tmp_path)
    record = {"made_from": {"classes": list(FASHION.classes), "model": "lenet5"}, "reports": []}
    publish("mine/one", 1, build("lenet5"), record, tmp_path / "models")
    x, label = Explorer(["exp1/natural"]), "models: mine/one · seed 1"
    x.models |= from_folder(tmp_path)
    shutil.copytree(tmp_path, other := tmp_path.with_name("other"))
    assert [*from_folder(other, x.models.values())] == [f"{other / label}"]
    choice = Choice("errors", (label, "exp1/natural"), "pgd10", per_class=2)
    x.attack(choice)
    assert "20 test images" in x.draw(choice).figure.get_label()
    x.models |= from_folder(tmp_path)
    with pytest.raises(CourseError, match="Attack now"):
        x.draw(choice)  # the folder was read again: a newer model has no results yet
    (tmp_path / "models" / "mine" / "one" / "seed1.json").write_text("{")
    x.models |= from_folder(tmp_path)
    with pytest.raises(CourseError, match="damaged"):
        x.draw(choice)
