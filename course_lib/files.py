"""How the course reads and writes files: one atomic writer, lock, hash check and download."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import urlsplit

from course_lib.errors import CourseError

LARGEST = 500_000_000  # bytes; every file of the course is smaller
PATIENCE = 30.0  # seconds that a server may be silent
WAIT = 600.0  # seconds that we wait for a lock; whoever holds it may be downloading
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
Entries = dict[str, dict[str, dict[str, Any]]]  # name -> key (a seed, for example) -> entry


def cache_dir() -> Path:
    """The folder for downloads: $COURSE_CACHE, or ~/.cache/course-data."""
    return Path(os.environ.get("COURSE_CACHE") or Path.home() / ".cache" / "course-data")


def cannot_write(path: Path, e: OSError) -> CourseError:
    return CourseError(f"Cannot write {path} ({e.strerror or e}). Free some space or choose a "
                       "folder you may write to.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that nobody else writes to it; others wait until we are done."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=WAIT)
    except Timeout:
        raise CourseError(f"Another process has locked {folder} for {WAIT:g} seconds. Wait until "
                          "it is done, or stop it, and try again.") from None
    except (OSError, NotImplementedError) as e:
        if isinstance(e, OSError) and e.errno not in NO_LOCKS:
            raise cannot_write(folder, e) from None
        warnings.warn(f"{folder} cannot be locked ({e}); let only one process write to it.",
                      stacklevel=3)
    try:
        yield
    finally:
        lock.release()


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write all of these files or none: each beside its place first, then all are renamed."""
    parts: dict[Path, Path] = {}
    path = Path()
    try:
        for path, raw in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as f:
                parts[path] = Path(f.name)
                f.write(raw)
                f.flush()
                os.fsync(f.fileno())
            os.chmod(parts[path], 0o644)
        for path, part in parts.items():
            os.replace(part, path)
    except OSError as e:
        raise cannot_write(path, e) from None
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def inside(folder: Path, file: Any) -> Path | None:
    """The path of `file` in the folder, links resolved; None where that is not below the folder."""
    try:
        base = os.path.realpath(folder)
        path = os.path.realpath(os.path.join(base, file))
    except (OSError, ValueError, TypeError):
        return None
    return Path(path) if path.startswith(base.rstrip(os.sep) + os.sep) else None


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CourseError(f"{path} cannot be read ({e.strerror or e}). Make it readable, or "
                          "restore it (git checkout).") from None


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object that the file at `path` holds as these bytes."""
    try:
        content = json.loads(raw)
        reason = "" if isinstance(content, dict) else f"it holds a {type(content).__name__}"
    except (ValueError, RecursionError) as e:
        reason = f"{type(e).__name__}: {str(e)[:100]}"
    if reason:
        raise CourseError(f"{path} is damaged ({reason}). Restore it: git checkout {path.name}.")
    return dict(content)


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


def sha256_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True)
class StoredFiles:
    """A folder of files that its manifest.json names with their sha256."""

    folder: Path
    kind: str  # "models", "curves" or "luf": where manifest.json has its entries
    remake: str  # what to do about a damaged file

    def entries(self) -> Entries:
        """What the manifest names; nothing where there is no manifest yet."""
        path = self.folder / "manifest.json"
        if not path.is_file():
            return {}
        content = parse_json(read_bytes(path), path)
        if content.get("format") != 1:
            raise CourseError(f"{path} has format {content.get('format')!r}; this library reads 1. "
                              "Update whichever is older.")
        entries = content.get(self.kind)
        if not _tables(entries) or not all(_tables(keys) for keys in entries.values()):
            raise CourseError(f"{path} is damaged: its {self.kind} name no files. {self.remake}")
        return entries

    def release(self) -> dict[str, dict[str, Any]]:
        """release.json: for the sha256 of files elsewhere, their size and url or Drive id."""
        path = self.folder / "release.json"
        files = parse_json(read_bytes(path), path).get("files") if path.is_file() else {}
        if not _tables(files):
            raise CourseError(f"{path} is damaged: its files are no table of sizes and addresses. "
                              f"Restore it: git checkout {path.name}.")
        return files

    def read(self, row: Mapping[str, Any]) -> bytes:
        """The bytes of row["file"], verified by row["sha256"]; downloaded if they are elsewhere."""
        path, sha256 = inside(self.folder, row.get("file")), str(row.get("sha256"))
        if path is None or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise CourseError(f"The manifest names {row.get('file')!r} with sha256 {sha256}; it "
                              f"must be a file inside {self.folder} with its hash. Restore "
                              "manifest.json.")
        if not os.path.isfile(path):  # False for a name that the system refuses, too
            return download(self.release().get(sha256, {}), in_cache(sha256), sha256, path)
        if (have := sha256_of(raw := read_bytes(path))) != sha256:
            raise CourseError(f"{path} is damaged: its sha256 is {have[:12]}…, the manifest says "
                              f"{sha256[:12]}…. {self.remake}")
        return raw

    def change(self, edit: Callable[[Entries], Mapping[str, bytes]]) -> None:
        """Let `edit` change the entries and return new files; store all of it or nothing."""
        with locked(self.folder):
            entries = self.entries()
            files = {self.folder / file: raw for file, raw in edit(entries).items()}
            tidy = {name: dict(sorted(keys.items())) for name, keys in sorted(entries.items())}
            manifest = json_bytes({"format": 1, self.kind: tidy})
            write_together({**files, self.folder / "manifest.json": manifest})


def _tables(content: Any) -> TypeGuard[dict[str, dict[str, Any]]]:
    return isinstance(content, dict) and all(isinstance(row, dict) for row in content.values())


def in_cache(sha256: str) -> Path:
    """Where a downloaded file is kept."""
    return cache_dir() / "models" / sha256


def download(source: Mapping[str, Any], target: Path, sha256: str, path: Path) -> bytes:
    """The bytes of a missing file: from `target`, else from source["url"] or source["drive"].

    At most source["size"] bytes are accepted. They become `target` when their sha256 is right.
    """
    if target.is_file() and sha256_of(raw := read_bytes(target)) == sha256:
        return raw
    size, reasons = source.get("size", LARGEST), []
    if not isinstance(size, int) or not 0 < size <= LARGEST:
        raise CourseError(f"release.json gives {path.name} a size of {size!r}; it must be 1 to "
                          f"{LARGEST:,} bytes. Restore release.json.")
    for kind, fetch in (("url", _from_url), ("drive", _from_drive)):
        if kind in source:
            received = Limited(size)
            try:
                fetch(source[kind], received)
                if sha256_of(raw := received.getvalue()) != sha256:
                    raise ValueError(f"{len(raw):,} of {size:,} bytes came, with another sha256")
            except Exception as e:  # urllib, requests and gdown have no common family of errors
                reasons.append(f"{str(source[kind])[:200]} ({' '.join(str(e).split())[:300]})")
            else:
                write_together({target: raw})
                return raw
    raise CourseError(f"{path} is missing and cannot be downloaded: "
                      f"{'; '.join(reasons) or 'no address is known'}. Restore it (git checkout), "
                      "make it again (make models), or try again later.")


class Limited(io.BytesIO):
    """Bytes in memory, `size` at most."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def write(self, chunk: Any) -> int:
        if self.tell() + len(chunk) > self.size:
            raise ValueError(f"more than {self.size:,} bytes came")
        return super().write(chunk)


def _from_url(url: Any, received: Limited) -> None:
    parts = urlsplit(str(url))
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
    if not (local or parts.scheme == "https"):
        raise ValueError("an address must begin with https://")
    with urllib.request.urlopen(str(url), timeout=PATIENCE) as answer:
        shutil.copyfileobj(answer, received)


def _from_drive(identity: Any, received: Limited) -> None:
    import gdown

    if not re.fullmatch(r"[-\w]{10,100}", str(identity), re.ASCII):
        raise ValueError("a Google Drive id is 10 to 100 letters, digits, - and _")
    gdown.download(id=identity, output=received, quiet=True, use_cookies=False)
