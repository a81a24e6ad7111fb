"""Fashion-MNIST from each of its sources, whole and damaged, and the door to torchvision."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from course_lib import data, load
from course_lib.data import EMBEDDED, Split, halves
from course_lib.datasets import sources
from course_lib.datasets.fashion_mnist import FASHION, FASHION_MD5, read_idx
from course_lib.errors import CourseError
from tests.helpers import THREE, split

# the full set, on machines where somebody put it
HOME = Path.home() / ".cache" / "course-data" / "fashion-mnist"


@pytest.mark.parametrize(("name", "credit"), [("fashion-mnist", "MIT"), ("cifar10", "Krizhevsky")])
def test_embedded_files_hash_to_what_stands_beside_them(name: str, credit: str) -> None:
    folder = EMBEDDED / name
    wanted = json.loads((folder / "contents.json").read_text())["sha256"]
    assert {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in wanted} == wanted
    assert {p.name for p in folder.iterdir()} == {*wanted, "contents.json", "README.md"}
    assert credit in (folder / "README.md").read_text(), "the licence stands beside the data"
    for name in {n.removesuffix(".gz") for n in wanted if n.startswith("t10k")}:
        content = gzip.decompress((folder / f"{name}.gz").read_bytes())
        assert hashlib.md5(content, usedforsecurity=False).hexdigest() == FASHION_MD5[name]


def test_the_embedded_part() -> None:
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


def test_a_smaller_limit_is_the_beginning_and_the_seed_alone_chooses_the_split() -> None:
    digests = []
    for seed in (0, 1, 1):
        torch.rand(3)
        large, small = (load("fashion-mnist", limit=n, seed=seed) for n in (1000, 137))
        for s, ref, n in ((small.train, large.train, 110), (small.val, large.val, 27)):
            assert len(s) == n and torch.equal(s.x, ref.x[:n]) and torch.equal(s.y, ref.y[:n])
            assert (s.y.bincount() / n).tolist() == pytest.approx([0.1] * 10, abs=1 / n)
        digests.append([s.digest() for s in (small.train, small.val, small.test)])
    assert digests[1] == digests[2] and digests[0][2] == digests[1][2]
    assert digests[0][0] != digests[1][0] and digests[0][1] != digests[1][1]


def test_the_embedded_images_split_as_in_the_full_set() -> None:
    """So no validation image of a small run was ever trained on by a stored model: here on a
    made-up full set."""
    full = split(1000, (1, 2, 2))
    train, val = halves(full, None, 0)
    x, y = (torch.cat([getattr(train, k)[:80], getattr(val, k)[:20]]) for k in "xy")
    for limit in (100, 37, 10):
        mine = sources.embedded_halves(Split(x, y, THREE), limit, 0, 100)
        assert [s.digest() for s in mine] == [s.digest() for s in halves(full, limit, 0)]


@pytest.mark.skipif(not HOME.is_dir(), reason=f"the full Fashion-MNIST is not in {HOME}")
def test_the_embedded_images_are_those_of_the_full_set() -> None:
    some, small = load("fashion-mnist", root=HOME, limit=6000), load("fashion-mnist", limit=6000)
    for part in ("train", "val", "test"):
        assert getattr(some, part).digest() == getattr(small, part).digest()
    full = load("fashion-mnist", root=HOME)
    assert (len(full.train), len(full.val), len(full.whole().train)) == (48_000, 12_000, 60_000)


@pytest.fixture(params=["plain", "compressed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small 'Fashion-MNIST' in its own format, whose hashes count as the published ones."""
    place, rng = tmp_path / "named", np.random.default_rng(0)
    place.mkdir()
    for name in FASHION_MD5:
        n = {"train": 200, "t10k": 60}[name.split("-")[0]]
        a = rng.integers(0, 256, (n, 28, 28)) if "images" in name else np.arange(n) % 10
        content = (b"\0\0\x08" + bytes([a.ndim]) + np.array(a.shape, ">i4").tobytes()
                   + a.astype(np.uint8).tobytes())
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(FASHION_MD5, name, md5)
        if request.param == "plain":
            (place / name).write_bytes(content)
        else:
            (place / f"{name}.gz").write_bytes(gzip.compress(content))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return place


@pytest.mark.parametrize("inside", [".", "fashion-mnist", "FashionMNIST/raw"])
def test_a_named_folder_then_the_cache_and_a_download_comes_last(
        folder: Path, tmp_path: Path, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Datasets:
        @staticmethod
        def FashionMNIST(place: Path, download: bool) -> None:
            if not download:
                raise RuntimeError("Dataset not found.")
            shutil.copytree(folder, place / "FashionMNIST" / "raw")

    shutil.copytree(folder, tmp_path / "root" / inside)
    d = load("fashion-mnist", root=tmp_path / "root")
    assert [len(s) for s in (d.train, d.val, d.test)] == [160, 40, 60]
    assert sorted(d.whole().train.y.tolist()) == sorted(n % 10 for n in range(200))
    with mock.patch.dict(os.environ, COURSE_DATA=str(tmp_path / "root")):
        again = load("fashion-mnist")
    assert again.train.digest() == d.train.digest() and again.test.digest() == d.test.digest()
    monkeypatch.setattr(sources, "torchvision_datasets", lambda: Datasets)
    assert load("fashion-mnist").train.digest() == d.train.digest()
    shutil.rmtree(tmp_path / "cache")
    shutil.copytree(folder, tmp_path / "cache" / inside, dirs_exist_ok=True)
    monkeypatch.setattr(sources, "torchvision_datasets", lambda: pytest.fail("it is in the cache"))
    assert load("fashion-mnist").train.digest() == d.train.digest()


@pytest.mark.parametrize("error", [OSError("no route to host"),
                                   RuntimeError("File not found or corrupted.")])
def test_no_network_is_an_error_and_never_a_smaller_set(
        error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "torchvision_datasets", mock.Mock(side_effect=error))
    d = load("fashion-mnist", limit=6001)
    assert len(d.test) == 10_000
    with pytest.raises(CourseError, match=rf"could not be downloaded \({error}\).*root=FOLDER"
                       r".*6,000 embedded ones: limit=6000"):
        d.train  # noqa: B018
    assert not (tmp_path / "cache").exists()


Damage = Callable[[Path], object]


def remove(part: str) -> Damage:
    return lambda place: [path.unlink() for path in place.glob(f"{part}*")]


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(place: Path) -> None:
        path = next(place.glob(f"{name}*"))
        path.write_bytes(change(path.read_bytes()))

    return damage


def flip(name: str, at: int) -> Damage:
    """One bit of one byte; byte 10 begins the compressed data, -1 ends the length that gzip
    checks."""
    return rewrite(name, lambda raw: raw[:at] + bytes([raw[at] ^ 0x02]) + raw[at:][1:])


BYTES = (0, 2, 3, 10, 40, 1000, -1)
WRONG = "(damaged|not the published file).*etch it again, or reinstall"
DAMAGE: dict[str, tuple[Damage, str]] = {
    "half the files": (remove("train"), "lacks train-images-idx3-ubyte, train-labels"),
    "no folder": (shutil.rmtree, "lacks train-images.*t10k-labels.*Put the 4 files"),
    "truncated": (rewrite("train-images", lambda raw: raw[:9999]), f"train-images.*{WRONG}"),
    "empty": (rewrite("t10k-images", lambda raw: b""), f"t10k-images.*{WRONG}"),
    **{f"a bit of byte {at}": (flip("train-images", at), f"train-images.*{WRONG}") for at in BYTES},
    "something else": (rewrite("train-images", lambda raw: b"<html>quota exceeded</html>"), WRONG),
    "another file's content": (
        lambda p: shutil.copy(next(p.glob("t10k-labels*")), next(p.glob("train-labels*"))),
        "not the published file: its md5 is"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_folder(folder: Path, kind: str) -> None:
    damage, say = DAMAGE[kind]
    damage(folder)
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(CourseError, match=say):
        d = load("fashion-mnist", root=folder)
        assert len(d.test) == 60, "training images are read when they are asked for"
        d.train  # noqa: B018
    assert sorted(folder.parent.rglob("*")) == before


def test_a_file_that_unpacks_to_gigabytes_is_read_no_further_than_the_largest(
        folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGEST", 10_000)  # of 47,056 bytes
    with pytest.raises(CourseError, match="t10k-images.*not the published file"):
        load("fashion-mnist", root=folder)


EMBEDDED_DAMAGE: dict[str, tuple[Damage, str]] = {
    **{f"test labels, a bit of byte {at}": (flip("t10k-labels", at), f"t10k-labels.*{WRONG}")
       for at in BYTES},
    "training images, a bit": (flip("train-images", 10_000), f"train-images.*{WRONG}"),
    "training labels gone": (remove("train-labels"), "train-labels.*missing.*reinstall the course"),
    "cifar10: images, a bit": (flip("test.webp", 1000), f"test.webp.*{WRONG}"),
    "cifar10: labels, a bit": (flip("test-labels", 1000), f"test-labels.*{WRONG}"),
    **{f"{name}contents {new!r}": (rewrite("contents", lambda _, new=new: new), say)
       for name in ("", "cifar10: ")
       for new, say in ((b"", "contents.json is damaged"), (b"[1]", "contents.json is damaged"),
                        (b"\xff\xfe", "damaged"), (b'{"training_images": 6000}', WRONG))},
    "contents gone": (remove("contents"), "contents.json cannot be read.*restore"),
}


@pytest.mark.parametrize("kind", EMBEDDED_DAMAGE)
def test_damaged_embedded_data(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cifar10" if kind.startswith("cifar10") else "fashion-mnist"
    shutil.copytree(EMBEDDED / name, tmp_path / name)
    monkeypatch.setattr(data, "EMBEDDED", tmp_path)
    damage, say = EMBEDDED_DAMAGE[kind]
    damage(tmp_path / name)
    with pytest.raises(CourseError, match=say):
        load(name, limit=100).train  # noqa: B018


def test_images_are_resized_as_torchvision_does_byte_for_byte() -> None:
    from PIL import Image

    sources.torchvision_datasets()  # makes torchvision importable
    from torchvision.transforms import Resize

    real = read_idx(EMBEDDED / "fashion-mnist", "t10k-images-idx3-ubyte")[:200]
    theirs = np.stack([np.asarray(Resize(32)(Image.fromarray(image))) for image in real])
    assert np.array_equal(load("fashion-mnist").test.x[:200, 0].numpy(), theirs)


@pytest.mark.parametrize(("registrations", "error"), [
    ("OK = True", ""), ("raise RuntimeError('operator torchvision::nms does not exist')", ""),
    ("raise RuntimeError('something else')", "something else")])
def test_torchvision_that_does_not_fit_this_torch(registrations: str, error: str,
                                                  tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("from torchvision import _meta_registrations, datasets\n")
    (package / "_meta_registrations.py").write_text(registrations)
    (package / "datasets.py").write_text("NAME = 'the real datasets'\n")
    script = ("import sys; from course_lib.datasets.sources import torchvision_datasets as get\n"
              "assert get().NAME == 'the real datasets' and get() is get()\n"
              "assert hasattr(sys.modules['torchvision._meta_registrations'], 'OK') == "
              f"{not registrations.startswith('raise')}")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not error) and error in done.stderr, done.stderr
