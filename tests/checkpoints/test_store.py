from __future__ import annotations

import collections
import hashlib
import io
import itertools
import json
import os
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors import safe_open

from course_lib.checkpoints import SaveError, Store
from course_lib.checkpoints.disk import Key
from course_lib.checkpoints.packing import DTYPES
from course_lib.checkpoints.store import RECORD
from course_lib.errors import CourseError
from tests.faults.conftest import patient  # noqa: F401
from tests.faults.shims import WatchedDisk, calls_of_a_save, same

IDENTITY = {"recipe": "exp1/pgd-at", "rate": 0.001, "data": "ab12", "classes": "cat, dog",
            "format": 1}
ENVIRONMENT = {"threads": 1, "torch": "2.13.0", "cpu": "AVX2"}
YEAR = 365 * 24 * 3600.0


def a_state() -> dict[str, Any]:
    model = torch.nn.Linear(3, 2)
    return {
        "model": dict(model.state_dict()),
        "tied": [model.weight, model.weight.t()],
        "epoch": 3,
        "numbers": [0.1, -0.0, 5e-324, float("inf"), 1 / 3, 10**30, True, 1, 1.0],
        "words": {"ε": "8/255", 7: None, "last": True, "pair": (1, [2.5, ()]), None: "\ud800",
                  "": {}},
        "random": torch.get_rng_state(),
        "kinds": [torch.ones(2, dtype=dtype) for dtype in DTYPES],
        "empty": [torch.zeros(0, 3), [], {}, torch.tensor(3)],
        "last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    }


def newest(store: Store) -> int:
    return (store.latest() or (0,))[0]


def stored(folder: Path, *, mirror: Path | None = None, step: int = 7,
           weight: float = 1.0) -> Store:
    """The store of a run that was closed after one save."""
    store = Store(folder, mirror)
    store.open(IDENTITY, ENVIRONMENT)
    store.save(step, {"model": {"w": torch.full((3,), weight)}})
    store.close()
    return store


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    state = a_state()
    store = Store(tmp_path / "run")
    assert store.latest() is None
    assert store.status == "not saved yet"
    store.save(3, state)
    assert store.status == "saved locally"
    step, again = Store(tmp_path / "run").latest() or (None, {})
    assert step == 3
    plain = ("epoch", "numbers", "words")
    assert repr({k: again[k] for k in plain}) == repr({k: state[k] for k in plain})  # types, too
    tensors = {k: v for k, v in state.items() if k not in plain}
    tensors["tied"] = [weight.detach() for weight in tensors["tied"]]
    assert same({k: v for k, v in again.items() if k not in plain}, tensors)
    assert not any(weight.requires_grad for weight in again["tied"])
    assert again["last"].is_contiguous(memory_format=torch.channels_last)


def test_a_file_can_be_read_by_others(tmp_path: Path) -> None:
    """It is one file of safetensors, with each tensor under its path."""
    store = Store(tmp_path)
    store.save(3, a_state())
    (path,) = tmp_path.glob("ckpt-3-*")
    with safe_open(path, "pt") as file:
        assert {"['model']['weight']", "['kinds'][0]"} <= set(file.keys())
        assert json.loads(file.metadata()["checkpoint"])["step"] == 3


@pytest.mark.parametrize("place", ["here", "there"])
def test_an_unfinished_run_of_the_old_format_is_refused_in_words(tmp_path: Path,
        place: str) -> None:
    """As it was stored before format 2, by torch.save."""
    (folder := tmp_path / place).mkdir()
    torch.save({"format": 1, "step": 7, "identity": IDENTITY, "state": {"model": {}}},
               file := io.BytesIO())
    name = f"ckpt-7-{hashlib.sha256(file.getvalue()).hexdigest()}"
    (folder / name).write_bytes(file.getvalue())
    (folder / RECORD).write_text(json.dumps(
        {"format": 1, "identity": IDENTITY, "environment": ENVIRONMENT}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    store = Store(tmp_path / "here", tmp_path / "there")
    with pytest.raises(CourseError,
                       match="holds unfinished checkpoints of format 1, which this version of "
                       "the course cannot read .it reads format 2.. Delete that folder to train "
                       "again from the start, or train beside it: store = store.fresh"):
        store.open(IDENTITY, ENVIRONMENT)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (folder / RECORD).unlink()  # its checkpoint stops no new run
    store.open(IDENTITY, ENVIRONMENT)
    store.save(1, {"model": {}})
    store.close()
    with pytest.warns(UserWarning, match="ckpt-7-.* is skipped"):
        assert newest(store) == 1


def test_what_is_saved_is_the_state_of_that_moment(tmp_path: Path) -> None:
    state = {"model": {"w": torch.zeros(2)}, "list": [1]}
    store = Store(tmp_path, tmp_path / "mirror")
    store.save(1, state)
    state["model"]["w"] += 1
    state["list"].append(2)
    store.close()
    for folder in (tmp_path, tmp_path / "mirror"):
        _, again = Store(folder).latest() or (None, {})
        assert again["model"]["w"].tolist() == [0, 0]
        assert again["list"] == [1]


def test_keeps_the_newest_three(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for step in (5, 1, 9, 7, 30, 200):
        store.save(step, {"model": {}, "step": step})
    assert sorted(key.step for key in store.folder.copies()) == [9, 30, 200]
    assert newest(store) == 200
    more = Store(tmp_path, keep=5)
    for step in range(201, 210):
        more.save(step, {"model": {}})
    assert sorted(key.step for key in more.folder.copies()) == [205, 206, 207, 208, 209]
    with pytest.raises(CourseError, match="keep is 2; it must be a whole number, 3 or more"):
        Store(tmp_path, keep=2)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (numpy.float64(1), "numpy.float64"),
        (Path("x"), "Path"),
        ({1, 2}, "set"),
        (torch.zeros(2).to_sparse(), "Tensor"),
        (torch.zeros(2, dtype=torch.complex128), "Tensor"),
        (object(), "object"),
        (collections.OrderedDict([(1.5j, 2)]), "complex"),
    ],
)
def test_a_state_that_could_not_be_loaded_again_is_refused(tmp_path: Path, value: object,
                                                           word: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(CourseError, match=rf"state\['list'\]\[1\] holds a .*{word}; a state holds "
                       "dense tensors"):
        store.save(1, {"list": [0, value]})
    assert store.latest() is None


def test_a_state_of_very_many_numbers_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(CourseError, match="Keep a long list of numbers as one tensor"):
        store.save(1, {"list": [1 / 3] * 450_000})
    assert store.latest() is None
    store.save(1, {"list": [1 / 3] * 200_000})
    assert newest(store) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, bad: float) -> None:
    store = Store(tmp_path)
    store.save(1, {"model": {"w": torch.zeros(2)}, "loss": bad, "best": torch.tensor(bad)})
    with pytest.raises(SaveError, match=r"\['model'\]\['w'\] is NaN or infinite"):
        store.save(2, {"model": {"w": torch.tensor([0.0, bad])}})
    assert newest(store) == 1
    assert "NaN" in store.status


def test_another_run_is_refused_with_a_list_and_the_word(tmp_path: Path) -> None:
    stored(tmp_path / "run")
    other = {**IDENTITY, "rate": 0.01, "data": "cd34", "seed": 1}
    del other["classes"]
    store = Store(tmp_path / "run")
    with pytest.raises(CourseError) as refusal:
        store.open(other, ENVIRONMENT)
    text = str(refusal.value)
    assert ("classes is not given, was 'cat, dog'; data is 'cd34', was 'ab12'; rate is 0.01, was "
            "0.001; seed is 1, was not given" in text)
    assert "recipe" not in text
    assert "store.fresh()" in text
    fresh = store.fresh()
    assert fresh.dir == tmp_path / "run-2"
    fresh.open(other, ENVIRONMENT)
    assert fresh.latest() is None
    fresh.save(1, {"model": {}})
    fresh.close()
    assert store.fresh().dir == tmp_path / "run-3"
    store.open(IDENTITY, ENVIRONMENT)  # the old one goes on as it was
    assert newest(store) == 7
    store.close()


def test_another_environment_is_told_and_goes_on(tmp_path: Path) -> None:
    stored(tmp_path)
    store = Store(tmp_path)
    with pytest.warns(UserWarning,
                      match="threads is 4, was 1: results should be equivalent, but may not be "
                      "bit-identical"):
        store.open(IDENTITY, {**ENVIRONMENT, "threads": 4})
    assert newest(store) == 7
    store.close()


def test_a_new_machine_goes_on_from_the_mirror(tmp_path: Path) -> None:
    drive = tmp_path / "drive" / "run"
    store = stored(tmp_path / "old machine", mirror=drive)
    assert store.status == "saved locally, on Drive, verified"
    with closing(Store(tmp_path / "new machine", drive)) as store:
        store.open(IDENTITY, ENVIRONMENT)
        step, state = store.latest() or (0, {})
        assert (step, state["model"]["w"].tolist()) == (7, [1, 1, 1])
        store.save(8, {"model": {"w": torch.ones(3) * 2}})
    behind = Store(tmp_path / "old machine", drive)
    assert newest(behind) == 8
    with pytest.raises(CourseError, match="rate is 2"):
        Store(tmp_path / "third machine", drive).open({**IDENTITY, "rate": 2}, ENVIRONMENT)
    assert behind.fresh().folders[1].path == tmp_path / "drive" / "run-2"


def test_a_slow_mirror_does_not_hold_up_a_save_and_gets_the_newest(tmp_path: Path) -> None:
    store = Store(tmp_path / "here", tmp_path / "there")
    assert store.mirror
    gate, copied = threading.Event(), []
    copy = store.mirror.copy
    store.mirror.copy = lambda key, data: (gate.wait(), copied.append(key.step), copy(key, data))  # type: ignore[method-assign]
    for step in range(10):
        store.save(step, {"model": {}})  # would hang here
    assert store.status == "saved locally"
    gate.set()
    store.close()
    assert copied[-1] == 9
    assert len(copied) <= 2
    assert store.status == "saved locally, on Drive, verified"


def test_an_unmounted_drive_is_not_taken_for_a_folder(tmp_path: Path) -> None:
    """When Drive goes, an empty local folder is left; what would be written there is lost, and
    Drive cannot be mounted again."""
    drive = tmp_path / "drive" / "MyDrive"
    drive.mkdir(parents=True)
    store = Store(tmp_path / "here", drive / "course" / "run")
    assert store.mirror
    store.save(1, {"model": {}})
    assert store.mirror.close(60)
    os.rename(drive, tmp_path / "gone")
    with pytest.warns(UserWarning,
                      match="is not there any more.. Training goes on and saves locally") as told:
        store.save(2, {"model": {}})
        store.mirror.close(60)
        store.save(3, {"model": {}})
    assert len(told) == 1
    assert not list((tmp_path / "drive").iterdir())
    os.rename(tmp_path / "gone", drive)
    store.save(4, {"model": {}})
    store.close()
    assert newest(Store(drive / "course" / "run")) == 4


def test_close_says_when_the_mirror_is_behind(tmp_path: Path) -> None:
    store = Store(tmp_path / "here", tmp_path / "there")
    assert store.mirror
    gate = threading.Event()
    copy = store.mirror.copy
    store.mirror.copy = lambda key, data: (gate.wait(), copy(key, data))  # type: ignore[method-assign]
    store.closing_time = 0.01
    store.save(5, {"model": {}})
    with pytest.warns(UserWarning,
                      match="The newest checkpoint, step 5, is in .*here but not yet in .*there"):
        store.close()
    gate.set()
    assert store.mirror.close(60)
    store.closing_time = 60
    store.save(6, {"model": {}})
    store.close()


def test_a_mirror_that_cannot_be_reached_at_the_start_is_told_and_tried_again(tmp_path:
        Path) -> None:
    (tmp_path / "drive").write_text("a file where a folder should be")
    store = Store(tmp_path / "here", tmp_path / "drive" / "run")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        store.open(IDENTITY, ENVIRONMENT)
        assert store.latest() is None
        store.save(1, {"model": {}})
        assert store.mirror
        store.mirror.close(60)
        store.save(2, {"model": {}})
    assert any("Training goes on" in str(warning.message) for warning in told)
    (tmp_path / "drive").unlink()
    store.save(3, {"model": {}})
    store.close()
    assert newest(Store(tmp_path / "drive" / "run")) == 3


def test_a_damaged_record_is_made_anew(tmp_path: Path) -> None:
    stored(tmp_path, step=1)
    (tmp_path / RECORD).write_text("<html>")
    store = Store(tmp_path)
    with pytest.warns(UserWarning, match="store.json is damaged and is made anew"):
        store.open(IDENTITY, ENVIRONMENT)
    assert newest(store) == 1
    store.close()
    (tmp_path / RECORD).unlink()
    other = Store(tmp_path)
    other.open({**IDENTITY, "rate": 5}, ENVIRONMENT)
    with pytest.warns(UserWarning, match="made by another run: rate is 5, was 0.001"):
        assert other.latest() is None  # each checkpoint knows its run
    other.close()


def test_the_order_of_a_save_and_of_a_copy(tmp_path: Path) -> None:
    """Nothing but a power cut can show that a fsync is missing: so the calls themselves are
    compared."""
    one_file = ["open", "write", "fsync", "close"]
    assert calls_of_a_save(tmp_path) == [*one_file, "replace", "open", "fsync", "close", "listdir",
                                         "unlink"]
    assert calls_of_a_save(tmp_path / "2", mirror=True) == ["makedirs", *one_file, "open",
                                                            "listdir", "truncate", "unlink"]


@pytest.mark.parametrize(("before", "after"), [*itertools.product((-YEAR, 0.0, YEAR), repeat=2)])
def test_the_same_choice_whatever_the_clock_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 before: float, after: float) -> None:
    now, store = time.time, Store(tmp_path / "here", tmp_path / "there")
    for step, shift in enumerate((before, after, before, after, 0.0), start=1):
        monkeypatch.setattr(time, "time", lambda shift=shift: now() + shift)
        store.open(IDENTITY, ENVIRONMENT)
        store.save(step, {"model": {}})
        store.close()
        for path in tmp_path.glob(f"*/ckpt-{step}-*"):
            os.utime(path, (now() + shift, now() + shift))
        assert newest(store) == step
    for place in (tmp_path / "here", tmp_path / "there"):
        assert sorted(key.step for key in Store(place).folder.copies()) == [3, 4, 5]
        for i, path in enumerate(sorted(place.iterdir())):
            os.utime(path, (now() + YEAR * (i % 3 - 1),) * 2)
        assert newest(Store(place)) == 5


def test_a_file_that_is_listed_but_not_there_is_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(1, {"model": {}})
    (tmp_path / str(Key(9, "a" * 64))).symlink_to("nowhere")
    with pytest.warns(UserWarning, match="ckpt-9-a* is skipped: .*No such file"):
        assert newest(store) == 1


def test_a_checkpoint_that_goes_while_it_is_read_has_a_newer_one(tmp_path: Path) -> None:
    class Racing(WatchedDisk):
        def before(self, number: int, name: str, args: tuple[Any, ...]) -> None:
            if name == "open" and "ckpt-1-" in str(args[0]):
                Store(tmp_path).save(2, {"model": {}})
                os.unlink(args[0])

    store = Store(tmp_path)
    store.save(1, {"model": {}})
    store.folder.disk = Racing()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert newest(store) == 2
