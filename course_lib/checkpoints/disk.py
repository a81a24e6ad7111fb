"""Files that survive a power cut, and folders that hold checkpoints.

A checkpoint is one file, `ckpt-<step>-<sha256>`. Its name gives the hash of its bytes, so a file
that was cut short or damaged is recognised and never loaded.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from course_lib.errors import CourseError

RECORD = "store.json"  # what a store was made from, for people and for `Store.open`
MAX_BYTES = 4 << 30  # the largest checkpoint that is read at all
CHUNK = 1 << 20  # bytes that are read at once
SPARES = 4  # how many second copies, "name (1)" .., are tried where a damaged file has the name
NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})(?: \([0-9]{1,3}\))?")
T = TypeVar("T")


class Damaged(CourseError):
    """A checkpoint that must not be loaded; the text is the reason."""


class Key(NamedTuple):
    """The name of a checkpoint. Keys sort by step: the newest has the most steps, whatever the
    clock says."""

    step: int
    sha: str

    def __str__(self) -> str:
        return f"ckpt-{self.step}-{self.sha}"


class Folder:
    """A folder of checkpoints on one disk."""

    keep = 3  # so many of the newest that verify; older ones are deleted
    _count = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk: Any = os  # the system calls; tests put a disk here that fails, lies or stops
        self.verdicts: dict[Key, bool] = {}  # what this process wrote or has read: does it verify?
        self.chunks = 0  # how many were read

    def answer(self, call: Callable[[], T]) -> T:
        """What a call that reads this folder returns."""
        return call()

    def failure(self, error: OSError) -> str:
        """What a warning says when the folder cannot be read."""
        return (f"{self.path} cannot be read ({error.strerror or error}): its checkpoints are not "
                "used.")

    def write_new(self, name: str, data: bytes) -> None:
        """Write a file under a name that is free, and wait until the disk has it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        file = self.disk.open(self.path / name, flags, 0o644)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self.disk.write(file, rest) :]
            self.disk.fsync(file)
        finally:
            self.disk.close(file)

    def write_atomic(self, name: str, data: bytes) -> None:
        """Write a file so that at every moment the old one or the new one is complete."""
        spare = f".tmp-{os.getpid()}-{next(self._count)}"
        try:
            self.write_new(spare, data)
            self.disk.replace(self.path / spare, self.path / name)
        except BaseException:  # nobody needs the spare, even after Ctrl-C
            with suppress(OSError):  # the first error is the one to report
                self.disk.unlink(self.path / spare)
            raise
        if os.name != "nt":  # Windows cannot open a folder
            file = self.disk.open(self.path, os.O_RDONLY)
            try:
                self.disk.fsync(file)  # without it a power cut can undo the rename
            finally:
                self.disk.close(file)

    def write_once(self, name: str, data: bytes) -> None:
        """Write a file without overwriting any, and read it back. OSError when it differs.

        For a disk where a rename proves nothing. A damaged file that has the name stays; the bytes
        go beside it.
        """
        for i in range(SPARES + 1):
            copy = f"{name} ({i})" if i else name
            with suppress(FileExistsError):  # from an earlier try, perhaps a good one
                self.write_new(copy, data)
            if self.read_file(copy) == data:
                return
        raise OSError(errno.EIO, "a file does not read back as it was written")

    def read_file(self, name: str) -> bytes:
        """The bytes of a file, if they are not too many: one more than MAX_BYTES otherwise."""
        data = bytearray()
        with open(self.path / name, "rb", opener=self.disk.open) as file:
            while chunk := file.read(min(CHUNK, MAX_BYTES + 1 - len(data))):
                data += chunk
                self.chunks += 1
        return bytes(data)

    def copies(self) -> dict[Key, list[str]]:
        """The files of each checkpoint: one, or more where Drive has made second copies."""
        files: dict[Key, list[str]] = {}
        with suppress(FileNotFoundError):
            for name in sorted(self.disk.listdir(self.path)):
                if match := NAME.fullmatch(name):
                    files.setdefault(Key(int(match[1]), match[2]), []).append(name)
        return files

    def read(self, key: Key, names: list[str]) -> bytes:
        """The bytes of a checkpoint, from the first of its files where they hash to its name.

        Damaged or OSError when there is no such file, FileNotFoundError when it was deleted.
        """
        reason: Exception = FileNotFoundError(str(key))
        for name in names:
            try:
                data = self.read_file(name)
            except OSError as error:
                reason = error
                continue
            self.verdicts[key] = hashlib.sha256(data).hexdigest() == key.sha
            if self.verdicts[key]:
                return data
            reason = Damaged(f"its {len(data):,} bytes do not hash to its name: it is damaged")
        raise reason

    def prune(self, *, truncate: bool = False) -> None:
        """Delete older checkpoints. Drive's bin fills the quota: truncate first there."""
        good, copies = 0, self.copies()
        for key in sorted(copies, reverse=True):
            if good < self.keep:
                if key not in self.verdicts:
                    with suppress(Damaged, OSError):
                        self.read(key, copies[key])
                good += self.verdicts.get(key, False)
                continue
            for name in copies[key]:
                with suppress(FileNotFoundError):  # another writer was quicker
                    if truncate and not os.path.islink(self.path / name):
                        self.disk.truncate(self.path / name, 0)
                    self.disk.unlink(self.path / name)
