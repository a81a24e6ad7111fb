"""One writer per folder: a lock that the operating system gives back when its process dies.

It spares a student two runs that undo each other's progress. Files stay complete without it, and
readers need no lock. A text file beside it names the holder.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress

from filelock import FileLock, Timeout

from course_lib.checkpoints.disk import Folder
from course_lib.errors import CourseError

HOLDER = "last-writer.txt"


class Lease:
    """The right of this process to write to a folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.lock: FileLock | None = None

    def take(self) -> None:
        """Take the lock, or share it with another store of this process: a stopped cell that runs
        again. CourseError names another process that holds it."""
        if self.lock is not None:
            return
        # a singleton counts how often this process took it
        lock = FileLock(self.folder.path.resolve() / ".lock", thread_local=False, is_singleton=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise CourseError(f"{self.folder.path} is being written by {self._who()}. Stop that "
                              "run, or restart its kernel, and run this again; or go on in an "
                              "empty store beside it: store.fresh().") from None
        self.lock = lock
        me = (f"process {os.getpid()} on {platform.node()} (since "
              f"{time.strftime('%Y-%m-%d %H:%M:%S')})")
        self.folder.write_atomic(HOLDER, me.encode())

    def release(self) -> None:
        """Give the lock back, unless another store of this process still has it."""
        if self.lock is not None:
            with suppress(OSError):  # the process ends some time, and the lock with it
                self.lock.release()
            self.lock = None

    def _who(self) -> str:
        with suppress(OSError, ValueError):
            return self.folder.disk.read(self.folder.path / HOLDER, 200).decode()
        return "another process"
