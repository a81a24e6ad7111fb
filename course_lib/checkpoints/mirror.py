"""The second place of a store: slower, larger, and not to be believed. In Colab it is Google Drive.
 There a write lands on this machine first and reaches Drive later; a rename proves nothing; a name
can be there twice; a deleted file fills the quota from the bin; and at any moment the whole of it
can be full, unreachable or gone. So one thread beside the training copies the newest checkpoint
there, never overwriting a file, reads it back, writes the marker only then, and deletes older ones
only after that. What fails is told once a cause, and tried again later.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

from course_lib.checkpoints.disk import Folder
from course_lib.checkpoints.packing import Packed


class Mirror:
    """Copies to `path`, in the background, whatever is the newest when it has time."""

    retry = 15.0  # seconds until a failed copy is tried again

    def __init__(self, path: Path, keep: int) -> None:
        self.folder = Folder(path)
        self.keep = keep
        self.identity = b""  # the text of store.json, written before the first checkpoint
        # the newest step that is there; that was read back, marker and all
        self.written = self.verified = -1
        self.anchor = next(parent for parent in path.absolute().parents
                           if _device(parent) is not None)
        self._device = _device(self.anchor)
        self._next: Packed | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._change = threading.Condition()
        self._told: set[object] = set()
        self._news: list[str] = []

    def offer(self, packed: Packed) -> None:
        """Copy this one when there is time. One that still waits is dropped: only the newest
        counts. Returns at once."""
        with self._change:
            self._next, self._closing = packed, False
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
                self._thread.start()

    def news(self) -> list[str]:
        """What went wrong since the last call, each cause once. Told by the training's thread,
        where warnings belong."""
        with self._change:
            news, self._news = self._news, []
        return news

    def close(self, seconds: float) -> bool:
        """Wait for the copy under way, try a failed one again; False when it is still not there
        after `seconds`."""
        with self._change:
            self._closing = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._thread is None, seconds)
            return self._next is None and self._thread is None

    def complain(self, error: BaseException) -> None:
        """Keep the news of a failure, unless its cause was told before."""
        cause = getattr(error, "errno", None) or type(error)
        said = getattr(error, "strerror", None) or error
        with self._change:
            if cause not in self._told:
                self._told.add(cause)
                self._news.append(
                    f"The copy in {self.folder.path} fails ({said}): checkpoints there are not "
                    "seen, new ones wait. Training goes on "
                    "and saves locally, and tries again at each save. If this does not end, look "
                    "whether Drive is connected and has space."
                )

    def _work(self) -> None:
        last_tries = 0  # that failed while the store was closing
        while (packed := self._take(last_tries >= 2)) is not None:
            try:
                self.copy(packed)
            # whatever it is, it must not end the thread, nor the training
            except Exception as error:
                last_tries += self._closing
                self.complain(error)
                self._put_back(packed)

    def _take(self, enough: bool) -> Packed | None:
        """The next one to copy; None, and the thread is over, when there is none, or the store
        closes and it was tried enough."""
        with self._change:
            if self._next is None or (enough and self._closing):
                self._thread = None  # under the same lock as offer: no offer is ever lost
                self._change.notify_all()
                return None
            packed, self._next = self._next, None
            return packed

    def _put_back(self, packed: Packed) -> None:
        """A failed one waits for a newer one, for the end, or for some seconds."""
        with self._change:
            self._next = self._next or packed
            self._change.wait_for(lambda: self._closing or self._next is not packed, self.retry)

    def copy(self, packed: Packed) -> None:
        """One whole copy; OSError when any of it fails. Every step may be repeated."""
        self.reach()
        name = str(packed.key)
        if self.identity:
            self.folder.write_once("store.json", self.identity)
            self.identity = b""  # once is enough
        self.folder.write_once(name, packed.data)
        self.written = max(self.written, packed.key.step)
        self.folder.write_once(f"{name}.ok", packed.marker)
        self.folder.verdicts[packed.key] = True
        self.verified = max(self.verified, packed.key.step)
        self.folder.prune(self.keep, truncate=True)

    def reach(self) -> None:
        """Make the folder, but only where the disk it belongs on is still there: an unmounted Drive
        is an empty local folder."""
        if _device(self.anchor) != self._device:
            raise OSError(errno.ENOTCONN, f"{self.anchor} is not there any more")
        self.folder.disk.make(self.folder.path)


def _device(path: Path) -> int | None:
    """The disk that a folder is on, None where there is no folder or it cannot be asked."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev if stat.S_ISDIR(found.st_mode) else None
