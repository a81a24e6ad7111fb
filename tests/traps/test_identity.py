"""A resumed training is the training that was begun, or the course says what differs."""

import copy
import dataclasses
import os
import subprocess
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import METHODS, PGD, RECIPES, CourseError, Method, Optim, evaluate, fit
from course_lib.checkpoints import Store, sources
from course_lib.checkpoints.identity import _Reader
from course_lib.lab.publish import publish
from course_lib.lab.sweep import finished, train
from course_lib.machine import Accelerated
from course_lib.recipes import _validation, run
from course_lib.zoo import load_record
from tests.frozen.make import identity
from tests.helpers import Small, same_weights, split

TRAIN, VAL, OTHER_VAL = split(12), split(6, seed=1), split(6, seed=2)
ATTACK = PGD(0.1, 0.1, 1)


class Weighted(Method):
    """No dataclass: its `repr` shows none of its fields."""

    update_every = "epoch"

    def __init__(self, weight=1.0, attack=ATTACK):
        vars(self).update(weight=weight, attack=attack)

    def loss(self, model, x, y, state, at):
        z = self.attack(model, x, y, generator=at.generator)
        return self.weight * F.cross_entropy(model(z), y)


class Foreign:
    """An attack that is not ours."""

    def __init__(self, step=0.01):
        self.step = step

    def __call__(self, model, x, y, **_):
        return (x + self.step).clamp(0, 1)


def checks(val=VAL, eps=0.1):
    def validate(model, at):
        return evaluate(model, val, PGD(eps, eps, 1), progress=False)
    return validate


def network(change=lambda model: None, seed=0):
    model = Small(seed=seed)
    model.act, model.more = torch.tanh, torch.nn.utils.skip_init(nn.Conv2d, 4, 4, 3, bias=False)
    nn.init.zeros_(model.more.weight)
    change(model)
    return model


def go(store, epochs=1, copied=True, **words):
    words = {"model": network(), "method": Weighted(), "data": TRAIN, "optim": Optim(batch=4),
             "seed": 0, "validate": checks(), "progress": False, **words}
    model = copy.deepcopy(words.pop("model")) if copied else words.pop("model")
    return fit(model, words.pop("method"), words.pop("data"), epochs=epochs, store=store, **words)


def of(source, name="Written", **names):
    """A class or function as if it stood in a cell of a notebook."""
    space = {"__name__": "notebook", "F": F, "Method": Method, **names}
    exec(compile(source, "<cell>", "exec"), space)
    return space[name]


LOSS = """
SCALE = {0}
def helper(logits, y):
    return {1} * F.cross_entropy(logits, y)
class Written(Method):
    def loss(self, model, x, y, state, at):
        return SCALE * helper(model(x), y) * {2}
"""
WRITTEN = {"method": of(LOSS.format(1, 1, 1))()}
# what is given at first, what is given then, and what the refusal names
EDITS = {
    "a2: a field of a plain class": ({}, {"method": Weighted(2.0)}, "method.weight is 2.0, was 1"),
    "a2: a field of its attack": ({}, {"method": Weighted(attack=PGD(0.1, 0.1, 2))},
                                  "method.attack.steps is 2, was 1"),
    "a2: a foreign attack's": ({"method": Weighted(attack=Foreign())},
                               {"method": Weighted(attack=Foreign(0.02))}, "method.attack.step "),
    "a3: the initial weights": ({}, {"model": network(seed=5)}, "the initial weights changed"),
    "a4: the loss": (WRITTEN, {"method": of(LOSS.format(1, 1, 2))()},
                     "the source of Written changed"),
    "a4: a helper of the loss": (WRITTEN, {"method": of(LOSS.format(1, 2, 1))()}, "helper changed"),
    "a4: a constant of the loss": (WRITTEN, {"method": of(LOSS.format(2, 1, 1))()}, "Written chan"),
    "h15: an activation": ({}, {"model": network(lambda m: setattr(m, "act", torch.relu))},
                           "model is .*relu.*was .*tanh"),
    "h15: dropout": ({}, {"model": network(lambda m: setattr(m.drop, "p", 0.1))},
                     'model.drop is .*"p": 0.1'),
    "h15: bf16": ({}, {"model": Accelerated(network())}, "model is 'Accelerated"),
    "h15: channels last": ({}, {"model": network().to(memory_format=torch.channels_last)},
                           "channels last is True"),
    "h15: a frozen layer": ({}, {"model": network(
        lambda m: m.conv.weight.requires_grad_(False))}, "the frozen parameters is .*conv.weight"),
    "h15: validation data": ({}, {"validate": checks(OTHER_VAL)}, "the source of validate chan"),
    "h15: validation attack": ({}, {"validate": checks(eps=0.2)}, "the source of validate chan"),
    "h15: no validation": ({}, {"validate": None}, "validate is not given"),
    "h15: other validation": ({}, {"validate": lambda m, at: None}, "validate is '<lambda>'"),
    "the data": ({}, {"data": TRAIN.masked(3)}, "the training data changed"),
    "the seed": ({}, {"seed": 1}, "seed is 1, was 0"),
    "the method": ({}, {"method": METHODS["natural"]()}, "method is 'Natural', was 'Weighted'; "
                   "method.attack is not given, was 'PGD'; method.attack.eps is not given, ")}


@pytest.mark.parametrize("edit", EDITS)
def test_a_resume_names_what_differs(edit, tmp_path):
    """And fresh=True begins beside it; without it the same call then goes on there."""
    before, after, says = EDITS[edit]
    first = go(Store(tmp_path / "run"), **before)
    with pytest.raises(CourseError, match=f"(?s)made by another run: .*{says}.*fresh=True"):
        go(Store(tmp_path / "run"), **after)
    if edit not in ("a4: a helper of the loss", "h15: validation attack", "the seed"):
        return
    fresh = go(Store(tmp_path / "run"), fresh=True, **after)
    assert (tmp_path / "run-2" / "store.json").exists() and not (tmp_path / "run-3").exists()
    assert same_weights(fresh.model, go(None, **after).model)
    again = go(Store(tmp_path / "run"), **after)
    assert Store(tmp_path / "run-2").latest()[0] == 3
    assert same_weights(again.model, fresh.model) and fresh.identity == again.identity
    assert same_weights(first.model, go(Store(tmp_path / "run"), **before).model)


def test_a_stopped_cell_runs_again_with_the_model_that_it_left(tmp_path):
    model, wanted = network(), go(None, epochs=2)

    def stop(net, at):
        if at.epoch == 1 and not stopped:
            stopped.append(at)
            raise KeyboardInterrupt
        return checks()(net, at)

    stopped = []
    with pytest.raises(KeyboardInterrupt):
        go(Store(tmp_path), epochs=2, model=model, copied=False, validate=stop)
    assert not same_weights(model, network())
    for _ in range(2):  # then it is finished
        again = go(Store(tmp_path), epochs=2, model=model, copied=False, validate=stop)
        assert same_weights(again.model, wanted.model) and again.history == wanted.history
    with pytest.raises(CourseError, match="optim.lr is 0.5"):
        go(Store(tmp_path), epochs=2, model=model, validate=stop, optim=Optim(lr=0.5, batch=4))


@pytest.mark.parametrize("name", ["natural", "pgd_at"])
def test_d_a_training_goes_on_for_more_epochs(name, tmp_path):
    method = METHODS[name]()
    for epochs in (1, 3):
        done = go(Store(tmp_path), epochs, method=method)
    wanted = go(None, 3, method=method)
    assert same_weights(done.model, wanted.model) and done.history == wanted.history
    assert not any(m.training for m in done.model.modules())  # a8
    with pytest.raises(CourseError, match="3 epochs, and epochs=2 asks for fewer"):
        go(Store(tmp_path), 2, method=method)
    for plans in ("fat", "gairat"):  # with the number of epochs
        go(Store(tmp_path / plans), 1, method=METHODS[plans]())
        with pytest.raises(CourseError, match="epochs is 2, was 1"):
            go(Store(tmp_path / plans), 2, method=METHODS[plans]())


def printed_identity():
    written = of(LOSS.format(f"{{{str([*'abcdefghij'])[1:-1]}}}", 1, 1))  # a set has any order
    return f"{identity()} {sources([RECIPES['exp4/bat-code'].method, checks(), written])}"


def test_the_identity_is_the_same_in_another_process():
    script = "from tests.traps.test_identity import *; print(printed_identity())"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                           check=True, env={**os.environ, "PYTHONHASHSEED": "1"}).stdout
    assert other.strip() == printed_identity() and len(other) > 1000


@pytest.mark.parametrize("name", ["exp2/reweight-05", "contest/cfa"])
def test_no_recipe_is_known_by_bytecode_which_the_next_python_changes(name, monkeypatch):
    read, recipe = _Reader.object, RECIPES[name]

    def reads(self, thing):
        assert not isinstance(thing, types.CodeType)
        return read(self, thing)

    monkeypatch.setattr(_Reader, "object", reads)
    found = sources([recipe.method, recipe.optim, _validation(recipe, VAL)])
    assert "the source of <lambda>" in found


def test_lambdas_of_one_line_are_told_apart():
    one, two, three = lambda x: x + 1, lambda é, x=lambda: 1: x() + 2, lambda: lambda x: x + 1
    again, = (lambda x:  # the same
              x + 1),
    said = [sources(f) for f in (one, two, two.__defaults__[0], three, three(), again)]
    assert said[0] == said[4] == said[5]
    assert len({str(words) for words in said}) == 4


def test_an_older_checkpoint_is_refused_in_plain_words(tmp_path):
    store = Store(tmp_path / "run")
    store.open({"format": 1, "method": "PGDAT()", "seed": 0}, {})
    store.save(1, {"model": {}})
    store.close()
    with pytest.raises(CourseError, match="was written by another version of the course.*fresh=T"):
        go(Store(tmp_path / "run"))


@pytest.mark.parametrize("name", ["natural", "pgd_at", "bat"])
def test_a5_validate_is_called_once_an_epoch_and_changes_nothing(name):
    seen = []

    def meddling(model, at):
        seen.append((at.epoch, at.batch))
        model.eval()
        torch.rand(3, generator=at.generator)
        return checks()(model, at)

    plain, checked = (go(None, epochs=3, method=METHODS[name](), validate=v)
                      for v in (None, meddling))
    assert same_weights(plain.model, checked.model)
    assert seen == [(0, 3), (1, 3), (2, 3)]
    assert [len(h["validation"]) for h in checked.history] == [1, 1, 1]
    assert [h["loss"] for h in checked.history] == [h["loss"] for h in plain.history]


def test_a9_a_second_class_of_a_name_is_refused_and_a_cell_may_run_again():
    before = dict(METHODS)
    cell = LOSS.format(1, 1, 1) + "    name = 'written'\n"
    try:
        of(cell)
        again = of(cell)
        assert METHODS["written"] is again
        with pytest.raises(CourseError, match="'written' already, notebook.Written.*another name"):
            of(cell.replace("Written", "Other"), "Other")
        of("class Heir(Base):\n    pass", "Heir", Base=again)
        assert METHODS["written"] is again
        with pytest.raises(CourseError, match=r"'pgd_at' already, .*PGDAT\."):
            of(cell.replace("'written'", "'pgd_at'"))
    finally:
        METHODS.clear()
        METHODS.update(before)


def returning(what, loss):
    return of(f"class Written(Method):\n    update_every = {what}\n    def loss(self, model, x, y, "
              f"*_):\n        losses = F.cross_entropy(model(x), y, reduction='none')\n        "
              f"return {loss}\n    def update(self, state, report, at):\n        pass\n")()


@pytest.mark.parametrize(("words", "says"), [
    ({"method": "pgd_at"}, r"given 'pgd_at'; it needs something like METHODS\[.pgd_at.\]\(\)"),
    ({"method": METHODS["pgd_at"]}, r"given <class .*PGDAT.*METHODS\[.pgd_at.\]\(\)"),
    ({"optim": "adam"}, r"given 'adam'; it needs something like Optim\(.adam"),
    ({"store": "folder"}, r"given 'folder'; it needs something like Store\("),
    ({"model": "lenet5"}, r"given 'lenet5'; it needs something like build\("),
    ({"method": returning("None", "losses")}, r"Written.loss returned \(4,\).*losses.mean"),
    ({"method": returning("None", "losses.mean().item()")}, "loss returned float"),
    ({"method": returning("None", "None")}, "loss returned NoneType"),
    ({"method": returning("'epoch'", "losses.mean()")}, "Written.update returned None"),
    ({"method": returning("'epochs'", "losses.mean()")}, "update_every .* is 'epochs'"),
    ({"method": returning("0", "losses.mean()")}, "update_every .* is 0")])
def test_c_a_door_that_says_what_to_give(words, says):
    with pytest.raises(CourseError, match=says):
        go(**{"store": None, **words})


def test_a4_a_finished_recipe_says_its_code_changed(tmp_path, tiny):
    def put(k):
        tiny.setitem(RECIPES, "tiny/first", dataclasses.replace(
            RECIPES["tiny/first"], method=of(LOSS.format(1, 1, k))()))

    def shell(**words):
        return train("tiny/first", 0, tmp_path, limit=None, epochs=None, **words)

    put(1)
    first = shell()
    assert first["made_from"]["identity"]["method"] == "Written"
    put(2)
    with pytest.warns(UserWarning, match="was trained before the source of Written changed"):
        assert shell()["history"] == first["history"]
    with pytest.raises(CourseError, match="the source of Written changed.*--fresh"):
        run("tiny/first", 0, tmp_path, progress=False)
    second = shell(fresh=True)
    assert second["history"] != first["history"]
    assert shell()["made_from"]["identity"] == second["made_from"]["identity"]


def test_h10_a_changed_hot_start_is_not_finished(tmp_path, tiny):
    def first(seed):
        done, record = run("tiny/first", seed, tmp_path / "runs", progress=False)
        publish("tiny/first", 0, done.model, {**record, "seed": 0}, tmp_path)

    first(0)
    _, record = run("tiny/second", 0, tmp_path / "runs", models=tmp_path, progress=False)
    publish("tiny/second", 0, None, record, tmp_path)
    assert record["made_from"]["start"]["of"] == "tiny/first"
    assert finished("tiny/second", 0, tmp_path) == load_record("tiny/second", root=tmp_path)
    first(1)
    assert finished("tiny/second", 0, tmp_path) is None
    del record["made_from"]["start"], record["made_from"]["identity"]  # as in an older record
    publish("tiny/second", 0, None, record, tmp_path)
    assert finished("tiny/second", 0, tmp_path)


@pytest.mark.parametrize(("attack", "label"), [
    (PGD(steps=20), "pgd20"), (PGD(0.1, steps=20), "pgd20"), (PGD(steps=10), "pgd10"),
    (PGD(16 / 255, 4 / 255, 20), "pgd20, step 4/255")])
def test_h25_a_record_names_the_attack_of_its_validation(attack, label, tmp_path, tiny):
    for transform in ("", "whole", "validated-on-training"):
        tiny.setitem(RECIPES, "tiny/first", dataclasses.replace(
            RECIPES["tiny/first"], validation=attack, transform=transform))
        _, record = run("tiny/first", 0, tmp_path, epochs=0, progress=False)
        assert record["validation"]["attack"] == label
        assert record["made_from"]["validation_trained_on"] == bool(transform)
