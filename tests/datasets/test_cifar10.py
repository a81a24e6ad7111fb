"""CIFAR-10 from each of its sources, on small files in the original formats, and what is said when
they are damaged."""

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from course_lib import CourseError, load
from course_lib.datasets import cifar10 as photos

HOME = Path.home() / ".cache" / "course-data"


def part(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8), np.arange(n, dtype=np.int64) % 10


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole data set of 50 training and 20 test images under its own hashes."""
    arrays = {"train": part(50, 0), "test": part(20, 1)}
    hashes = {k: hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest() for k,
              (x, y) in arrays.items()}
    monkeypatch.setattr(photos, "CIFAR10_SHA256", hashes)
    np.savez(tmp_path / "cifar10.npz", **{f"{axis}_{k}": v for k, xy in arrays.items() for axis,
                                          v in zip("xy", xy, strict=True)})
    return tmp_path


def as_batches(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images as the published pickles: five training batches and one to test."""
    from course_lib.data import torchvision_datasets

    folder = place / "cifar-10-batches-py"
    folder.mkdir()
    (train_x, train_y), (test_x, test_y) = part(50, 0), part(20, 1)
    files = {f"data_batch_{i + 1}": (train_x[10 * i : 10 * i + 10], train_y[10 * i : 10 * i + 10])
             for i in range(5)}
    md5 = {}
    for name, (x, y) in {**files, "test_batch": (test_x, test_y)}.items():
        (folder / name).write_bytes(pickle.dumps({"data": x.reshape(len(x), -1),
                                                  "labels": y.tolist()}, protocol=2))
        md5[name] = hashlib.md5((folder / name).read_bytes(), usedforsecurity=False).hexdigest()
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(photos.CIFAR10)},
                                                       protocol=2))
    cifar = torchvision_datasets().CIFAR10
    meta = {"filename": "batches.meta", "key": "label_names"}
    meta["md5"] = hashlib.md5((folder / "batches.meta").read_bytes(),
                              usedforsecurity=False).hexdigest()
    monkeypatch.setattr(cifar, "train_list", [[n, md5[n]] for n in files])
    monkeypatch.setattr(cifar, "test_list", [["test_batch", md5["test_batch"]]])
    monkeypatch.setattr(cifar, "meta", meta)


def test_the_embedded_part() -> None:
    d = load("cifar10", limit=2000)
    assert (len(d.train), len(d.val), len(d.test)) == (1600, 400,
                                                       2000) and d.train.x.shape[1:] == (3, 32, 32)
    assert d.classes == photos.CIFAR10
    assert [s.y.bincount().tolist() for s in (d.train, d.val, d.test)] == [[160] * 10, [40] * 10,
        [200] * 10]
    less = load("cifar10", limit=500)
    assert torch.equal(less.train.x, d.train.x[:400]) and torch.equal(less.val.x, d.val.x[:100])


@pytest.mark.skipif(not (HOME / "cifar10.npz").is_file(),
                    reason=f"the whole CIFAR-10 is not in {HOME}")
def test_the_embedded_images_are_those_of_the_full_set() -> None:
    full, small = load("cifar10", root=HOME), load("cifar10", limit=2000)
    assert (len(full.train), len(full.val), len(full.test)) == (40000, 10000, 10000)
    assert torch.equal(full.train.x[:1600], small.train.x) and torch.equal(full.val.x[:400],
        small.val.x)
    rows = {x.numpy().tobytes() for x in full.test.x}
    assert all(x.numpy().tobytes() in rows for x in small.test.x)


def test_an_array_file_and_the_published_pickles_give_the_same(made_up: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("cifar10", root=made_up)
    assert (len(first.train), len(first.val), len(first.test)) == (40, 10, 20)
    other = tmp_path / "other"
    other.mkdir()
    as_batches(other, monkeypatch)
    second = load("cifar10", root=other)
    assert [s.digest() for s in (first.train, first.val, first.test)] == [s.digest()
        for s in (second.train, second.val, second.test)]


def test_a_changed_pixel_is_seen(made_up: Path) -> None:
    with np.load(made_up / "cifar10.npz") as z:
        arrays = dict(z)
    arrays["x_test"][3, 1, 4, 5] ^= 1
    np.savez(made_up / "cifar10.npz", **arrays)
    with pytest.raises(CourseError, match="test part of CIFAR-10 is not the published one"):
        load("cifar10", root=made_up)


def test_a_damaged_array_file(made_up: Path) -> None:
    raw = (made_up / "cifar10.npz").read_bytes()
    for bad in (raw[: len(raw) // 2], b"<html>", b""):
        (made_up / "cifar10.npz").write_bytes(bad)
        with pytest.raises(CourseError, match="damaged"):
            load("cifar10", root=made_up)


def test_a_folder_without_it_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CourseError,
                       match="cifar-10-batches-py there, or name no folder; at most 2,000 images"):
        load("cifar10", root=tmp_path)


def test_a_damaged_embedded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(photos.EMBEDDED / "cifar10", tmp_path / "cifar10")
    monkeypatch.setattr(photos, "EMBEDDED", tmp_path)
    assert len(load("cifar10", limit=10).test) == 2000
    raw = bytearray((tmp_path / "cifar10" / "test.webp").read_bytes())
    raw[1000] ^= 1
    (tmp_path / "cifar10" / "test.webp").write_bytes(raw)
    with pytest.raises(CourseError, match=r"test\.webp is damaged"):
        load("cifar10", limit=10)
    (tmp_path / "cifar10" / "test.webp").unlink()
    with pytest.raises(CourseError, match="cannot be read"):
        load("cifar10", limit=10)


def test_the_list_of_contents_says_where_the_images_come_from() -> None:
    said = json.loads((photos.EMBEDDED / "cifar10" / "contents.json").read_text())
    assert said["training_images"] == 2000 and set(said["sha256"]) == {"train.webp", "train-labels",
        "test.webp", "test-labels"}
    assert "Krizhevsky" in (photos.EMBEDDED / "cifar10" / "README.md").read_text()


def test_tiles() -> None:
    sheet = np.arange(4 * 6 * 3).reshape(4, 6, 3)
    cut = photos.tiles(sheet, 2)
    assert cut.shape == (6, 3, 2, 2) and (cut[4] == sheet[2:4, 2:4].transpose(2, 0, 1)).all()
