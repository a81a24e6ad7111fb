"""Two writers in one folder, and who holds the lease."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from course_lib.checkpoints import Store
from course_lib.checkpoints.lease import HOLDER
from course_lib.errors import CourseError
from tests.faults.shims import make_state, same, share

SAVES = 1_000


def test_two_writers_and_a_reader_without_any_lease(server: Any, folder: Path) -> None:
    Store(folder).save(0, make_state(0, seed=1))
    each = share(SAVES) // 2
    pids = [server.start("write_many", folder=str(folder), who=1, first=1, saves=each)]
    pids += [server.start("write_many", folder=str(folder), who=2, first=1 + each // 10,
                          saves=each)]
    done = threading.Event()
    ends: list[int] = []
    waiter = threading.Thread(target=lambda: (ends.extend(map(server.wait, pids)), done.set()))
    waiter.start()
    reads, last, seen = 0, 0, set()
    while not done.is_set() or not reads:
        found = Store(folder).latest()  # a warning would fail the test
        assert found is not None
        step, state = found
        assert same(state, make_state(step, seed=state["who"]))
        assert step >= last
        reads, last = reads + 1, step
        seen.add(state["who"])
    waiter.join()
    assert ends == [0, 0]
    assert last > each // 2
    assert (Store(folder).latest() or (0,))[0] == each + each // 10
    print(f"{2 * each} saves, {reads} reads, of writers {seen}")


def test_the_second_is_told_who_holds_it_and_takes_over_when_that_one_is_dead(server: Any,
        folder: Path) -> None:
    place, ready = folder / "run", folder / "ready"
    for _ in range(share(30)):
        ready.unlink(missing_ok=True)
        pid = server.start("hold", folder=str(place), ready=str(ready))
        while not ready.exists():
            time.sleep(0.001)
        store = Store(place)
        with pytest.raises(CourseError, match=rf"written by process {pid} on .* \(since 20.*"
                           r"Stop that run.*store.fresh\(\)"):
            store.open({"run": 1}, {})
        fresh = store.fresh()
        fresh.open({"run": 2}, {})
        fresh.close()
        os.kill(pid, signal.SIGKILL)
        assert server.wait(pid) == -signal.SIGKILL
        store.open({"run": 1}, {})
        assert (store.latest() or (0,))[0] == 1
        store.close()


def held(server: Any, folder: Path) -> bool:
    """Is another process refused?"""
    pid = server.start("hold", folder=str(folder), ready=str(ready := folder / "ready"))
    while not (ready.exists() or is_over(pid)):
        time.sleep(0.001)
    if taken := ready.exists():
        ready.unlink()
        os.kill(pid, signal.SIGKILL)
    assert server.wait(pid) == (-signal.SIGKILL if taken else 3)
    return not taken


def is_over(pid: int) -> bool:
    """A child that has ended waits for its parent as a zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def test_opening_again_in_the_same_process_is_fine(server: Any, folder: Path) -> None:
    """A cell that was stopped and runs again, with a new store or with the same one."""
    old, new = Store(folder), Store(folder)
    old.open({"run": 1}, {})
    old.open({"run": 1}, {})
    new.open({"run": 1}, {})
    assert held(server, folder)
    old.close()
    assert held(server, folder)  # by the new one
    assert f"process {os.getpid()} on " in (folder / HOLDER).read_text()
    new.close()
    assert not held(server, folder)
    new.open({"run": 1}, {})
    assert held(server, folder)
    new.close()


def test_threads_of_one_process_share_it(server: Any, folder: Path) -> None:
    first, second = Store(folder), Store(folder)
    first.open({"run": 1}, {})
    with ThreadPoolExecutor(1) as pool:
        pool.submit(second.open, {"run": 1}, {}).result()
        pool.submit(first.close).result()
    assert held(server, folder)
    second.close()
    assert not held(server, folder)


@pytest.mark.parametrize("text", [b"", b"\xff", b"\x00" * 1000, None])
def test_a_holder_without_a_name_is_another_process(server: Any, folder: Path,
                                                    text: bytes | None) -> None:
    pid = server.start("hold", folder=str(folder), ready=str(folder / "ready"))
    while not (folder / "ready").exists():
        time.sleep(0.001)
    (folder / HOLDER).unlink() if text is None else (folder / HOLDER).write_bytes(text)
    with pytest.raises(CourseError, match=r"is being written by .*\. Stop that run"):
        Store(folder).open({"run": 1}, {})
    os.kill(pid, signal.SIGKILL)
    server.wait(pid)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, None], ids=str)
def test_a_disk_without_locks_is_used_with_a_warning(folder: Path, code: int | None,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError("no flock") if code is None else OSError(code, os.strerror(code))

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    store = Store(folder)
    with pytest.warns(UserWarning, match="cannot be locked .*no second run") as told:
        store.open({"run": 1}, {})
        store.open({"run": 1}, {})
    assert len(told) == 1
    store.save(1, make_state(1))
    store.close()
    assert (Store(folder).latest() or (0,))[0] == 1


@pytest.mark.parametrize("name", [".lock", HOLDER])
def test_no_link_is_followed(folder: Path, name: str) -> None:
    """In a folder that others may write to."""
    (folder / "mine").write_text("precious")
    (folder / "run").mkdir()
    (folder / "run" / name).symlink_to(folder / "mine")
    store = Store(folder / "run")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        store.open({"run": 1}, {})
    assert len(told) == (name == ".lock")
    store.save(1, make_state(1))
    store.close()
    assert (folder / "mine").read_text() == "precious"


def test_two_that_ask_at_once_do_not_both_get_it(server: Any, folder: Path) -> None:
    for i in range(share(50)):
        place = folder / str(i)
        readies = [folder / f"{i} {who}" for who in "ab"]
        pids = [server.start("hold", folder=str(place), ready=str(ready)) for ready in readies]
        while not any(ready.exists() for ready in readies):
            time.sleep(0.001)
        holder = int((place / HOLDER).read_text().split()[1])
        assert holder in pids
        other = pids[1 - pids.index(holder)]
        assert server.wait(other) == 3  # refused
        assert [ready.exists() for ready in readies] == [pid == holder for pid in pids]
        os.kill(holder, signal.SIGKILL)
        server.wait(holder)
