"""Disks that fail, kill and lie; processes to kill; a state to save; and how much of each fault
count to run."""

import errno
import multiprocessing
import os
import random
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.checkpoints import Store

# fsync is slow on disks, and most faults do not need one
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["pytest", "tests.faults.warm"])
RUN: tuple[Any, Any] = ({"run": 1}, {})
ERRORS = (errno.ENOSPC, errno.EIO, errno.ENOTCONN, errno.EACCES)


def share(full: int) -> int:
    """How many of `full` cases to run: COURSE_FAULTS times as many (unset: a tenth), or "full"."""
    word = os.environ.get("COURSE_FAULTS", "0.1")
    return max(1, round(full * (1.0 if word == "full" else float(word))))


def make_state(step: int, *, seed: int = 0, size: int = 40) -> dict[str, Any]:
    """A training state like fit's, small, every part of which depends on the step."""
    draw = torch.Generator().manual_seed(1000 * seed + step)
    weights = torch.randn(size, 5, generator=draw)
    return {
        "model": {"w": weights, "bn.count": torch.tensor(step)},
        "optim": {"state": {0: {"momentum": weights * 2, "step": torch.tensor(float(step))}},
                  "param_groups": [{"lr": 0.1, "params": [0]}]},
        "memory": {"best": torch.tensor(torch.inf)},
        "epoch": step,
        "history": [{"loss": step / 7, "note": None, "ok": True}],
        "who": seed,
    }


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, types included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
            *(tensor.flatten().view(torch.uint8) for tensor in (a, b)))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, which is as it was saved; -1 where there is none."""
    if (found := Store(folder).latest()) is None:
        return -1
    assert same(found[1], make_state(found[0]))
    return found[0]


def start(job: str, **words: Any) -> Any:
    """A new process, which is at work on a job of jobs.py."""
    from tests.faults import jobs

    child = CHILDREN.Process(target=jobs.child, args=(job, words))
    child.start()
    return child


def end(child: Any, *, kill: bool = False) -> int:
    """How a process ended: 0, 3 for a CourseError, or minus the signal that killed it."""
    if kill:
        child.kill()  # one that has ended feels nothing
    child.join()
    return int(child.exitcode)


class WatchedDisk:
    """The calls of `os`; each passes through `before` and `after`, with a number and a name."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **words: Any) -> Any:
            number = len(self.seen)
            self.seen.append(name)
            self.before(number, name, args)
            result = getattr(os, name)(*args, **words)
            self.after(number, name, args)
            return result

        return call

    def before(self, number: int, name: str, args: tuple[Any, ...]) -> None: ...

    def after(self, number: int, name: str, args: tuple[Any, ...]) -> None: ...


def filled(folder: Path, mirror: Path | None = None) -> Store:
    """A store with three checkpoints of `RUN`, so that the next save also prunes."""
    store = Store(folder, mirror)
    store.open(*RUN)
    for step in range(3):
        store.save(step, make_state(step))
    store.close()
    return store


def calls_of_a_save(folder: Path, *, mirror: bool = False) -> list[str]:
    """The calls of a save that also prunes, or of its copy in the mirror."""
    store = filled(folder / "dry", folder / "dry mirror" if mirror else None)
    disk = (store.mirror or store.folder).disk = WatchedDisk()
    store.save(3, make_state(3))
    return disk.seen


def half(name: str, args: tuple[Any, ...]) -> None:
    """The first half of a write arrives."""
    if name == "write":
        os.write(args[0], args[1][: len(args[1]) // 2])


class FailingDisk(WatchedDisk):
    """Call number `at`, and where it `stays` broken every later one, ends with an error."""

    def __init__(self, at: int, code: int, *, stays: bool = False) -> None:
        super().__init__()
        self.at, self.code, self.stays = at, code, stays

    def before(self, number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == self.at or (self.stays and number > self.at):
            half(name, args)
            if name == "close":
                os.close(args[0])
            raise OSError(self.code, os.strerror(self.code))


class KillingDisk(WatchedDisk):
    """SIGKILL before, after or (a write) half-way through call number `at`."""

    def __init__(self, at: int, when: str) -> None:
        super().__init__()
        self.at, self.when = at, when

    def before(self, number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == self.at and self.when in ("before", "half"):
            half(name if self.when == "half" else "", args)
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == self.at and self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)


class LyingDisk:
    """A folder that behaves like Drive on a bad day, reproducibly from a seed.

    A written file may arrive late (empty, or missing, until some calls later, in any order), cut
    short, not at all, or twice; any call may fail with one of ERRORS; and what is deleted may stay
    for a while. `settle` lets everything late arrive. `seen` counts each lie, so that a test can
    tell that it was told.
    """

    def __init__(self, seed: int, badness: float) -> None:
        self.draw, self.badness = random.Random(seed), badness
        self.open_files: dict[int, Path] = {}
        self.late: list[Callable[[], None]] = []
        self.seen: dict[str, int] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """fsync, makedirs and truncate."""
        self.may_fail()
        return getattr(os, name)

    def lies(self, what: str, share: float = 1.0) -> bool:
        if self.draw.random() < self.badness * share:
            self.seen[what] = self.seen.get(what, 0) + 1
            return True
        return False

    def may_fail(self) -> None:
        self.draw.shuffle(self.late)
        while self.late and self.draw.random() < 0.3:
            self.late.pop()()
        if self.lies("error", 0.5):
            code = self.draw.choice(ERRORS)
            raise OSError(code, os.strerror(code))

    def settle(self) -> None:
        self.badness = 0.0
        while self.late:
            self.late.pop()()

    def open(self, place: str | Path, flags: int, mode: int = 0o600) -> int:
        self.may_fail()
        path = Path(place)
        if not flags & os.O_CREAT and self.lies("short read", 0.3):
            data = path.read_bytes()
            path = path.with_name(".half")
            path.write_bytes(data[: len(data) // 2])
        file = os.open(path, flags, mode)
        self.open_files[file] = path
        return file

    def write(self, file: int, data: memoryview) -> int:
        if self.lies("error in a write", 0.5):
            os.write(file, data[: self.draw.randrange(len(data) + 1)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.lies("short write", 0.5):
            return os.write(file, data[: max(1, len(data) // 3)])
        return os.write(file, data)

    def close(self, file: int) -> None:
        path = self.open_files.pop(file)
        os.close(file)
        data = path.read_bytes()
        if self.lies("cut short"):
            os.truncate(path, self.draw.randrange(len(data) + 1))
        elif self.lies("dropped"):
            path.unlink()
        elif self.lies("late"):
            path.unlink() if self.draw.random() < 0.5 else os.truncate(path, 0)
            self.late.append(lambda: self._arrive(path, data))
        if self.lies("twice"):
            path.with_name(f"{path.name} (1)").write_bytes(data[:
                self.draw.choice([len(data), len(data) // 2])])
        self.may_fail()

    def _arrive(self, path: Path, data: bytes) -> None:
        """Bytes on their way reach the name they were sent to, if it is still free or only a
        promise; else a second file."""
        if path.exists() and path.stat().st_size:
            path = path.with_name(f"{path.name} (2)")
        path.write_bytes(data)

    def listdir(self, folder: Path) -> list[str]:
        self.may_fail()
        return self.draw.sample(names := os.listdir(folder), len(names))

    def unlink(self, path: Path) -> None:
        self.may_fail()
        if self.lies("deleted late"):
            self.late.append(lambda: path.unlink(missing_ok=True))
        else:
            os.unlink(path)


def stand_in(patch: pytest.MonkeyPatch, mount: Callable[[str], object]) -> None:
    """google.colab as far as the course uses it: drive.mount(place)."""
    google, package, drive = map(types.ModuleType, ("google", "google.colab", "google.colab.drive"))
    vars(drive)["mount"], vars(package)["drive"], vars(google)["colab"] = mount, drive, package
    for module in (google, package, drive):
        patch.setitem(sys.modules, module.__name__, module)


def mounts(place: str) -> None:
    """What drive.mount does when all goes well."""
    (Path(place) / "MyDrive").mkdir(parents=True, exist_ok=True)
