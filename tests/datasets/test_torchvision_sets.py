"""The sets that torchvision reads, from small files in the original formats."""

import functools
import hashlib
import io
import itertools
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from course_lib import CourseError, load
from course_lib.datasets import sources, torchvision_sets
from course_lib.datasets.cifar10 import CIFAR10
from course_lib.datasets.sources import torchvision_datasets

KINDS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "svhn": "SVHN", "imagenette": "Imagenette"}
MISSING = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python",
           "svhn": "test_32x32.mat", "imagenette": "imagenette2-160.tgz"}
FINE = ("apple", "bee", "cloud", "dolphin")
WORDNET = {"n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player"}
TRAIN, TEST = 20, 8  # images; Imagenette has 18 and 6


def md5(raw):
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def pixels(n, seed):
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def cifar(name, place, patch):
    """Pickles as published, in their folder and in the archive; CIFAR-10 trains on two."""
    kind = getattr(torchvision_datasets(), KINDS[name])
    folder, fine = place / kind.base_folder, name == "cifar100"
    names, key, classes = (FINE, "fine_labels", 4) if fine else (CIFAR10, "labels", 10)
    x, y = pixels(TRAIN, 0), [i % classes for i in range(TRAIN)]
    cuts = {"train": slice(0, 20)} if fine else {"data_batch_1": slice(0, 10),
                                                 "data_batch_2": slice(10, 20)}
    files = {n: (x[cut], y[cut]) for n, cut in cuts.items()}
    files["test" if fine else "test_batch"] = (pixels(TEST, 1), y[:TEST])
    content = {n: {"data": x.reshape(len(x), -1), key: y} for n, (x, y) in files.items()}
    content[kind.meta["filename"]] = {kind.meta["key"]: list(names)}
    folder.mkdir()
    for n, value in content.items():
        (folder / n).write_bytes(pickle.dumps(value, protocol=2))
    rows = [[n, md5((folder / n).read_bytes())] for n in content]
    patch.setattr(kind, "train_list", rows[:-2])
    patch.setattr(kind, "test_list", rows[-2:-1])
    patch.setattr(kind, "meta", {**kind.meta, "md5": rows[-1][1]})


def svhn(place, patch):
    """MATLAB's files: images last, and a zero labelled ten."""
    rows = {}
    for seed, (part, n) in enumerate({"train": TRAIN, "test": TEST}.items()):
        labels = np.arange(n, dtype=np.uint8)[:, None] % 10 + 1
        name = f"{part}_32x32.mat"
        scipy.io.savemat(place / name, {"X": pixels(n, seed).transpose(2, 3, 1, 0), "y": labels})
        rows[part] = ["", name, md5((place / name).read_bytes())]
    patch.setattr(torchvision_datasets().SVHN, "split_list", rows)


def imagenette(place, patch):
    """JPEG pictures of several shapes, black left and right of a red middle; one class's folder
    after the other."""
    # heights and widths
    folder, shapes = place / "imagenette2-160", ((160, 160), (160, 213), (240, 160))
    for part, wordnet in itertools.product(("train", "val"), WORDNET):
        (folder / part / wordnet).mkdir(parents=True)
        for i in range(6 if part == "train" else 2):
            height, width = shapes[i % 3]
            picture, margin = np.zeros((height, width, 3), np.uint8), max(0, width - 160) // 2
            picture[:, margin : width - margin, 0] = 250
            path = folder / part / wordnet / f"{part}_{i}.JPEG"
            Image.fromarray(picture).save(path, quality=95)
    patch.setattr(torchvision_sets, "IMAGENETTE_IMAGES", {"train": [6] * 3, "val": [2] * 3})


MAKE = {"svhn": svhn, "imagenette": imagenette,
        **{name: functools.partial(cifar, name) for name in ("cifar10", "cifar100")}}


@pytest.fixture(params=KINDS)
def name(request):
    return str(request.param)


@pytest.fixture
def place(name, tmp_path, monkeypatch):
    (tmp_path / "files").mkdir()
    MAKE[name](tmp_path / "files", monkeypatch)
    return tmp_path / "files"


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"], indirect=True)
def test_cifar_and_svhn(name, place):
    """In SVHN's files a 10 is the digit 0."""
    classes = {"cifar10": CIFAR10, "cifar100": FINE, "svhn": tuple("0123456789")}[name]
    d, first = load(name, root=place), int(name == "svhn")
    assert (d.name, d.classes, len(d.train), len(d.val)) == (name, classes, 16, 4)
    assert torch.equal(d.test.x, torch.from_numpy(pixels(TEST, 1)))
    assert d.test.y.tolist() == [(i + first) % len(classes) for i in range(TEST)]
    rows = {x.tobytes(): (i + first) % len(classes) for i, x in enumerate(pixels(TRAIN, 0))}
    for s in (d.train, d.val):
        assert [rows[x.numpy().tobytes()] for x in s.x] == s.y.tolist()


@pytest.mark.parametrize("name", ["imagenette"], indirect=True)
def test_imagenette(place):
    d = load("imagenette", root=place)
    assert d.classes == tuple(WORDNET.values()) and d.test.x.dtype == torch.uint8
    assert d.test.x.shape == (6, 3, 160, 160) and len(d.train) + len(d.val) == 18
    assert d.test.y.tolist() == [0, 0, 1, 1, 2, 2]
    # only the red middle is left, whatever the shape
    x = torch.cat([d.test.x, d.train.x, d.val.x]).float()
    assert (x[:, 0, :, 8:-8] - 250).abs().max() < 12 and x[:, 0].mean() > 245
    assert x[:, 1:, :, 8:-8].max() < 12
    # some of the real pictures are grey
    raw = io.BytesIO()
    Image.new("L", (200, 170), 77).save(raw, "JPEG")
    next((place / "imagenette2-160" / "val").rglob("*.JPEG")).write_bytes(raw.getvalue())
    x = load("imagenette", root=place).test.x
    assert ((x.float() - 77).abs().amax((1, 2, 3)) < 3).sum() == 1


def test_from_a_folder_and_from_the_cache(name, place, monkeypatch):
    full, less = load(name, root=place), load(name, root=place, limit=10)
    assert torch.equal(less.train.x, full.train.x[:8]) and len(less.test) == len(full.test)
    assert load(name, root=place, seed=1).train.digest() != full.train.digest()
    monkeypatch.setenv("COURSE_CACHE", str(place))
    assert load(name).test.digest() == full.test.digest()
    (empty := place.parent / "empty").mkdir()
    say = f"nothing is downloaded into a folder that you name .* Put .*{MISSING[name]}.* there, or "
    with pytest.raises(CourseError, match=f"is not complete in {empty}, and {say}"):
        load(name, root=empty)
    assert not list(empty.iterdir())


@pytest.mark.parametrize("name", ["cifar100"], indirect=True)
def test_of_many_that_miss_it_one_downloads(place, tmp_path, monkeypatch):
    """As the processes of torchrun, which all want the same empty cache filled at once."""
    kind, downloads = torchvision_datasets().CIFAR100, []

    def download(self):
        if not self._check_integrity():
            downloads.append(self.root)
            time.sleep(0.2)
            shutil.copytree(place, self.root, dirs_exist_ok=True)

    monkeypatch.setattr(kind, "download", download)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(4) as pool:
        assert [len(d.test) for d in pool.map(load, ["cifar100"] * 4)] == [TEST] * 4
    assert len(downloads) == 1
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(kind, "download", lambda self: time.sleep(9))
    monkeypatch.setattr(sources, "SILENCE", 0.1)
    with pytest.raises(CourseError, match="could not be downloaded .*no answer in 0.1 s.*connect"):
        load("cifar100")


@pytest.mark.parametrize(("name", "file"), [
    ("cifar10", "cifar-10-batches-py/test_batch"), ("cifar100", "cifar-100-python/test"),
    ("cifar100", "cifar-100-python/meta"), ("svhn", "test_32x32.mat")], indirect=["name"])
def test_damaged_files_are_seen(name, place, file):
    raw = (place / file).read_bytes()
    for bad in (raw[: len(raw) // 2], raw[:-1] + bytes([raw[-1] ^ 1]), b""):
        (place / file).write_bytes(bad)
        with pytest.raises(CourseError, match="is not complete"):
            load(name, root=place)


@pytest.mark.parametrize("name", ["imagenette"], indirect=True)
def test_a_half_unpacked_or_damaged_imagenette(place):
    picture = min((place / "imagenette2-160" / "val").rglob("*.JPEG"))
    raw = picture.read_bytes()
    for bad in (raw[: len(raw) // 2], b"<html>"):
        picture.write_bytes(bad)
        with pytest.raises(CourseError, match="val is damaged .*fetch it again"):
            load("imagenette", root=place)
    picture.unlink()
    other = picture.parent.with_name("n02979186") / "another.JPEG"
    for count in (5, 6):  # one is missing; then there is another in its stead
        with pytest.raises(CourseError, match=f"its {count} pictures .*Delete .*160 and"):
            load("imagenette", root=place)
        other.write_bytes(raw)
