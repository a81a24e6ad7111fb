"""A sweep trains what is missing, in order, once; the same command goes on where it was stopped."""

import dataclasses

import pytest
import torch

from course_lib import RECIPES, CourseError, list_models
from course_lib.lab import sweep as room
from course_lib.lab.sweep import sweep
from course_lib.zoo import load_record
from tests.helpers import counted, drop_weights

ALL = [("tiny/first", 0), ("tiny/first", 1), ("tiny/second", 0), ("tiny/second", 1)]


@pytest.fixture(autouse=True)
def trained(tiny):
    """Which trainings really ran, in order."""
    return counted(tiny, room, "run", pair)


def pair(name, seed, *_, **__):
    return name, seed


def go(tmp_path, *patterns, **words):
    return sweep(patterns or ("tiny",), out=tmp_path / "runs", models=tmp_path / "models",
                 **{"jobs": 1, "progress": False, **words})


def stored(tmp_path):
    rows = list_models(root=tmp_path / "models").to_dict("records")
    return [(r["recipe"], r["seed"]) for r in rows]


def test_what_is_trained_seed_by_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "run_all", lambda groups, *_, **__: [*groups])
    for patterns, found, seeds in (("tiny", ["tiny/second", "tiny/first"], 2),
                                   ("tiny/f* tiny/first", ["tiny/first"], 2),
                                   ("exp1/pgd-*", ["exp1/pgd-at-mixed", "exp1/pgd-at"], 5)):
        assert go(tmp_path, *patterns.split()) == [(n, s) for s in range(seeds) for n in found]
        assert go(tmp_path, *patterns.split(), seeds=1) == [(n, 0) for n in found]
    with pytest.raises(CourseError, match="so nothing was done"):
        go(tmp_path, "tiny", "tony")


def test_a_sweep_trains_stores_and_then_skips(tmp_path, trained):
    records = go(tmp_path)  # hot starts come first
    assert trained == ALL and sorted((r["recipe"], r["seed"]) for r in records) == ALL
    assert stored(tmp_path) == ALL
    sizes = list_models(root=tmp_path / "models")["bytes"]
    assert [size > 0 for size in sizes] == [True, True, False, False]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "models").rglob("*.*")}
    assert go(tmp_path) == records and trained == ALL
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "models").rglob("*.*")}
    drop_weights("tiny/first", 1, tmp_path / "models")
    go(tmp_path)
    assert trained == ALL, "a record whose weights were dropped is enough"


def test_damaged_weights_and_other_recipes_are_trained_again(tmp_path, trained, monkeypatch):
    go(tmp_path, "tiny/first")
    file = tmp_path / "models" / "tiny" / "first" / "seed1.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"!")
    go(tmp_path, "tiny/first")
    assert trained == [*ALL[:2], ("tiny/first", 1)] and file.read_bytes() == good
    monkeypatch.setitem(RECIPES, "tiny/first", dataclasses.replace(RECIPES["tiny/first"], epochs=1))
    go(tmp_path, "tiny/first", seeds=1)
    record = load_record("tiny/first", root=tmp_path / "models")
    assert trained[3:] == [("tiny/first", 0)] and record["made_from"]["epochs"] == 1


def test_an_interrupted_sweep_goes_on_and_threads_stay(tmp_path, monkeypatch):
    before, calls = torch.get_num_threads(), counted(monkeypatch, room, "run", pair, stop=2)
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path, "tiny/first")
        assert torch.get_num_threads() == 2 and stored(tmp_path) == ALL[:1]
    finally:
        torch.set_num_threads(before)
    go(tmp_path, "tiny/first")
    assert calls == [*ALL[:2], ("tiny/first", 1)] and stored(tmp_path) == ALL[:2]
    record = load_record("tiny/first", root=tmp_path / "models")
    assert record["made_from"]["versions"]["threads"] == 1


def test_a_shortened_sweep_is_stored_under_another_name(tmp_path, trained):
    for _ in range(2):
        (record,) = go(tmp_path, "tiny/first", seeds=1, epochs=1)
        assert record["recipe"] == "tiny/first@epochs=1"
        assert stored(tmp_path) == [("tiny/first@epochs=1", 0)] and trained == ALL[:1]
