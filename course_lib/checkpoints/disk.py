"""Files that survive a power cut, and folders that hold checkpoints.
 A checkpoint is two files. `ckpt-<step>-<sha256>` holds the bytes, and its name says what they must
hash to. `ckpt-<step>-<sha256>.ok`, the marker, is written when those bytes are safe, and lists the
tensors in them. A file without a marker was never finished; one whose bytes do not hash to its name
is damaged. Neither is loaded.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.errors import CourseError

MAX_BYTES = 4 << 30  # the largest checkpoint that is read at all
MAX_MARKER = 8 << 20
# how many second copies, "name (1)" .., are tried where a name is taken by a damaged file
SPARES = 4
NAME = re.compile(
    r"ckpt-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})(?: \([0-9]{1,3}\))?(\.ok)?(?: \([0-9]{1,3}\))?")


class Damaged(CourseError):
    """A checkpoint that must not be loaded; the text is the reason."""


class Gone(Damaged):
    """A checkpoint that is not there any more: its writer deleted it, having newer ones."""


class Key(NamedTuple):
    """What a checkpoint is called. Keys sort by step: the newest is the one with the most steps,
    whatever the clock says."""

    step: int
    sha: str

    def __str__(self) -> str:
        return f"ckpt-{self.step}-{self.sha}"


class Disk:
    """The system calls of a save, one a method: tests replace it to fail, lie or stop at any of
    them."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0),
                       0o644)

    def write(self, file: int, data: memoryview) -> int:
        return os.write(file, data)

    def fsync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

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

    def names(self, folder: Path) -> list[str]:
        return os.listdir(folder)

    def read(self, path: Path, most: int) -> bytes:
        with open(path, "rb") as file:
            return file.read(most + 1)

    def truncate(self, path: Path) -> None:
        os.truncate(path, 0)

    def remove(self, path: Path) -> None:
        os.unlink(path)


class Folder:
    """A folder of checkpoints on one disk."""

    _count = itertools.count()

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk = Disk()
        # does it verify? What this process wrote, or has read back
        self.verdicts: dict[Key, bool] = {}

    def write_new(self, name: str, data: bytes) -> None:
        """Write a file that must not be there yet, and wait until the disk has it."""
        file = self.disk.create(self.path / name)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self.disk.write(file, rest) :]
            self.disk.fsync(file)
        finally:
            self.disk.close(file)

    def write_atomic(self, name: str, data: bytes) -> None:
        """Write a file so that at every moment there is the old one or the new one, whole."""
        spare = f".tmp-{os.getpid()}-{next(self._count)}"
        try:
            self.write_new(spare, data)
            self.disk.rename(self.path / spare, self.path / name)
        except BaseException:  # the spare is of no use to anybody, even after Ctrl-C
            self._forget(spare)
            raise
        self.disk.fsync_folder(self.path)  # without it a power cut can undo the rename

    def _forget(self, name: str) -> None:
        # nothing was made, or the disk is past helping; the first error says which
        with suppress(OSError):
            self.disk.remove(self.path / name)

    def sweep(self) -> None:
        """Remove what killed saves left half-written. Only for the one who holds the lease."""
        for name in self.disk.names(self.path):
            if name.startswith(".tmp-"):
                self._forget(name)

    def copies(self) -> dict[Key, list[str]]:
        """The names of the files of each checkpoint here: bytes, markers, and second copies of
        either."""
        found: dict[Key, list[str]] = {}
        try:
            names = self.disk.names(self.path)
        except FileNotFoundError:
            return {}
        for name in sorted(names):
            if match := NAME.fullmatch(name):
                found.setdefault(Key(int(match[1]), match[2]), []).append(name)
        return found

    def read(self, key: Key) -> tuple[bytes, dict[str, Any]]:
        """The bytes of a checkpoint, which hash to its name, and its marker. Damaged when there is
        no such pair."""
        names = self.copies().get(key, [])
        markers = [name for name in names if ".ok" in name]
        if not names:
            raise Gone("it is not there any more")
        if not markers:
            raise Damaged("it has no marker: its save was cut short")
        marker = self._first(markers, lambda name: self._marker(name, key))
        return self._first([name for name in names if ".ok" not in name],
                           lambda name: self._bytes(name, key)), marker

    def _first(self, names: list[str], get: Any) -> Any:
        reason = Damaged("its marker is there, its bytes are not")
        for name in names:
            try:
                return get(name)
            except FileNotFoundError:
                reason = Gone("it is not there any more")
            except OSError as error:
                reason = Damaged(f"it cannot be read: {error.strerror or error}")
            except Damaged as error:
                reason = error
        raise reason

    def _bytes(self, name: str, key: Key) -> bytes:
        data = self.disk.read(self.path / name, MAX_BYTES)
        if len(data) > MAX_BYTES:
            raise Damaged(f"it has more than {MAX_BYTES:,} bytes, which no checkpoint of the "
                          "course has")
        if hashlib.sha256(data).hexdigest() == key.sha:
            return data
        if not data:
            raise Damaged("it is empty")
        if data[:256].lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
            raise Damaged("it is a web page, not a checkpoint")
        raise Damaged(f"its {len(data):,} bytes do not have the sha256 of its name: it is damaged")

    def _marker(self, name: str, key: Key) -> dict[str, Any]:
        data = self.disk.read(self.path / name, MAX_MARKER)
        if len(data) > MAX_MARKER:
            raise Damaged("its marker is too long")
        marker = parse(data)
        if marker is None or not isinstance(marker.get("tensors"), dict):
            raise Damaged("its marker is damaged, or was cut short")
        if (marker.get("step"), marker.get("sha256")) != (key.step, key.sha):
            raise Damaged("its marker belongs to another checkpoint")
        return marker

    def verifies(self, key: Key) -> bool:
        """Are its bytes and its marker whole? Each checkpoint is read once at most."""
        if key not in self.verdicts:
            try:
                self.read(key)
                self.verdicts[key] = True
            except Damaged:
                self.verdicts[key] = False
        return self.verdicts[key]

    def prune(self, keep: int, *, truncate: bool = False) -> None:
        """Delete what is older than the `keep` newest that verify. Drive's bin fills the quota:
        there, truncate first."""
        kept = 0
        copies = self.copies()
        for key in sorted(copies, reverse=True):
            if kept < keep:
                kept += self.verifies(key)
                continue
            # a marker never outlives its bytes
            for name in sorted(copies[key], key=lambda name: ".ok" not in name):
                with suppress(FileNotFoundError):  # another writer was quicker
                    if truncate:
                        self.disk.truncate(self.path / name)
                    self.disk.remove(self.path / name)

    def write_once(self, name: str, data: bytes) -> None:
        """Write a file without ever overwriting one, read it back, and raise OSError when it is not
        what was written.

        For a disk where rename proves nothing. A damaged file that has the name stays; the bytes go
        beside it.
        """
        stem, dot, end = name.partition(".")
        for i in range(SPARES + 1):
            path = self.path / (f"{stem} ({i}){dot}{end}" if i else name)
            with suppress(FileExistsError):  # from an earlier try, perhaps a good one
                self.write_new(path.name, data)
            if self.disk.read(path, len(data)) == data:
                return
        raise OSError(errno.EIO, f"{name} does not read back as it was written")


def parse(data: bytes) -> dict[str, Any] | None:
    """A JSON object, or None for anything else; no bytes make it raise."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
