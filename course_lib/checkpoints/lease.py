"""One writer in a folder: a lease with a heartbeat.
 The holder writes who it is, and a count that grows every few seconds. On the same machine a holder
is dead when its process is. On another machine it is dead when its count stands still; clocks are
never compared. The lease spares the student two runs that write over each other's progress. It is
not what keeps files whole: readers need no lease.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from course_lib.checkpoints.disk import parse
from course_lib.errors import CourseError

FILE = "lease.json"
WORDS = {"host": str, "machine": str, "pid": int, "born": str, "since": str, "count": int,
         "turn": int}


class Lease:
    """The right to write to `folder`."""

    beat = 5.0  # seconds from one heartbeat to the next
    patience = 15.0  # seconds without one after which a holder on another machine is dead
    _turns = itertools.count()

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.lost_to: str | None = None  # who took it from us, as words
        self._me: dict[str, Any] = {}
        self._stop = threading.Event()

    def take(self) -> None:
        """Take it, also over from a dead holder or from this very process. CourseError says who is
        alive and holds it."""
        while True:
            held = self._read()
            if held and not _same_process(held) and self._alive(held):
                raise CourseError(
                    f"{self.path.parent} is being written by {_who(held)}. Stop that run, or "
                    "restart its kernel, and run this again; "
                    "or go on in an empty store beside it: store.fresh()."
                )
            with self._guard():
                if self._read() == held:  # nobody was quicker
                    self._me = {**_myself(), "since": time.strftime("%Y-%m-%d %H:%M:%S"),
                                "count": 0, "turn": next(self._turns)}
                    self._write()
                    break
        self.release(keep_file=True)
        self.lost_to, self._stop = None, threading.Event()
        threading.Thread(target=self._heartbeat, args=(self._stop,), name="lease",
                         daemon=True).start()

    def release(self, *, keep_file: bool = False) -> None:
        """Give it back. What another has taken meanwhile is theirs."""
        self._stop.set()
        if keep_file or not self._me:
            return
        with self._guard():
            held = self._read()
            if held and _same_process(held) and held["turn"] == self._me["turn"]:
                self.path.unlink(missing_ok=True)

    def _heartbeat(self, stop: threading.Event) -> None:
        while not stop.wait(self.beat):
            try:
                with self._guard():
                    held = self._read()
                    if held and not _same_process(held):
                        self.lost_to = _who(held)
                    if stop.is_set() or (held and (self.lost_to
                                                   or held["turn"] != self._me["turn"])):
                        return
                    self._me["count"] += 1
                    self._write()
            except OSError:
                pass  # a full disk: on this machine the process itself is the proof of life

    def _alive(self, held: dict[str, Any]) -> bool:
        if held["machine"] == _machine() and os.name == "posix":
            return _born(held["pid"]) == held["born"]
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            time.sleep(min(0.2, self.patience / 10))
            now = self._read()
            if now is None:
                return False
            if now != held:
                return True
        return False

    def _read(self) -> dict[str, Any] | None:
        """The lease that is there; None when there is none or it is nonsense."""
        try:
            held = parse(self.path.read_bytes())
        except FileNotFoundError:
            return None
        return held if held and all(type(held.get(word)) is kind for word,
                                    kind in WORDS.items()) else None

    def _write(self) -> None:
        spare = self.path.with_name(f".lease-{os.getpid()}-{self._me['turn']}")
        spare.write_text(json.dumps(self._me))
        os.replace(spare, self.path)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Only one process at a time between reading and writing the lease, where the file system
        can do that."""
        file = os.open(self.path.with_name(".lease-guard"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            except (ImportError, OSError):
                pass  # Windows, some network disks: the rest of the lease still stands
            yield
        finally:
            os.close(file)


def _who(held: dict[str, Any]) -> str:
    return f"process {held['pid']} on {held['host']} (since {held['since']})"


def _myself() -> dict[str, Any]:
    return {"host": platform.node(), "machine": _machine(), "pid": os.getpid(),
            "born": _born(os.getpid()) or ""}


def _same_process(held: dict[str, Any]) -> bool:
    return all(held[word] == value for word, value in _myself().items())


def _machine() -> str:
    """This machine since it started, and the container in it: where process numbers mean what they
    mean here."""
    words = [platform.node()]
    with suppress(OSError):  # not Linux: the name has to do
        words += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
                  os.readlink("/proc/self/ns/pid")]
    return "/".join(words)


def _born(pid: int) -> str | None:
    """When a process of this machine began, as the kernel counts; "" where that is not told, None
    when it is dead."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if words[0] in "ZX" else words[19]  # a zombie holds nothing
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it is somebody else's, and alive
    return ""
