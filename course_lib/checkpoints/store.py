"""Training that cannot be lost: a store of checkpoints.

    store = Store("results/pgd-at", mirror="/content/drive/MyDrive/course/pgd-at")
    store.open({"recipe": ..., "data": ...}, {"torch": ..., "threads": ...})
    newest = store.latest()  # None, or (step, state) to continue from
    store.save(step, state)  # as often as you like
    store.close()

A kill or a power cut leaves the old files, or one more that is complete. Older files go once three
newer ones verify. The mirror gets a copy; while it fails, training goes on without. The newest
checkpoint is the one of the highest step that verifies, in either place.
"""

import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from course_lib.checkpoints.disk import RECORD, Damaged, Folder, Mirror, SaveError, pack, unpack
from course_lib.errors import CourseError
from course_lib.files import reason, take_lock

Checkpoint = tuple[int, dict[str, Any], dict[str, Any]]  # step, about, state


class OtherRun(CourseError):
    """The checkpoints in a folder belong to another training."""


class Store:
    """Checkpoints of one run in the folder `dir`, and copies of them in `mirror`."""

    def __init__(self, dir: str | Path, mirror: str | Path | None = None) -> None:
        try:
            self.dir = Path(dir).expanduser().absolute()
            self.dir.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise CourseError(f"No store can be made in {dir} ({reason(error)}). Choose a "
                              "folder that you may write to.") from None
        self.folder = Folder(self.dir)
        self.mirror = None if mirror is None else Mirror(Path(mirror).expanduser().absolute())
        self.folders = [self.folder, self.mirror] if self.mirror else [self.folder]
        self._lock: Any = None  # a filelock.FileLock
        self._about: dict[str, Any] = {}  # the identity and environment of the run, from `open`
        self._newest: list[Checkpoint | None] = []  # what `open` has read, until it is asked for
        self._mine: set[str] = set()  # checkpoints of this run; others may be another's
        self._last: tuple[str, bytes] | None = None  # the last save, until it is in each folder
        self._failed: list[str] = []  # why that is not in each folder
        self._warned: set[str] = set()

    def open(self, identity: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Check that this run may continue from the checkpoints here, and become the only writer.
        CourseError lists how `identity` differs from the stored one, or names another writer; a
        different `environment` is only a warning."""
        self._about, self._newest = {}, [newest := self._read_newest()]
        then = newest[1] if newest else {}
        if then and (changed := _differences(then["identity"], identity)):
            raise OtherRun(
                f"The store in {self.dir} was made by another run: {changed}. Restore these to "
                "resume it (weights: model.load_state_dict(store.latest()[1]['model'])). For "
                "another beside it, use fresh=True (in a shell: --fresh) or store.fresh().")
        if "environment" in then and (moved := _differences(then["environment"], environment)):
            self._warn(f"This run goes on in another environment, {moved}: results should be "
                       "equivalent, but may not be bit-identical.")
        self._about = {"identity": dict(identity), "environment": dict(environment)}
        try:
            # The system gives it back when this process dies. It spares a student two runs that
            # undo each other's progress; files stay complete without it, and readers need none. A
            # singleton is shared by the stores of one process, so a stopped cell can run again.
            self._lock = self._lock or take_lock(self.dir, 0, thread_local=False, is_singleton=True)
            self.folder.write(RECORD, json.dumps(self._about, indent=1).encode())
        except TimeoutError:
            raise CourseError(f"{self.dir} is being written by another process. Stop that run, or "
                              "restart its kernel, and run this again; or use an empty store "
                              "instead: store.fresh().") from None
        except OSError as error:
            self.close()
            raise CourseError(f"Nothing of this training could be saved: {self.dir} cannot be "
                              f"written to ({reason(error)}). Make space there, or choose a folder "
                              "that you may write to.") from None

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """(step, state) of the newest checkpoint that verifies, or None; warns of the others."""
        (newest,), self._newest = self._newest or [self._read_newest()], []
        return newest and (newest[0], newest[2])

    def _read_newest(self, again: bool = True) -> Checkpoint | None:
        candidates = []
        for folder in self.folders:
            try:
                candidates += [(step, folder is self.folder, name, folder)
                               for step, name in folder.answer(folder.checkpoints)]
            except OSError as error:
                self._warn(f"{folder.path} cannot be read ({reason(error)}). Training goes on "
                           "without the checkpoints there.")
        for step, _, name, folder in sorted(candidates, reverse=True):
            try:
                newest = unpack(folder.answer(partial(folder.read, name)), step)
                self._mine |= {beside.partition(" ")[0] for _, _, beside, _ in candidates}
                return newest
            except (Damaged, OSError) as error:
                if again and isinstance(error, FileNotFoundError):  # a writer that has newer ones
                    return self._read_newest(again=False)
                self._warn(f"{folder.path / name} is skipped: {error}.")
        return None

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`, so that it survives whatever comes after this call; SaveError if not."""
        self._failed, self._newest = ["NaN or infinite weights"] * len(self.folders), []
        self._last = pack(step, self._about, state)
        self._mine.add(self._last[0])
        self._failed = [self._put(folder) for folder in self.folders]
        self._last = self._last if any(self._failed) else None
        here, *there = self._failed
        place = self.folders[-1].path
        copy = "".join(f" The copy in {place} fails ({why})." for why in there if why)
        if here:
            raise SaveError(f"Step {step} is not saved in {self.dir}: {here}.{copy} Make space if "
                            "the disk is full. Earlier checkpoints are unchanged.")
        if copy:
            self._warn(f"{copy.strip()} Training goes on and saves locally; each save tries again. "
                       "Check that Drive is connected and has space.")

    def _put(self, folder: Folder) -> str:
        """Write the last save into a folder; the reason if that fails."""
        assert self._last
        try:
            folder.answer(partial(folder.write, *self._last))
        except OSError as error:
            return reason(error)
        try:
            folder.answer(partial(folder.prune, self._mine))
        except OSError as error:
            self._warn(f"Old files in {folder.path} stay; none can be deleted ({reason(error)}).")
        return ""

    def fresh(self) -> Self:
        """A new, empty store beside this one, dir-2, dir-3 and so on, and its mirror alike."""
        return self._beside(len(self.siblings()) + 2)

    def siblings(self) -> list[Self]:
        """The stores beside this one that `fresh` has made and a run has used, newest first."""
        stores, signs = list[Self](), (f"/{RECORD}", "")  # of a run here, of a save in the mirror
        while any(folder.has(f"{folder.path}-{len(stores) + 2}{sign}")
                  for folder, sign in zip(self.folders, signs, strict=False)):
            stores.insert(0, self._beside(len(stores) + 2))
        return stores

    def _beside(self, n: int) -> Self:
        return type(self)(*(f"{folder.path}-{n}" for folder in self.folders))

    @property
    def status(self) -> str:
        """For the progress bar: how safe is the newest state?"""
        if not self._failed:
            return "not saved yet"
        here, *there = self._failed
        return (f"not saved{' locally' * len(there)}: {here}" if here else "saved locally") + (
            ", on Drive, verified" if there == [""] else "")

    def close(self) -> None:
        """Try a failed copy once more, warn if it is behind, and release the lock until `open`."""
        if self.mirror and self._last and self._failed[1]:
            self._failed[1] = self._put(self.mirror)
            if self._failed[1]:
                self._warn(f"The newest checkpoint, step {self._last[0].split('-')[1]}, is "
                           f"{self.status}, but not in {self.mirror.path} ({self._failed[1]}).")
        if self._lock is not None:
            with suppress(OSError):  # the process ends some time, and the lock with it
                self._lock.release()
            self._lock = None

    def _warn(self, text: str) -> None:
        """Each warning once per store."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, UserWarning, stacklevel=3)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How a run differs from an earlier one. A source that only one of them names does not
    count: the fields or another source show it.

    >>> _differences({"rate": 0.1, "data": "ab"}, {"rate": 0.2, "data": "ab", "seed": 1})
    'rate is 0.2, was 0.1; seed is 1, was not given'
    """
    if "format" in before and before["format"] != now.get("format"):
        return "it was written by another version of the course"
    old, new = ({word: repr(value) for word, value in words.items()} for words in (before, now))
    words = [word for word in sorted({*old, *new}) if new.get(word) != old.get(word)
             and ({word} <= old.keys() & new.keys() or not word.startswith("the source of "))]
    lines = [f"{word} changed" if re.fullmatch("'[0-9a-f]{64}'", new.get(word, old.get(word, "")))
             else f"{word} is {new.get(word, 'not given')}, was {old.get(word, 'not given')}"
             for word in words]
    return "; ".join(lines[:8] + [f"and {len(lines) - 8} more"] * (len(lines) > 8))
