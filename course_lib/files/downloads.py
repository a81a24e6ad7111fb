"""Files that are not bundled: downloaded, hashed, and only then kept in the cache."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, TypeVar

from course_lib.errors import CourseError
from course_lib.files.atomic import write_together

LARGEST = 500_000_000  # bytes; every file of the course is smaller
PATIENCE = 30.0  # seconds that a server may be silent
SLOWEST = 50_000  # bytes in a second; a download that is slower is given up
T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], heart: Callable[[], Any] = lambda: None) -> T:
    """What `call` returns, in a thread of its own. TimeoutError where it takes longer than that,
    and longer than that since `heart` last gave another value. Such a thread is left behind."""
    answers: list[Future[T]] = [Future()]

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
    return Path(os.environ.get("COURSE_CACHE") or Path.home() / ".cache" / "course-data")


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
    if cached.is_file() and sha256_of(raw := cached.read_bytes()) == sha256:
        return raw
    for kind in (k for k in ("url", "drive") if k in source):
        try:
            received = Limited(min(source.get("size", LARGEST), LARGEST))
            within(PATIENCE + received.size / SLOWEST,  # all in all: a server may drip bytes
                   functools.partial(_fetch, kind, str(source[kind]), received))
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

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def write(self, chunk: Any) -> int:
        if self.tell() + len(chunk) > self.size:
            raise ValueError(f"more than {self.size:,} bytes came")
        return super().write(chunk)


def _fetch(kind: str, address: str, received: Limited) -> None:
    if kind == "drive":
        import gdown

        if not re.fullmatch(r"[-\w]{10,100}", address, re.ASCII):
            raise ValueError("a Google Drive id is 10 to 100 letters, digits, - and _")
        gdown.download(id=address, output=received, quiet=True, use_cookies=False)
        return
    _check_address(address)
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        _check_address(answer.geturl())  # where redirects have led
        shutil.copyfileobj(answer, received)


def _check_address(address: str) -> None:
    if not re.match(r"https://|http://127\.0\.0\.1:\d+/", address):
        raise ValueError("an address must begin with https://")
