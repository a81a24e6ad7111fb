"""`run` and what records say of it. The recipes themselves are tested in tests/experiments/."""

import dataclasses
import json
from unittest import mock

import pytest
import torch

from course_lib import METHODS, RECIPES, CourseError, Report, evaluate, recipes
from course_lib.attacks import ATTACKS, PGD
from course_lib.experiments.scores import Copies
from course_lib.inference import predict
from course_lib.lab.publish import publish
from course_lib.lab.sweep import finished, up_to_date
from course_lib.methods.frl import FRL
from course_lib.methods.frl_report import FRLReport
from course_lib.recipes import digest, run
from course_lib.training import Averaging, Optim
from course_lib.zoo import entry, load_model
from tests.helpers import network, same_weights, tiny_dataset

FIRST = "tiny/first"
pytestmark = pytest.mark.usefixtures("tiny")


def trained(name, out, seed=0, **words):
    done, record = run(name, seed, out, progress=False, **words)
    return done.model, record


def test_run_trains_examines_and_records(tmp_path):
    model, record = trained(FIRST, tmp_path, 1)
    data, made = tiny_dataset(), record["made_from"]
    report = Report.from_json(record["reports"][0])
    assert report == evaluate(model, data.test, ATTACKS["pgd10"].at(2 / 255), name="pgd10",
                              progress=False)
    assert Report.from_json(record["validation"]).nat.counts == (3, 3, 3)
    assert (record["recipe"], record["seed"], len(record["history"])) == (FIRST, 1, 2)
    assert (made["epochs"], made["training_examples"]) == (2, 24)
    assert made["data_sha256"] == data.train.digest() and made["classes"] == list(data.classes)
    assert made["versions"]["threads"] == torch.get_num_threads()
    assert up_to_date(json.loads(json.dumps(record)))
    again, same = trained(FIRST, tmp_path, 1)  # from its checkpoints
    assert same_weights(again, model) and {**same, "seconds": 0} == {**record, "seconds": 0}


@pytest.mark.parametrize("wants", ["errors", "flips", ""])
def test_a_method_gets_the_report_that_it_wants(wants, tmp_path, monkeypatch):
    given = []

    class Asking(METHODS["natural"]):
        name, update_every, wants_report = "", "epoch", wants

        def update(self, state, report, at):
            given.append(report)
            return state

    monkeypatch.setitem(RECIPES, FIRST, dataclasses.replace(RECIPES[FIRST], method=Asking(),
                                                            validation_images=6))
    trained(FIRST, tmp_path)
    assert len(given) == 2 and [r is None for r in given] == [wants == ""] * 2
    for report in filter(None, given):
        assert sum(report.nat.counts) == 6 and (report.flips is None) == (wants == "errors")


def test_a_hot_start_takes_the_weights_of_its_seed(tmp_path):
    with pytest.raises(CourseError, match="needs tiny/first, seed 1, whose weights are not in "
                       ".* and .*runs. Train that first, with"):
        trained("tiny/second", tmp_path / "runs", 1, models=tmp_path)
    for seed in (0, 1):
        publish(FIRST, seed, *trained(FIRST, tmp_path / "runs", seed), tmp_path)
    warm, _ = trained("tiny/second", tmp_path / "runs", 1, models=tmp_path, epochs=0)
    assert same_weights(warm, load_model(FIRST, seed=1, root=tmp_path))
    other, record = trained(FIRST, tmp_path / "runs", 0, epochs=0)  # shortened alike comes first
    publish("tiny/first@epochs=0", 1, other, record, tmp_path)
    warm, _ = trained("tiny/second", tmp_path / "short", 1, models=tmp_path, epochs=0)
    assert same_weights(warm, other)
    publish(FIRST, 1, other, record, short := tmp_path / "short")  # `out` comes after `models`
    for models in (tmp_path, None):
        _, made = trained("tiny/second", short, 1, models=models)
        weights = entry(FIRST, 1, models or short)["weights"]
        assert made["made_from"]["start"] == {"of": FIRST, "weights": weights["sha256"][:8]}
    assert [*short.glob(f"tiny/second/seed1/*-{weights['sha256'][:8]}/store.json")]
    path = short / str(weights["file"])
    path.write_bytes(path.read_bytes()[:-1])  # damaged: nobody wants another one's weights instead
    with pytest.raises(CourseError, match="damaged"):
        trained("tiny/second", short, 1)


def test_static_copies_of_another_recipes_model_join_the_clean_images(tmp_path, monkeypatch):
    static = dataclasses.replace(RECIPES[FIRST], copies=Copies(FIRST, PGD(0.3, 0.1, 4)), seeds=1)
    monkeypatch.setitem(RECIPES, "tiny/static", static)
    assert digest(static) != digest(RECIPES[FIRST]) and static.needs == {FIRST}
    fooled, record = trained(FIRST, tmp_path / "runs")
    publish(FIRST, 0, fooled, record, tmp_path)
    fit = mock.Mock(wraps=recipes.fit)
    monkeypatch.setattr(recipes, "fit", fit)
    _, record = trained("tiny/static", tmp_path / "runs", models=tmp_path)
    clean, both = tiny_dataset().train, fit.call_args.args[2]
    copies, made = both.x[24:], record["made_from"]
    assert torch.equal(both.x[:24], clean.x) and both.y.tolist() == [*clean.y.tolist()] * 2
    assert 0.2 < (copies - clean.x).abs().max() <= 0.3 + 1e-6
    wrong = [int((predict(fooled, x, clean.y) != clean.y).sum()) for x in (clean.x, copies)]
    assert wrong[1] > wrong[0], "they fool the model they were made for"
    weights = entry(FIRST, 0, tmp_path)["weights"]["sha256"][:8]
    assert made["copies"] == {"of": FIRST, "weights": weights, "data_sha256": both.digest()}
    assert (made["training_examples"], made["data_sha256"]) == (48, clean.digest())
    assert up_to_date(record)


CHANGES = [
    lambda r: r["made_from"].update(digest="0" * 12), lambda r: r["made_from"].pop("digest"),
    lambda r: r["made_from"].update(epochs=1), lambda r: r.pop("made_from"),
    lambda r: r.update(recipe="tiny/second"), lambda r: r.update(recipe="tiny/third"),
    lambda r: r.pop("recipe")]


def test_a_record_of_something_else_is_not_up_to_date(tmp_path):
    _, record = trained(FIRST, tmp_path)
    publish(FIRST, 0, network(), record, tmp_path)
    assert finished(FIRST, 0, tmp_path) == json.loads(json.dumps(record))
    for i, change in enumerate(CHANGES):
        change(other := json.loads(json.dumps(record)))
        assert not up_to_date(other), i
    publish(FIRST, 0, network(), other, tmp_path)
    assert finished(FIRST, 0, tmp_path) is None


SAME = [{"about": "in other words"}, {"seeds": 1}, {"examination": ()}, {"weights": False},
        {"optim": Optim(batch=8, augment="")}]  # a field at its default
OTHER = [
    {"optim": Optim("adamw", batch=8)}, {"optim": Optim("sgd", batch=8, momentum=0.9)},
    {"optim": Optim("sgd", batch=8, momentum=0.9, nesterov=True)},
    {"optim": Optim(batch=8, cosine=2)}, {"optim": Optim(batch=8, averaging=Averaging())},
    {"epochs": 3}, {"transform": "whole"}, {"start": "exp1/natural"},
    {"validation": PGD(steps=3)}, {"dataset": "fashion-mnist"}, {"optim": Optim(batch=9)},
    {"optim": Optim(batch=8, drops=((1, 0.5),))}, {"optim": Optim(batch=8, augment="crop-flip")},
    {"method": METHODS["pgd_at"]()}, {"method": METHODS["pgd_at"](mix=0.5)},
    {"method": METHODS["pgd_at"](PGD(steps=10, bf16=True))}, {"method": FRL()},
    {"method": FRLReport()}, {"method": FRLReport(tau=FRL().tau)}]


def test_the_digest_changes_with_what_the_training_depends_on():
    recipe = RECIPES[FIRST]
    assert {digest(dataclasses.replace(recipe, **words)) for words in SAME} == {digest(recipe)}
    assert len({digest(recipe), *(digest(dataclasses.replace(recipe, **words))
                                  for words in OTHER)}) == 1 + len(OTHER)
