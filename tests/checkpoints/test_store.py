import collections
import json
import os
import shutil
from unittest import mock

import numpy
import pytest
import torch
from safetensors import safe_open

from course_lib import CourseError
from course_lib.checkpoints import SaveError, Store
from course_lib.checkpoints.disk import Folder
from tests.faults.shims import calls_of_a_save, same


def newest(store):
    return (store.latest() or (0,))[0]


def test_a_state_comes_back_to_the_bit_and_can_be_read_by_others(tmp_path):
    model = torch.nn.Linear(3, 2)
    plain = {"numbers": [0.1, -0.0, 5e-324, float("inf"), 1 / 3, 10**30, True, 1, 1.0],
             "words": {"ε": "8/255", 7: None, True: (1, [2.5, ()]), None: "\ud800", "": {}}}
    tensors = {
        "model": dict(model.state_dict()), "tied": [model.weight, model.weight.t()],
        "kinds": [torch.ones(2, dtype=getattr(torch, kind)) for kind in (
            "float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "bool")],
        "empty": [torch.zeros(0, 3), [], {}, torch.tensor(3)],
        "last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)}
    store, moment = Store(tmp_path), {"w": torch.zeros(2)}
    assert store.latest() is None and store.status == "not saved yet"
    store.save(3, {**plain, **tensors, "moment": moment})
    assert store.status == "saved locally"
    moment["w"] += 1  # what is saved is the state of that moment
    step, again = Store(tmp_path).latest() or (0, {})
    assert step == 3 and repr({k: again[k] for k in plain}) == repr(plain)  # types, too
    tensors["tied"] = [weight.detach() for weight in tensors["tied"]]
    assert same({k: again[k] for k in tensors}, tensors)
    assert again["moment"]["w"].tolist() == [0, 0]
    assert not any(weight.requires_grad for weight in again["tied"])
    assert again["last"].is_contiguous(memory_format=torch.channels_last)
    (path,) = tmp_path.glob("ckpt-3-*")
    with safe_open(path, "pt") as file:  # one file of safetensors, each tensor under its path
        assert {"['model']['weight']", "['kinds'][0]"} <= set(file.keys())
        assert json.loads(file.metadata()["checkpoint"])["step"] == 3


def test_what_open_has_read_is_not_read_again(tmp_path, monkeypatch):
    Store(tmp_path).save(3, {"w": torch.zeros(2)})
    store, read = Store(tmp_path), mock.Mock(wraps=Folder.read)
    monkeypatch.setattr(Folder, "read", lambda *words: read(*words))
    store.open({}, {})
    assert newest(store) == 3 and read.call_count == 1
    store.save(4, {"w": torch.zeros(2)})
    assert newest(store) == 4 and read.call_count == 2


@pytest.mark.parametrize(("value", "word"), [
    (numpy.float64(1), "numpy.float64"), ({1, 2}, "set"), (torch.zeros(2).to_sparse(), "Tensor"),
    (torch.zeros(2, dtype=torch.complex128), "Tensor"),
    (collections.OrderedDict([(1.5j, 2)]), "complex")])
def test_a_state_that_could_not_be_loaded_again_is_refused(tmp_path, value, word):
    store = Store(tmp_path)
    with pytest.raises(CourseError, match=rf"state\['list'\]\[1\] holds a .*{word}; a state holds "
                       "dense tensors"):
        store.save(1, {"list": [0, value]})
    assert store.latest() is None


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, bad):
    store = Store(tmp_path)
    store.save(1, {"model": {"w": torch.zeros(2)}, "loss": bad, "best": torch.tensor(bad)})
    with pytest.raises(SaveError, match=r"\['model'\]\['w'\] is NaN or infinite"):
        store.save(2, {"model": {"w": torch.tensor([0.0, bad])}})
    assert newest(store) == 1 and "NaN" in store.status


def test_a_store_beside_another_is_found_in_the_mirror_alone(tmp_path):
    first = Store(tmp_path / "here", tmp_path / "there")
    assert first.fresh().dir == first.fresh().dir and first.siblings() == []  # nothing is saved
    first.fresh().save(1, {"model": {}})
    for folder in tmp_path.glob("here*"):
        shutil.rmtree(folder)
    (again,) = Store(tmp_path / "here", tmp_path / "there").siblings()
    assert newest(again) == 1 and again.dir.name == "here-2"


def test_an_unmounted_drive_is_not_taken_for_a_folder(tmp_path):
    """When Drive goes, an empty local folder is left; what would be written there is lost, and
    Drive cannot be mounted again."""
    (drive := tmp_path / "drive" / "MyDrive").mkdir(parents=True)
    store = Store(tmp_path / "here", drive / "course" / "run")
    store.save(1, {"model": {}})
    os.rename(drive, tmp_path / "gone")
    with pytest.warns(UserWarning, match="Training goes on and saves locally") as told:
        store.save(2, {"model": {}})
        store.save(3, {"model": {}})
    assert len(told) == 1 and not list((tmp_path / "drive").iterdir())
    os.rename(tmp_path / "gone", drive)
    store.save(4, {"model": {}})
    assert newest(Store(drive / "course" / "run")) == 4


def test_the_order_of_a_save_and_of_a_copy(tmp_path):
    """Only a power cut can show that a fsync is missing: so the calls themselves are compared."""
    one_file = ["open", "write", "fsync", "close"]
    assert calls_of_a_save(tmp_path) == [*one_file, "replace", "open", "fsync", "close", "listdir",
                                         "unlink"]
    assert calls_of_a_save(tmp_path / "2", mirror=True) == ["makedirs", *one_file, "open",
                                                            "listdir", "truncate", "unlink"]


def test_the_newest_has_the_most_steps_whatever_the_clock_says(tmp_path):
    store = Store(tmp_path / "here", tmp_path / "there")
    for step in range(1, 6):
        store.save(step, {"model": {}})
        for path in tmp_path.glob(f"*/ckpt-{step}-*"):
            os.utime(path, (1e8 * (10 - step),) * 2)
        assert newest(store) == step
    for folder in store.folders:
        assert sorted(step for step, _ in folder.checkpoints()) == [3, 4, 5]
