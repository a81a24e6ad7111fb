"""Examinations: reports join records once, batch by batch, and the weights stay."""

import pytest
import torch

from course_lib import CourseError
from course_lib.evaluation import NAMED, evaluate
from course_lib.lab import examine as examination
from course_lib.lab.examine import examine_stored
from course_lib.lab.publish import publish
from course_lib.zoo import entry, load_model, load_record, load_report, manifest
from tests.helpers import QuickJudge, counted, network, record, report, tiny_dataset

NAME = "tiny/first"


@pytest.fixture
def models(tmp_path, tiny):
    """Two seeds of a tiny recipe, with a report on their 12 test images; batches of five."""
    examination.examined_images.cache_clear()
    tiny.setattr(examination, "BATCH", 5)
    model = network()
    own = evaluate(model, tiny_dataset().test, "pgd20", progress=False)
    for seed in (0, 1):
        publish(NAME, seed, model, {"history": [1], **record(NAME, seed, own)}, tmp_path / "models")
    publish("tiny/second", 0, None, record("tiny/second", 0, report()), tmp_path / "models")
    return tmp_path / "models"


def call(models, name=NAME, **words):
    return examine_stored([name], **{"attacks": ["cw20"], "jobs": 1, "out": models.parent / "runs",
                                     "models": models, "progress": False, **words})


def contents(models, pattern):
    return {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in models.rglob(pattern)}


def pieces(out):
    return [*out.rglob("pieces/*/ckpt-*")]


def attacked(monkeypatch, stop=None):
    """Which batches are attacked."""
    return counted(monkeypatch, examination, "predictions", lambda *_, seed, **__: seed, stop)


def test_the_report_joins_the_record_and_the_weights_stay(models):
    before, whole = contents(models, "*.safetensors"), load_report(NAME, root=models)
    rows = call(models)
    assert [(r["recipe"], r["seed"], r["attack"], r["counts"]) for r in rows] == [
        (NAME, s, "cw20", [4, 4, 4]) for s in (0, 1)]
    assert contents(models, "*.safetensors") == before
    for seed in (0, 1):
        record = load_record(NAME, seed=seed, root=models)  # verifies against the manifest
        assert [r["attack"] for r in record["reports"]] == ["pgd20", "cw20"]
        assert list(record)[-1] == "history"
    assert manifest(models)["tiny/second"] == {"0": entry("tiny/second", 0, models)}
    # reports under another budget or on fewer images are others; those on the most come first
    rows = call(models, attacks=["pgd20"], per_class=2, seeds=1)
    assert [(r["attack"], r["counts"]) for r in rows] == [("pgd20", [2, 2, 2])]
    assert [r["eps"] for r in call(models, eps=4 / 255, seeds=1)] == [4 / 255]
    assert load_report(NAME, root=models) == whole
    assert [(r["attack"], r["eps"], sum(r["counts"])) for r in load_record(NAME, root=models)[
        "reports"]] == [("pgd20", 8 / 255, 12), *(("cw20", e / 255, 12) for e in (8, 4)),
                        ("pgd20", 8 / 255, 6)]


def test_stopped_and_called_again(models, monkeypatch):
    """The same report as in one go, and no finished batch is attacked again."""
    record = load_record(NAME, root=models)
    undisturbed = call(models, out=models.parent / "other", seeds=1)
    publish(NAME, 0, load_model(NAME, root=models), record, models)
    calls = attacked(monkeypatch, stop=2)
    with pytest.raises(KeyboardInterrupt):
        call(models, seeds=1)
    assert len(pieces(models.parent / "runs")) == 1 and load_record(NAME, root=models) == record
    assert call(models, seeds=1) == undisturbed and calls == [0, 1, 1, 2]
    call(models, seeds=1)
    call(models, seeds=1, out=models.parent / "a machine without the batches")
    assert len(calls) == 4


def test_other_weights_and_other_batches_are_examined_anew(models, monkeypatch):
    call(models, seeds=1)
    record, model = load_record(NAME, root=models), load_model(NAME, root=models)
    model.fc2.bias.data += 1
    calls = attacked(monkeypatch)
    for size in (5, 7):  # the last batch has five images in both
        monkeypatch.setattr(examination, "BATCH", size)
        publish(NAME, 0, model, {**record, "reports": record["reports"][:1]}, models)
        call(models, seeds=1)
    assert calls == [0, 1, 2, 0, 1]


def test_a_model_trained_anew_meanwhile(models, monkeypatch):
    record, model = load_record(NAME, root=models), load_model(NAME, root=models)

    def meanwhile(*_, **__):
        model.fc2.bias.data += 1
        publish(NAME, 0, model, record, models)

    counted(monkeypatch, examination, "predictions", meanwhile)
    with pytest.raises(CourseError, match="stored anew while it was examined"):
        call(models)
    assert load_record(NAME, root=models) == record
    assert load_report(NAME, seed=1, attack="cw20", root=models), "which the error does not concern"


def test_autoattack_in_its_own_batches_on_the_gpu(models, monkeypatch):
    monkeypatch.setitem(NAMED, "autoattack", QuickJudge(attacks=("apgd-ce",), batch=8))
    (row,) = call(models, attacks=["autoattack"], seeds=1)
    assert (row["attack"], row["eps"]) == ("autoattack", 8 / 255)
    assert len(pieces(models.parent / "runs")) == 2
    assert all(n <= r for n, r in zip(row["nat"], row["rob"], strict=True))
    monkeypatch.setattr(examination, "device", lambda: torch.device("meta"))
    weights = entry(NAME, 1, models)["weights"]["sha256"]
    case = examination.Case(NAME, 1, weights, "pgd20", None, None, models)
    assert {p.device.type for p in case.model.parameters()} == {"meta"}
    publish(NAME, 1, network(9), {}, models)
    with pytest.raises(CourseError, match="stored anew while it was examined"):
        case.judge(slice(0, 500), 0)


def test_bad_words(models):
    before = contents(models, "*.json")
    for name, words, say in (
            ("tiny/second", {}, "No model whose weights are stored matches tiny/second"),
            (NAME, {"eps": 8.0}, "For 8 grey levels"), (NAME, {"per_class": 0}, "per-class is 0"),
            (NAME, {"out": models / "manifest.json"}, "No store can be made in")):
        with pytest.raises(CourseError, match=say):
            call(models, name, **words)
    assert contents(models, "*.json") == before
