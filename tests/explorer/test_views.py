"""The explorer without widgets: curves that equal the stored reports, views that say what they
show, runs of one's own."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import CourseError, Optim, build, evaluate, fit, load
from course_lib.attacks import ATTACKS
from course_lib.checkpoints import Store
from course_lib.data import Split
from course_lib.explorer.curves import BUDGETS, STORED, Curve, compute_curve, current, load_curve, publish_curve
from course_lib.explorer.sources import as_csv, from_folder, images_of, table
from course_lib.explorer.views import VIEWS, Choice, Explorer
from course_lib.methods import METHODS
from course_lib.models import MODELS
from course_lib.recipes import RECIPES
from course_lib.scores import cru_s
from course_lib.shelf import manifest, models_dir
from course_lib.zoo import load_report, publish
from tests.helpers import Linear, split

FASHION = load("fashion-mnist").test
CURVES = sorted(STORED.named())
SMALL = Linear((1, 6, 6), classes=3, dtype=torch.float32)


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return Explorer()


def test_every_headline_model_has_a_curve_that_is_not_stale() -> None:
    """`make curves` makes what is missing. Tables have no images to show, so no curves."""
    of_images = [n for n in RECIPES if RECIPES[n].dataset != "adult"]
    wanted = [n for n, seeds in manifest().items() if n in of_images
              and "weights" in seeds.get("0", {})]
    classes = {n: json.loads((models_dir() / manifest()[n]["0"]["record"]["file"]).read_text())[
        "made_from"]["classes"] for n in wanted}
    assert [n for n in wanted if current(n, 0, images_of(classes[n]).digest()) is None] == []
    assert sum(p.stat().st_size for p in (models_dir() / "curves").rglob("*")
               if p.is_file()) < 2_000_000


@pytest.mark.parametrize("name", [n for n in CURVES if n.startswith("exp")])
@pytest.mark.parametrize("eps", [8, 16])
def test_a_curve_is_the_stored_report(name: str, eps: int) -> None:
    curve, stored = load_curve(name, FASHION), load_report(name, eps=eps / 255)
    assert curve.eps == BUDGETS and len(curve.y) == len(FASHION)
    assert np.abs(curve.report(eps).nat.by_class - stored.nat.by_class).max() <= 0.001
    assert np.abs(curve.report(eps).rob.by_class
                  - stored.rob.by_class).max() <= 0.003, "another CPU may differ in an image or two"


def test_measure_agrees_with_evaluate_and_grows_with_the_budget() -> None:
    part = split(60)
    done: list[tuple[int, int]] = []
    curve = compute_curve(SMALL, part, "pgd20", (4, 64, 16), batch=500, tick=lambda a,
                    b: done.append((a, b)))
    for eps in (4, 16, 64):
        assert curve.report(eps).rob == evaluate(SMALL, part, ATTACKS["pgd20"].at(eps / 255),
                                                 progress=False).rob
    assert curve.eps == (0, 4, 16, 64) and done[-1] == (240, 240)
    assert curve.errors(0).mean <= curve.errors(16).mean <= curve.errors(64).mean and curve.errors(
        0).mean < curve.errors(64).mean
    wrong = curve.at(0) != curve.y
    assert torch.equal(curve.at(64)[wrong],
                       curve.at(0)[wrong]), "what is wrong already is attacked no further"
    few = compute_curve(SMALL, part, "pgd20", (4,), per_class=5)
    assert few.errors(4).counts == (5, 5, 5) and torch.equal(part.y[few.places], few.y)


def test_a_cell_holds_the_images_the_matrix_counts() -> None:
    curve = load_curve("exp1/pgd-at", FASHION)
    matrix = curve.confusion(8)
    assert matrix.sum() == 10_000 and (matrix.sum(1) == 1000).all()
    assert 1 - float(matrix.diagonal().sum()) / 10_000 == pytest.approx(curve.errors(8).mean)
    for row, column in ((6, 0), (0, 0), (1, 9)):
        places = curve.cell(8, row, column)
        assert len(places) == matrix[row, column] and (FASHION.y[places] == row).all()
    with pytest.raises(CourseError, match=r"not computed at 7/255"):
        curve.at(7)


@pytest.fixture
def beside(tmp_path: Path) -> tuple[Path, Split, Curve]:
    """A folder with one model and its curve."""
    part = split(30, (1, 32, 32), FASHION.classes)
    publish("mine/one", 0, build("lenet5"),
            {"made_from": {"model": "lenet5", "classes": list(part.classes)}, "reports": []},
            tmp_path)
    curve = compute_curve(build("lenet5"), part, budgets=(8,))
    publish_curve("mine/one", 0, curve, part, tmp_path)
    return tmp_path, part, curve


def test_a_stored_curve_comes_back(beside: tuple[Path, Split, Curve]) -> None:
    root, part, curve = beside
    again = load_curve("mine/one", part, root=root)
    assert torch.equal(again.predicted,
                       curve.predicted) and again.eps == curve.eps and again.classes == part.classes


def test_a_stale_or_damaged_curve_is_seen(beside: tuple[Path, Split, Curve]) -> None:
    root, part, _ = beside
    with pytest.raises(CourseError, match=r"other weights or images.*make curves"):
        load_curve("mine/one", split(30, (1, 32, 32), FASHION.classes, seed=1), root=root)
    file = root / "curves" / "mine" / "one" / "seed0.npz"
    good = file.read_bytes()
    file.write_bytes(good[:-7])
    with pytest.raises(CourseError, match="is damaged"):
        load_curve("mine/one", part, root=root)
    file.write_bytes(good)
    publish("mine/one", 0, build("lenet5", seed=1), {"made_from": {}, "reports": []}, root)
    with pytest.raises(CourseError, match="other weights"):
        load_curve("mine/one", part, root=root)
    (root / "curves" / "manifest.json").write_text('{"format": 1, "curves": {"mine/one": 3}}')
    with pytest.raises(CourseError, match="damaged"):
        load_curve("mine/one", part, root=root)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("models", [("exp1/natural", "exp1/pgd-at"), ("exp3/remargin-05",)])
def test_a_view_draws_and_says_what_it_shows(explorer: Explorer, view: str,
                                             models: tuple[str, ...]) -> None:
    seen = explorer.look(view, *models, eps=4)
    assert seen.png().startswith(b"\x89PNG") and len(seen.png()) > 8_000
    assert models[0] in seen.alt or view == "cell"
    assert as_csv(seen.rows).count("\n") == len(seen.rows) + 1
    assert "4/255" in seen.alt or view in ("history", "scores")


def test_the_figure_is_reused_and_shows_the_numbers(explorer: Explorer) -> None:
    one = explorer.look("errors", "exp1/natural", "exp1/pgd-at", eps=8)
    heights = [bar.get_height() for bar in one.ax.patches]
    reports = [load_report(n) for n in ("exp1/natural", "exp1/pgd-at")]
    assert sorted(heights) == pytest.approx(sorted(100
                                                   * np.concatenate([r.rob.by_class
                                                                     for r in reports])), abs=0.3)
    assert f"{100 * reports[0].rob.mean:.1f}" in one.alt and reports[0].worst_class in one.alt
    two = explorer.look("errors", "exp1/natural", eps=0)
    assert two.figure is one.figure and len(two.figure.axes) == 1
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == [], "nothing that a notebook would show by itself"


def test_the_path_of_an_image_says_where_it_crosses(explorer: Explorer) -> None:
    seen = explorer.look("image", "exp1/natural", eps=16)
    right = [bool(r["right"]) for r in seen.rows]
    assert len(right) == 21 and right[0] and not right[-1]
    assert f"first wrong at step {right.index(False)}" in seen.alt
    chosen = explorer.look("cell", "exp1/natural", eps=16, row="Bag", column="Shirt", number=2)
    assert "images of Bag are taken for Shirt" in chosen.alt
    empty = explorer.look("cell", "exp1/pgd-at", eps=0, row="Trouser", column="Bag")
    assert "No image of Trouser is taken for Bag." in [t.get_text() for t in empty.ax.texts]


def test_a_live_attack_takes_the_place_of_the_curve(explorer: Explorer) -> None:
    look = Choice(attack="cw20", per_class=3, eps=8, models=("exp1/natural",))
    with pytest.raises(CourseError, match="press Attack now"):
        explorer.draw(look)
    done: list[tuple[int, int]] = []
    explorer.attack(look, lambda a, b: done.append((a, b)))
    assert done[-1] == (60, 60) and "30 test images" in explorer.draw(look).alt
    explorer.attack(look, lambda a, b: pytest.fail("what was computed is kept"))


def test_bad_words_are_answered(explorer: Explorer) -> None:
    for words, message in ((("nonsense", "exp1/natural"), "Unknown view"),
                           (("errors", "exp9/x"), "Unknown model")):
        with pytest.raises(CourseError, match=message):
            explorer.look(*words)
    with pytest.raises(CourseError, match="not computed at 7"):
        explorer.look("errors", "exp1/natural", eps=7)
    with pytest.raises(CourseError, match="3 models"):
        explorer.draw(dataclasses.replace(Choice(), models=("exp1/natural",) * 3))
    with pytest.raises(CourseError, match="Unknown class 'Shoe'"):
        explorer.look("cell", "exp1/natural", row="Shoe")
    with pytest.raises(CourseError, match="Unknown model"):
        Explorer(["exp9/x"])


def trained(folder: Path, epochs: int = 1) -> None:
    data = load("fashion-mnist", limit=100)
    fit(build("lenet5"), METHODS["natural"](), data, epochs=epochs, optim=Optim(batch=40), seed=0,
        progress=False, store=Store(folder))


def scored(folder: Path, name: str = "mine/people", **changes: object) -> dict[str, object]:
    """A stored model of people with every kind of score."""
    report = {"attack": "pgd20-adult", "eps": 10.0, "classes": ["<=50K", ">50K"],
              "counts": [50, 50], "nat": [0.1, 0.3], "rob": [0.2, 0.9]}
    fewer = {**report, "counts": [10, 10], "rob": [1.0, 1.0]}
    least = {"score": "CRU_eps", "estimator": "bisection", "classes": ["<=50K", ">50K"],
             "by_class": [7.5, 2.5], "value": 5.0, "cap": 128.0}
    means = {"score": "EOU", "group": "gender", "groups": ["Female", "Male"],
             "means": [[0.1, 0.4], [0.6, 0.5]], "value": [0.3, 0.1]}
    record = {"made_from": {"classes": ["<=50K", ">50K"], "model": "table_mlp"},
              "reports": [report, fewer], "scores": [means, least]}
    publish(name, 0, build("table_mlp"), {**record, **changes}, folder)
    return report


def test_stored_scores_are_opened_up(tmp_path: Path) -> None:
    scored(tmp_path)
    x = Explorer(root=tmp_path)
    assert x.scores(["mine/people"]) == ["CAU", "CRU_s, pgd20-adult at 10 units", "EOU, gender",
                                         "CRU_eps, bisection"]
    seen = x.look("scores", "mine/people")
    assert (seen.alt == "CAU: accuracy of each class. mine/people: 20 points between the lowest "
            "and the highest.")
    assert [(r["of"], r["value"]) for r in seen.rows] == [("<=50K", pytest.approx(0.9)),
                                                          (">50K", pytest.approx(0.7))]
    assert [b.get_height() for b in seen.ax.patches] == pytest.approx([90, 70])
    assert "70 points" in x.look("scores", "mine/people",
                                 score="CRU_s, pgd20-adult at 10 units").alt
    eou = x.look("scores", "mine/people", score="EOU, gender")
    assert "30 and 10 points" in eou.alt and [r["of"] for r in eou.rows][:2] == ["Female, label 0",
        "Male, label 0"]
    least = x.look("scores", "mine/people", score="CRU_eps, bisection")
    assert ": 5 between" in least.alt and "at most 128" in least.alt and [b.get_height()
        for b in least.ax.patches] == [7.5, 2.5]
    with pytest.raises(CourseError, match="scores and training only"):
        x.look("errors", "mine/people")


def test_two_models_share_a_score_or_it_is_said(tmp_path: Path) -> None:
    scored(tmp_path)
    scored(tmp_path, "mine/none", reports=[], scores=[])
    three = {"attack": "pgd20", "eps": 8 / 255, "classes": ["a", "b", "c"], "counts": [9] * 3,
             "nat": [0.0] * 3, "rob": [1.0] * 3}
    scored(tmp_path, "mine/three", reports=[three], scores=[])
    x = Explorer(root=tmp_path)
    assert x.scores(["mine/people", "mine/three"]) == ["CAU"]
    with pytest.raises(CourseError, match="different classes or groups"):
        x.look("scores", "mine/people", "mine/three")
    with pytest.raises(CourseError, match="no stored score in common"):
        x.look("scores", "mine/people", "mine/none")
    with pytest.raises(CourseError, match="Unknown score 'LUF'"):
        x.look("scores", "mine/people", score="LUF")


def test_scores_of_bundled_models_are_those_of_their_reports(explorer: Explorer) -> None:
    seen = explorer.look("scores", "exp1/natural", "exp1/pgd-at", score="CRU_s, pgd20 at 16/255")
    values = [cru_s(load_report(n, eps=16 / 255)) for n in ("exp1/natural", "exp1/pgd-at")]
    assert [f"{n}: {100 * v:.4g} points" in seen.alt for n,
            v in zip(("exp1/natural", "exp1/pgd-at"), values, strict=True)] == [True, True]


def test_checkpoints_and_finished_runs_of_ones_own(tmp_path: Path) -> None:
    trained(tmp_path / "runs" / "mine")
    record = {"made_from": {"classes": list(FASHION.classes), "model": "lenet5"}, "reports": []}
    publish("mine/one", 1, build("lenet5"), record, tmp_path / "models")
    x = Explorer(["exp1/natural"])
    assert x.add(tmp_path) == ["models: mine/one · seed 1", "runs/mine: checkpoint"]
    weights = Store(tmp_path / "runs" / "mine").latest()[1]["model"]  # type: ignore[index]
    label = "runs/mine: checkpoint"
    assert all(torch.equal(v, weights[k]) for k, v in x.source(label).model.state_dict().items())
    assert "1 epochs" in x.draw(Choice("history", (label,))).alt
    with pytest.raises(CourseError, match="Attack now"):
        x.draw(Choice("errors", (label,)))
    look = Choice("errors", (label, "exp1/natural"), "pgd10", per_class=2)
    x.attack(look)
    assert "20 test images" in x.draw(look).alt
    found = {r["model"]: r for r in table(x.models).to_dict("records")}
    assert found[label]["method"] == "checkpoint: 1 of 1 epochs" and set(found) == set(x.models)


def test_a_folder_that_is_not_one_and_files_that_are_damaged(tmp_path: Path) -> None:
    for odd in ("", "  ", str(tmp_path / "nowhere"), "\0", "x" * 5000):
        with pytest.raises(CourseError, match="There is no folder"):
            from_folder(odd)
    with pytest.raises(CourseError, match="no model and no checkpoint"):
        from_folder(tmp_path)
    trained(tmp_path / "a")
    for path in (tmp_path / "a").glob("ckpt-*"):
        path.write_bytes(path.read_bytes()[:50])
    (seen,) = from_folder(tmp_path).values()
    for call in (lambda: seen.model, lambda: seen.record):
        with pytest.raises(CourseError, match="no checkpoint that verifies"):
            call()
    assert "cannot be read" in table({"a": seen}).iloc[0]["method"]
    (tmp_path / "a" / "store.json").write_bytes(b"{")
    (seen,) = from_folder(tmp_path).values()
    with pytest.raises(CourseError, match="damaged"):
        _ = seen.classes


def test_a_checkpoint_of_another_network_says_so(tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    (seen,) = from_folder(tmp_path).values()
    monkeypatch.setattr("course_lib.explorer.sources.MODELS", {"other": MODELS["lenet5"].__class__})
    with pytest.raises(CourseError, match=r"is of LeNet5, which fits none of: other"):
        _ = seen.model


def test_the_table_sorts_filters_and_goes_to_csv(explorer: Explorer) -> None:
    rows = table(explorer.models, sort="robust 8/255 worst", down=True, words="EXP1 pgd").to_dict("records")
    errors = [r["robust 8/255 worst"] for r in rows]
    assert len(errors) > 3 and errors == sorted(errors,
                                                reverse=True) and all(
                                                    r["model"].startswith("exp1/pgd") for r in rows)
    seeds = [int(r["model"][-1]) if "seed" in r["model"] else 0 for r in rows]
    assert errors == [load_report(r["model"].split(" ")[0], seed=seed).rob.worst for r,
                      seed in zip(rows, seeds, strict=True)]
    assert as_csv(rows).splitlines()[0].startswith(
        "model,method,images")
    with pytest.raises(CourseError, match="no column 'size'"):
        table(explorer.models, sort="size")
    with pytest.raises(CourseError, match="no row to write"):
        as_csv(table(explorer.models, words="nothing like it"))


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_nothing_in_a_curves_file_is_believed(raw: bytes) -> None:
    """Whatever bytes bear the right hash: a curve or a CourseError."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course_lib.shelf.verified", lambda *_: raw)
        with pytest.raises(CourseError, match="cannot be read|does not fit"):
            load_curve("exp1/natural", FASHION)


@pytest.mark.parametrize("change", ["shape", "range", "first"])
def test_a_curve_must_fit_the_images(change: str) -> None:
    said = np.zeros((2, len(FASHION) - (change == "shape")), np.uint8) + 200 * (change == "range")
    packed = io.BytesIO()
    np.savez_compressed(packed, eps=np.array([2 * (change == "first"), 8], np.uint8),
                        said=said.astype(np.uint8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course_lib.shelf.verified", lambda *_: packed.getvalue())
        with pytest.raises(CourseError, match="does not fit"):
            load_curve("exp1/natural", FASHION)


