"""A mirror that delays, drops, cuts, doubles, reorders and fails: nothing it verified is ever lost,
and it catches up."""

import os
import random
from collections import Counter

import pytest

from course_lib.checkpoints import Store
from course_lib.checkpoints.disk import Folder
from tests.faults.shims import LyingDisk, WatchedDisk, make_state, newest, share

SCHEDULES = 500
# damaged files lie about, and are named: not the question here
pytestmark = pytest.mark.filterwarnings("ignore")


def test_lying_schedules(folder):
    lies = Counter()
    reached = 0
    for seed in range(share(SCHEDULES)):
        draw, verified = random.Random(seed), -1
        store = Store(folder / f"{seed}", mirror := folder / f"{seed} mirror")
        store.mirror.disk = disk = LyingDisk(seed, draw.choice((0.02, 0.1, 0.3)))
        for step in range(draw.randrange(4, 10)):
            store.save(step, make_state(step))
            if store.status.endswith("verified"):
                verified, reached = step, reached + 1
            assert newest(mirror) >= verified
        disk.settle()
        assert newest(mirror) >= verified
        store.save(20, make_state(20))
        assert store.status.endswith("verified") and newest(mirror) == 20
        lies.update(disk.seen)
    assert reached > share(SCHEDULES)  # the mirror was of use, in spite of all
    assert set(lies) == {"error", "error in a write", "short write", "cut short", "dropped", "late",
                         "twice", "short read", "deleted late"}


def test_the_mirror_never_overwrites_and_deletes_only_after_truncating(folder):
    class Witness(WatchedDisk):
        def before(self, number, name, args):
            assert name != "replace"  # a rename proves nothing on Drive
            if name == "open" and args[1] & os.O_CREAT:
                assert args[1] & os.O_EXCL and not args[0].exists()
            if name == "unlink":
                assert args[0].stat().st_size == 0
                assert sum(name[5] > args[0].name[5] for name in store.folders[1].verified) >= 3

    store = Store(folder / "here", folder / "there")
    store.folders[1].disk = Witness()
    for step in range(8):
        store.save(step, make_state(step))
    assert store.status.endswith("verified")
    assert sorted(step for step, _ in store.folders[1].checkpoints()) == [5, 6, 7]


def test_prune_counts_only_what_was_verified(folder):
    """Damaged newer ones do not push good older ones out."""
    for step in (10, 11, 12):
        Store(folder).save(step, make_state(step))
    for path in folder.iterdir():
        path.write_bytes(b"damaged")
    store = Store(folder)
    for step in (1, 2, 3, 4):
        store.save(step, make_state(step))
    assert sorted(step for step, _ in Folder(folder).checkpoints()) == [2, 3, 4, 10, 11, 12]
    assert newest(folder) == 4
