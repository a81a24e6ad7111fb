"""CIFAR-100, SVHN and Imagenette by torchvision's own loaders, from small files in the original
formats and from a mirror."""

import functools
import hashlib
import http.server
import io
import pickle
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from course_lib import CourseError, load
from course_lib.data import torchvision_datasets
from course_lib.datasets import torchvision_sets as albums

NAMES = ("cifar100", "svhn", "imagenette")
FINE = ["apple", "bee", "cloud", "dolphin"]
WORDNET = {"n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player"}
TRAIN, TEST = 20, 8  # images; Imagenette has 18 and 6


def md5(raw: bytes) -> str:
    return hashlib.md5(raw, usedforsecurity=False).hexdigest()


def pixels(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)


def cifar100(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Pickles as published, in their folder and in the archive."""
    kind, folder = torchvision_datasets().CIFAR100, place / "cifar-100-python"
    folder.mkdir()
    files = {"meta": {"fine_label_names": FINE, "coarse_label_names": ["thing"]}}
    for seed, (name, n) in enumerate({"train": TRAIN, "test": TEST}.items()):
        labels = [i % len(FINE) for i in range(n)]
        files[name] = {"data": pixels(n, seed).reshape(n, -1), "fine_labels": labels,
                       "coarse_labels": [0] * n}
    hashes = {}
    for name, content in files.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        hashes[name] = md5((folder / name).read_bytes())
    for name in ("train", "test"):
        patch.setattr(kind, f"{name}_list", [[name, hashes[name]]])
    patch.setattr(kind, "meta", {**kind.meta, "md5": hashes["meta"]})
    with tarfile.open(place / kind.filename, "w:gz") as archive:
        archive.add(folder, folder.name)
    patch.setattr(kind, "tgz_md5", md5((place / kind.filename).read_bytes()))
    patch.setattr(kind, "url", f"http://127.0.0.1:9/{kind.filename}")  # nobody answers there


def svhn(place: Path, patch: pytest.MonkeyPatch) -> None:
    """MATLAB's files: images last, and a zero labelled ten."""
    rows = {}
    for seed, (part, n) in enumerate({"train": TRAIN, "test": TEST}.items()):
        labels = np.arange(1, n + 1).astype(np.uint8)[:, None] % 10
        labels[labels == 0] = 10
        scipy.io.savemat(place / f"{part}_32x32.mat",
                         {"X": pixels(n, seed).transpose(2, 3, 1, 0), "y": labels})
        rows[part] = [f"http://127.0.0.1:9/{part}_32x32.mat", f"{part}_32x32.mat",
                      md5((place / f"{part}_32x32.mat").read_bytes())]
    patch.setattr(torchvision_datasets().SVHN, "split_list", rows)


def imagenette(place: Path, patch: pytest.MonkeyPatch) -> None:
    """JPEG pictures of several shapes, black left and right of a red middle; one class's folder
    after the other."""
    # heights and widths
    folder, shapes = place / "imagenette2-160", ((160, 160), (160, 213), (240, 160))
    for part, each in (("train", 6), ("val", 2)):
        for wordnet in WORDNET:
            (folder / part / wordnet).mkdir(parents=True)
            for i in range(each):
                height, width = shapes[i % 3]
                picture = np.zeros((height, width, 3), np.uint8)
                picture[:, max(0, width - 160) // 2 : width - max(0, width - 160) // 2, 0] = 250
                Image.fromarray(picture).save(folder / part / wordnet / f"{part}_{i}.JPEG",
                                              quality=95)
    patch.setattr(albums, "IMAGENETTE_IMAGES", {"train": 18, "val": 6})
    with tarfile.open(place / "imagenette2-160.tgz", "w:gz") as archive:
        archive.add(folder, folder.name)
    row = ("http://127.0.0.1:9/imagenette2-160.tgz",
           md5((place / "imagenette2-160.tgz").read_bytes()))
    patch.setattr(torchvision_datasets().Imagenette, "_ARCHIVES", {"160px": row})


MAKE: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {"cifar100": cifar100, "svhn": svhn,
    "imagenette": imagenette}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "files").mkdir()
    MAKE[request.param](tmp_path / "files", monkeypatch)
    return tmp_path / "files"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A mirror of what lies in files/."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None: ...

    handler = functools.partial(Quiet, directory=tmp_path / "files")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as answering:
        threading.Thread(target=answering.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{answering.server_port}"
        answering.shutdown()


def test_cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar100(tmp_path, monkeypatch)
    d = load("cifar100", root=tmp_path)
    assert (d.name, d.classes, len(d.train), len(d.val), len(d.test)) == ("cifar100", tuple(FINE),
        16, 4, 8)
    assert torch.equal(d.test.x, torch.from_numpy(pixels(TEST, 1))) and d.test.y.tolist() == [0, 1,
        2, 3] * 2
    assert [s.y.bincount().tolist() for s in (d.train, d.val)] == [[4] * 4, [1] * 4]
    rows = {x.tobytes(): i % 4 for i, x in enumerate(pixels(TRAIN, 0))}
    assert [rows[x.numpy().tobytes()] for x in d.train.x] == d.train.y.tolist()


def test_svhn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svhn(tmp_path, monkeypatch)
    d = load("svhn", root=tmp_path)
    assert d.classes == tuple("0123456789") and (len(d.train), len(d.val), len(d.test)) == (16, 4,
        8)
    assert torch.equal(d.test.x, torch.from_numpy(pixels(TEST, 1))) and d.test.y.tolist() == [1, 2,
        3, 4, 5, 6, 7, 8]
    assert sorted([*d.train.y.tolist(), *d.val.y.tolist()]) == sorted(
        [*range(10)] * 2), "the file's 10 is the digit 0"


def test_imagenette(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imagenette(tmp_path, monkeypatch)
    d = load("imagenette", root=tmp_path)
    assert d.classes == tuple(WORDNET.values()) and d.test.x.shape == (6, 3, 160,
        160) and d.test.x.dtype == torch.uint8
    assert d.test.y.tolist() == [0, 0, 1, 1, 2, 2] and len(d.train) + len(d.val) == 18
    # only the red middle is left, whatever the shape
    x = torch.cat([d.test.x, d.train.x, d.val.x]).float()
    assert (x[:, 0, :, 8:-8] - 250).abs().max() < 12 and x[:, 1:, :, 8:-8].max() < 12 and x[:,
        0].mean() > 245


@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_limit_and_seed(place: Path, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["place"]
    whole, less = load(name, root=place), load(name, root=place, limit=10)
    assert torch.equal(less.train.x, whole.train.x[:8]) and torch.equal(less.val.x,
        whole.val.x[:2]) and len(less.test) == len(whole.test)
    assert load(name, root=place, seed=1).train.digest() != whole.train.digest()


@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_by_environment_and_from_the_cache(place: Path, request: pytest.FixtureRequest,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    name = request.node.callspec.params["place"]
    found = load(name, root=place).test.digest()
    monkeypatch.setenv("COURSE_CACHE", str(place))
    assert load(name).test.digest() == found
    monkeypatch.setenv("COURSE_DATA", str(place))
    monkeypatch.setenv("COURSE_CACHE", str(place / "nothing"))
    assert load(name).test.digest() == found and not (place / "nothing").exists()


@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_a_mirror_is_asked_first(place: Path, server: str, request: pytest.FixtureRequest,
                                 tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher's address answers nobody here; without a mirror the error says so."""
    name = request.node.callspec.params["place"]
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CourseError,
                       match=r"was not downloaded .*refused.* Put .* connect to the internet"):
        load(name)
    monkeypatch.setenv("COURSE_MIRROR", server + "/")
    d = load(name)
    assert d.test.digest() == load(name, root=place).test.digest() and d.train.digest() == load(
        name, root=place).train.digest()


@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_of_many_that_miss_it_one_downloads(place: Path, server: str,
                                            request: pytest.FixtureRequest, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    """As the processes of torchrun, which all want the same empty cache filled at once."""
    name, asked = request.node.callspec.params["place"], list[str]()
    send = http.server.SimpleHTTPRequestHandler.do_GET

    def slowly(self: http.server.SimpleHTTPRequestHandler) -> None:
        asked.append(self.path)
        time.sleep(0.1)
        send(self)

    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "do_GET", slowly)
    monkeypatch.setenv("COURSE_MIRROR", server)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache of one"))
    of_one = load(name).test.digest(), len(asked)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache of four"))
    with ThreadPoolExecutor(4) as pool:
        of_four = set(pool.map(lambda _: load(name).test.digest(), range(4)))
    assert of_four == {of_one[0]} and len(asked) == 2 * of_one[1] > 0


@pytest.mark.parametrize("place", NAMES, indirect=True)
def test_a_mirror_cannot_give_other_bytes(place: Path, server: str, request: pytest.FixtureRequest,
                                          tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not have the published md5 is never opened, however well it would open."""
    name = request.node.callspec.params["place"]
    for path in [p for p in place.iterdir() if p.is_file()]:
        path.write_bytes(path.read_bytes() + b"!")
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COURSE_MIRROR", server)
    with pytest.raises(CourseError, match="was not downloaded .*(corrupted|refused)"):
        load(name)


@pytest.mark.parametrize(("name", "missing"),
                         [("cifar100", "cifar-100-python"), ("svhn", "test_32x32.mat"),
                                               ("imagenette", "imagenette2-160.tgz")])
def test_an_empty_folder_says_what_to_put_there(name: str, missing: str, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=f"is not whole in {tmp_path} and nothing is downloaded "
                       f"into a folder that you name.*{missing}"):
        load(name, root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("place", "file"),
                         [("cifar100", "cifar-100-python/test"),
                          ("cifar100", "cifar-100-python/meta"),
                                             ("svhn", "test_32x32.mat")], indirect=["place"])
def test_damaged_files_are_seen(place: Path, file: str, request: pytest.FixtureRequest) -> None:
    name, raw = request.node.callspec.params["place"], (place / file).read_bytes()
    for bad in (raw[: len(raw) // 2], raw[:-1] + bytes([raw[-1] ^ 1]), b""):
        (place / file).write_bytes(bad)
        with pytest.raises(CourseError, match="is not whole"):
            load(name, root=place)


@pytest.mark.parametrize("place", ["imagenette"], indirect=True)
def test_a_half_unpacked_or_damaged_imagenette(place: Path) -> None:
    pictures = sorted((place / "imagenette2-160" / "val").rglob("*.JPEG"))
    raw = pictures[0].read_bytes()
    for bad in (raw[: len(raw) // 2], b"<html>", b""):
        pictures[0].write_bytes(bad)
        with pytest.raises(CourseError, match=rf"picture .*{pictures[0].name} is damaged"):
            load("imagenette", root=place)
    pictures[0].unlink()
    with pytest.raises(CourseError, match="holds 5 of 6 pictures. Delete imagenette2-160"):
        load("imagenette", root=place)


@pytest.mark.parametrize("place", ["svhn"], indirect=True)
def test_without_scipy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which torchvision needs for MATLAB's files, and the course itself does not."""
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(CourseError, match="SVHN cannot be read without scipy: pip install scipy.$"):
        load("svhn", root=place)


def test_grey_pictures_become_coloured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of Imagenette's are grey."""
    imagenette(tmp_path, monkeypatch)
    picture = next((tmp_path / "imagenette2-160" / "val").rglob("*.JPEG"))
    raw = io.BytesIO()
    Image.new("L", (200, 170), 77).save(raw, "JPEG")
    picture.write_bytes(raw.getvalue())
    x = load("imagenette", root=tmp_path).test.x
    assert ((x.float() - 77).abs().amax((1, 2, 3)) < 3).sum() == 1
