"""Training that cannot be lost: a store of checkpoints.

    store = Store("results/pgd-at", mirror="/content/drive/MyDrive/course/pgd-at")
    store.open({"recipe": ..., "data": ...}, {"torch": ..., "threads": ...})
    newest = store.latest()  # None, or (step, state) to continue from
    store.save(step, state)  # as often as you like
    store.close()

A save names its bytes by their hash, so damage shows. It writes a temporary file, syncs and
renames it: a kill or a power cut leaves the old files, or one more that is complete. Older files go
once `keep` newer ones verify. The mirror gets its copy in the background (see mirror.py).
The newest checkpoint is the one of the highest step that verifies, in either place.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_lib.checkpoints.disk import RECORD, Damaged, Folder
from course_lib.checkpoints.mirror import Mirror
from course_lib.checkpoints.packing import FORMAT, SaveError, pack, unpack
from course_lib.errors import CourseError, integer
from course_lib.files import take_lock

if TYPE_CHECKING:
    from filelock import FileLock

HOLDER = "last-writer.txt"  # names the process that has the lock


class OtherRun(CourseError):
    """The checkpoints in a folder belong to another training."""


class Store:
    """Checkpoints of one run in the folder `dir`, and copies of them in `mirror`."""

    closing_time = 20.0  # seconds that `close` waits for the mirror

    def __init__(self, dir: str | Path, mirror: str | Path | None = None, *, keep: int = 3) -> None:
        self.dir = Path(dir)
        try:
            self.dir.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CourseError(f"No store can be made in {self.dir} ({reason}). Choose a folder "
                              "that you may write to.") from None
        self.folder = Folder(self.dir)
        self.mirror = None if mirror is None else Mirror(Path(mirror))
        self.folders = [self.folder, self.mirror] if self.mirror else [self.folder]
        for folder in self.folders:
            folder.keep = integer(keep, "keep", 3)
        self._lock: FileLock | None = None
        self._identity: dict[str, Any] | None = None
        self._step: int | None = None  # of the last save
        self._failed = ""
        self._warned: set[str] = set()

    def open(self, identity: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Check that this run may continue from the checkpoints here, and become the only writer.

        CourseError lists how `identity` differs from the stored one, or names another writer.
        A different `environment` is only a warning.
        """
        record = {"format": FORMAT, "identity": dict(identity), "environment": dict(environment)}
        text = json.dumps(record, indent=1).encode()
        without = [folder for folder in self.folders if not self._continues(folder, record)]
        self._identity = dict(identity)
        if self.mirror and self.mirror in without:
            self.mirror.record = text
        try:
            self._become_the_only_writer()
            for spare in self.dir.glob(".tmp-*"):  # what killed saves left half-written
                spare.unlink(missing_ok=True)
            if self.folder in without:
                self.folder.write_atomic(RECORD, text)
        except OSError as error:
            self._use_the_mirror_alone(f"{self.dir} cannot be written to "
                                       f"({error.strerror or error})")
        if self.mirror:
            self._warn(*self.mirror.failures)

    def _use_the_mirror_alone(self, reason: str) -> None:
        try:
            if self.mirror is None:
                raise OSError("there is no second folder")
            self.mirror.answer(self.mirror.try_out)
        except OSError as error:
            raise CourseError(f"Nothing of this training could be saved: {reason}, and "
                              f"{error.strerror or error}. Make space there, or choose a folder "
                              "that you may write to.") from None
        self._warn(f"{reason}. Checkpoints are saved in {self.mirror.path} only.")

    def _continues(self, folder: Folder, now: dict[str, Any]) -> bool:
        """Does the folder hold this run? False when it has no store.json, or a damaged one, which
        is made anew: each checkpoint knows its run. CourseError when it holds another run."""
        try:
            content = json.loads(folder.answer(partial(folder.read_file, RECORD)))
            form, identity, environment = (content["format"], {**content["identity"]},
                                           {**content["environment"]})
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._warn(folder.failure(error))
            return False
        except (ValueError, LookupError, TypeError, RecursionError):
            self._warn(f"{folder.path / RECORD} is damaged and is made anew.")
            return False
        if form != FORMAT:
            raise OtherRun(
                f"{folder.path} holds unfinished checkpoints of format {form}, which this version "
                f"of the course cannot read (it reads format {FORMAT}). Delete that folder to "
                "train again from the start, or train beside it: store = store.fresh().")
        if lines := _differences(identity, now["identity"]):
            raise OtherRun(
                f"The store in {folder.path} was made by another run: {lines}. Restore these "
                "settings to go on with that run; or begin beside it with fresh=True (in a shell: "
                "--fresh) or store = store.fresh().")
        if lines := _differences(environment, now["environment"]):
            self._warn(f"This run goes on in another environment, {lines}: results should be "
                       "equivalent, but may not be bit-identical.")
        return True

    def _become_the_only_writer(self) -> None:
        """Take a lock that the system gives back when this process dies.

        It spares a student two runs that undo each other's progress. Stores of one process share
        it, so a stopped cell can run again. Files stay complete without it, and readers need none.
        """
        if self._lock is not None:
            return
        try:
            # a singleton counts how often this process took it
            self._lock = take_lock(self.dir, 0, thread_local=False, is_singleton=True)
        except TimeoutError:
            holder = "another process"
            with suppress(OSError, ValueError):
                holder = self.folder.read_file(HOLDER)[:200].decode()
            raise CourseError(f"{self.dir} is being written by {holder}. Stop that run, or restart "
                              "its kernel, and run this again; or go on in an empty store beside "
                              "it: store.fresh().") from None
        if self._lock is None:
            return
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        self.folder.write_atomic(
            HOLDER, f"process {os.getpid()} on {platform.node()} (since {since})".encode())

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """(step, state) of the newest checkpoint that verifies, or None. Warns of those that do
        not."""
        return self._newest(tries=20)

    def _newest(self, tries: int) -> tuple[int, dict[str, Any]] | None:
        candidates = []
        for folder in self.folders:
            try:
                candidates += [(key, folder is self.folder, names, folder)
                               for key, names in folder.answer(folder.copies).items()]
            except OSError as error:
                self._warn(folder.failure(error))
        for key, _, names, folder in sorted(candidates, reverse=True):
            try:
                identity, state = unpack(folder.answer(partial(folder.read, key, names)), key)
                if self._identity is not None and identity != self._identity:
                    raise Damaged("it was made by another run: "
                                  + _differences(identity, self._identity))
                return key.step, state
            except (Damaged, OSError) as reason:
                if tries and isinstance(reason, FileNotFoundError):  # a writer has newer ones
                    return self._newest(tries - 1)
                folder.verdicts[key] = False
                self._warn(f"{folder.path / str(key)} is skipped: {reason}.")
        return None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`, so that it survives whatever comes after this call; SaveError if not."""
        self._step, self._failed = step, ""
        try:
            key, data = pack(step, self._identity or {}, state)
            if self.mirror:  # whether the local disk works or not
                self.mirror.offer(key, data)
            self.folder.write_atomic(str(key), data)
        except OSError as error:
            self._failed = error.strerror or str(error)
            place, also = self.mirror and self.mirror.path, self.mirror and self.mirror.failing
            copy = (f" The copy in {place} fails, too: {also}." if also else
                    f" It is copied to {place} only." if place else "")
            raise SaveError(f"Step {step} is not saved in {self.dir}: {self._failed}.{copy} Make "
                            "space if the disk is full. Earlier checkpoints are unchanged."
                            ) from None
        self.folder.verdicts[key] = True
        try:
            self.folder.prune()
        except OSError as error:
            self._warn(f"Old checkpoints in {self.dir} cannot be deleted "
                       f"({error.strerror or error}); they only take up space.")
        if self.mirror:
            self._warn(*self.mirror.failures)

    def fresh(self) -> Store:
        """A new, empty store beside this one, dir-2, dir-3 and so on, and its mirror alike."""
        return self._beside(next(n for n in itertools.count(2) if not self._taken(n, "")))

    def siblings(self) -> list[Store]:
        """The stores that `fresh` has made beside this one and a run has opened, newest first."""
        numbers = itertools.takewhile(lambda n: self._taken(n, ""), itertools.count(2))
        return [self._beside(n) for n in numbers if self._taken(n, RECORD)][::-1]

    def _taken(self, n: int, file: str) -> bool:
        return any(os.path.exists(os.path.join(f"{f.path}-{n}", file)) for f in self.folders)

    def _beside(self, n: int) -> Store:
        return Store(*(f"{folder.path}-{n}" for folder in self.folders), keep=self.folder.keep)

    @property
    def status(self) -> str:
        """For the progress bar: how safe is the newest state?"""
        if self._step is None:
            return "not saved yet"
        here = ("saved locally" if not self._failed else
                f"not saved{' locally' if self.mirror else ''}: {self._failed}")
        on_drive = self.mirror is not None and self.mirror.verified >= self._step
        return here + (", on Drive, verified" if on_drive else "")

    def close(self) -> None:
        """Wait a little for the mirror, warn if it is behind, and release the lock. `open` works
        again afterwards."""
        if self.mirror:
            if not self.mirror.close(self.closing_time):
                self._warn(f"The newest checkpoint, step {self._step}, is "
                           f"{'in' if not self._failed else 'neither in'} {self.dir} "
                           f"{'but not yet' if not self._failed else 'nor'} in "
                           f"{self.mirror.path}.")
            self._warn(*self.mirror.failures)
        if self._lock is not None:
            with suppress(OSError):  # the process ends some time, and the lock with it
                self._lock.release()
            self._lock = None

    def _warn(self, *texts: str) -> None:
        """Each warning once per store."""
        for text in [text for text in texts if text not in self._warned]:
            self._warned.add(text)
            warnings.warn(text, UserWarning, stacklevel=3)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """
    >>> _differences({"rate": 0.1, "data": "ab"}, {"rate": 0.2, "data": "ab", "seed": 1})
    'rate is 0.2, was 0.1; seed is 1, was not given'
    """
    if "format" in before and before["format"] != now.get("format"):
        return "it was written by another version of the course"
    old, new = ({word: repr(value) for word, value in words.items()} for words in (before, now))
    words = [word for word in sorted({*old, *new}) if new.get(word) != old.get(word)]
    lines = [f"{word} changed" if re.fullmatch("'[0-9a-f]{64}'", new.get(word, old.get(word, "")))
             else f"{word} is {new.get(word, 'not given')}, was {old.get(word, 'not given')}"
             for word in words]
    return "; ".join(lines[:8] + [f"and {len(lines) - 8} more"] * (len(lines) > 8))
