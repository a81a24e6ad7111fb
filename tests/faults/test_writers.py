"""Two writers in one folder, and who holds the lock."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from course_lib import CourseError, Store
from tests.faults.shims import RUN, end, make_state, same, share, start

SAVES = 1_000


@contextmanager
def another(folder):
    """Another process, which has the lock or was refused; it is killed at the end."""
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    child = start("hold", folder=str(folder), ready=str(ready))
    while child.is_alive() and not ready.exists():
        time.sleep(0.001)
    yield child
    assert end(child, kill=True) == (-signal.SIGKILL if ready.exists() else 3)


def test_two_writers_and_a_reader_without_any_lock(folder):
    Store(folder).save(0, make_state(0, seed=1))
    each = share(SAVES) // 2
    writers = [start("write_many", folder=str(folder), who=who, first=first, saves=each)
               for who, first in ((1, 1), (2, 1 + each // 10))]
    last, writing = 0, True
    while writing:
        writing = any(writer.is_alive() for writer in writers)
        step, state = Store(folder).latest() or (-1, {})  # a warning would fail the test
        assert same(state, make_state(step, seed=state["who"]))
        assert step >= last
        last = step
    assert [end(writer) for writer in writers] == [0, 0]
    assert last == each + each // 10


def test_the_second_is_refused_and_takes_over_when_the_first_is_dead(folder):
    for _ in range(share(30)):
        store = Store(folder / "run")
        with another(store.dir), pytest.raises(
                CourseError, match=r"written by another process\. Stop that run.*store.fresh\(\)"):
            store.open(*RUN)
        store.open(*RUN)
        assert (store.latest() or (0,))[0] == 1
        store.close()


def test_opening_again_in_the_same_process_is_fine(folder):
    """A cell that was stopped and runs again, with a new store or the same, in any thread."""
    old, new = Store(folder), Store(folder)
    old.open(*RUN)
    old.open(*RUN)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(new.open, *RUN).result()
        pool.submit(old.close).result()
    with another(folder) as child:  # which the new one refuses
        assert not child.is_alive()
    new.close()
    with another(folder) as child:
        assert child.is_alive()
