"""Files that are not bundled: from the course's cache, or from an address in
serialized_models/release.json.
 A row of release.json says a file's size and where it lies: {"size": bytes, "url": "https://...",
"hosts": [where a redirect may lead], "drive": Google Drive's id}. The file is kept under its
sha256, so that no name from outside ever becomes a path; it is written beside its place, and gets
there only when size and hash are right.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import re
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tqdm.auto import tqdm

from course_lib.errors import CourseError
from course_lib.files import cache_dir

LARGEST = 500_000_000  # bytes: no file of the course comes near
PATIENCE = 30.0  # seconds without a byte; gdown hands on half a megabyte at a time
SLOWEST = 20_000  # bytes a second, over the whole of a file
CHUNK = 1 << 16
DRIVE = "https://drive.google.com/uc?id={}"
# In a process of its own gdown cannot hang for good, write a file or keep a cookie.
GDOWN = """
import sys, gdown
try:
    gdown.download(url=sys.argv[1], output=sys.stdout.buffer, quiet=True, use_cookies=False)
except Exception as e:
    sys.exit(f"{type(e).__name__}: {e}")
"""


def place(sha256: str) -> Path:
    """Where a file of this hash is kept: the course's cache, models/."""
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise CourseError(f"{sha256!r} is no sha256; it must be 64 digits of 0-9 and a-f. Restore "
                          "the manifest.")
    return cache_dir() / "models" / sha256


def kept(sha256: str) -> bytes | None:
    """The bytes of this hash when the cache holds them whole."""
    try:
        with place(sha256).open("rb") as f:
            raw = f.read(LARGEST + 1)
    except OSError:
        return None
    return raw if hashlib.sha256(raw).hexdigest() == sha256 else None


def fetch(sha256: str, row: Mapping[str, Any], name: str, progress: bool = True) -> bytes:
    """The bytes of this hash, from the cache or from one address after the other."""
    if (raw := kept(sha256)) is not None:
        return raw
    size, failed = _size(row, name), []
    for kind, source in (("url", _web), ("drive", _drive)):
        if kind in row:
            try:
                with closing(source(row)) as chunks:
                    return _received(chunks, sha256, size, name, progress)
            except CourseError as e:
                failed.append(str(e))
    raise CourseError(f"{name} cannot be downloaded: {' '.join(failed) or 'no address is known.'} "
                      "Try again later, or make it again.")


def _size(row: Mapping[str, Any], name: str) -> int:
    size = row.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= LARGEST:
        raise CourseError(f"release.json gives {name} a size of {size!r}; it must be 1 to "
                          f"{LARGEST:,} bytes. Restore release.json.")
    return size


def _received(chunks: Iterable[bytes], sha256: str, size: int, name: str, progress: bool) -> bytes:
    """Written to a temporary file, looked at, and only then moved to its place."""
    target = place(sha256)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".part-", delete=False) as f:
            try:
                raw = _looked_at(chunks, f, sha256, size, name, progress)
                f.flush()
                os.fsync(f.fileno())
                os.chmod(f.name, 0o644)
                os.replace(f.name, target)
            finally:
                Path(f.name).unlink(missing_ok=True)
    except OSError as e:
        raise CourseError(f"Cannot keep {name} in {target.parent} ({e.strerror or e}). Free some "
                          "space, or set COURSE_CACHE.") from None
    return raw


def _looked_at(chunks: Iterable[bytes], file: IO[bytes], sha256: str, size: int, name: str,
               progress: bool) -> bytes:
    raw, ends = bytearray(), time.monotonic() + PATIENCE + size / SLOWEST
    with tqdm(total=size, unit="B", unit_scale=True, desc=name, disable=not progress) as bar:
        for chunk in chunks:
            raw += chunk
            if len(raw) > size:
                raise CourseError(f"More than the {size:,} bytes of {name} came{_page(raw)}.")
            if time.monotonic() > ends:
                raise CourseError(f"{len(raw):,} of {size:,} bytes came in "
                                  f"{PATIENCE + size / SLOWEST:.0f} seconds: too slow.")
            file.write(chunk)
            bar.update(len(chunk))
    if len(raw) < size:
        raise CourseError(f"Only {len(raw):,} of the {size:,} bytes of {name} came{_page(raw)}.")
    if (have := hashlib.sha256(raw).hexdigest()) != sha256:
        raise CourseError(f"What came has the sha256 {have[:12]}…, not {sha256[:12]}…{_page(raw)}.")
    return bytes(raw)


def _page(raw: bytes | bytearray) -> str:
    return ", and it is a web page (a quota, a sign-in?)" if raw[:200].lstrip().startswith(
        b"<") else ""


# ------------------------------------------------------------------------------------------------ a plain address


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Only to the same scheme, and to the same host or one that release.json names."""

    def __init__(self, hosts: set[str]) -> None:
        self.hosts = hosts

    def redirect_request(self, req: urllib.request.Request,
                         *words: Any) -> urllib.request.Request | None:
        old, new = urlsplit(req.full_url), urlsplit(str(words[-1]))
        if new.scheme != old.scheme or new.netloc not in self.hosts | {old.netloc}:
            raise CourseError(f"{req.full_url} leads elsewhere, to {new.scheme}://{new.netloc}, "
                              "which release.json does not name.")
        return super().redirect_request(req, *words)


def _web(row: Mapping[str, Any]) -> Generator[bytes, None, None]:
    """A plain address, a read at a time. Whatever goes wrong on the way is one CourseError."""
    url, hosts = row["url"], row.get("hosts", [])
    try:
        if not isinstance(url, str) or urlsplit(url).scheme not in ("http",
                "https") or not urlsplit(url).hostname:
            raise CourseError(f"{url!r} is no address; it must begin with https:// (or http://). "
                              "Restore release.json.")
        if not isinstance(hosts, list) or not all(isinstance(h, str) for h in hosts):
            raise CourseError(f"The hosts {hosts!r} must be a list of names. Restore release.json.")
        with urllib.request.build_opener(_Redirects(set(hosts))).open(url,
                timeout=PATIENCE) as answer:
            while chunk := answer.read1(CHUNK):
                yield chunk
    except (OSError, http.client.HTTPException, ValueError) as e:
        why = " ".join(str(getattr(e, "reason", e)).split()) or type(e).__name__
        raise CourseError(f"{str(url)[:200]!r} does not give it ({why[:300]}).") from None


# ------------------------------------------------------------------------------------------------ Google Drive


def _drive(row: Mapping[str, Any]) -> Generator[bytes, None, None]:
    """What gdown gets from Google Drive."""
    identity = row["drive"]
    if not isinstance(identity, str) or not re.fullmatch(r"[-\w]{10,100}", identity, re.ASCII):
        raise CourseError(f"{identity!r} is no Google Drive id; it must be 10 to 100 letters, "
                          "digits, - and _. Restore release.json.")
    if importlib.util.find_spec("gdown") is None:
        raise CourseError("Google Drive needs gdown, which is not installed: pip install gdown.")
    command = [sys.executable, "-W", "ignore", "-c", GDOWN, DRIVE.format(identity)]
    with tempfile.TemporaryFile() as said, _started(command, said) as child:
        try:
            yield from _piped(child)
            if child.wait(PATIENCE):
                raise CourseError(f"Google Drive does not give it ({_last_words(said)}).")
        except (OSError, subprocess.TimeoutExpired) as e:
            raise CourseError(f"Google Drive does not give it ({e}).") from None
        finally:
            with suppress(ProcessLookupError):
                child.kill()


def _started(command: list[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said)


def _piped(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert child.stdout is not None
    while True:
        if not select.select([child.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError(f"nothing came for {PATIENCE:g} seconds")
        if not (chunk := os.read(child.stdout.fileno(), CHUNK)):
            return
        yield chunk


def _last_words(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read(100_000).decode(errors="replace").split()
    return " ".join(lines)[-300:] or "no reason given"
