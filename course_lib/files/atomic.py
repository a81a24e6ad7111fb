"""Locking a folder, and writing files so that a reader sees all of them or none."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from course_lib.errors import CourseError

WAIT = 600.0  # seconds that we wait for a lock; whoever holds it may be downloading
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


def cannot_write(path: Path, e: OSError) -> CourseError:
    return CourseError(f"Cannot write {path} ({e.strerror or e}). Free some space or choose a "
                       "folder you may write to.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that nobody else writes to it; others wait until we are done."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock", timeout=WAIT)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
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
