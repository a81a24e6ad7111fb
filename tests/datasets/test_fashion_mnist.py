"""Fashion-MNIST from each of its sources, whole and damaged, and the door to torchvision."""

import gzip
import json
import shutil
import sys
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest
import torch

from course_lib import CourseError, data, halves, load
from course_lib.data import EMBEDDED, Split
from course_lib.datasets import sources
from course_lib.datasets.fashion_mnist import FASHION, SHA256, read_idx
from course_lib.files import sha256_of
from tests.helpers import THREE, split


def test_the_embedded_part():
    for name, credit in (("fashion-mnist", "MIT"), ("cifar10", "Krizhevsky"), ("adult", "CC BY")):
        wanted = json.loads((EMBEDDED / name / "contents.json").read_text())["sha256"]
        names = {p.name for p in (EMBEDDED / name).iterdir()}
        assert names == {*wanted, "contents.json", "README.md"}
        assert credit in (EMBEDDED / name / "README.md").read_text(), "the licence is beside it"
    d = load("fashion-mnist", limit=6000)
    parts = (d.train, d.val, d.test)
    assert d.classes == FASHION and d.test.groups == {}
    # stored records name the digests of what was trained on
    assert [s.digest()[:8] for s in parts] == ["c8e91706", "8ff8eb62", "c62710fc"]


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
        mine = halves(Split(x, y, THREE), limit, None)
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


WRONG = "(damaged|not the published file).*etch it again, or reinstall"


def damaged(good):
    """Cut, empty, or with another bit: byte 10 of a .gz begins the compressed data, -1 ends the
    length that gzip checks."""
    flipped = (good[:at] + bytes([good[at] ^ 0x02]) + good[at:][1:] for at in (3, 10, 1000, -1))
    return [b"", good[:1000], *flipped]


def test_a_file_is_what_was_published_or_refused(tmp_path, monkeypatch):
    content, path = np.random.default_rng(0).bytes(5000), tmp_path / "x.gz"
    good, sha256 = gzip.compress(content), sha256_of(content)
    with pytest.raises(CourseError, match=r"x\.gz is missing or damaged"):
        sources.checked(path, sha256)
    path.write_bytes(good)
    assert sources.checked(path, sha256) == content
    for bad in damaged(good):
        path.write_bytes(bad)
        with pytest.raises(CourseError, match=rf"x\.gz.*{WRONG}"):
            sources.checked(path, sha256)
    path.write_bytes(good)
    monkeypatch.setattr(sources, "LARGEST", 4999)  # and read no further
    with pytest.raises(CourseError, match="not the published file"):
        sources.checked(path, sha256)


def test_a_damaged_folder(folder):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(
        (folder / "t10k-labels-idx1-ubyte.gz").read_bytes())
    d = load("fashion-mnist", root=folder)  # training images are read when they are asked for
    with pytest.raises(CourseError, match="train-labels.*not the published file"):
        d.train  # noqa: B018
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CourseError, match="lacks Fashion-MNIST. Put all of train-images.*t10k-"):
        load("fashion-mnist", root=folder)


@pytest.mark.parametrize(("name", "file"), [
    ("fashion-mnist", "t10k-labels-idx1-ubyte.gz"), ("fashion-mnist", "train-images-idx3-ubyte.gz"),
    ("adult", "adult.test.gz"), ("adult", "adult.data.gz"), ("cifar10", "test.webp"),
    ("cifar10", "train-labels")])
def test_damaged_embedded_data(name, file, tmp_path, monkeypatch):
    path = shutil.copytree(EMBEDDED / name, tmp_path / name) / file
    monkeypatch.setattr(data, "EMBEDDED", tmp_path)
    for bad in damaged(path.read_bytes())[1:3]:  # the others are tried on `checked` above
        path.write_bytes(bad)
        with pytest.raises(CourseError, match=f"{file}.*{WRONG}"):
            load(name, limit=100).train  # noqa: B018
    path.unlink()
    with pytest.raises(CourseError, match=f"{file} is missing.*reinstall the course"):
        load(name, limit=100).train  # noqa: B018


def test_damaged_contents(tmp_path, monkeypatch):
    path = shutil.copytree(EMBEDDED / "cifar10", tmp_path / "cifar10") / "contents.json"
    monkeypatch.setattr(data, "EMBEDDED", tmp_path)
    for bad, say in ((b"[1]", "contents.json is damaged"), (b'{"training_images": 2000}', WRONG)):
        path.write_bytes(bad)
        with pytest.raises(CourseError, match=say):
            load("cifar10", limit=100)
    path.unlink()
    with pytest.raises(CourseError, match="contents.json cannot be read.*restore"):
        load("cifar10", limit=100)


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
