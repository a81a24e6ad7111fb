"""Files that are not bundled: over a loopback server, with urllib and with the real gdown."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from course_lib import fetch
from course_lib.errors import CourseError
from course_lib.models import build
from course_lib.zoo import list_models, load_model, publish
from tests.helpers import THREE, report, same_weights

GOOD = bytes(range(256)) * 200
SHA = hashlib.sha256(GOOD).hexdigest()
QUOTA = b"<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>" \
        b'<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently.</p></body></html>'
CONFIRM = ('<html><form id="download-form" action="{host}/confirmed"><input type="hidden" '
           'name="id" value="x"></form></html>')
FILE = {"Content-Type": "application/octet-stream",
        "Content-Disposition": 'attachment; filename="../../evil"'}
IDENTITY = "1a2b3c4d5e6f7g8h9i0j"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        getattr(self, "on_" + self.path.split("?")[0].strip("/").replace("-", "_"), self.on_gone)()

    def answer(self, body: bytes, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for word, value in {"Content-Length": str(len(body)),
                            **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
            self.send_header(word, value)
        self.end_headers()
        self.wfile.write(body)

    def on_good(self) -> None:
        self.answer(GOOD, **FILE)

    on_confirmed = on_good

    def on_gone(self) -> None:
        self.answer(b"<html>not found</html>", 404)

    def on_broken(self) -> None:
        self.answer(b"", 503)

    def on_page(self) -> None:
        self.answer(QUOTA, Content_Type="text/html; charset=utf-8")

    def on_uc(self) -> None:
        self.server.drive(self)  # type: ignore[attr-defined]

    def on_short(self) -> None:
        self.answer(GOOD[:1000])

    def on_long(self) -> None:
        self.answer(GOOD + b"x" * 100_000)

    def on_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(2000):
            self.wfile.write(bytes(100_000))

    def on_other(self) -> None:
        self.answer(GOOD[:-1] + b"x")

    def on_truncated(self) -> None:
        self.answer(GOOD[:20_000], Content_Length=str(len(GOOD)))

    def on_stalled(self) -> None:
        self.answer(GOOD[:20_000], **{**FILE, "Content-Length": str(len(GOOD))})
        self.wfile.flush()
        self.server.released.wait(20)  # type: ignore[attr-defined]

    def on_silent(self) -> None:
        self.server.released.wait(20)  # type: ignore[attr-defined]

    def on_drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        for i in range(len(GOOD)):
            if self.server.released.wait(0.02):  # type: ignore[attr-defined]
                return
            self.wfile.write(GOOD[i : i + 1])
            self.wfile.flush()

    def redirect(self, where: str) -> None:
        self.answer(b"", 302, Location=where)

    def on_moved(self) -> None:
        self.redirect("/good")

    def on_elsewhere(self) -> None:
        self.redirect(self.server.twin + "/good")  # type: ignore[attr-defined]

    def on_scheme(self) -> None:
        self.redirect("https://" + self.headers["Host"] + "/good")

    def on_file(self) -> None:
        self.redirect("file:///etc/passwd")

    def on_circle(self) -> None:
        self.redirect("/circle")

    def on_nonsense(self) -> None:
        self.wfile.write(b"\x00\x01 nonsense\r\n\r\n")

    def log_message(self, *words: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.released = threading.Event()
        self.drive: Callable[[Handler], None] = Handler.on_good
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.twin = f"http://localhost:{self.server_port}"  # the same under another name
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is what some tests are about."""

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def row(server: Server, path: str, **changes: Any) -> dict[str, Any]:
    return {"size": len(GOOD), "url": f"{server.address}/{path}", **changes}


def everything(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def get(what: dict[str, Any], sha256: str = SHA) -> bytes:
    return fetch.fetch(sha256, what, "it.safetensors", progress=False)


# ------------------------------------------------------------------------------------------ a plain address


@pytest.mark.parametrize("path", ["good", "moved"])
def test_a_good_file_is_kept_under_its_hash_and_asked_for_once(server: Server, tmp_path: Path,
        path: str) -> None:
    assert fetch.kept(SHA) is None
    assert get(row(server, path)) == GOOD == fetch.kept(SHA)
    assert everything(tmp_path) == [f"cache/models/{SHA}"] and fetch.place(
        SHA).stat().st_mode & 0o777 == 0o644
    asked = len(server.asked)
    assert get(row(server, path)) == GOOD and len(server.asked) == asked


@pytest.mark.parametrize(
    ("path", "say"),
    [
        ("page", r"Only \d+ of the 51,200 bytes of it.safetensors came, and it is a web page"),
        ("short", "Only 1,000 of the 51,200 bytes"),
        ("truncated", "Only 20,000 of the 51,200 bytes"),
        ("long", "More than the 51,200 bytes"),
        ("endless", "More than the 51,200 bytes"),
        ("other", "What came has the sha256"),
        ("gone", "does not give it .Not Found"),
        ("broken", "does not give it .Service Unavailable"),
        ("nonsense", "does not give it"),
        ("circle", "does not give it"),
        ("elsewhere", "leads elsewhere, to http://localhost"),
        ("scheme", "leads elsewhere, to https://127.0.0.1"),
        ("file", "does not give it .*file:///etc/passwd"),
    ],
)
def test_what_is_not_the_file_is_refused_and_not_kept(server: Server, tmp_path: Path, path: str,
                                                      say: str) -> None:
    with pytest.raises(CourseError,
                       match=f"it.safetensors cannot be downloaded: .*{say}.*make it again"):
        get(row(server, path))
    assert everything(tmp_path) == []


def test_a_host_that_the_release_names_may_be_led_to(server: Server) -> None:
    with pytest.raises(CourseError, match="leads elsewhere"):
        get(row(server, "elsewhere", hosts=["example.org"]))
    assert get(row(server, "elsewhere", hosts=[server.twin.removeprefix("http://")])) == GOOD


@pytest.mark.parametrize("path", ["stalled", "silent"])
def test_a_stream_that_stalls_is_given_up(server: Server, tmp_path: Path, path: str,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PATIENCE", 0.3)
    with pytest.raises(CourseError, match="does not give it .*timed out"):
        get(row(server, path))
    assert everything(tmp_path) == []


def test_a_stream_that_drips_is_given_up(server: Server, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time; all of them would not."""
    monkeypatch.setattr(fetch, "PATIENCE", 0.3)
    monkeypatch.setattr(fetch, "SLOWEST", 500_000)
    with pytest.raises(CourseError, match="of 51,200 bytes came in 0 seconds: too slow"):
        get(row(server, "drip"))
    assert everything(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "say"),
    [
        ({"size": 0}, "size of 0"),
        ({"size": True}, "size of True"),
        ({"size": "51200"}, "size of '51200'"),
        ({"size": 10**12}, "it must be 1 to 500,000,000 bytes"),
        ({"url": "file:///etc/passwd"}, "is no address"),
        ({"url": "ftp://127.0.0.1/x"}, "is no address"),
        ({"url": "../../x"}, "is no address"),
        ({"url": 5}, "is no address"),
        ({"url": "https://"}, "is no address"),
        ({"url": "http://127.0.0.1:99999/x"}, "does not give it"),
        ({"url": "http://[half/x"}, "does not give it"),
        ({"url": "http://127.0.0.1:1/a b\r\nX: y"}, "does not give it"),
        ({"hosts": "localhost"}, "must be a list"),
        ({"hosts": [5]}, "must be a list"),
    ],
)
def test_a_row_that_is_none(server: Server, tmp_path: Path, changes: dict[str, Any],
                            say: str) -> None:
    with pytest.raises(CourseError, match=say):
        get(row(server, "good", **changes))
    assert everything(tmp_path) == [] and server.asked == []


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "g" * 64, "A" * 64, SHA + "\n",
                                    "0" * 63])
def test_only_a_hash_becomes_a_name(server: Server, sha256: str, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="is no sha256"):
        get(row(server, "good"), sha256)
    assert everything(tmp_path) == [] and server.asked == []


def test_what_is_damaged_in_the_cache_is_fetched_again(server: Server) -> None:
    get(row(server, "good"))
    fetch.place(SHA).write_bytes(GOOD[:100])
    assert fetch.kept(SHA) is None and get(row(server, "good")) == GOOD == fetch.kept(SHA)


def test_a_cache_that_cannot_be_written(server: Server, cache: Path) -> None:
    cache.write_text("mine")
    with pytest.raises(CourseError, match="Cannot keep it.safetensors in .*set COURSE_CACHE"):
        get(row(server, "good"))
    assert cache.read_text() == "mine"


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing(server: Server, tmp_path: Path, call: str,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.os, call, full)
    with pytest.raises(CourseError, match="No space left on device"):
        get(row(server, "good"))
    assert everything(tmp_path) == []


def test_an_interrupted_download_leaves_nothing(server: Server, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get(row(server, "good"))
    assert everything(tmp_path) == []


def test_progress_is_shown(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    fetch.fetch(SHA, row(server, "good"), "it.safetensors")
    assert "it.safetensors: 100%" in capsys.readouterr().err


def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="127.0.0.1:9/x. does not give it .*refused"):
        get({"size": 5, "url": "http://127.0.0.1:9/x"})
    with pytest.raises(CourseError, match="no address is known. Try again later, or make it again"):
        get({"size": 5})
    assert everything(tmp_path) == []


# ------------------------------------------------------------------------------------------ Google Drive

gdown = pytest.mark.skipif(importlib.util.find_spec("gdown") is None, reason="gdown is optional")


@pytest.fixture
def drive(server: Server, tmp_path_factory: pytest.TempPathFactory,
          monkeypatch: pytest.MonkeyPatch) -> Server:
    """gdown's own process believes that it talks to Google; its requests land on the loopback
    server."""
    place = tmp_path_factory.mktemp("site")
    (place / "sitecustomize.py").write_text(
        "import requests\nreal = requests.Session.get\n"
        "def get(self, url, **words): return real(self, url.replace('https://drive.google.com', "
        f"{server.address!r}), **words)\n"
        "requests.Session.get = get\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(place))
    monkeypatch.setenv("HOME", str(place))
    return server


def drive_row(**changes: Any) -> dict[str, Any]:
    return {"size": len(GOOD), "drive": IDENTITY, **changes}


@gdown
def test_gdown_brings_a_file_and_writes_no_other(drive: Server, tmp_path: Path) -> None:
    home = Path.home()
    before = everything(home)
    assert get(drive_row()) == GOOD == fetch.kept(SHA)
    assert drive.asked == [f"/uc?id={IDENTITY}"] and everything(tmp_path) == [f"cache/models/{SHA}"]
    assert [p for p in everything(home) if "__pycache__" not in p] == before


@gdown
def test_gdown_goes_through_the_page_that_warns_of_large_files(drive: Server) -> None:
    page = CONFIRM.format(host="https://drive.google.com").encode()
    drive.drive = lambda handler: handler.answer(page, Content_Type="text/html; charset=utf-8")
    assert get(drive_row()) == GOOD and drive.asked[-1].startswith("/confirmed?id=x")


@gdown
@pytest.mark.parametrize(
    ("answer", "say"),
    [
        (Handler.on_page, "Google Drive does not give it .*Too many users have viewed"),
        (Handler.on_gone, "Google Drive does not give it"),
        (lambda h: h.answer(QUOTA, **FILE), "it is a web page"),
        (lambda h: h.answer(GOOD[:1000], **FILE), "Only 1,000 of the 51,200 bytes"),
        (lambda h: h.answer(GOOD[:20_000], **FILE, Content_Length="51200"),
         "Google Drive does not give it|Only 20,000"),
        (lambda h: h.answer(GOOD + b"x" * 9, **FILE), "More than the 51,200 bytes"),
        (lambda h: h.answer(GOOD[:-1] + b"x", **FILE), "What came has the sha256"),
    ],
)
def test_what_drive_gives_instead_is_refused(drive: Server, tmp_path: Path,
                                             answer: Callable[[Handler], None], say: str) -> None:
    drive.drive = answer
    with pytest.raises(CourseError, match=say):
        get(drive_row())
    assert everything(tmp_path) == []


@gdown
@pytest.mark.parametrize("answer", [Handler.on_silent, Handler.on_stalled])
def test_a_drive_that_hangs_is_given_up_and_its_process_with_it(
    drive: Server, answer: Callable[[Handler], None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch
) -> None:
    drive.drive, started, real = answer, [], fetch._started
    monkeypatch.setattr(fetch, "PATIENCE", 3.0)
    monkeypatch.setattr(fetch, "_started", lambda *words: started.append(real(*words))
                        or started[-1])
    with pytest.raises(CourseError, match="nothing came for 3 seconds"):
        get(drive_row())
    assert started[0].returncode == -signal.SIGKILL and everything(tmp_path) == []


@pytest.mark.parametrize("identity", ["", "short", 5, None, "a" * 101, "../../../../etc/passwd",
                                      "abcdefghijk&x=y", "-" * 5])
def test_an_id_that_is_none(identity: Any, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="is no Google Drive id"):
        get(drive_row(drive=identity))
    assert everything(tmp_path) == []


def test_without_gdown_the_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CourseError, match="pip install gdown"):
        get(drive_row())


@gdown
def test_drive_comes_second_and_after_an_address_that_fails(drive: Server) -> None:
    assert get(row(drive, "good", drive=IDENTITY)) == GOOD and drive.asked == ["/good"]
    fetch.place(SHA).unlink()
    assert get(row(drive, "page", drive=IDENTITY)) == GOOD and drive.asked[-1].startswith("/uc")


# ------------------------------------------------------------------------------------------ through the zoo


@pytest.fixture
def released(tmp_path: Path, server: Server) -> tuple[Path, bytes]:
    """A stored model whose weights are on the server only."""
    root = tmp_path / "models"
    record = {"made_from": {"model": "lenet5", "classes": list(THREE)},
              "reports": [report().to_json()]}
    publish("a/b", 0, build("lenet5", classes=3), record, root)
    path = root / "a/b/seed0.safetensors"
    raw = path.read_bytes()
    path.unlink()
    release(root, raw, url=f"{server.address}/weights")
    return root, raw


def release(root: Path, raw: bytes, **where: Any) -> None:
    files = {hashlib.sha256(raw).hexdigest(): {"size": len(raw), **where}}
    (root / "release.json").write_text(json.dumps({"format": 1, "files": files}))


def test_a_model_is_downloaded_once_and_then_in_the_cache(
    released: tuple[Path, bytes], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, raw = released
    monkeypatch.setattr(Handler, "on_weights", lambda self: self.answer(raw), raising=False)
    assert list_models(root)[0]["where"] == "to download"
    assert same_weights(load_model("a/b", root=root),
                        build("lenet5", classes=3)) and server.asked == ["/weights"]
    (row,) = list_models(root)
    assert (row["where"], row["bytes"]) == ("cache", len(raw))
    (root / "release.json").unlink()
    assert same_weights(load_model("a/b", root=root),
                        build("lenet5", classes=3)) and server.asked == ["/weights"]


def test_a_bundled_file_is_never_downloaded(released: tuple[Path, bytes], server: Server) -> None:
    root, raw = released
    (root / "a/b/seed0.safetensors").write_bytes(raw)
    assert load_model("a/b", root=root) and server.asked == [] and fetch.kept(
        hashlib.sha256(raw).hexdigest()) is None
    (root / "a/b/seed0.safetensors").write_bytes(raw[:-1])
    with pytest.raises(CourseError, match="is damaged: its sha256"):
        load_model("a/b", root=root)
    assert server.asked == []


def test_a_model_without_an_address_is_to_be_made(released: tuple[Path, bytes]) -> None:
    root, raw = released
    release(root, raw)
    assert list_models(root)[0]["where"] == "to make"
    with pytest.raises(CourseError, match="no address is known.*make it again"):
        load_model("a/b", root=root)
    (root / "release.json").unlink()
    with pytest.raises(CourseError, match="is missing. Restore it .*make models"):
        load_model("a/b", root=root)


@pytest.mark.parametrize("text", ["", "[]", '{"files": []}', '{"files": {"a": 5}}', "{", "\0"])
def test_a_release_of_another_shape(released: tuple[Path, bytes], text: str) -> None:
    root, _ = released
    (root / "release.json").write_text(text)
    for call in (lambda: load_model("a/b", root=root), lambda: list_models(root)):
        with pytest.raises(CourseError, match="release.json"):
            call()
