"""How the course reads and writes files: locks, the only atomic writer, downloads that are hashed
before they are kept, and folders of files that a manifest.json names with their sha256."""

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import threading
import time
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

from course_lib.errors import CourseError

Entries = dict[str, dict[str, dict[str, Any]]]  # name -> key (a seed, for example) -> entry
T = TypeVar("T")
NOTICE, WAIT = 5.0, 600.0  # seconds until we say that we wait for a lock, and until we give up
OLD = 600.0  # seconds after which nobody reads a superseded file, or goes on writing a part
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
LARGEST = 500_000_000  # bytes; every file of the course is smaller
RECENT = ".recent"  # old contents by sha256, for readers of the previous manifest
PATIENCE = 30.0  # seconds that a server may be silent
SLOWEST = 50_000  # bytes in a second; a download that is slower is given up


class CannotWrite(CourseError, OSError):
    """A full disk, for example."""

    def __str__(self) -> str:
        return f"Cannot write {self.filename} ({self.strerror}). Make space or use another folder."


def reason(error: BaseException) -> str:
    """Why a call failed, in the system's words."""
    return getattr(error, "strerror", None) or str(error)


def check_writable(folder: Path, size: int) -> None:
    """CourseError unless the folder takes files, and `size` bytes: long work asks beforehand."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        free = shutil.disk_usage(folder).free
    except OSError as e:
        raise CannotWrite(e.errno, reason(e), folder) from None
    if free < size:
        raise CourseError(f"The disk of {folder} has {free / 1e6:,.1f} MB free, and this needs "
                          f"{size / 1e6:,.1f} MB. Free some space or choose another folder.")


def take_lock(folder: Path, seconds: float, **kind: Any) -> Any:
    """The folder's lock, a FileLock, taken within some seconds (else TimeoutError); None on a disk
    that has no locks. The system gives it back when this process dies."""
    from filelock import FileLock

    path = folder.resolve() / (".run-lock" if kind else ".lock")
    if path.is_symlink():  # older versions of filelock empty the file that it leads to
        raise OSError(errno.ELOOP, f"{path} is a link")
    lock = FileLock(path, **kind)
    try:
        lock.acquire(timeout=seconds)
    except (OSError, NotImplementedError) as e:
        if getattr(e, "errno", errno.ENOSYS) not in NO_LOCKS:
            raise
        warnings.warn(f"{folder} cannot be locked ({e}). Let only one process write to it.",
                      stacklevel=2)
        return None
    return lock


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that nobody else writes to it; others wait until we are done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = take_lock(folder, min(NOTICE, WAIT))
        except TimeoutError:
            warnings.warn(f"Another process has locked {folder}. We wait until it is done, for "
                          f"{WAIT:g} seconds at most.", stacklevel=3)
            lock = take_lock(folder, WAIT)
    except TimeoutError:
        raise CourseError(f"Another process has locked {folder} for {WAIT:g} seconds. Wait until "
                          "it is done, or stop it, and try again.") from None
    except OSError as e:
        raise CannotWrite(e.errno, reason(e), folder) from None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def write_new(path: Path, data: bytes, disk: Any = os) -> None:
    """Write a file under a name that is free, and wait until the disk has it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    file = disk.open(path, flags, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[disk.write(file, rest) :]
        disk.fsync(file)
    finally:
        disk.close(file)


def write_together(files: Mapping[Path, bytes], disk: Any = os) -> None:
    """Write all of these files or none: each beside its place first, then all are renamed, in
    this order. A link is replaced, not followed. `disk` has the system calls."""
    parts = {path: path.with_name(f".part-{uuid.uuid4().hex}") for path in files}
    path = Path()
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            sweep(path.parent, ".part-*")
            write_new(part, files[path], disk)
        for path, part in parts.items():
            disk.replace(part, path)
    except OSError as e:
        raise CannotWrite(e.errno, reason(e), path) from None
    finally:
        for part in filter(os.path.exists, parts.values()):  # nobody needs it, even after Ctrl-C
            with contextlib.suppress(OSError):
                disk.unlink(part)


def sweep(folder: Path, pattern: str) -> None:
    """Delete what was left by writers that were killed, or for readers, and is old."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process was quicker
            if time.time() - path.lstat().st_mtime > OLD:
                path.unlink()


def within(seconds: float, call: Callable[[], T], heart: Callable[[], Any] = lambda: None,
           pending: list[Future[Any]] | None = None) -> T:
    """What `call` returns, in a thread of its own. TimeoutError where it takes longer than that,
    and longer than that since `heart` last gave another value. Such a thread is left behind, and
    while it is in `pending`, other calls with that list are refused at once."""
    answers: list[Future[T]] = [] if pending is None else pending
    if answers and not answers[0].done():
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")
    answers[:] = [Future()]

    def work() -> None:
        try:
            answers[0].set_result(call())
        except BaseException as e:
            answers[0].set_exception(e)

    threading.Thread(target=work, daemon=True).start()
    beat = heart()
    while not wait(answers, seconds).done:
        before, beat = beat, heart()
        if beat == before:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")
    return answers.pop().result()  # an error in it holds this frame: no ring


def cache_dir() -> Path:
    """The folder for downloads: $COURSE_CACHE, or ~/.cache/course-data."""
    if not (folder := os.environ.get("COURSE_CACHE")) and os.path.expanduser("~") == "~":
        raise CourseError("You have no home folder. Set COURSE_CACHE to a folder for downloads.")
    return Path(folder or Path.home() / ".cache" / "course-data")


def in_cache(sha256: str) -> Path:
    """Where a downloaded file is kept."""
    return cache_dir() / "models" / sha256


def sha256_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def download(source: Mapping[str, Any], sha256: str, path: Path,
             remake: str = "Restore it, make it again (make models), or try again later.") -> bytes:
    """The bytes of the missing file `path`: from the cache, or source["url"] or source["drive"].

    At most source["size"] bytes are accepted. The cache keeps them when their sha256 is right.
    `remake` says what else can be done.
    """
    cached, reasons = in_cache(sha256), []
    if os.path.isfile(cached) and sha256_of(raw := cached.read_bytes()) == sha256:
        return raw
    for kind in (k for k in ("url", "drive") if k in source):
        try:
            received = Limited()
            received.size = min(source.get("size", LARGEST), LARGEST)
            within(PATIENCE + received.size / SLOWEST,  # all in all: a server may drip bytes
                   partial(_fetch, kind, str(source[kind]), received))
            if sha256_of(raw := received.getvalue()) != sha256:
                raise ValueError(f"{len(raw):,} of {received.size:,} bytes came, with another "
                                 "sha256")
        except Exception as e:  # urllib, requests and gdown have no common family of errors
            reasons.append(f"{str(source[kind])[:200]} ({' '.join(str(e).split())[:300]})")
        else:
            with contextlib.suppress(CourseError):  # a home that cannot be written to
                write_together({cached: raw})
            return raw
    raise CourseError(f"{path} is missing and cannot be downloaded: "
                      f"{'; '.join(reasons) or 'no address is known'}. {remake}")


class Limited(io.BytesIO):
    """Bytes in memory, `size` at most."""

    size = LARGEST

    def write(self, chunk: Any) -> int:
        if self.tell() + len(chunk) > self.size:
            raise ValueError(f"more than {self.size:,} bytes came")
        return super().write(chunk)


def _fetch(kind: str, address: str, received: Limited) -> None:
    if kind == "drive":
        if not re.fullmatch(r"[-\w]{10,100}", address, re.ASCII):
            raise ValueError("a Google Drive id is 10 to 100 letters, digits, - and _")
        import gdown

        gdown.download(id=address, output=received, quiet=True, use_cookies=False)
        return
    _check_address(address)
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        _check_address(answer.geturl())  # where redirects have led
        shutil.copyfileobj(answer, received)


def _check_address(address: str) -> None:
    if not re.match(r"https://|http://127\.0\.0\.1:\d+/", address):
        raise ValueError("an address must begin with https://")


def inside(folder: Path, file: Any) -> Path | None:
    """The path of `file` in the folder; None where that leaves the folder, or is a link. A linked
    folder on the way is the user's own way to use another disk.

    >>> inside(Path("models"), "../manifest.json") is None
    True
    """
    path = PurePath(file if isinstance(file, str) and "\0" not in file else "")
    if path.anchor or ".." in path.parts or not path.parts or os.path.islink(folder / path):
        return None
    return folder / path


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CourseError(f"{path} cannot be read ({reason(e)}). Make it readable, or restore it "
                          "(git checkout).") from None


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object that the file at `path` holds as these bytes."""
    try:
        return {**json.loads(raw)}
    except (TypeError, ValueError, RecursionError) as e:
        raise CourseError(f"{path} is damaged ({type(e).__name__}: {str(e)[:100]}). Restore it: "
                          f"git checkout {path.name}.") from None


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


@dataclass(frozen=True)
class StoredFiles:
    """A folder of files that its manifest.json names with their sha256."""

    folder: Path
    kind: str  # "models", "curves" or "luf": where manifest.json has its entries
    remake: str  # what to do about a damaged file

    def entries(self) -> Entries:
        """The manifest's entries; none where there is no manifest yet. The keys of models are
        seeds, and their entries have a row per file."""
        models = self.kind == "models"
        entries = self._table("manifest.json", self.kind, depth=2 + models)
        for key in (key for keys in entries.values() for key in keys if models):
            if not (key.isdecimal() and len(key) <= 20):
                raise CourseError(f"{self.folder / 'manifest.json'} is damaged: {key[:30]!r} is no "
                                  f"seed. {self.remake}")
        return entries

    def release(self) -> dict[str, dict[str, Any]]:
        """release.json: for the sha256 of files elsewhere, their size and url or Drive id."""
        return self._table("release.json", "files", depth=1)

    def _table(self, file: str, key: str, depth: int) -> dict[str, Any]:
        """A table of `depth` keys, the last of which gives an object."""
        path = self.folder / file
        if not path.is_file():
            return {}
        content = parse_json(read_bytes(path), path)
        if (format := content.get("format", 1)) != 1:
            raise CourseError(f"{path} has format {format!r}. Update the course: it reads 1.")
        level: list[Any] = [content.get(key)]
        for _ in range(depth + 1):
            if not all(isinstance(row, dict) for row in level):
                raise CourseError(f"{path} is damaged: its {key} name no files. {self.remake}")
            level = [below for row in level for below in row.values()]
        return dict(content[key])

    def read(self, row: Mapping[str, Any]) -> bytes:
        """The bytes of row["file"], verified by row["sha256"]; downloaded if they are elsewhere."""
        path, sha256 = inside(self.folder, row.get("file")), str(row.get("sha256"))
        if path is None or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise CourseError(f"The manifest names {row.get('file')!r} with sha256 {sha256}; it "
                              f"must be a file inside {self.folder}. Restore manifest.json.")
        have = ""
        for place in (path, self.folder / RECENT / sha256, path):  # a writer may be at work
            # isfile is False for a name that the system refuses, too
            if os.path.isfile(place) and (have := sha256_of(raw := read_bytes(place))) == sha256:
                return raw
        if not have:
            return download(self.release().get(sha256, {}), sha256, path, self.remake)
        raise CourseError(f"{path} is damaged: its sha256 is {have[:12]}…, the manifest says "
                          f"{sha256[:12]}…. {self.remake}")

    def read_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object in row["file"], verified."""
        return parse_json(self.read(row), Path(str(row["file"])))

    def place(self, row: Mapping[str, Any] | None) -> dict[str, Any]:
        """How many bytes of this file are on this machine, and where."""
        if row is None:
            return {"bytes": 0, "where": "report only"}
        sha256 = str(row.get("sha256"))
        for path, where in ((inside(self.folder, row.get("file")), "bundled"),
                            (inside(in_cache(""), sha256), "cache")):
            if path and os.path.isfile(path):
                return {"bytes": path.stat().st_size, "where": where}
        elsewhere = {"url", "drive"} & self.release().get(sha256, {}).keys()
        return {"bytes": 0, "where": "to download" if elsewhere else "to make"}

    @contextlib.contextmanager
    def change(self) -> Iterator[tuple[Entries, dict[str, bytes]]]:
        """Within the block change the entries and add files; then all is stored, or, where the
        block fails, nothing. Always, and after a kill, the manifest on disk names contents that are
        in their places or in RECENT."""
        with locked(self.folder):
            entries, files, recent = self.entries(), dict[str, bytes](), self.folder / RECENT
            aside = {path.name for path in recent.glob("*")}  # by a change that was killed
            for row in (row for keys in entries.values() for entry in keys.values()
                        for row in (entry, *entry.values())
                        if isinstance(row, dict) and str(row.get("sha256")) in aside):
                with contextlib.suppress(CourseError):  # a damaged row must not stop other changes
                    write_together({self.folder / row["file"]: self.read(row)})
            sweep(recent, "*")
            sweep(self.folder, "**/.part-*")
            yield entries, files
            new, old = dict[Path, bytes](), dict[Path, bytes]()
            for file, raw in files.items():
                if (path := inside(self.folder, file)) is None:
                    raise CourseError(f"{file!r} is not a name for a file inside {self.folder}, or "
                                      "a link has it. Choose another name, or remove the link.")
                new[path] = raw
                if path.is_file() and (before := read_bytes(path)) != raw:
                    old[recent / sha256_of(before)] = before
            tidy = {name: dict(sorted(keys.items())) for name, keys in sorted(entries.items())}
            manifest = json_bytes({"format": 1, self.kind: tidy})
            write_together({**old, **new, self.folder / "manifest.json": manifest})
