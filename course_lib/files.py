"""The only way the course writes files that others read: one writer at a time, all of it or nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """The folder's only writer; others wait here until it is done."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        f = (root / ".lock").open("w")
    except OSError as e:
        raise cannot_write(root, e) from None
    with f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def cannot_write(path: Path, e: OSError) -> CourseError:
    return CourseError(f"Cannot write {path} ({e.strerror or e}). Free some space or choose a "
                       "folder you may write to.")


def write_together(files: Mapping[Path, bytes]) -> None:
    """Write each file beside its place, and only when all are safe rename them in order: a full
    disk changes nothing."""
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


def inside(root: Path, file: Any) -> Path | None:
    """Where a file that the manifest names lies, links followed; None when that is not below the
    folder."""
    try:
        base = os.path.realpath(root)
        path = os.path.realpath(os.path.join(base, file))
    except (OSError, ValueError, TypeError):
        return None
    return Path(path) if path.startswith(base.rstrip(os.sep) + os.sep) else None


def cache_dir() -> Path:
    """Where the course keeps what it downloads: $COURSE_CACHE, or ~/.cache/course-data."""
    return Path(os.environ.get("COURSE_CACHE") or Path.home() / ".cache" / "course-data")
