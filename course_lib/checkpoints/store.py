"""Training that cannot be lost: a store of checkpoints.

    store = Store("results/pgd-at", mirror="/content/drive/MyDrive/course/pgd-at")
    store.open({"recipe": ..., "data": ...}, {"torch": ..., "threads": ...})
    found = store.latest()  # None, or (step, state) to go on from
    store.save(step, state)  # as often as you like

What a save does, and what would be lost without each step:

1. The state becomes bytes, and the bytes a name, `ckpt-<step>-<sha256>`: damage shows, and nothing
   is ever overwritten.
2. Temporary file, write, fsync, rename, fsync of the folder: a kill or a power cut leaves the old
   files or one more, whole.
3. The marker, in the same way. Only a checkpoint with a marker counts.
4. Older ones go, when `keep` newer ones verify.
5. In the background the mirror gets a copy (see mirror.py). Training never waits for it.
 The newest checkpoint is the one of the highest step that verifies, in either place. Clocks play no
part.
"""

from __future__ import annotations

import errno
import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from course_lib.checkpoints.disk import MAX_MARKER, Damaged, Folder, Gone, Key, parse
from course_lib.checkpoints.lease import Lease
from course_lib.checkpoints.mirror import Mirror
from course_lib.checkpoints.packing import FORMAT, Packed, SaveError, pack, unpack
from course_lib.errors import CourseError, whole

RECORD = "store.json"  # what the store was made from, for people and for `open`
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
        self.lease = Lease(self.dir)
        self._base = (self.dir, None if mirror is None else Path(mirror))
        self._identity: dict[str, Plain] | None = None
        self._saved: int | None = None
        self._failed = ""
        self._told: set[str] = set()

    def open(self, identity: Mapping[str, Plain], environment: Mapping[str, Plain]) -> None:
        """Make sure that this run may go on from what is here, and take the lease.

        CourseError when `identity` differs from the one stored, listing how. A warning when
        `environment` does.
        """
        made_from = {"format": FORMAT, "identity": _flat(identity, "identity"),
                     "environment": _flat(environment, "environment")}
        for folder in self._folders():
            self._compare(folder, made_from)
        self._identity = dict(identity)
        text = json.dumps(made_from, indent=1).encode()
        try:
            self.lease.take()
            self.folder.sweep()
            if self._record(self.folder) is None:
                self.folder.write_atomic(RECORD, text)
        except OSError as error:
            self._warn(f"{self.dir} cannot be written to ({error.strerror or error}): see to it, "
                       "or nothing will be saved.")
        if self.mirror and self._record(self.mirror.folder) is None:
            self.mirror.identity = text

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        """(step, state) of the newest checkpoint that verifies, or None. Says why it skips those
        that do not."""
        # a reader without the lease may be overtaken by a writer who prunes: look again
        for _ in range(20):
            with suppress(Gone):
                return self._newest(skip_gone=False)
        return self._newest(skip_gone=True)  # or Drive goes on listing a file that is not there

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Save `state`, so that it survives whatever comes after this call. SaveError when that is
        not possible."""
        whole(step, "step", 0)
        try:
            if self.lease.lost_to:
                raise OSError(errno.EBUSY, f"{self.lease.lost_to} has taken over this folder; stop "
                              "one of the two")
            packed = pack(step, self._identity or {}, state)
            self.folder.write_atomic(str(packed.key), packed.data)
            self.folder.write_atomic(f"{packed.key}.ok", packed.marker)
        except OSError as error:
            self._failed = error.strerror or str(error)
            raise SaveError(
                f"Step {step} is not saved in {self.dir}: {self._failed}. Earlier checkpoints are "
                "as they were. "
                "If the disk is full, make space; training may go on meanwhile."
            ) from None
        self._saved, self._failed = step, ""
        self.folder.verdicts[packed.key] = True
        self._prune()
        self._to_mirror(packed)

    def fresh(self) -> Store:
        """A new, empty store beside this one, dir-2, dir-3 and so on; the mirror alike. This one
        stays as it is."""
        path, mirror = self._beside()
        store = Store(path, mirror, keep=self.keep)
        store._base = self._base
        return store

    def _beside(self) -> tuple[Path, Path | None]:
        here, there = self._base
        for n in range(2, 10_000):
            path, mirror = here.with_name(f"{here.name}-{n}"), there and there.with_name(
                f"{there.name}-{n}")
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
        if self.mirror is None or self.mirror.written < self._saved:
            return "saved locally"
        return "saved locally, on Drive" + (", verified" if self.mirror.verified >= self._saved
                                            else "")

    def close(self) -> None:
        """Wait a little for the mirror, say if it is behind, and give the lease back. `open` works
        again afterwards."""
        if self.mirror and not self.mirror.close(self.closing_time):
            self._warn(f"The newest checkpoint, step {self._saved}, is in {self.dir} but not yet "
                       f"in {self.mirror.folder.path}.")
        self._pass_on()
        with suppress(OSError):  # the process ends some time, and the lease with it
            self.lease.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _folders(self) -> list[Folder]:
        return [self.folder, *([self.mirror.folder] if self.mirror else [])]

    def _newest(self, *, skip_gone: bool) -> tuple[int, dict[str, Any]] | None:
        found: list[tuple[Key, Folder]] = []
        for folder in self._folders():
            try:
                found += [(key, folder) for key in folder.copies()]
            except OSError as error:
                self._unreadable(folder, error)
        found.sort(key=lambda item: (item[0], item[1] is self.folder), reverse=True)
        for key, folder in found:
            try:
                return key.step, self._load(key, folder)
            except Damaged as reason:
                if isinstance(reason, Gone) and not skip_gone:
                    raise
                self._warn(f"{folder.path / str(key)} is skipped: {reason}.")
        return None

    def _load(self, key: Key, folder: Folder) -> dict[str, Any]:
        folder.verdicts[key] = False
        data, marker = folder.read(key)
        identity, state = unpack(data, key, marker)
        if self._identity is not None and identity != self._identity:
            raise Damaged(f"it was made by another run: {_differences(identity, self._identity)}")
        folder.verdicts[key] = True
        return state

    def _compare(self, folder: Folder, now: dict[str, Any]) -> None:
        there = self._record(folder)
        if there is None:
            return
        if lines := _differences({**there["identity"], "format": there["format"]},
                                 {**now["identity"], "format": now["format"]}):
            name, _ = self._beside()
            raise CourseError(
                f"The store in {folder.path} was made by another run: {lines}. Put this back as it "
                "was to go on with that run; or start "
                f"beside it with store = store.fresh(), which makes {name}, and from then on name "
                f"{name}."
            )
        if lines := _differences(there["environment"], now["environment"]):
            self._warn(f"This run goes on in another environment, {lines}: it will be as good, but "
                       "bit-identity is not promised.")

    def _record(self, folder: Folder) -> dict[str, Any] | None:
        """What store.json says; None when there is none. One that is damaged is told and made anew:
        each checkpoint knows its run."""
        try:
            there = parse(folder.disk.read(folder.path / RECORD, MAX_MARKER))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unreadable(folder, error)
            return None
        if there and "format" in there and all(isinstance(there.get(word), dict)
                                               for word in ("identity", "environment")):
            return there
        self._warn(f"{folder.path / RECORD} is damaged and is made anew.")
        return None

    def _unreadable(self, folder: Folder, error: OSError) -> None:
        if self.mirror and folder is self.mirror.folder:
            self.mirror.complain(error)
            self._pass_on()
        else:
            self._warn(f"{folder.path} cannot be read ({error.strerror or error}): the checkpoints "
                       "there are not seen.")

    def _prune(self) -> None:
        try:
            self.folder.prune(self.keep)
        except OSError as error:
            self._warn(f"Old checkpoints in {self.dir} cannot be deleted "
                       f"({error.strerror or error}); they take up space, no more.")

    def _to_mirror(self, packed: Packed) -> None:
        if self.mirror:
            self.mirror.offer(packed)
            self._pass_on()

    def _pass_on(self) -> None:
        for text in self.mirror.news() if self.mirror else []:
            self._warn(text)

    def _warn(self, text: str) -> None:
        """Each warning once a store."""
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, UserWarning, stacklevel=3)


def _flat(words: Mapping[str, Plain], what: str) -> dict[str, Plain]:
    for word, value in words.items():
        if not isinstance(word, str) or type(value) not in (str, int, float, bool, type(None)):
            raise CourseError(f"{what}[{word!r}] is {value!r}; it must be a string or a number, "
                              "under a string.")
    return dict(words)


def _differences(there: Mapping[str, object], now: Mapping[str, object]) -> str:
    """
    >>> _differences({"rate": 0.1, "data": "ab"}, {"rate": 0.2, "data": "ab", "seed": 1})
    'rate is 0.2, was 0.1; seed is 1, was not given'
    """
    words = sorted(word for word in {*there, *now} if word not in there or word not in now
                   or there[word] != now[word])
    say = {True: "not given", False: ""}
    return "; ".join(f"{w} is {say[w not in now] or repr(now[w])}, was "
                     f"{say[w not in there] or repr(there[w])}" for w in words)


def _empty(path: Path, *, unreachable: bool = False) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return unreachable
