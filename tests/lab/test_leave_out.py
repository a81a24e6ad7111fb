"""Leaving one example out: pairs that are exact, a control that sees only noise, and trainings that
no kill spoils."""

import dataclasses
import json
import shutil

import pytest
import torch

from course_lib import RECIPES, CourseError, build
from course_lib.data import load
from course_lib.lab import leave_out as room
from course_lib.lab.leave_out import DESIGNS, leave_out, load_luf, publish_luf
from course_lib.zoo import model_files
from tests.helpers import counted, seeded, with_tiny_recipes

NAME = "tiny/first"


@pytest.fixture(autouse=True)
def anew(tiny):
    room.training_data.cache_clear()


def go(place, name=NAME, **words):
    given = {"left_out": 4, "out": place / "runs", "models": place / "models", "jobs": 1,
             "progress": False, **words}
    return {r["design"]: r for r in leave_out([name], **given)}


def trained(monkeypatch, stop=None):
    """The seed and the left-out example of each training."""
    return counted(monkeypatch, room, "fit", lambda *args, **words: (words["seed"], args[2].hidden),
                   stop)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Where thirteen trainings are stored, their records, and which they were."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        with_tiny_recipes(patch)
        calls = trained(patch)
        return place, go(place), calls


def test_the_designs_differ_from_the_base_in_what_they_say(made):
    _, records, calls = made
    paired, seeds, unpaired = (records[design] for design in DESIGNS)
    gone = paired["left_out"]
    assert len(set(gone)) == 4 and len(calls) == 13
    assert set(calls) == {(0, None), *((0, i) for i in gone), *((k, None) for k in range(1, 5)),
                          *((k + 1, i) for k, i in enumerate(gone))}
    assert seeds["left_out"] == [None] * 4 and unpaired["left_out"] == gone
    assert paired["seeds"] == [0] * 4 and seeds["seeds"] == unpaired["seeds"] == [1, 2, 3, 4]
    for r in records.values():
        assert r["luf_l"] == pytest.approx(r["luf_t"] * r["test_examples"] / 4)
        assert sum(r["flips"]) == pytest.approx(4 * r["luf_l"])
        assert r["made_from"]["training_examples"] == 24 and r["made_from"]["recipe"]["epochs"] == 2
    # one example more or less changes less than another seed does
    assert 0 < paired["luf"] < seeds["luf"]


@pytest.mark.parametrize("name", [NAME, "luf/fashion-mnist-robust"])
def test_when_nothing_is_left_out_of_the_pair_nothing_changes(name, tmp_path, monkeypatch):
    """The control of the controls: LUF of a training against itself is 0 to the bit, not nearly."""
    monkeypatch.setattr(room, "pairs", lambda *_: [(0, None)])
    monkeypatch.setitem(RECIPES, name, dataclasses.replace(RECIPES[name], epochs=1))
    record = go(tmp_path, name, designs=["paired"], limit=200)["paired"]
    assert [record[k] for k in ("luf", "luf_t", "luf_l", "flips")] == [0.0, 0.0, 0.0, [0]]


def test_before_the_left_out_examples_batch_the_pair_is_one_training():
    """The robust recipe draws nothing that depends on how many examples a batch has."""
    recipe, train = RECIPES["luf/fashion-mnist-robust"], load("fashion-mnist", limit=500).train
    x, y, kept = train.images(slice(0, 64)), train.y[:64], torch.arange(64) != 20
    attack, model = recipe.method.attack, build("lenet5", seed=3)
    one = attack(model, x, y, generator=seeded(1))[kept]
    other = attack(model, x[kept], y[kept], generator=seeded(1))
    assert (one - other).abs().max() < 1e-6


def test_stopped_and_called_again(made, tmp_path, monkeypatch):
    """Nothing is trained twice; then another recipe is another training."""
    calls, want = trained(monkeypatch, stop=6), made[1]
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path)
    complete = model_files(tmp_path / "models", "luf").entries()[NAME]
    assert set(complete) == {"paired"}
    assert go(tmp_path) == want and len(calls) == 6 + 13 - 5  # the sixth was not finished
    go(tmp_path)
    assert len(calls) == 14
    monkeypatch.setitem(RECIPES, NAME, dataclasses.replace(RECIPES[NAME], epochs=1))
    go(tmp_path, designs=["paired"])
    assert len(calls) == 14 + 5


def test_records_are_stored_and_verified_and_fewer_trainings_replace_no_more(made, tmp_path):
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    want, models = made[1], tmp_path / "models"
    assert {d: load_luf(NAME, d, models) for d in DESIGNS} == json.loads(json.dumps(want))
    few = go(tmp_path, left_out=2, designs=["paired"])["paired"]
    assert len(few["flips"]) == 2 and len(load_luf(NAME, "paired", models)["flips"]) == 4
    go(tmp_path, left_out=5, designs=["paired"])
    assert len(load_luf(NAME, "paired", models)["flips"]) == 5
    # another experiment replaces it
    publish_luf({**few, "made_from": {**few["made_from"], "training_examples": 23}}, models)
    assert len(load_luf(NAME, "paired", models)["flips"]) == 2
    path = models / "luf" / model_files(models, "luf").entries()[NAME]["seeds"]["file"]
    path.write_text(path.read_text().replace('"luf_t"', '"luf_u"'))
    with pytest.raises(CourseError, match="is damaged: its sha256"):
        load_luf(NAME, "seeds", models)
    publish_luf({**few, "design": "seeds"}, models)
    assert load_luf(NAME, "seeds", models)["left_out"] == few["left_out"]
    with pytest.raises(CourseError,
                       match="is not stored yet. Make it: python -m course_lib luf tiny/second"):
        load_luf("tiny/second", "paired", models)


def test_bad_words(tmp_path):
    for name, words, say in (
            ("tony", {}, "Nothing is called tony"), (NAME, {"left_out": 0}, "left_out is 0"),
            ("tiny/second", {}, "No recipe to leave examples out of matches tiny/second. Meant fo"),
            (NAME, {"left_out": 25}, "25 examples are to be left out one by one; there are 24"),
            (NAME, {"designs": ["pared"]}, "Unknown design 'pared'.*Did you mean 'paired'")):
        with pytest.raises(CourseError, match=say):
            go(tmp_path, name, **words)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
