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
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from course_lib.errors import CourseError

MAX_BYTES = 4 << 30  # the largest checkpoint that is read at all
SPARES = 4  # how many second copies, "name (1)" .., are tried where a damaged file has the name
NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})(?: \([0-9]{1,3}\))?")


class Damaged(CourseError):
    """A checkpoint that must not be loaded; the text is the reason."""


class Gone(Damaged):
    """A checkpoint that its writer has deleted meanwhile, having newer ones."""


class Key(NamedTuple):
    """The name of a checkpoint. Keys sort by step: the newest has the most steps, whatever the
    clock says."""

    step: int
    sha: str

    def __str__(self) -> str:
        return f"ckpt-{self.step}-{self.sha}"


class Disk:
    """The system calls of a save, one per method. Tests replace it to fail, lie or stop."""

    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    close = staticmethod(os.close)
    rename = staticmethod(os.replace)
    names = staticmethod(os.listdir)
    remove = staticmethod(os.unlink)

    def create(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o644)

    def fsync_folder(self, folder: Path) -> None:
        if os.name == "nt":  # Windows cannot open a folder
            return
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, path: Path, most: int) -> bytes:
        with open(path, "rb") as file:
            return file.read(most + 1)

    def truncate(self, path: Path) -> None:
        os.truncate(path, 0)


class Folder:
    """A folder of checkpoints on one disk."""

    _count = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk()
        self.verdicts: dict[Key, bool] = {}  # what this process wrote or has read: does it verify?

    def write_new(self, name: str, data: bytes) -> None:
        """Write a file under a name that is free, and wait until the disk has it."""
        file = self.disk.create(self.path / name)
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
            self.disk.rename(self.path / spare, self.path / name)
        except BaseException:  # nobody needs the spare, even after Ctrl-C
            self._forget(spare)
            raise
        self.disk.fsync_folder(self.path)  # without it a power cut can undo the rename

    def write_once(self, name: str, data: bytes) -> None:
        """Write a file without overwriting any, and read it back. OSError when it differs.

        For a disk where a rename proves nothing. A damaged file that has the name stays; the bytes
        go beside it.
        """
        for i in range(SPARES + 1):
            path = self.path / (f"{name} ({i})" if i else name)
            with suppress(FileExistsError):  # from an earlier try, perhaps a good one
                self.write_new(path.name, data)
            if self.disk.read(path, len(data)) == data:
                return
        raise OSError(errno.EIO, "a file does not read back as it was written")

    def _forget(self, name: str) -> None:
        with suppress(OSError):  # the first error is the one to report
            self.disk.remove(self.path / name)

    def sweep(self) -> None:
        """Remove what killed saves left half-written. Only the holder of the lock may."""
        for name in self.disk.names(self.path):
            if name.startswith(".tmp-"):
                self._forget(name)

    def copies(self) -> dict[Key, list[str]]:
        """The files of each checkpoint: one, or more where Drive has made second copies."""
        files: dict[Key, list[str]] = {}
        with suppress(FileNotFoundError):
            for name in sorted(self.disk.names(self.path)):
                if match := NAME.fullmatch(name):
                    files.setdefault(Key(int(match[1]), match[2]), []).append(name)
        return files

    def read(self, key: Key) -> bytes:
        """The bytes of a checkpoint, which hash to its name. Damaged when no file has them."""
        reason: Damaged = Gone("it is not there any more")
        for name in self.copies().get(key, []):
            try:
                data = self.disk.read(self.path / name, MAX_BYTES)
                if hashlib.sha256(data).hexdigest() == key.sha:
                    return data
                reason = Damaged(f"its {len(data):,} bytes do not hash to its name: it is damaged")
            except FileNotFoundError:
                pass
            except OSError as error:
                reason = Damaged(f"it cannot be read: {error.strerror or error}")
        raise reason

    def verifies(self, key: Key) -> bool:
        """Do its bytes hash to its name? Each checkpoint is read once at most."""
        if key not in self.verdicts:
            self.verdicts[key] = False
            with suppress(Damaged):
                self.verdicts[key] = bool(self.read(key))
        return self.verdicts[key]

    def prune(self, keep: int, *, truncate: bool = False) -> None:
        """Delete what is older than the `keep` newest that verify. Drive's bin fills the quota:
        truncate first there."""
        good, copies = 0, self.copies()
        for key in sorted(copies, reverse=True):
            if good < keep:
                good += self.verifies(key)
                continue
            for name in copies[key]:
                with suppress(FileNotFoundError):  # another writer was quicker
                    if truncate:
                        self.disk.truncate(self.path / name)
                    self.disk.remove(self.path / name)
