"""SIGKILL at any moment of a training or a save: nothing but the time since the last save is lost,
and no bit differs."""

import json
import random
import signal
import time
import warnings

import pytest

from course_lib.checkpoints import Store
from tests.faults.shims import RUN, calls_of_a_save, end, filled, make_state, newest, share, start

KILLS = 200
INTERVALS = (0.0, 0.0, 0.004, 0.02)  # seconds between saves; 0 saves after every batch


def train_with_kills(folder, name, draw):
    """Train in children that are killed until one finishes; what it wrote, the log of each child,
    and the interval. Half of the kills come some time after any line of the log, half right after
    the beginning of a save. Counting lines makes the same mix on a slow machine."""
    logs, out, every = [], folder / "out.json", draw.choice(INTERVALS)
    while not out.exists():
        log = folder / f"log{len(logs)}"
        child = start("train", folder=str(folder / "store"), name=name, log=str(log), out=str(out),
                      save_every=every)
        if draw.random() < 0.5:
            wait_for(log, out, b"\n", draw.randrange(25))
            time.sleep(draw.uniform(0, 0.004))
        else:
            wait_for(log, out, b"save ", draw.randrange(1, 5))
            time.sleep(draw.choice((0.0, 0.0001, 0.0003)))
        assert end(child, kill=True) in (0, -signal.SIGKILL)
        logs.append(log.read_text().splitlines() if log.exists() else [])
    return json.loads(out.read_text()), logs, every


def wait_for(log, out, word, number):
    """Until a word is so many times in a child's log, or the child ends."""
    while number and not out.exists() and not (log.exists()
                                               and log.read_bytes().count(word) >= number):
        time.sleep(0.0002)


def check_lost(log, start_of_next, every):
    """What a kill lost was trained within one interval, and the batch after which the interval was
    over: it began before the first lost batch ended, and then a save comes before the next one."""
    position = saved = int(log[0].split()[1])
    ends = {}
    for line in log:
        what, step, when = line.split()
        if what == "step":
            position += 1
            ends[position] = float(when)
        elif what == "saved":
            saved = int(step)
    assert saved <= start_of_next <= position
    for step in range(start_of_next + 1, position):  # all that were lost but the last
        assert ends[step] < ends[start_of_next + 1] + every


@pytest.mark.parametrize("name", ["pgd_at", "stateful"])
def test_killed_training_ends_with_the_same_bits(folder, name):
    out, draw = folder / "out.json", random.Random(name)
    assert end(start("train", folder=None, name=name, log=str(folder / "log"), out=str(out),
                     save_every=0.0)) == 0
    kills = in_save = run = 0
    while kills < share(KILLS) / 2 or in_save < share(50) / 2:
        (place := folder / str(run)).mkdir()
        found, logs, every = train_with_kills(place, name, draw)
        assert found == json.loads(out.read_text())
        starts = [int(log[0].split()[1]) if log else None for log in logs]
        for log, start_of_next in zip(logs, starts[1:], strict=False):
            kills += 1
            in_save += bool(log) and log[-1].startswith("save ")
            if log and start_of_next is not None:
                check_lost(log, start_of_next, every)
        run += 1


def moments(folder, *, mirror=False):
    """When a process is killed: before and after each call, and in the middle of a write."""
    return [(at, when) for at, call in enumerate(calls_of_a_save(folder, mirror=mirror))
            for when in ("before", "after", *(["half"] if call == "write" else []))]


def test_kill_at_each_step_of_a_save(folder):
    for at, when in moments(folder):
        place = filled(folder / f"{at}{when}").dir
        best = 2
        for step in range(3, 3 + share(10)):
            assert end(start("save_and_die", folder=str(place), step=step, at=at,
                             when=when)) == -signal.SIGKILL
            assert (found := newest(place)) in (best, step)
            best = found
        store = Store(place)
        store.open(*RUN)  # the dead one's lock is no hindrance
        store.save(100, make_state(100))
        store.close()
        assert newest(place) == 100


def test_kill_at_each_step_of_a_copy(folder):
    """The machine is gone with its disk: what the mirror verified before is found there."""
    for at, when in moments(folder, mirror=True):
        filled(folder / f"local {at}{when}", mirror := folder / f"mirror {at}{when}")
        words = {"folder": str(folder / f"new machine {at}{when}"), "mirror": str(mirror)}
        assert end(start("save_and_die", step=3, at=at, when=when, **words)) == -signal.SIGKILL
        with warnings.catch_warnings():  # a copy that was cut short has its name already
            warnings.filterwarnings("ignore", ".*do not hash to its name")
            assert newest(mirror) in (2, 3)
