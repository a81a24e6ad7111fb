"""What an outside user ran into: figures of another model, settings taken and ignored, and work
that was lost late."""

import functools
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from course_lib import (
    LOADERS,
    METHODS,
    PGD,
    RECIPES,
    AutoAttack,
    Dataset,
    Optim,
    Split,
    Store,
    benchmark,
    build,
    evaluate,
    fit,
    load,
    load_model,
    save_model,
)
from course_lib import __main__ as shell
from course_lib.diagnostics import confusion
from course_lib.errors import CourseError, CourseWarning
from course_lib.fairness import Errors
from course_lib.recipes import Recipe, run

WEAK = PGD(2 / 255, 2 / 255, steps=1)


@functools.cache
def data():
    return load("fashion-mnist", limit=300)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 10))


def test_a_benchmark_shows_ones_own_model_under_whatever_name():
    model = build("lenet5", seed=5)
    mine, named = (benchmark(model, data(), per_class=2, name=name, progress=False)
                   for name in ("mine", "exp1/pgd-at"))
    rows = [table[table["model"] == name].values.tolist() for table, name in
            ((mine, "mine"), (named, "exp1/pgd-at"))]
    assert len(rows[1]) == 1 and rows[0][0][1:] == rows[1][0][1:]


def test_the_seed_of_a_stored_models_name_is_its_trainings():
    part = data().test.per_class(20)
    for seed in (0, 3):
        by_name = evaluate("exp1/natural", part, WEAK, seed=seed, progress=False)
        assert by_name.nat == evaluate(load_model("exp1/natural", seed=seed), part, WEAK,
                                       progress=False).nat
    with pytest.raises(CourseError, match="not for 7"):
        evaluate("exp1/natural", part, WEAK, seed=7)


def test_counts_are_whole_and_labels_may_be_bytes():
    with pytest.raises(CourseError, match="give both numbers"):
        Errors((0.3, 0.5), (10, 10))
    assert Errors((np.int64(3), 5), (10, 10)).mean == 0.4
    y = torch.tensor([0, 15, 25], dtype=torch.uint8)
    assert confusion(y, y, 26).nonzero().tolist() == [[k, k] for k in (0, 15, 25)]


def test_settings_that_would_be_ignored_are_refused():
    for words in ({"name": "adam", "momentum": 0.9}, {"name": "sgd", "nesterov": True}):
        with pytest.raises(CourseError, match="momentum needs sgd, and Nesterov needs a momentum"):
            Optim(**words)
    test = data().test
    with pytest.raises(CourseError):
        Split.of(test, [0] * len(test), classes=test.classes)
    assert Split.of(test) is test


def test_autoattack_takes_no_larger_batches_than_asked_for():
    model, sizes = load_model("exp1/pgd-at"), []
    model.register_forward_pre_hook(lambda m, x: sizes.append(len(x[0])))
    part = data().test.per_class(2)
    evaluate(model, part, AutoAttack(attacks=("apgd-ce",)), batch=3, progress=False)
    assert sizes.count(3) > len(sizes) / 3


def test_each_doubtful_figure_is_said_where_it_was_asked_for():
    part = data().test.per_class(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        evaluate(build("lenet5", seed=1), part, PGD(steps=1), progress=False)
        evaluate(build("lenet5", seed=2), part, PGD(steps=1), progress=False)
    lines = {w.lineno for w in said if w.category is CourseWarning and w.filename == __file__}
    assert len(lines) == 2


def test_a_folder_misspelt_is_not_an_empty_one(tmp_path, capsys):
    assert shell.main(["list", "exp1/natural", "--models", str(tmp_path / "typo")]) == 1
    assert "is not there" in capsys.readouterr().err


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build("lenet5")

    def forward(self, x):
        return self.inner(x.sub_(0.2).clamp_(0, 1))


def test_a_network_that_writes_into_its_images_is_told_so_and_ones_images_stay():
    mine = Split.of(data().test.images()[:20], data().test.y[:20], classes=data().classes)
    before = mine.x.clone()
    with pytest.raises(CourseError, match="in-place"):
        evaluate(InPlace(), mine, WEAK, progress=False)
    assert torch.equal(mine.x, before)


def test_an_attack_that_gives_arrays_and_a_traced_network():
    part = data().test.per_class(1)
    with pytest.raises(CourseError, match="gave ndarray"):
        evaluate(load_model("exp1/pgd-at"), part, lambda m, x, y: x.numpy(), progress=False)
    model, x = load_model("exp1/pgd-at"), part.images()
    with warnings.catch_warnings(action="ignore"):
        traced = torch.jit.trace(model, x)
    one, other = (evaluate(m, part, WEAK, progress=False) for m in (traced, model))
    assert one.nat == other.nat and one.rob == other.rob


def test_a_store_stays_where_it_was_made(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path)
    store = Store("a/run", "a/copy")
    fit(build("small_cnn", channels=1), METHODS["natural"](), data(), epochs=2, seed=0,
        optim=Optim(), store=store, callback=lambda r: os.chdir(tmp_path / "b"), progress=False)
    assert not [*(tmp_path / "b").iterdir()]
    assert len(store.folder.checkpoints()) == len(store.mirror.checkpoints()) > 1


def test_a_model_saved_in_the_running_trainings_folder_does_not_wait_for_it(tmp_path):
    def keep(r):
        save_model(r.model, tmp_path)

    trained = fit(build("small_cnn", channels=1), METHODS["natural"](), data(), epochs=1, seed=0,
                  optim=Optim(), store=Store(tmp_path), callback=keep, progress=False)
    state = load_model(tmp_path).state_dict()
    assert all(torch.equal(v, state[k]) for k, v in trained.model.state_dict().items())


def test_a_class_that_is_missing_is_said_before_the_training(tmp_path, monkeypatch):
    test = data().test
    without = test.take(test.y != 6)
    mine = Dataset("mine", data().classes, without, lambda: (data().train, data().val))
    monkeypatch.setitem(LOADERS, "mine", lambda root, limit, seed: mine)
    monkeypatch.setitem(RECIPES, "my/x", Recipe("x", METHODS["natural"](), Optim(), epochs=1,
                                                dataset="mine"))
    with pytest.raises(CourseError, match="no image of Shirt"):
        run("my/x", 0, tmp_path, progress=False)
    assert not [*tmp_path.iterdir()]


def test_home_after_an_equals_sign(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert shell.main(["train", "exp1/natural", "--limit", "400", "--epochs", "1",
                       "--out=~/mine"]) == 0
    assert not os.path.exists("~") and (tmp_path / "mine" / "manifest.json").is_file()
    name = "exp1/natural@limit=400@epochs=1"
    assert not load_model(name, root="~/mine").training
    assert load_model(name, root=Path("~/mine")) is not None


def test_a_network_of_ones_own_resumes_with_the_weights_that_were_saved(tmp_path):
    """Made without a seed it begins elsewhere; the error says how to go on."""
    words = {"optim": Optim(), "seed": 0, "progress": False}
    first = fit(linear(), METHODS["natural"](), data(), epochs=1, store=Store(tmp_path), **words)
    model, store = linear(), Store(tmp_path)
    with pytest.raises(CourseError, match="load_state_dict"):
        fit(model, METHODS["natural"](), data(), epochs=2, store=store, **words)
    model.load_state_dict(store.latest()[1]["model"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), first.model.parameters(),
                                                 strict=True))
    more = fit(model, METHODS["natural"](), data(), epochs=2, store=Store(tmp_path), **words)
    assert len(more.history) == 2
