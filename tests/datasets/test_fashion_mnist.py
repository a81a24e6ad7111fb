"""Fashion-MNIST from each of its sources, whole and damaged, and the door to torchvision."""

import gzip
import json
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from course_lib import CourseError, data, load
from course_lib.data import EMBEDDED, Split, halves
from course_lib.datasets import sources
from course_lib.datasets.fashion_mnist import FASHION, SHA256, read_idx
from course_lib.files import sha256_of
from tests.helpers import THREE, split


def test_the_embedded_part():
    for name, credit in (("fashion-mnist", "MIT"), ("cifar10", "Krizhevsky")):
        wanted = json.loads((EMBEDDED / name / "contents.json").read_text())["sha256"]
        names = {p.name for p in (EMBEDDED / name).iterdir()}
        assert names == {*wanted, "contents.json", "README.md"}
        assert credit in (EMBEDDED / name / "README.md").read_text(), "the licence is beside it"
    d = load("fashion-mnist", limit=6000)
    parts = (d.train, d.val, d.test)
    assert d.classes == FASHION and d.test.groups == {}
    # stored records name the digests of what was trained on
    assert [s.digest()[:8] for s in parts] == ["c8e91706", "8ff8eb62", "c62710fc"]
    for s, n in zip(parts, (4800, 1200, 10_000), strict=True):
        assert (s.x.shape, s.x.dtype) == ((n, 1, 32, 32), torch.uint8)
        assert (s.y.bincount() / n).tolist() == pytest.approx([0.1] * 10, abs=0.002)
    train, val = ({x.numpy().tobytes() for x in s.x} for s in (d.train, d.val))
    assert len(train) == 4800 and not train & val


def test_a_smaller_limit_is_the_beginning_and_the_seed_alone_chooses_the_split():
    large = load("fashion-mnist", limit=1000)
    torch.rand(3)
    small, again, other = (load("fashion-mnist", limit=137, seed=seed) for seed in (0, 0, 1))
    for part, n in (("train", 110), ("val", 27)):
        s, ref = getattr(small, part), getattr(large, part)
        assert len(s) == n and torch.equal(s.x, ref.x[:n]) and torch.equal(s.y, ref.y[:n])
        assert (s.y.bincount() / n).tolist() == pytest.approx([0.1] * 10, abs=1 / n)
        assert getattr(again, part).digest() == s.digest() != getattr(other, part).digest()
    assert small.test.digest() == other.test.digest()


def test_the_embedded_images_split_as_in_the_full_set():
    """So no validation image of a small run was ever trained on by a stored model: here on a
    made-up full set."""
    full = split(1000, (1, 2, 2))
    train, val = halves(full, None, 0)
    x, y = (torch.cat([getattr(train, k)[:80], getattr(val, k)[:20]]) for k in "xy")
    for limit in (100, 37, 10):
        mine = sources.embedded_halves(Split(x, y, THREE), limit, 0, 100)
        assert [s.digest() for s in mine] == [s.digest() for s in halves(full, limit, 0)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small 'Fashion-MNIST' in its own format, whose hashes count as the published ones."""
    place, rng = tmp_path / "named", np.random.default_rng(0)
    place.mkdir()
    for name in SHA256:
        n = {"train": 200, "t10k": 60}[name.split("-")[0]]
        a = rng.integers(0, 256, (n, 28, 28)) if "images" in name else np.arange(n) % 10
        content = (b"\0\0\x08" + bytes([a.ndim]) + np.array(a.shape, ">i4").tobytes()
                   + a.astype(np.uint8).tobytes())
        monkeypatch.setitem(SHA256, name, sha256_of(content))
        (place / name).write_bytes(gzip.compress(content))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return place


@pytest.mark.parametrize("inside", ["fashion-mnist", "FashionMNIST/raw"])
def test_a_named_folder_then_the_cache_and_a_download_comes_last(inside, folder, tmp_path,
                                                                 monkeypatch):
    class Datasets:
        @staticmethod
        def FashionMNIST(place, download):
            if not download:
                raise RuntimeError("Dataset not found.")
            shutil.copytree(folder, place / "FashionMNIST" / "raw")

    shutil.copytree(folder, tmp_path / "root" / inside)
    d = load("fashion-mnist", root=tmp_path / "root")
    assert [len(s) for s in (d.train, d.val, d.test)] == [160, 40, 60]
    assert sorted(d.whole().train.y.tolist()) == sorted(n % 10 for n in range(200))
    monkeypatch.setattr(sources, "torchvision_datasets", lambda: Datasets)
    assert load("fashion-mnist").train.digest() == d.train.digest()
    shutil.rmtree(tmp_path / "cache")
    shutil.copytree(folder, tmp_path / "cache" / inside)
    monkeypatch.setattr(sources, "torchvision_datasets", lambda: pytest.fail("it is in the cache"))
    assert load("fashion-mnist").train.digest() == d.train.digest()


Damage = Callable[[Path], object]


def remove(part):
    return lambda place: [path.unlink() for path in place.glob(f"{part}*")]


def rewrite(name, change):
    def damage(place):
        path = next(place.glob(f"{name}*"))
        path.write_bytes(change(path.read_bytes()))

    return damage


def flip(name, at):
    """One bit of one byte; byte 10 begins the compressed data, -1 ends the length that gzip
    checks."""
    return rewrite(name, lambda raw: raw[:at] + bytes([raw[at] ^ 0x02]) + raw[at:][1:])


BYTES = (3, 10, 1000, -1)
WRONG = "(damaged|not the published file).*etch it again, or reinstall"
DAMAGE: list[tuple[Damage, str]] = [
    (remove("train-labels"), "lacks Fashion-MNIST. Put all of train-images.*t10k-labels"),
    (shutil.rmtree, "lacks Fashion-MNIST"),
    (rewrite("t10k-images", lambda raw: b""), f"t10k-images.*{WRONG}"),
    *((flip("train-images", at), f"train-images.*{WRONG}") for at in BYTES),
    (lambda p: shutil.copy(next(p.glob("t10k-labels*")), next(p.glob("train-labels*"))),
     "not the published file: its sha256 is")]


def test_a_damaged_folder(folder, monkeypatch):
    for i, (damage, say) in enumerate(DAMAGE):
        place = shutil.copytree(folder, folder.parent / str(i) / "it")
        damage(place)
        before = sorted(place.parent.rglob("*"))
        with pytest.raises(CourseError, match=say):
            d = load("fashion-mnist", root=place)
            assert len(d.test) == 60, "training images are read when they are asked for"
            d.train  # noqa: B018
        assert sorted(place.parent.rglob("*")) == before
    monkeypatch.setattr(sources, "LARGEST", 10_000)  # of 47,056 bytes, and read no further
    with pytest.raises(CourseError, match="t10k-images.*not the published file"):
        load("fashion-mnist", root=folder)


EMBEDDED_DAMAGE: list[tuple[str, Damage, str]] = [
    *(("fashion-mnist", flip("t10k-labels", at), f"t10k-labels.*{WRONG}") for at in BYTES),
    ("fashion-mnist", flip("train-images", 10_000), f"train-images.*{WRONG}"),
    ("fashion-mnist", remove("train-labels"), "train-labels.*missing.*reinstall the course"),
    ("fashion-mnist", remove("contents"), "contents.json cannot be read.*restore"),
    *(("fashion-mnist", rewrite("contents", lambda _, new=new: new), say) for new, say in (
        (b"[1]", "contents.json is damaged"), (b'{"training_images": 6000}', WRONG))),
    *(("adult", flip("adult.data", at), f"adult.data.*{WRONG}") for at in BYTES),
    ("adult", remove("adult.test"), "adult.test.*missing"),
    ("cifar10", flip("test.webp", 1000), f"test.webp.*{WRONG}"),
    ("cifar10", flip("test-labels", 1000), f"test-labels.*{WRONG}")]


def test_damaged_embedded_data(tmp_path, monkeypatch):
    for i, (name, damage, say) in enumerate(EMBEDDED_DAMAGE):
        damage(shutil.copytree(EMBEDDED / name, tmp_path / str(i) / name))
        monkeypatch.setattr(data, "EMBEDDED", tmp_path / str(i))
        with pytest.raises(CourseError, match=say):
            load(name, limit=100).train  # noqa: B018


def test_images_are_resized_as_torchvision_does_byte_for_byte():
    from PIL import Image

    sources.torchvision_datasets()  # makes torchvision importable
    from torchvision.transforms import Resize

    name = "t10k-images-idx3-ubyte.gz"
    real = read_idx(EMBEDDED / "fashion-mnist" / name, SHA256[name])[:200]
    theirs = np.stack([np.asarray(Resize(32)(Image.fromarray(image))) for image in real])
    assert np.array_equal(load("fashion-mnist").test.x[:200, 0].numpy(), theirs)


@pytest.mark.parametrize(("registrations", "error"), [
    ("OK = True", ""), ("raise RuntimeError('operator torchvision::nms does not exist')", ""),
    ("raise RuntimeError('something else')", "something else")])
def test_torchvision_that_does_not_fit_this_torch(registrations, error, tmp_path, monkeypatch):
    package, part = tmp_path / "torchvision", "torchvision._meta_registrations"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import _meta_registrations, datasets\n")
    (package / "_meta_registrations.py").write_text(registrations)
    (package / "datasets.py").write_text("NAME = 'the real datasets'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with mock.patch.dict(sys.modules), pytest.raises(RuntimeError) if error else nullcontext():
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        found = sources.torchvision_datasets()
        assert found.NAME == "the real datasets" and found is sources.torchvision_datasets()
        assert hasattr(sys.modules[part], "OK") == (registrations == "OK = True")
