"""Two writers in one folder, and who holds the lease."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from course_lib.checkpoints import SaveError, Store, lease
from course_lib.checkpoints.lease import Lease
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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cut short")  # bytes whose marker is about to come
        while not done.is_set() or not reads:
            found = Store(folder).latest()
            assert found is not None
            step, state = found
            assert same(state, make_state(step, seed=state["who"]))
            assert step >= last
            reads, last = reads + 1, step
            seen.add(state["who"])
    waiter.join()
    assert ends == [0, 0]
    assert last > each // 2
    found = Store(folder).latest()
    assert found is not None
    assert found[0] == each + each // 10
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
        with pytest.raises(CourseError, match=rf"written by process {pid} on .* \(since 20.*Stop that run.*store.fresh\(\)"):
            store.open({"run": 1}, {})
        fresh = store.fresh()
        fresh.open({"run": 2}, {})
        fresh.close()
        os.kill(pid, signal.SIGKILL)
        assert server.wait(pid) == -signal.SIGKILL
        store.open({"run": 1}, {})
        found = store.latest()
        assert found is not None
        assert found[0] == 1
        store.close()
        assert not (place / lease.FILE).exists()


def test_opening_again_in_the_same_process_is_fine(folder: Path) -> None:
    """A cell that was stopped and runs again, with a new store or with the same one."""
    old, new = Store(folder), Store(folder)
    old.open({"run": 1}, {})
    old.open({"run": 1}, {})
    new.open({"run": 1}, {})
    old.close()  # the lease is the new one's by now
    assert (folder / lease.FILE).exists()
    new.close()
    assert not (folder / lease.FILE).exists()
    new.open({"run": 1}, {})
    new.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "beat", 0.02)
    monkeypatch.setattr(Lease, "patience", 0.2)


def elsewhere(folder: Path, **changes: Any) -> dict[str, Any]:
    """A lease that another machine holds."""
    folder.mkdir(exist_ok=True)
    words = {
        "host": "far-away",
        "machine": "far-away",
        "pid": 7,
        "born": "1",
        "since": "2026-01-01 10:00:00",
        "count": 0,
        "turn": 0,
        **changes,
    }
    (folder / lease.FILE).write_text(json.dumps(words))
    return words


def test_a_holder_on_another_machine_is_alive_while_its_count_grows(folder: Path,
        quick: None) -> None:
    stop = threading.Event()

    def beat() -> None:
        count = 0
        while not stop.wait(0.01):
            count += 1
            text = folder / "spare"
            text.write_text(json.dumps({**words, "count": count}))
            text.replace(folder / lease.FILE)

    words = elsewhere(folder)
    thread = threading.Thread(target=beat)
    thread.start()
    with pytest.raises(CourseError, match="written by process 7 on far-away"):
        Store(folder).open({"run": 1}, {})
    stop.set()
    thread.join()
    store = Store(folder)
    store.open({"run": 1}, {})  # its count stands still: dead
    store.close()


def test_a_process_number_that_was_given_again_is_not_the_holder(folder: Path) -> None:
    words = elsewhere(folder, **lease._myself())
    (folder / lease.FILE).write_text(json.dumps({**words, "pid": os.getppid(), "born": "1"}))
    store = Store(folder)
    store.open({"run": 1}, {})
    store.close()


def test_who_lost_the_lease_saves_no_more(folder: Path, quick: None) -> None:
    """A machine that slept for an hour wakes up: another has gone on with its run."""
    store = Store(folder)
    store.open({"run": 1}, {})
    store.save(1, make_state(1))
    elsewhere(folder)
    while store.lease.lost_to is None:
        time.sleep(0.005)
    with pytest.raises(SaveError,
                       match="process 7 on far-away .since 2026-01-01 10:00:00. has taken over"):
        store.save(2, make_state(2))
    store.close()
    assert (folder / lease.FILE).exists()  # it is not ours to delete


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"host": 1}', "\x00" * 100,
                                  "<html>"])
def test_a_lease_that_is_nonsense_holds_nobody(folder: Path, text: str) -> None:
    (folder / lease.FILE).write_text(text)
    store = Store(folder)
    store.open({"run": 1}, {})
    store.close()


def test_two_that_ask_at_once_do_not_both_get_it(server: Any, folder: Path) -> None:
    for i in range(share(50)):
        place = folder / str(i)
        readies = [folder / f"{i} {who}" for who in "ab"]
        pids = [server.start("hold", folder=str(place), ready=str(ready)) for ready in readies]
        while not any(ready.exists() for ready in readies):
            time.sleep(0.001)
        holder = json.loads((place / lease.FILE).read_text())["pid"]
        assert holder in pids
        other = pids[1 - pids.index(holder)]
        assert server.wait(other) == 3  # refused
        assert [ready.exists() for ready in readies] == [pid == holder for pid in pids]
        os.kill(holder, signal.SIGKILL)
        server.wait(holder)


def test_who_was_slower_looks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between finding nobody and taking the lease, another takes it."""
    guard = Lease._guard

    def another_is_quicker(self: Lease) -> Any:
        monkeypatch.setattr(Lease, "_guard", guard)
        alive = {**lease._myself(), "pid": os.getppid(), "born": lease._born(os.getppid())}
        elsewhere(folder, **alive)
        return guard(self)

    monkeypatch.setattr(Lease, "_guard", another_is_quicker)
    with pytest.raises(CourseError, match=f"written by process {os.getppid()}"):
        Lease(folder).take()


def test_only_one_at_a_time_changes_the_lease(folder: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    taker = Lease(folder)
    with open(folder / ".lease-guard", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread = threading.Thread(target=taker.take)
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        assert not (folder / lease.FILE).exists()
    thread.join()
    assert (folder / lease.FILE).exists()
    taker.release()
