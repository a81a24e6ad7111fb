import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.errors import CourseError
from course_lib.experiments import RECIPES
from course_lib.lab import sweep as room
from course_lib.lab.jobs import waves
from course_lib.lab.sweep import chosen, sweep, training
from course_lib.tables import list_models
from course_lib.zoo import load_model, load_record
from tests.helpers import drop_weights, same_weights, with_tiny_recipes
from tests.lab.calls import counted

ALL = [("tiny/first", 0), ("tiny/first", 1), ("tiny/second", 0), ("tiny/second", 1)]
Calls = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tiny_recipes(monkeypatch)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Which trainings really ran, in order."""
    return counted(monkeypatch, room, "run", pair)


def pair(name: str, seed: int, *_: Any, **__: Any) -> tuple[str, int]:
    return name, seed


def go(tmp_path: Path, *patterns: str, **words: Any) -> list[dict[str, Any]]:
    return sweep(patterns or ("tiny",), out=tmp_path / "runs", models=tmp_path / "models",
                 **{"jobs": 1, "progress": False, **words})


def stored(tmp_path: Path) -> Calls:
    rows = list_models(root=tmp_path / "models").to_dict("records")
    return [(r["recipe"], r["seed"]) for r in rows]


def contents(tmp_path: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in (tmp_path / "models").rglob("*") if p.is_file()}


@pytest.mark.parametrize(("patterns", "found"), [
    (["tiny"], {"tiny/first", "tiny/second"}),
    (["tiny/"], {"tiny/first", "tiny/second"}),
    (["tiny/f*"], {"tiny/first"}),
    (["*/second"], {"tiny/second"}),
    (["tiny/first", "tiny/first"], {"tiny/first"}),
    (["exp1/pgd-*"], {"exp1/pgd-at", "exp1/pgd-at-mixed"}),
    (["exp1/pgd-at"], {"exp1/pgd-at"}),
])
def test_patterns(patterns: list[str], found: set[str]) -> None:
    pairs = chosen(patterns)
    assert {n for n, _ in pairs} == found and len(set(pairs)) == len(pairs)
    assert len(pairs) == sum(RECIPES[n].seeds for n in found)
    assert [s for _, s in pairs] == sorted(s for _, s in pairs), "soon every recipe has one model"
    assert {s for _, s in chosen(patterns, 1)} == {0}


@pytest.mark.parametrize("patterns", [["tony"], ["exp1/nat"], []])
def test_a_pattern_that_matches_nothing(patterns: list[str]) -> None:
    with pytest.raises(CourseError, match="so nothing was done"):
        chosen(patterns)


def test_hot_starts_come_first(tmp_path: Path) -> None:
    def order(*pairs: tuple[str, int]) -> list[list[str]]:
        tasks = [training(*pair, models=tmp_path) for pair in pairs]
        return [[task.name for task in wave] for wave in waves(tasks)]

    names = [f"{name}, seed {seed}" for name, seed in ALL]
    assert order(*reversed(ALL)) == [names[1::-1], names[:1:-1]]
    assert order(ALL[0], ALL[3]) == [[names[0], names[3]]], "another seed's"
    assert order(ALL[2]) == [[names[2]]] and order() == []


def test_a_sweep_trains_stores_and_then_skips(tmp_path: Path, trained: Calls) -> None:
    records = go(tmp_path)
    assert trained == ALL and sorted((r["recipe"], r["seed"]) for r in records) == ALL
    assert stored(tmp_path) == ALL
    sizes = list_models(root=tmp_path / "models")["bytes"]
    assert [size > 0 for size in sizes] == [True, True, False, False]
    before, again = contents(tmp_path), go(tmp_path)
    assert trained == ALL and again == records
    assert contents(tmp_path) == before
    drop_weights("tiny/first", 1, tmp_path / "models")
    go(tmp_path)
    assert trained == ALL, "a record whose weights were dropped is enough"


def test_damaged_weights_and_other_recipes_are_trained_again(
        tmp_path: Path, trained: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_interrupted_sweep_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, room, "run", pair, stop=2)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path, "tiny/first")
    assert stored(tmp_path) == ALL[:1]
    go(tmp_path, "tiny/first")
    assert calls == [*ALL[:2], ("tiny/first", 1)] and stored(tmp_path) == ALL[:2]


def test_a_shortened_sweep_is_stored_under_another_name(tmp_path: Path, trained: Calls) -> None:
    for _ in range(2):
        (record,) = go(tmp_path, "tiny/first", seeds=1, epochs=1)
        assert record["recipe"] == "tiny/first@epochs=1"
        assert stored(tmp_path) == [("tiny/first@epochs=1", 0)] and trained == ALL[:1]
    go(tmp_path, "tiny/first", seeds=1)
    assert trained == [("tiny/first", 0)] * 2


def test_the_callers_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        go(tmp_path, "tiny/first", seeds=1)
        made = load_record("tiny/first", root=tmp_path / "models")["made_from"]
        assert torch.get_num_threads() == 2 and made["versions"]["threads"] == 1
    finally:
        torch.set_num_threads(before)


def test_jobs_do_not_change_the_models(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    for jobs, place in enumerate(places, 1):
        go(place, "tiny/first", jobs=jobs, backend="threading")
    for seed in (0, 1):
        assert same_weights(*(load_model("tiny/first", seed=seed, root=place / "models")
                              for place in places))
        one, two = (load_record("tiny/first", seed=seed, root=place / "models") for place in places)
        assert one["history"] == two["history"]
