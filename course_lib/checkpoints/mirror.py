"""The second place of a store, slower and less reliable. In Colab it is Google Drive.

There a write reaches this machine first and Drive later, a rename proves nothing, a name can exist
twice, deleted files fill the quota, and at any moment the folder may be full, unreachable or gone.
So one thread beside the training copies the newest checkpoint, never overwrites a file, reads the
copy back, and deletes older ones only after that. After a failure the next save tries again.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from course_lib.checkpoints.disk import RECORD, Folder, Key
from course_lib.files import within

T = TypeVar("T")


class Mirror(Folder):
    """Copies to `path`, in the background, the checkpoint that is newest when it has time."""

    patience = 20.0  # seconds without an answer or a byte, until training goes on without it

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.record = b""  # the text of store.json, written before the first checkpoint
        self.verified = -1  # the newest step that was read back from there
        self.failures: set[str] = set()  # the training's thread warns of them
        self.failing = ""  # why the last copy failed
        self.anchor: Path | None = None  # the folder of Drive, or above it, that is there
        self._device: int | None = None
        self._silent = False
        self._next: tuple[Key, bytes] | None = None
        self._thread: threading.Thread | None = None
        self._change = threading.Condition()
        with suppress(OSError):  # which `failures` has
            self.answer(self._find_disk)

    def answer(self, call: Callable[[], T]) -> T:
        """What a call returns; TimeoutError where the disk is silent, now or since it last was."""
        if self._silent:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer in {self.patience:g} s")
        try:
            return within(self.patience, call, lambda: self.chunks)
        except TimeoutError as error:
            self._silent = True
            self.failures.add(self.failure(error))
            raise

    def _find_disk(self) -> None:
        self.anchor = next(parent for parent in self.path.absolute().parents
                           if _device(parent) is not None)
        self._device = _device(self.anchor)

    def offer(self, key: Key, data: bytes) -> None:
        """Copy this one when there is time, instead of one that still waits. Returns at once."""
        with self._change:
            self._next = key, data
            self._start()

    def close(self, seconds: float) -> bool:
        """Wait for the copy under way, and give a failed one a second try. False when the newest
        checkpoint is not there after `seconds`."""
        end = time.monotonic() + seconds
        with self._change:
            for _ in range(2):
                self._start()
                self._change.wait_for(lambda: self._thread is None, end - time.monotonic())
            return self._next is None and self._thread is None

    def failure(self, error: BaseException) -> str:
        """A failure in words, the same ones for the same cause."""
        return (f"The copy in {self.path} fails ({getattr(error, 'strerror', None) or error}). "
                "Training goes on and saves locally; each save tries again. Check that Drive is "
                "connected and has space.")

    def _start(self) -> None:
        if self._next is not None and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        failed: tuple[Key, bytes] | None = None
        while True:
            with self._change:  # as in offer, so that no offer is lost when the thread ends
                offered, self._next = self._next, None
                if offered is None:
                    self._next, self._thread = failed, None
                    self._change.notify_all()
                    return
            try:
                self.copy(*offered)
                failed, self.failing, self._silent = None, "", False
            except Exception as error:  # nothing must end the thread, or the training
                self.failing = getattr(error, "strerror", None) or str(error)
                self.failures.add(self.failure(error))
                failed = offered

    def copy(self, key: Key, data: bytes) -> None:
        """One complete copy; OSError when any of it fails. Every step may be repeated."""
        self.begin()
        self.write_once(str(key), data)
        self.verdicts[key] = True
        self.verified = max(self.verified, key.step)
        self.prune(truncate=True)

    def try_out(self) -> None:
        """OSError unless the folder takes a file."""
        self.begin()
        self.write_new(name := f".tmp-{os.getpid()}", b"?")
        self.disk.unlink(self.path / name)

    def begin(self) -> None:
        """Make the folder and its store.json; OSError where that is not possible."""
        if self.anchor is None:
            self._find_disk()
        elif _device(self.anchor) != self._device:  # an unmounted Drive is an empty local folder
            raise OSError(errno.ENOTCONN, f"{self.anchor} is not there any more")
        self.disk.makedirs(self.path, exist_ok=True)
        if self.record:
            self.write_once(RECORD, self.record)
            self.record = b""


def _device(path: Path) -> int | None:
    """The disk that a folder is on; None where there is no folder or it cannot be reached."""
    try:
        return os.stat(os.path.join(path, "")).st_dev  # with a / at its end: no file will do
    except OSError:
        return None
