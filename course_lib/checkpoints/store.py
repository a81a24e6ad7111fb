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

import errno
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.checkpoints.disk import Damaged, Folder, Gone, Key
from course_lib.checkpoints.lease import Lease
from course_lib.checkpoints.mirror import Mirror
from course_lib.checkpoints.packing import FORMAT, SaveError, pack, unpack
from course_lib.errors import CourseError, whole

RECORD = "store.json"  # what the store was made from, for people and for `open`
MAX_RECORD = 8 << 20
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
Plain = str | int | float | bool | None


class Store:
    """Checkpoints of one run in the folder `dir`, and copies of them in `mirror`."""

    closing_time = 20.0  # seconds that `close` waits for the mirror

    def __init__(self, dir: str | Path, mirror: str | Path | None = None, *, keep: int = 3) -> None:
        self.dir = Path(dir)
        self.keep = whole(keep, "keep", 3)
        self.folder = Folder(self.dir)
        try:
            self.folder.disk.make(self.dir)
        except (OSError, ValueError) as error:
            raise CourseError(f"No store can be made in {self.dir}: {error}. Choose a folder that "
                              "you may write to.") from None
        self.mirror = None if mirror is None else Mirror(Path(mirror), keep)
        self.lease = Lease(self.folder)
        self._base = (self.dir, None if mirror is None else Path(mirror))
        self._identity: dict[str, Plain] | None = None
        self._saved: int | None = None
        self._failed = ""
        self._warned: set[str] = set()

    def open(self, identity: Mapping[str, Plain], environment: Mapping[str, Plain]) -> None:
        """Check that this run may continue from the checkpoints here, and become the only writer.

        CourseError lists how `identity` differs from the stored one, or names another writer.
        A different `environment` is only a warning.
        """
        record = {"format": FORMAT, "identity": _flat(identity, "identity"),
                  "environment": _flat(environment, "environment")}
        for folder in self._folders():
            self._compare(folder, record)
        self._identity = dict(identity)
        text = json.dumps(record, indent=1).encode()
        try:
            self._lock()
            self.folder.sweep()
            if self._record(self.folder) is None:
                self.folder.write_atomic(RECORD, text)
        except OSError as error:
            self._warn(f"{self.dir} cannot be written to ({error.strerror or error}). Make it "
                       "writable, or nothing will be saved.")
        if self.mirror and self._record(self.mirror.folder) is None:
            self.mirror.record = text

    def _lock(self) -> None:
        try:
            self.lease.take()
        except (OSError, NotImplementedError) as error:
            if isinstance(error, OSError) and error.errno not in NO_LOCKS:
                raise
            self._warn(f"{self.dir} cannot be locked ({error}). Training goes on; take care that "
                       "no second run writes to this folder.")

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """(step, state) of the newest checkpoint that verifies, or None. Warns of those that do
        not."""
        return self._newest(tries=20)

    def _newest(self, tries: int) -> tuple[int, dict[str, Any]] | None:
        candidates = [(key, folder is self.folder, folder) for folder in self._folders()
                      for key in self._keys(folder)]
        for key, _, folder in sorted(candidates, reverse=True):
            try:
                return key.step, self._load(key, folder)
            except Damaged as reason:
                if isinstance(reason, Gone) and tries:  # a writer has newer ones meanwhile
                    return self._newest(tries - 1)
                folder.verdicts[key] = False
                self._warn(f"{folder.path / str(key)} is skipped: {reason}.")
        return None

    def _keys(self, folder: Folder) -> list[Key]:
        try:
            return list(folder.copies())
        except OSError as error:
            self._unreadable(folder, error)
            return []

    def _load(self, key: Key, folder: Folder) -> dict[str, Any]:
        identity, state = unpack(folder.read(key), key)
        if self._identity is not None and identity != self._identity:
            raise Damaged(f"it was made by another run: {_differences(identity, self._identity)}")
        folder.verdicts[key] = True
        return state

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`, so that it survives whatever comes after this call; SaveError if not."""
        whole(step, "step", 0)
        try:
            packed = pack(step, self._identity or {}, state)
            self.folder.write_atomic(str(packed.key), packed.data)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise SaveError(f"Step {step} is not saved in {self.dir}: {self._failed}. Earlier "
                            "checkpoints are " "unchanged. If the disk is full, make space; "
                            "training may go on meanwhile.") from None
        self._saved, self._failed = step, ""
        self.folder.verdicts[packed.key] = True
        try:
            self.folder.prune(self.keep)
        except OSError as error:
            self._warn(f"Old checkpoints in {self.dir} cannot be deleted "
                       f"({error.strerror or error}); they only take up space.")
        if self.mirror:
            self.mirror.offer(packed)
        self._warn_of_mirror()

    def fresh(self) -> Store:
        """A new, empty store beside this one, dir-2, dir-3 and so on, and its mirror alike."""
        path, mirror = self._beside()
        store = Store(path, mirror, keep=self.keep)
        store._base = self._base
        return store

    def _beside(self) -> tuple[Path, Path | None]:
        here, there = self._base
        for n in range(2, 10_000):
            path = here.with_name(f"{here.name}-{n}")
            mirror = there and there.with_name(f"{there.name}-{n}")
            if _empty(path) and (mirror is None or _empty(mirror, unreachable=True)):
                return path, mirror
        raise CourseError(f"There are too many stores beside {here}. Delete those you do not need.")

    @property
    def status(self) -> str:
        """For the progress bar: how safe is the newest state?"""
        if self._failed:
            return f"not saved: {self._failed}"
        if self._saved is None:
            return "not saved yet"
        on_drive = self.mirror is not None and self.mirror.verified >= self._saved
        return "saved locally" + (", on Drive, verified" if on_drive else "")

    def close(self) -> None:
        """Wait a little for the mirror, warn if it is behind, and release the lock. `open` works
        again afterwards."""
        if self.mirror and not self.mirror.close(self.closing_time):
            self._warn(f"The newest checkpoint, step {self._saved}, is in {self.dir} but not yet "
                       f"in {self.mirror.folder.path}.")
        self._warn_of_mirror()
        self.lease.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folders(self) -> list[Folder]:
        return [self.folder, *([self.mirror.folder] if self.mirror else [])]

    def _compare(self, folder: Folder, now: dict[str, Any]) -> None:
        if (before := self._record(folder)) is None:
            return
        beside, _ = self._beside()
        if before["format"] != FORMAT:
            raise CourseError(
                f"{folder.path} holds unfinished checkpoints of format {before['format']}, which "
                f"this version of the course cannot read (it reads format {FORMAT}): delete that "
                "folder to train this model again from the start, or train beside it with "
                f"store = store.fresh(), which makes {beside}.")
        if lines := _differences(before["identity"], now["identity"]):
            raise CourseError(
                f"The store in {folder.path} was made by another run: {lines}. Restore these "
                "settings to go on with that run; or start beside it with store = store.fresh(), "
                f"which makes {beside}, and name {beside} from then on.")
        if lines := _differences(before["environment"], now["environment"]):
            self._warn(f"This run goes on in another environment, {lines}: results should be "
                       "equivalent, but may not be bit-identical.")

    def _record(self, folder: Folder) -> dict[str, Any] | None:
        """The content of store.json; None when there is none. A damaged one is made anew, since
        each checkpoint knows its run."""
        try:
            found = json.loads(folder.disk.read(folder.path / RECORD, MAX_RECORD))
            return {"format": found["format"], "identity": {**found["identity"]},
                    "environment": {**found["environment"]}}
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unreadable(folder, error)
        except (ValueError, LookupError, TypeError, RecursionError):
            self._warn(f"{folder.path / RECORD} is damaged and is made anew.")
        return None

    def _unreadable(self, folder: Folder, error: OSError) -> None:
        self._warn(self.mirror.failure(error) if self.mirror and folder is self.mirror.folder else
                   f"{folder.path} cannot be read ({error.strerror or error}): its checkpoints are "
                   "not used.")

    def _warn_of_mirror(self) -> None:
        for text in list(self.mirror.failures) if self.mirror else []:
            self._warn(text)

    def _warn(self, text: str) -> None:
        """Each warning once per store."""
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, UserWarning, stacklevel=3)


def _flat(words: Mapping[str, Plain], name: str) -> dict[str, Plain]:
    for word, value in words.items():
        if not isinstance(word, str) or type(value) not in (str, int, float, bool, type(None)):
            raise CourseError(f"{name}[{word!r}] is {value!r}; it must be a string or a number, "
                              "under a string.")
    return dict(words)


def _differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """
    >>> _differences({"rate": 0.1, "data": "ab"}, {"rate": 0.2, "data": "ab", "seed": 1})
    'rate is 0.2, was 0.1; seed is 1, was not given'
    """
    def value(words: Mapping[str, object], word: str) -> str:
        return repr(words[word]) if word in words else "not given"

    return "; ".join(f"{word} is {value(now, word)}, was {value(before, word)}"
                     for word in sorted({*before, *now}) if value(now, word) != value(before, word))


def _empty(path: Path, *, unreachable: bool = False) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return unreachable
