"""Scores in records: made once from what is stored, and the same after a kill."""

import dataclasses
import json
import shutil

import pytest
import torch

from course_lib import PGD, RECIPES, CourseError, build, load
from course_lib.datasets.adult import GROUPS, UNITS
from course_lib.evaluation import evaluate, named
from course_lib.experiments.scores import Copies
from course_lib.inference import predict
from course_lib.judge import examination as of
from course_lib.lab import examine as examination
from course_lib.lab import score as room
from course_lib.lab.publish import add_rows, publish
from course_lib.lab.score import PLANS, Plan, Search, confidences, plan_of, score_stored
from course_lib.scores import cau, cru_eps, cru_s, eou, least_eps, success
from course_lib.zoo import entry, load_model, load_record, load_report, manifest
from tests.helpers import counted, network, record, tiny_dataset

NAME = "tiny/first"
KINDS = ("bisection", "increments")
SEARCHES = tuple(Search(kind, PGD(steps=2), 0.02, 0.1, 0.01, batch=5) for kind in KINDS)


@pytest.fixture
def models(tmp_path, tiny):
    examination.examined_images.cache_clear()
    tiny.setitem(PLANS, "tiny", Plan(SEARCHES))
    examined = {"examination": (("pgd10", 2 / 255), ("pgd10", 0.3))}
    tiny.setitem(RECIPES, NAME, dataclasses.replace(RECIPES[NAME], **examined))
    for seed in (0, 1):
        publish(NAME, seed, network(), record(NAME, seed, history=[1]), tmp_path / "models")
    return tmp_path / "models"


def call(models, name=NAME, **words):
    return score_stored([name], **{"jobs": 1, "out": models.parent / "runs", "models": models,
                                   "progress": False, **words})


def by_kind(rows, score, seed=0):
    return [r for r in rows if r["score"] == score and r["seed"] == seed]


def test_every_score_joins_the_record_and_the_weights_stay(models, monkeypatch):
    drawn = counted(monkeypatch, room.scores, "least_eps",
                    lambda *_, generator, **__: generator.initial_seed())
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in models.rglob("*.safetensors")}
    rows = call(models)
    assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in before}
    for seed in (0, 1):
        record = load_record(NAME, seed=seed, root=models)
        report = load_report(NAME, seed=seed, attack="pgd10", eps=2 / 255, root=models)
        assert list(record)[-2:] == ["scores", "history"] and record["scores"]
        assert [r["value"] for r in by_kind(rows, "CAU", seed)] == [cau(report)]
        first, _ = by_kind(rows, "CRU_s", seed)
        assert (first["attack"], first["value"]) == ("pgd10", cru_s(report))
        assert first["by_class"] == success(report).tolist()
        assert [r["estimator"] for r in by_kind(rows, "CRU_eps", seed)] == list(KINDS)
        assert not by_kind(rows, "EOU", seed)
    assert json.loads(json.dumps(rows)) == rows
    # two seeds, each under two budgets in one batch and by two searches in three
    assert len(list(models.parent.rglob("pieces/*"))) == 2 * (2 * 1 + 2 * 3)
    assert drawn == [0, 1, 2] * 2, "each batch has noise of its own"


def test_least_budgets_are_those_of_the_library(models, monkeypatch):
    searches = tuple(dataclasses.replace(s, batch=50) for s in SEARCHES)
    monkeypatch.setitem(PLANS, "tiny", Plan(searches))
    row, _ = by_kind(call(models, seeds=1), "CRU_eps")
    test = tiny_dataset().test
    found = least_eps(load_model(NAME, root=models), test.images(), test.y, attack=PGD(steps=2),
                      first=0.02, cap=0.1, tolerance=0.01)
    assert row["by_class"] == found.by_class(test.y, 3).tolist()
    assert row["value"] == cru_eps(found, test.y, 3) and row["steps"] == found.steps
    assert row["counts"] == [4, 4, 4] and row["told"] == repr(searches[0])
    assert row["censored"] == [float(found.censored[test.y == c].float().mean()) for c in range(3)]


def test_stopped_and_called_again(models, monkeypatch):
    """Then new weights have no scores, and are not given those of the old ones."""
    shutil.copytree(models, models.parent / "again")
    want, models = call(models, out=models.parent / "other"), models.parent / "again"
    calls = counted(monkeypatch, room.LeastCase, "judge", lambda *_: None, stop=4)
    with pytest.raises(KeyboardInterrupt):
        call(models)
    # three batches an estimator and seed, of five images and less
    assert call(models) == want and len(calls) == 4 + 12 - 3
    assert call(models) == want and len(calls) == 13
    weights, record = entry(NAME, 0, models)["weights"]["sha256"], load_record(NAME, root=models)
    publish(NAME, 0, build("lenet5", seed=9, classes=3), {**record, "scores": []}, models)
    with pytest.raises(CourseError, match="stored anew while it was examined"):
        add_rows(NAME, 0, "scores", [], weights, models)
    assert load_record(NAME, root=models)["scores"] == [] and call(models, seeds=1)


def test_a_model_of_static_copies_is_also_shown_static_copies(models, monkeypatch):
    """They fool the model they were made for and not, as such, this one: its accuracy on them may
    exceed the clean one. What is stored is not computed again."""
    copies = Copies(NAME, PGD(0.3, 0.1, 5))
    monkeypatch.setitem(RECIPES, "tiny/static", dataclasses.replace(RECIPES[NAME], copies=copies))
    other, test = build("lenet5", seed=7, classes=3), tiny_dataset().test
    publish("tiny/static", 0, other, record("tiny/static"), models)
    rows = call(models, "tiny/static")
    static = [r for r in rows if r["score"] == "static"]
    assert [(r["eps"], r["attack"]) for r in static] == [(2 / 255, NAME), (0.3, NAME)]
    z = copies.attack.at(0.3)(load_model(NAME, root=models), test.images(), test.y)
    for key, x in (("accuracy", z), ("clean_accuracy", test.images())):
        assert static[1][key] == pytest.approx((predict(other, x) == test.y).double().mean().item())
    monkeypatch.setattr(room, "evaluate", None)
    assert call(models, "tiny/static") == rows


def test_adult_has_its_own_units_and_groups(monkeypatch, tmp_path):
    model, test, name = build("table_mlp", seed=1).eval(), load("adult").test, "scores/adult-robust"
    few, attack = test.per_class(50), named("pgd20-adult")
    within = attack(model, few.x, few.y)
    assert ((within - few.x).abs() <= 10 * torch.tensor(UNITS) + 1e-6).all()
    report = evaluate(model, few, attack, name="pgd20-adult", progress=False)
    publish(name, 0, model, {"made_from": {"model": "table_mlp", "classes": ["<=50K", ">50K"]},
                             "reports": [report.to_json()]}, tmp_path)
    monkeypatch.setitem(PLANS, "adult", Plan((), groups=GROUPS))
    alone = dataclasses.replace(RECIPES[name], examination=(("pgd20-adult", 10.0),))
    monkeypatch.setitem(RECIPES, name, alone)
    monkeypatch.setattr(room, "examine_all", lambda *_, **__: None)
    rows = score_stored([name], models=tmp_path)
    confidence = confidences(model, test)
    torch.testing.assert_close(confidence, model(test.images()).softmax(1)[:, 1].detach())
    for row, (group, names) in zip(by_kind(rows, "EOU"), GROUPS.items(), strict=True):
        assert row["value"] == pytest.approx(eou(confidence, test.y, test.groups[group], names))
        assert row["left_out"] == [] and (row["group"], row["groups"]) == (group, list(names))
        assert sum(map(sum, row["counts"])) == len(test)


def test_stored_scores_are_those_of_the_stored_reports():
    scored = [(n, int(s)) for n, seeds in manifest().items() for s in seeds
              if "weights" in seeds[s] and load_record(n, seed=int(s)).get("scores")]
    for name, seed in scored:
        plan, kinds = plan_of(name), {}
        for row in load_record(name, seed=seed)["scores"]:
            kinds.setdefault(row["score"], []).append(row)
        reports = {b: load_report(name, seed=seed, attack=b[0], eps=b[1]) for b in of(name)}
        assert [r["value"] for r in kinds["CAU"]] == [cau(reports[of(name)[0]])], name
        assert {(r["attack"], r["eps"]): (r["by_class"], r["value"]) for r in kinds["CRU_s"]} == {
            b: (success(r).tolist(), cru_s(r)) for b, r in reports.items()}, name
        assert {r["estimator"]: r["told"] for r in kinds["CRU_eps"]} == {
            s.estimator: repr(s) for s in plan.searches}, name
        assert {r["group"] for r in kinds.get("EOU", [])} == set(plan.groups), name
    assert scored
