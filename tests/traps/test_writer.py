"""Publishing, amending and reading stored models: kills, links, hostile names, hangs. A test is
named by the finding that it closes."""

import contextlib
import errno
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from course_lib import CourseError, Store, load
from course_lib.__main__ import main
from course_lib.datasets import cifar10
from course_lib.files import OLD, check_writable, download, sha256_of
from course_lib.lab import sweep
from course_lib.lab.publish import add_file, add_rows, publish
from course_lib.native import build as kernels
from course_lib.recipes import run
from course_lib.tables import compare, list_models, results
from course_lib.zoo import load_model, load_record, manifest, model_files
from tests import helpers
from tests.faults.shims import RUN, share
from tests.helpers import network, report, same_weights

NAME, OTHER = "a/b", "a/c"
READS = 10_000


def record(wrong=0):
    return helpers.record(NAME, 0, report(nat=(wrong, 5, 3)))


@pytest.fixture
def root(tmp_path):
    for name in (NAME, OTHER):
        publish(name, 0, network(0), record(), tmp_path / "models")
    return tmp_path / "models"


def amended(wrong):
    return report(nat=(wrong, 1, 1), attack="cw20")


def amend(root, wrong):
    add_rows(NAME, 0, "reports", [amended(wrong).to_json()],
             manifest(root)[NAME]["0"]["weights"]["sha256"], root)


def readable(root):
    """The record that all readers agree on; a warning or an error fails the test."""
    assert len(list_models(root=root)) == results(root=root)["recipe"].nunique() == 2
    assert len(compare(NAME, OTHER, root=root))
    assert load_model(NAME, root=root)
    return load_record(NAME, root=root)


class Killed(BaseException):
    """Instead of SIGKILL: nothing in the library may catch it, and no file may be tidied away."""


@pytest.mark.parametrize("change", ["amend", "publish", "first"])
def test_h4_a_kill_at_every_rename(root, change, tmp_path, monkeypatch):
    def work(place):
        if change == "amend":
            return amend(place, 7)
        return publish(NAME if change == "publish" else "a/d", 0, network(1), record(9), place)

    before, replace, at = load_record(NAME, root=root), os.replace, 0
    while True:
        place, calls = shutil.copytree(root, tmp_path / str(at)), [at]

        def kill(part, path, calls=calls):
            calls[0] -= 1
            if calls[0] < 0:
                raise Killed
            replace(part, path)

        monkeypatch.setattr(os, "replace", kill)
        monkeypatch.setattr(os, "unlink", lambda *_, **__: None)  # a dead process tidies nothing
        try:
            work(place)
        except Killed:
            monkeypatch.undo()
        else:
            break
        assert readable(place) == before and same_weights(load_model(NAME, root=place), network(0))
        publish(OTHER, 0, network(2), record(), place)  # another write, which puts files back
        raw = (place / NAME / "seed0.json").read_bytes()
        assert sha256_of(raw) == manifest(place)[NAME]["0"]["record"]["sha256"]
        work(place)
        assert load_record("a/d" if change == "first" else NAME, root=place) != before
        at += 1
    monkeypatch.undo()
    assert at == {"amend": 3, "publish": 5, "first": 3}[change]


def test_h4_readers_during_amendments(root):
    """None is "damaged", and what a reader's manifest names belongs together."""
    done, reads, pairs, stored = threading.Event(), 0, set(), model_files(root)

    def work():
        while not done.is_set():
            for k in range(3):
                publish(NAME, 0, network(k), record(k), root)
                amend(root, k)

    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(work)
        try:
            while reads < share(READS):
                files = manifest(root)[NAME]["0"]
                assert load_record(OTHER, root=root) == record()
                rows = stored.read_json(files["record"])["reports"]
                assert len(list_models(root=root)) == 2
                pairs.add((rows[-1]["nat"][0], sha256_of(stored.read(files["weights"]))))
                reads += 5
        finally:
            done.set()
    writer.result()
    assert len(pairs) == 3, "each record with its own weights"


def test_h4_leftovers_are_swept_once_they_are_old(root, monkeypatch):
    amend(root, 1)
    left = [root / NAME / ".part-killed", *(root / ".recent").iterdir()]
    left[0].write_bytes(b"half")
    amend(root, 2)
    assert all(path.exists() for path in left)  # a writer or reader may be at work
    for path in left:
        os.utime(path, (time.time() - 2 * OLD,) * 2)
    amend(root, 3)
    assert not any(path.exists() for path in left)
    assert len(list((root / ".recent").iterdir())) == 2


def test_h6_folders_are_checked_before_a_training(tmp_path, tiny):
    (tmp_path / "file").write_text("")
    tiny.setattr("course_lib.recipes.fit", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(CourseError, match="Cannot write .*file.*use another folder"):
        sweep.sweep(["tiny/first"], seeds=1, out=tmp_path / "runs", models=tmp_path / "file",
                    jobs=1, progress=False)
    usage = shutil.disk_usage(tmp_path)._replace(free=10_000)
    tiny.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CourseError, match="0.0 MB free, and this needs 2.9 MB. Free some space"):
        run("tiny/first", 0, tmp_path / "runs")
    check_writable(tmp_path, 10_000)
    assert not list(tmp_path.rglob("ckpt-*"))


def test_h8_no_link_is_written_through(root, tmp_path):
    mine, stored = tmp_path / "mine", root / NAME / "seed0.json"
    mine.write_bytes(stored.read_bytes())
    stored.unlink()
    stored.symlink_to(mine)
    for call in (lambda: amend(root, 1), lambda: publish(NAME, 0, network(1), record(9), root)):
        with pytest.raises(CourseError, match="must be a file inside|a link has it"):
            call()
    (root / ".lock").unlink()
    (root / ".lock").symlink_to(mine)
    with pytest.raises(CourseError, match="lock is a link"):
        amend(root, 1)
    assert json.loads(mine.read_bytes()) == record()


def test_h11_a_folder_may_be_on_another_disk(root, tmp_path):
    shutil.move(root / "a", tmp_path / "other disk")
    (root / "a").symlink_to(tmp_path / "other disk")
    amend(root, 3)
    assert readable(root)["reports"][-1] == amended(3).to_json()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_h14_a_disk_without_flock(root, code, monkeypatch):
    """Neither publishing nor a training needs one."""
    def none(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(UserWarning, match="cannot be locked .*Let only one process") as caught:
        amend(root, 1)
        amend(root, 2)
        store = Store(root.parent / "run")
        store.open(*RUN)
    store.close()
    assert len(caught) == 3 and readable(root)["reports"][-1] == amended(2).to_json()


def test_h20_a_terminal_that_knows_ascii_only(root, monkeypatch):
    publish(OTHER, 1, None, record(), root)  # its mean is shown with a ±
    for words in (["results", "--models", str(root)], ["list"], ["train", "exp1/×"]):
        for name in ("stdout", "stderr"):  # as with LC_ALL=C and no UTF-8 mode
            monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(), "ascii"))
        assert main(words) == (words[0] == "train")


@pytest.mark.parametrize("file", ["../outside", "a/../../outside", "/tmp/outside", "link", "", 5])
def test_h21_names_in_a_manifest_lead_nowhere(root, file, tmp_path):
    raw = (root / NAME / "seed0.json").read_bytes()
    (tmp_path / "outside").write_bytes(raw)
    (root / "link").symlink_to(tmp_path / "outside")
    content = json.loads((root / "manifest.json").read_text())
    content["models"][NAME]["0"]["record"]["file"] = file
    (root / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(CourseError, match="must be a file inside"):
        amend(root, 1)
    for name in ("../outside", "/tmp/outside", "link/x/../../.."):
        with pytest.raises(CourseError, match="is not a name for a file inside"):
            add_file(model_files(root), "x", "0", name, b"x")
    assert (tmp_path / "outside").read_bytes() == raw


def test_h22_a_planted_library_is_not_loaded(tmp_path, monkeypatch):
    def compile(command):
        if "-o" in command:
            Path(command[-1]).write_bytes(b"built")
        return subprocess.CompletedProcess(command, 0, "", "")

    loaded = []
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_run", compile)
    monkeypatch.setattr(kernels, "_load", lambda path: loaded.append(path.read_bytes()))
    folder = tmp_path / "native"
    path = folder / f"lenet-{kernels.key('c++')}-{sha256_of(b'planted')[:16]}.so"

    def attempt():
        for built in folder.glob(f"*{sha256_of(b'built')[:16]}.so"):
            built.unlink()
        kernels._found_or_compiled("c++")
        return loaded.pop()

    assert attempt() == b"built" and folder.stat().st_mode & 0o777 == 0o700
    path.write_bytes(b"planted")
    for mode, takes in ((0o644, b"planted"), (0o666, b"built")):  # this user's own; anybody's
        path.chmod(mode)
        assert attempt() == takes
    path.chmod(0o644)
    folder.rename(tmp_path / "theirs")
    folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(CourseError, match="other users may write to"):
        attempt()
    folder.unlink()
    (tmp_path / "theirs").rename(folder)
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
        assert attempt() == b"built"


def test_h23_a_download_that_drips_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path))
    monkeypatch.setattr("course_lib.files.PATIENCE", 0.2)
    for before in (b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n"):
        with socket.create_server(("127.0.0.1", 0)) as server:
            def drip(server=server, before=before):
                line, _ = server.accept()
                with contextlib.suppress(OSError), line:
                    line.sendall(before)
                    while True:
                        line.sendall(b"x")
                        time.sleep(0.05)

            threading.Thread(target=drip, daemon=True).start()
            source = {"url": f"http://127.0.0.1:{server.getsockname()[1]}/x", "size": 1000}
            with pytest.raises(CourseError, match=r"no answer in 0\.22 s"):
                download(source, "0" * 64, tmp_path / "x")


def test_h24_an_npz_is_measured_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "cifar10.npz", x_test=np.zeros(10_000_000, np.uint8))
    monkeypatch.setattr(cifar10, "LARGEST", 1_000_000)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(CourseError, match="is damaged .*it unpacks to 10,000,"):
        load("cifar10", root=tmp_path)
