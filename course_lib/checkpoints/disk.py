"""Folders of checkpoints: one on this machine, and the mirror, which may be in Google Drive.

A checkpoint is one file, `ckpt-<step>-<sha256>`. Its name gives the hash of its bytes, so a file
that was cut short or damaged is recognised and never loaded. The newest checkpoint has the most
steps, whatever the clock says.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from course_lib.errors import CourseError
from course_lib.files import sha256_of, within, write_new, write_together

RECORD = "store.json"  # what the checkpoints are of, for people
KEEP = 3  # so many of the newest that were verified; older ones are deleted
NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})-([0-9a-f]{64})(?: \([0-9]{1,3}\))?")
T = TypeVar("T")


class Damaged(CourseError):
    """A checkpoint that must not be loaded; the text is the reason."""


class Folder:
    """A folder of checkpoints on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.disk: Any = os  # the system calls; tests put a disk here that fails, lies or stops
        self.verified: set[str] = set()  # what this process wrote, or read whole

    def answer(self, call: Callable[[], T]) -> T:
        """What a call that reads this folder returns."""
        return call()

    def write(self, name: str, data: bytes) -> None:
        """Write a file so that at every moment, and after a power cut, the old one or the new one
        is complete."""
        write_together({self.path / name: data}, self.disk)
        if os.name != "nt":  # Windows cannot open a folder
            file = self.disk.open(self.path, os.O_RDONLY)
            try:
                self.disk.fsync(file)  # without it a power cut can undo the rename
            finally:
                self.disk.close(file)
        self.verified.add(name)

    def read_file(self, name: str) -> bytes:
        with open(self.path / name, "rb", opener=self.disk.open) as file:
            return file.read()

    def checkpoints(self) -> list[tuple[int, str]]:
        """The step and name of each checkpoint. Drive may have second copies, "name (1)"."""
        try:
            matches = map(NAME.fullmatch, self.disk.listdir(self.path))
        except FileNotFoundError:
            return []
        return [(int(match[1]), match[0]) for match in matches if match]

    def read(self, name: str) -> bytes:
        """The bytes of a checkpoint; Damaged if they do not hash to its name."""
        data = self.read_file(name)
        if sha256_of(data) not in name:
            raise Damaged(f"its {len(data):,} bytes do not hash to its name: it is damaged")
        self.verified.add(name)
        return data

    def prune(self) -> None:
        """Delete what is older than the newest `KEEP` that this process has verified."""
        good: set[str] = set()
        for _, name in sorted(self.checkpoints(), reverse=True):
            if len(good) == KEEP:
                with suppress(FileNotFoundError):  # another writer was quicker
                    self.delete(self.path / name)
            elif name in self.verified:
                good.add(name.partition(" ")[0])

    def delete(self, path: Path) -> None:
        self.disk.unlink(path)


class Mirror(Folder):
    """A second folder, slower and less reliable. In Colab it is in Google Drive.

    There a write reaches this machine first and Drive later, a rename proves nothing, a name can
    exist twice, deleted files fill the quota, and at any moment the folder may be full, unreachable
    or gone. So a copy never overwrites a file, is read back, and only then older ones are deleted;
    and training does not wait for a disk that gives no sign of life.
    """

    patience = 60.0  # seconds without an answer, until training goes on without it

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._home: tuple[Path, int] | None = None  # a folder that Drive made, and its disk
        self._busy = False
        with suppress(OSError):  # found when something is written
            self.answer(self._find_home)

    def answer(self, call: Callable[[], T]) -> T:
        """What a call returns. TimeoutError where the disk is silent; the call may end later, and
        until then every other one is refused at once."""
        def ending() -> T:
            try:
                return call()
            finally:
                self._busy = False

        if self._busy:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer in {self.patience:g} s")
        self._busy = True
        return within(self.patience, ending)

    def _find_home(self) -> None:
        home = next(parent for parent in self.path.absolute().parents if parent.is_dir())
        self._home = home, home.stat().st_dev

    def write(self, name: str, data: bytes) -> None:
        """Write a file without overwriting any, and read it back. OSError when it differs.

        Every step may be repeated. A damaged file that has the name stays; the bytes go beside it.
        """
        if self._home is None:
            self._find_home()
        elif os.stat(self._home[0]).st_dev != self._home[1]:  # an unmounted Drive is a local folder
            raise OSError(errno.ENOTCONN, f"{self._home[0]} is not there any more")
        self.disk.makedirs(self.path, exist_ok=True)
        for copy in (name, f"{name} (1)", f"{name} (2)"):
            with suppress(FileExistsError):  # from an earlier try, perhaps a good one
                write_new(self.path / copy, data, self.disk)
            if self.read_file(copy) == data:
                self.verified.add(copy)
                return
        raise OSError(errno.EIO, "a file does not read back as it was written")

    def delete(self, path: Path) -> None:
        if not os.path.islink(path):
            self.disk.truncate(path, 0)  # Drive's bin fills the quota
        super().delete(path)
