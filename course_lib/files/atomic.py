"""Locking a folder, and writing files so that a reader sees all of them or none."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.errors import CourseError

if TYPE_CHECKING:
    from filelock import FileLock

NOTICE, WAIT = 5.0, 600.0  # seconds until we say that we wait for a lock, and until we give up
OLD = 600.0  # seconds after which nobody reads a superseded file, or goes on writing a part
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def cannot_write(path: Path, e: OSError) -> CourseError:
    return CourseError(f"Cannot write {path} ({e.strerror or e}). Free some space or choose a "
                       "folder you may write to.")


def check_writable(folder: Path, size: int) -> None:
    """CourseError unless the folder takes files and its disk has `size` bytes free: long work asks
    before it starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
        free = shutil.disk_usage(folder).free
    except OSError as e:
        raise cannot_write(folder, e) from None
    if free < size:
        raise CourseError(f"The disk of {folder} has {free / 1e6:,.1f} MB free, and this needs "
                          f"{size / 1e6:,.1f} MB. Free some space or choose another folder.")


def take_lock(folder: Path, seconds: float, **kind: Any) -> FileLock | None:
    """The folder's lock, taken within some seconds (else filelock's Timeout); None on a disk that
    has no locks. The system gives it back when this process dies."""
    from filelock import FileLock, Timeout

    path = folder.resolve() / ".lock"
    if path.is_symlink():  # older versions of filelock empty the file that it leads to
        raise OSError(errno.ELOOP, f"{path} is a link")
    lock = FileLock(path, **kind)
    try:
        lock.acquire(timeout=seconds)
    except (OSError, NotImplementedError) as e:
        if isinstance(e, Timeout) or (isinstance(e, OSError) and e.errno not in NO_LOCKS):
            raise
        _warn_once(f"{folder} cannot be locked ({e}). Let only one process write to it.")
        return None
    return lock


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, stacklevel=4)


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
        raise cannot_write(folder, e) from None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write all of these files or none: each beside its place first, then all are renamed, in
    this order. A link is replaced, not followed."""
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
        for folder in {path.parent for path in files}:
            sweep(folder, ".part-*")


def sweep(folder: Path, pattern: str) -> None:
    """Delete what was left by writers that were killed, or for readers, and is old."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # another process was quicker
            if time.time() - path.lstat().st_mtime > OLD:
                path.unlink()
