"""Plausible wrong results that a second look found, and inputs that ended badly."""

import dataclasses

import numpy as np

import course_lib
from course_lib import PGD, Optim, Split, Store, build, load, load_model, recipes, tables
from course_lib.autoattack import STANDARD
from course_lib.checkpoints.disk import pack
from course_lib.fairness import Errors, Report
from course_lib.judge.kinds import check_shape
from course_lib.lab.commands import shown
from course_lib.methods import METHODS
from course_lib.scores import least_eps
from course_lib.training import Averaging, fit
from tests.helpers import images, labels

DATA = Split.of(images(40, (1, 32, 32)), labels(40, 10))


def go(model, epochs=2, optim=None, **words):
    return fit(model, METHODS["natural"](), DATA, epochs=epochs, optim=optim or Optim(batch=10),
               seed=0, progress=False, **words)


def test_stores_of_an_average_and_of_a_run_killed_early(tmp_path):
    model, optim = build("lenet5"), Optim(batch=10, averaging=Averaging())
    assert [len(go(model, n, optim, store=Store(tmp_path / "a")).history) for n in (2, 2, 3)] == [
        2, 2, 3]
    go(build("lenet5"), store=Store(tmp_path / "run"))
    Store(tmp_path / "run-2").open({"another": "run"}, {})  # killed before its first save
    assert len(go(build("lenet5"), 3, store=Store(tmp_path / "run")).history) == 3
    assert not Store(tmp_path / "run-2").folder.checkpoints()
    store = Store(tmp_path / "late")
    store.open({}, {})  # what Drive lists only later was not compared, so it is not loaded
    file, raw = pack(5, {}, {"model": {}})
    (store.dir / file).write_bytes(raw)
    assert store.latest() is None


def test_numbers_of_numpy_and_texts_are_numbers(tmp_path):
    go(build("lenet5"), optim=Optim(lr=np.float64(1e-3), batch=np.int64(10)), store=Store(tmp_path))
    assert check_shape("m", lambda mean: None, {"mean": DATA.x})["mean"] is DATA.x  # as it is
    made = course_lib.save_model(build("lenet5", classes=np.int64(4)), tmp_path / "mine")
    assert load_model(made).fc2.out_features == 4
    assert course_lib.AutoAttack("8/255").eps == 8 / 255
    assert course_lib.AutoAttack(attacks=[*STANDARD]).attacks == STANDARD
    assert Optim(drops=((20, 0.01), (10, 0.1))).rate(25) == Optim(drops=((20, 0.01),)).rate(25)
    search = {"tolerance": 1e-9, "attack": PGD(steps=2, start="clean")}  # finer than its numbers
    least_eps(build("lenet5"), DATA.images(slice(4)), DATA.y[:4], **search)  # ends


def test_words_about_a_recipe_are_none_of_its_identity(tmp_path):
    recipe = recipes.Recipe("x", METHODS["frl"](), Optim(), 1)
    both = [recipes._validation(dataclasses.replace(recipe, about=a), DATA) for a in "xy"]
    ours = [go(build("lenet5"), 0, validate=v, store=Store(tmp_path / str(id(v)))) for v in both]
    assert ours[0].identity == ours[1].identity


def test_tables_of_what_has_no_report_or_one_class_more_or_other_images(monkeypatch):
    assert shown("results", None, {"names": ["tune"], "models": None}).startswith("No report")
    assert tables.history("contest/wat", "weight").columns[-1] == "all"
    few, models = load("cifar10", limit=2000), tables.stored_models
    none = Errors((0,) * 10, (100,) * 10)
    monkeypatch.setattr(tables, "stored_models", lambda *names: models(*names, "cifar10/natural"))
    monkeypatch.setattr(tables, "evaluate", lambda model, split, attack, **words: Report(
        none, none, few.classes, attack, 8 / 255))
    table = tables.benchmark("cifar10/natural", few, per_class=100, progress=False)
    assert table["standard"].tolist() == [0, 0]  # no stored report, on others, stands beside it
