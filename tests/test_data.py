import dataclasses
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from course_lib import data as room
from course_lib.data import EMBEDDED, FASHION, FASHION_MD5, Split, batches, halves, load, resize, stratified, torchvision_datasets
from course_lib.errors import CourseError
from tests.helpers import THREE, images, labels, seeded, split, tiny_dataset

# the whole set, on machines where somebody put it
HOME = Path.home() / ".cache" / "course-data" / "fashion-mnist"
SMALL = EMBEDDED / "fashion-mnist"
PUBLISHED = {"t10k-images-idx3-ubyte": 10_000, "t10k-labels-idx1-ubyte": 10_000}


def proportions(y: Tensor, classes: int = 10) -> list[float]:
    return (torch.bincount(y, minlength=classes) / len(y)).tolist()


# ------------------------------------------------------------------------------------------ the embedded data


def test_embedded_files_hash_to_what_stands_beside_them() -> None:
    wanted = json.loads((SMALL / "contents.json").read_text())["sha256"]
    assert {n: hashlib.sha256((SMALL / n).read_bytes()).hexdigest() for n in wanted} == wanted
    assert {p.name for p in SMALL.iterdir()} == {*wanted, "contents.json", "README.md"}
    assert "MIT" in (SMALL / "README.md").read_text(), "the licence stands beside the data"


@pytest.mark.parametrize("name", PUBLISHED)
def test_embedded_test_files_are_the_published_ones(name: str) -> None:
    content = gzip.decompress((SMALL / f"{name}.gz").read_bytes())
    assert hashlib.md5(content, usedforsecurity=False).hexdigest() == FASHION_MD5[name]


def test_fashion_mnist_embedded() -> None:
    d = load("fashion-mnist", limit=6000)
    assert [len(s) for s in (d.train, d.val, d.test)] == [4800, 1200, 10_000] and d.classes == FASHION and d.groups == ()
    for s in (d.train, d.val, d.test):
        assert s.x.shape[1:] == (1, 32,
                                 32) and s.x.dtype == torch.uint8 and s.y.dtype == torch.int64
        assert proportions(s.y) == pytest.approx([0.1] * 10, abs=0.002)
    pixels = d.test.images(slice(0, 100))
    assert (pixels.dtype == torch.float32 and pixels.min() == 0 and pixels.max() > 0.9
            and pixels.max() <= 1)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_smaller_limit_is_the_beginning_of_a_larger_one(seed: int) -> None:
    large, small = (load("fashion-mnist", limit=n, seed=seed) for n in (1000, 137))
    assert (len(small.train), len(small.val)) == (110, 27)
    for part in ("train", "val"):
        s, ref = getattr(small, part), getattr(large, part)
        assert torch.equal(s.x, ref.x[: len(s)]) and torch.equal(s.y, ref.y[: len(s)])
        assert proportions(s.y) == pytest.approx([0.1] * 10, abs=1 / len(s))


def test_the_seed_chooses_the_split_and_nothing_else_does() -> None:
    def rows(seed: int) -> list[str]:
        torch.rand(3)
        d = load("fashion-mnist", limit=500, seed=seed)
        return [d.train.digest(), d.val.digest(), d.test.digest()]

    first, second = rows(1), rows(2)
    assert first == rows(1) and first[2] == second[2] and first[0] != second[0] and first[
        1] != second[1]


def test_training_and_validation_do_not_overlap() -> None:
    d = load("fashion-mnist", limit=6000)
    train, val = ({x.numpy().tobytes() for x in s.x} for s in (d.train, d.val))
    assert len(train) == 4800 and not train & val


def test_the_embedded_images_split_as_in_the_full_set() -> None:
    """So no validation image of a small run was ever trained on by a stored model: here on a
    made-up full set."""
    full = split(1000, (1, 2, 2))
    train, val = halves(full, None, 0)
    pool = Split(torch.cat([train.x[:80], val.x[:20]]), torch.cat([train.y[:80], val.y[:20]]),
                 THREE)
    for limit in (100, 37, 10):
        for mine, other in zip(room.embedded_halves(pool, limit, 0, 100), halves(full, limit, 0),
                               strict=True):
            assert mine.digest() == other.digest()


@pytest.mark.skipif(not HOME.is_dir(), reason=f"the whole Fashion-MNIST is not in {HOME}")
def test_the_embedded_images_are_those_of_the_full_set() -> None:
    full, small = load("fashion-mnist", root=HOME, limit=6000), load("fashion-mnist", limit=6000)
    assert [full.train.digest(), full.val.digest(), full.test.digest()] == [small.train.digest(),
        small.val.digest(), small.test.digest()]
    whole = load("fashion-mnist", root=HOME)
    assert (len(whole.train), len(whole.val), len(whole.whole().train)) == (48_000, 12_000, 60_000)


# ------------------------------------------------------------------------------------------ folders


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape,
                                                        ">i4").tobytes() + array.astype(
                                                            np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small 'Fashion-MNIST' in its own format, whose hashes count as the published ones."""
    place, rng = tmp_path / "named", np.random.default_rng(0)
    place.mkdir()
    sizes = {"train": 200, "t10k": 60}
    for name in FASHION_MD5:
        n = sizes[name.split("-")[0]]
        content = idx(rng.integers(0, 256, (n, 28, 28)) if "images" in name else np.arange(n) % 10)
        monkeypatch.setitem(FASHION_MD5, name,
                            hashlib.md5(content, usedforsecurity=False).hexdigest())
        (place / name).write_bytes(content)
    return place


def compress(place: Path) -> None:
    for path in list(place.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("inside", [".", "fashion-mnist", "FashionMNIST/raw"])
def test_a_named_folder_comes_first(folder: Path, tmp_path: Path, inside: str, compressed: bool,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    if compressed:
        compress(folder)
    root = tmp_path / "root"
    if inside == ".":
        root = folder
    else:
        shutil.copytree(folder, root / inside)
    d = load("fashion-mnist", root=root)
    assert [len(s) for s in (d.train, d.val, d.test)] == [160, 40, 60]
    assert sorted(d.whole().train.y.tolist()) == sorted(n % 10 for n in range(200))
    monkeypatch.setenv("COURSE_DATA", str(root))
    again = load("fashion-mnist")
    assert again.train.digest() == d.train.digest() and again.test.digest() == d.test.digest()


def test_the_cache_comes_before_a_download(folder: Path, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "torchvision_datasets",
                        lambda: pytest.fail("nothing was to be downloaded"))
    shutil.copytree(folder, tmp_path / "cache" / "fashion-mnist")
    assert load("fashion-mnist").train.digest() == load("fashion-mnist", root=folder).train.digest()


def test_a_download_comes_last(folder: Path, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    class Datasets:
        @staticmethod
        def FashionMNIST(place: Path, download: bool) -> None:
            assert download
            shutil.copytree(folder, place / "FashionMNIST" / "raw")

    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "torchvision_datasets", lambda: Datasets)
    assert load("fashion-mnist").train.digest() == load("fashion-mnist", root=folder).train.digest()


def test_training_images_are_read_only_when_asked_for(folder: Path) -> None:
    d = load("fashion-mnist", root=folder)
    (folder / "train-images-idx3-ubyte").write_bytes(b"")
    assert len(d.test) == 60
    with pytest.raises(CourseError, match="not the published file"):
        d.val  # noqa: B018


def remove(place: Path, part: str) -> None:
    for path in place.glob(f"{part}*"):
        path.unlink()


def cut(place: Path, name: str, keep: float = 0.5) -> None:
    path = next(place.glob(f"{name}*"))
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])


def flip(place: Path, name: str, at: int) -> None:
    """One bit of one byte; byte 10 begins the compressed data, -1 ends the length that gzip
    checks."""
    path = next(place.glob(f"{name}*"))
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x02
    path.write_bytes(raw)


BYTES = (0, 2, 3, 10, 40, 150, 1000, -1)
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "half the files": (lambda p: remove(p, "train"),
                       "holds only some.*train-images-idx3-ubyte, train-labels"),
    "one file gone": (lambda p: remove(p, "t10k-labels"), "missing: t10k-labels-idx1-ubyte"),
    "no file at all": (lambda p: remove(p, "t"),
                       "does not hold Fashion-MNIST. Put its four files there"),
    "truncated": (lambda p: cut(p, "train-labels"),
                  "train-labels.*(damaged|not the published file)"),
    "cut to almost nothing": (lambda p: cut(p, "t10k-images", 0.001),
                              "t10k-images.*(damaged|not the published file)"),
    "empty": (lambda p: cut(p, "t10k-images", 0), "t10k-images.*(damaged|not the published file)"),
    **{
        f"a bit of byte {at}": (lambda p, at=at: flip(p, "train-images", at),
                                "train-images.*(damaged|not the published file)")
        for at in BYTES
    },
    "something else": (
        lambda p: next(p.glob("train-images*")).write_bytes(b"<html>quota exceeded</html>"),
        "(damaged|not the published file).*fetch it again",
    ),
    "another file's content": (
        lambda p: shutil.copy(next(p.glob("t10k-labels*")), next(p.glob("train-labels*"))),
        "not the published file",
    ),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder(folder: Path, kind: str, compressed: bool) -> None:
    if compressed:
        compress(folder)
    damage, say = DAMAGE[kind]
    damage(folder)
    before = sorted(os.listdir(folder))
    with pytest.raises(CourseError, match=say):
        load("fashion-mnist", root=folder).train  # noqa: B018
    assert sorted(os.listdir(folder)) == before


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="does not hold Fashion-MNIST"):
        load("fashion-mnist", root=tmp_path / "nowhere")


EMBEDDED_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "test images cut": (lambda p: cut(p, "t10k-images"),
                        "t10k-images.*(damaged|not the published).*"),
    **{
        f"test labels, a bit of byte {at}": (lambda p, at=at: flip(p, "t10k-labels", at),
                                             "t10k-labels.*(damaged|not the published)")
        for at in BYTES
    },
    "training images, a bit": (lambda p: flip(p, "train-images", 10_000),
                               "train-images.*(damaged|not the published)"),
    "training labels gone": (lambda p: remove(p, "train-labels"),
                             "train-labels.*is not there. Reinstall"),
    "contents gone": (lambda p: remove(p, "contents"), "contents.json.*[Rr]einstall"),
    "contents cut": (lambda p: cut(p, "contents"), "contents.json.*[Rr]einstall"),
    "contents of another kind": (lambda p: (p / "contents.json").write_text("[1]"),
                                 "contents.json.*[Rr]einstall"),
    "contents without hashes": (lambda p: (p
                                           / "contents.json").write_text(
                                               '{"training_images": 6000}'),
                                "contents.json.*[Rr]einstall"),
    "contents not text": (lambda p: (p / "contents.json").write_bytes(b"\xff\xfe\xff"),
                          "contents.json.*[Rr]einstall"),
}


@pytest.mark.parametrize("kind", EMBEDDED_DAMAGE)
def test_damaged_embedded_data(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "embedded")
    monkeypatch.setattr(room, "EMBEDDED", tmp_path / "embedded")
    damage, say = EMBEDDED_DAMAGE[kind]
    damage(tmp_path / "embedded" / "fashion-mnist")
    with pytest.raises(CourseError, match=say):
        load("fashion-mnist", limit=100).train  # noqa: B018


@pytest.mark.parametrize("error", [OSError("no route to host"),
                                   RuntimeError("File not found or corrupted.")])
@pytest.mark.parametrize("limit", [None, 6001])
def test_no_network_is_an_error_and_never_a_smaller_set(
    limit: int | None, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(room, "torchvision_datasets", fail)
    d = load("fashion-mnist", limit=limit)
    assert len(d.test) == 10_000
    with pytest.raises(CourseError,
                       match=f"could not be downloaded .{error}.*limit=6000") as caught:
        d.train  # noqa: B018
    assert "root=..." in str(caught.value) and not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"name": "mnist"}, "Unknown data set 'mnist'.*fashion-mnist"),
        ({"name": None}, "Unknown data set None"),
        *[({"name": "fashion-mnist", "limit": v}, "limit is") for v in (0, -1, 2.5, "100", True)],
        ({"name": "fashion-mnist", "limit": 100, "seed": -1}, "seed is -1"),
    ],
)
def test_bad_arguments(words: dict[str, Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        load(**words)


# ------------------------------------------------------------------------------------------ resizing


def test_resize_is_torchvisions_byte_for_byte() -> None:
    from PIL import Image

    torchvision_datasets()  # makes torchvision importable
    from torchvision.transforms import Resize

    noise = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    real = room._read_idx(SMALL, "t10k-images-idx3-ubyte", SMALL)[:200]
    for grey in (noise, real, np.zeros((1, 28, 28), np.uint8), np.full((1, 28, 28), 255, np.uint8)):
        theirs = np.stack([np.asarray(Resize(32)(Image.fromarray(image))) for image in grey])
        assert np.array_equal(resize(grey, 32)[:, 0].numpy(), theirs)
    assert torch.equal(load("fashion-mnist").test.x[:200], resize(real, 32))


# ------------------------------------------------------------------------------------------ torchvision beside another torch

FAKES = {
    "fits": ("OK = True", ""),
    "does not fit": ("raise RuntimeError('operator torchvision::nms does not exist')", ""),
    "fails otherwise": ("raise RuntimeError('something else')", "something else"),
}


@pytest.mark.parametrize("kind", FAKES)
def test_torchvision_that_does_not_fit_this_torch(kind: str, tmp_path: Path) -> None:
    registrations, error = FAKES[kind]
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import _meta_registrations, datasets\n")
    (package / "_meta_registrations.py").write_text(registrations)
    (package / "datasets.py").write_text("NAME = 'the real datasets'\n")
    script = (
        "import sys; from course_lib.data import torchvision_datasets as get\n"
        "assert get().NAME == 'the real datasets' and get() is get()\n"
        f"assert hasattr(sys.modules['torchvision._meta_registrations'], 'OK') == {kind == 'fits'}"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False
    )
    assert (done.returncode == 0) == (not error) and error in done.stderr, done.stderr


# ------------------------------------------------------------------------------------------ splits


def test_images_are_served_in_0_to_1() -> None:
    s = Split(torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1), labels(3), THREE)
    assert s.images().flatten().tolist() == pytest.approx([0, 0.2,
                                                           1]) and s.images(
                                                               torch.tensor([2])).item() == 1
    floats = split()
    assert torch.equal(floats.images(), floats.x)


@given(st.integers(1, 40), st.integers(1, 45), st.integers(0, 3))
def test_batches_serve_each_example_once(n: int, size: int, seed: int) -> None:
    s = split(n, (1, 1, 1))
    for generator in (None, seeded(seed)):
        served = list(batches(s, size, generator))
        assert [len(y) for _, y in served] == [size] * (n // size) + [n % size] * (n % size > 0)
        x, y = torch.cat([x for x, _ in served]).flatten(), torch.cat([y for _, y in served])
        order = [s.x.flatten().tolist().index(v) for v in x.tolist()]
        assert sorted(order) == list(range(n)) and torch.equal(y,
            s.y[order]) and (generator is not None or order == list(range(n)))


def test_the_order_is_the_generators() -> None:
    def order(seed: int) -> list[int]:
        return [int(v) for _, y in batches(Split(images(50), torch.arange(50),
                                                 tuple(map(str, range(50)))), 7, seeded(seed))
                for v in y]

    assert order(1) == order(1) != order(2) and order(1) != list(range(50))


@given(st.data())
def test_a_masked_example_leaves_every_other_batch_as_it_was(data: Any) -> None:
    n, size = data.draw(st.integers(2, 30)), data.draw(st.integers(1, 12))
    i, seed = data.draw(st.integers(0, n - 1)), data.draw(st.sampled_from([None, 0, 1]))
    s = split(n, (1, 1, 1))
    whole, less = (list(batches(part, size, None if seed is None else seeded(seed)))
                   for part in (s, s.masked(i)))
    gone = s.x[i].item()
    expected = [(x[x.flatten() != gone], y[x.flatten() != gone]) for x, y in whole]
    expected = [(x, y) for x, y in expected if len(y)]
    assert len(s.masked(i)) == n - 1 and len(less) == len(expected)
    for (x, y), (ex, ey) in zip(less, expected, strict=True):
        assert torch.equal(x, ex) and torch.equal(y, ey)


@pytest.mark.parametrize("i", [-1, 26])
def test_only_an_example_that_is_there_can_be_masked(i: int) -> None:
    with pytest.raises(CourseError, match=f"no example {i}; this split holds 26"):
        split().masked(i)


def test_digest_tells_splits_apart() -> None:
    s = split()
    others = [
        s.masked(0),
        s.masked(1),
        s.take(slice(0, 25)),
        split(seed=1),
        dataclasses.replace(s, classes=("cat", "dog", "cow")),
        dataclasses.replace(s, y=(s.y + 1) % 3),
        dataclasses.replace(s, x=s.x.double()),
        dataclasses.replace(s, x=s.x.flip(0)),
    ]
    assert len({s.digest(), *(o.digest() for o in others)}) == 1 + len(
        others) and s.digest() == split().digest()


def test_take_and_per_class() -> None:
    s = Split(images(9), labels(9), THREE, {"sex": torch.arange(9) % 2})
    assert s.take(s.y == 1).groups["sex"].tolist() == [1, 0, 1]
    few = s.per_class(2)
    assert few.y.tolist() == [0, 1, 2, 0, 1, 2] and torch.equal(few.x, s.x[:6])
    with pytest.raises(CourseError, match="1 or more"):
        s.per_class(0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor), st.integers(0, 3))
def test_every_beginning_is_stratified(y: Tensor, seed: int) -> None:
    order = stratified(y, seed)
    assert sorted(order.tolist()) == list(range(len(y))) and torch.equal(order, stratified(y, seed))
    for n in range(1, len(y) + 1):
        share = torch.bincount(y[order[:n]], minlength=5) - n * torch.bincount(y,
            minlength=5) / len(y)
        # classes differ from their due by at most a few rounded examples
        assert share.abs().max() <= 2.5


def test_whole_joins_and_keeps_the_validation_set() -> None:
    d = tiny_dataset()
    w = d.whole()
    assert (
        len(w.train) == 33
        and torch.equal(w.train.x, torch.cat([d.train.x, d.val.x]))
        and w.val.digest() == d.val.digest()
        and w.test is d.test
    )


@pytest.mark.parametrize("gone", [["dog"], [1], ("dog", 1)])
def test_without_drops_and_renumbers(gone: Any) -> None:
    d = tiny_dataset()
    less = d.without(gone)
    assert less.classes == less.train.classes == ("cat", "frog")
    for part in ("train", "val", "test"):
        mine, other = getattr(less, part), getattr(d, part)
        kept = other.y != 1
        assert torch.equal(mine.x, other.x[kept]) and torch.equal(mine.y, other.y[kept] // 2)


@pytest.mark.parametrize(
    ("gone", "say"),
    [(["cow"], "Unknown class 'cow'.*cat, dog, frog"), ([3], "0 to 2"), ([-1], "0 to 2"),
     (["cat", "dog"], "two must be left")],
)
def test_without_classes_that_are_not_there(gone: list[Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        tiny_dataset().without(gone)


@pytest.mark.parametrize(
    ("x", "y", "say"),
    [
        (images(3) * 255, labels(3), r"\[0, 1\].*span"),
        (images(3) - 1, labels(3), r"\[0, 1\]"),
        (images(3).masked_fill(images(3) > 0.9, torch.nan), labels(3), "nan"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.int32), labels(3), "int32"),
        (images(3), labels(2), "3 images need 3 labels"),
        (images(3), labels(3).float(), "int64"),
        (images(3), labels(3) + 1, "3 classes"),
        (images(3), labels(3) - 1, "from -1"),
    ],
)
def test_a_split_that_cannot_be(x: Tensor, y: Tensor, say: str) -> None:
    with pytest.raises(CourseError, match=say):
        Split(x, y, THREE)


def test_a_batch_size_must_be_a_whole_number() -> None:
    with pytest.raises(CourseError, match="batch size is 0"):
        next(batches(split(), 0))
