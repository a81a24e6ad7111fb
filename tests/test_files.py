"""Writing, locking and verifying files; downloads over a loopback server."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from course_lib import CourseError, files, list_models
from course_lib.files import download, in_cache, locked, sha256_of, write_together
from course_lib.lab.publish import publish
from course_lib.zoo import load_model, manifest
from tests.helpers import contents, network, record, report, same_weights

RECORD = record("a/b", 0, report())


def test_one_writer_at_a_time(tmp_path, monkeypatch):
    """Others wait; who waited too long is told so; twenty publishers lose nothing."""
    threads = [threading.Thread(target=publish, args=("a/d", s, None, RECORD, tmp_path))
               for s in range(20)]
    with locked(tmp_path):
        for each in threads:
            each.start()
        threads[0].join(0.2)
        assert all(each.is_alive() for each in threads)
        monkeypatch.setattr(files, "WAIT", 0.1)
        with (pytest.raises(CourseError, match="has locked .* for 0.1 seconds. Wait until"),
              pytest.warns(UserWarning, match="has locked .* We wait until it is done")):
            publish("a/c", 0, None, RECORD, tmp_path)
        monkeypatch.undo()
    for each in threads:
        each.join()
    assert {name: len(seeds) for name, seeds in manifest(tmp_path).items()} == {"a/d": 20}


GOOD = bytes(range(256)) * 200
SHA = sha256_of(GOOD)
PAGE = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>" \
       b'<p class="uc-error-subcaption">Too many users have viewed this file.</p></body></html>'
CONFIRM = (b'<html><form id="download-form" action="https://drive.google.com/confirmed">'
           b'<input type="hidden" name="id" value="x"></form></html>')
FILE = {"Content-Type": "application/octet-stream",
        "Content-Disposition": 'attachment; filename="../../evil"'}
TEXT = {"Content-Type": "text/html; charset=utf-8"}
IDENTITY = "1a2b3c4d5e6f7g8h9i0j"
ANSWERS = {  # path -> status, body, headers
    "good": (200, GOOD, FILE), "confirmed": (200, GOOD, FILE),
    "gone": (404, b"<html>not found</html>", {}), "page": (200, PAGE, TEXT),
    "long": (200, GOOD + b"x" * 100_000, FILE), "other": (200, GOOD[:-1] + b"x", FILE),
    "truncated": (200, GOOD[:20_000], {**FILE, "Content-Length": "51200"}),
    "moved": (302, b"", {"Location": "/good"}), "circle": (302, b"", {"Location": "/circle"}),
    "file": (302, b"", {"Location": "file:///etc/passwd"})}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    def do_GET(self):
        path, server = self.path.split("?")[0].strip("/"), self.server
        server.asked.append(self.path)
        if path == "silent":
            server.released.wait(20)
        if path == "nonsense":
            self.wfile.write(b"\x00\x01 nonsense\r\n\r\n")
        status, body, headers = server.answers.get(path, server.answers["gone"])
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.answers = dict(ANSWERS)
        self.released = threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.answers["away"] = (302, b"", {"Location": f"http://localhost:{self.server_port}/good"})
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request, client_address):
        """A client that leaves is what some tests are about."""


@pytest.fixture
def server(cache, monkeypatch):
    """gdown believes that it talks to Google; its requests reach this server, too."""
    import requests

    server, real = Server(), requests.Session.get

    def here(self, url, **words):
        return real(self, url.replace("https://drive.google.com", server.address), **words)

    monkeypatch.setattr(requests.Session, "get", here)
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    place = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COURSE_CACHE", str(place))
    return place


def get(server, path, **changes):
    source = {"size": len(GOOD), "url": f"{server.address}/{path}", **changes}
    return download({k: v for k, v in source.items() if v != ""}, SHA, Path("it.safetensors"))


def test_a_good_file_is_cached_under_its_hash_and_asked_for_once(server, cache):
    for path in ("moved", "gone"):
        assert get(server, path) == GOOD and server.asked == ["/moved", "/good"]
        assert contents(cache) == {in_cache(SHA): GOOD}
    in_cache(SHA).write_bytes(GOOD[:100])  # damaged: downloaded again
    assert get(server, "good") == GOOD and contents(cache) == {in_cache(SHA): GOOD}


@pytest.mark.parametrize(("path", "changes", "say"), [
    ("page", {}, r"\d+ of 51,200 bytes came, with another sha256"),
    ("truncated", {}, "20,000 of 51,200 bytes"), ("long", {}, "more than 51,200 bytes came"),
    ("other", {}, "51,200 of 51,200 bytes came, with another sha256"), ("gone", {}, "404"),
    ("nonsense", {}, "nonsense"), ("circle", {}, "infinite loop"), ("file", {}, "file:///"),
    ("away", {}, "must begin with https"), ("silent", {}, "timed out"),
    ("good", {"size": "51200"}, "not supported"),
    *[("", {"url": url}, "must begin with https") for url in
      ("file:///etc/passwd", "../../x", 5, "http://example.org/x")],
    ("", {"url": "https://"}, "no host"), ("", {"url": "http://127.0.0.1:9/x"}, "refused"),
    *[("", {"url": "", "drive": drive}, "Google Drive id") for drive in
      ("short", None, "a" * 101, "../../../../etc/passwd", "abcdefghijk&x=y")],
    *[(f"uc={path}", {"url": "", "drive": IDENTITY}, say) for path, say in (
        ("page", "Too many users have viewed"), ("long", "more than 51,200 bytes"),
        ("other", "with another sha256"))]])
def test_what_is_not_the_file_is_not_stored(server, cache, path, changes, say, monkeypatch):
    monkeypatch.setattr(files, "PATIENCE", 0.3)
    server.answers["uc"] = server.answers.get(path[3:], server.answers["gone"])
    with pytest.raises(CourseError, match=f"it.safetensors .* cannot be downloaded: .*{say}.*make "
                                          "it again .* or try again later"):
        get(server, path, **changes)
    assert contents(cache) == {}


@pytest.mark.parametrize(("call", "error"), [
    ("fsync", OSError(28, "No space left on device")), ("fsync", KeyboardInterrupt()),
    ("replace", OSError(28, "No space left on device"))])
def test_a_write_that_fails_leaves_nothing(server, cache, call, error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises((CourseError, KeyboardInterrupt)) as caught:
        write_together({cache / "1": b"one"})
    assert caught.type is KeyboardInterrupt or "Cannot write" in str(caught.value)
    if caught.type is not KeyboardInterrupt:  # a cache that takes nothing is no harm
        assert get(server, "good") == GOOD
    assert contents(cache) == {}


def test_gdown_gets_a_file_and_writes_no_other(server, cache, tmp_path, monkeypatch):
    """The page that warns of large files is confirmed; an address that fails comes first."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    server.answers["uc"] = ANSWERS["good"]
    assert get(server, "good", drive=IDENTITY) == GOOD and server.asked == ["/good"]
    in_cache(SHA).unlink()
    assert get(server, "", url="", drive=IDENTITY) == GOOD
    in_cache(SHA).unlink()
    server.answers["uc"] = (200, CONFIRM, TEXT)
    assert get(server, "page", drive=IDENTITY) == GOOD
    assert server.asked[-1].startswith("/confirmed?id=x")
    assert contents(cache) == {in_cache(SHA): GOOD} and contents(tmp_path) == {}
    in_cache(SHA).unlink()
    monkeypatch.setattr(files, "LARGEST", 2000)  # whatever size the release states
    with pytest.raises(CourseError, match="more than 2,000 bytes came"):
        get(server, "good", size=10**12)


def test_a_model_is_downloaded_once_and_then_in_the_cache(tmp_path, server, cache):
    """Its weights are on the server only."""
    publish("a/b", 0, network(), RECORD, root := tmp_path / "models")
    raw = (weights := root / "a/b/seed0.safetensors").read_bytes()
    weights.unlink()
    server.answers["weights"] = (200, raw, FILE)
    row = {sha256_of(raw): {"size": len(raw), "url": f"{server.address}/weights"}}
    (root / "release.json").write_text(json.dumps({"format": 1, "files": row}))
    assert list(list_models(root=root)["where"]) == ["to download"]
    for _ in range(2):
        assert same_weights(load_model("a/b", root=root), network())
        (row,) = list_models(root=root).to_dict("records")
        assert (row["where"], row["bytes"]) == ("cache", len(raw))
        (root / "release.json").unlink(missing_ok=True)
    assert server.asked == ["/weights"]
    in_cache(sha256_of(raw)).unlink()
    assert list(list_models(root=root)["where"]) == ["to make"]
    weights.write_bytes(raw)  # bundled: never downloaded
    assert load_model("a/b", root=root)
    assert server.asked == ["/weights"] and contents(cache) == {}
