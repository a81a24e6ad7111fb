"""One at a time among the processes of a machine."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

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
