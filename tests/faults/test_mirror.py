"""A mirror that delays, drops, cuts, doubles, reorders and fails: nothing it verified is ever lost,
and it catches up."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from course_lib.checkpoints import Store
from course_lib.checkpoints.disk import Folder, Key
from course_lib.checkpoints.mirror import Mirror
from tests.faults.shims import LyingDisk, WatchedDisk, make_state, newest, share

SCHEDULES = 500


# damaged files lie about, and are named: not the question here
with_damage = pytest.mark.filterwarnings("ignore")


def verified(mirror: Mirror) -> list[Key]:
    """What the mirror says it has read back, and has not deleted."""
    return sorted(key for key, good in mirror.verdicts.items() if good)


@with_damage
def test_lying_schedules(folder: Path) -> None:
    lies: Counter[str] = Counter()
    reached = caught_up = 0
    for seed in range(share(SCHEDULES)):
        draw = random.Random(seed)
        store = Store(folder / f"{seed}", folder / f"{seed} mirror")
        assert store.mirror
        store.mirror.disk = disk = LyingDisk(seed, draw.choice((0.02, 0.1, 0.3)))
        for step in range(draw.randrange(4, 10)):
            store.save(step, make_state(step))
            store.mirror.close(60)
            assert newest(store.mirror.path) >= store.mirror.verified
            reached += store.mirror.verified == step
        disk.settle()
        assert newest(store.mirror.path) >= store.mirror.verified
        store.save(20, make_state(20))
        store.close()
        caught_up += store.mirror.verified == 20
        assert newest(store.mirror.path) == 20
        lies.update(disk.seen)
    assert caught_up == share(SCHEDULES)
    assert reached > share(SCHEDULES)  # the mirror was of use, in spite of all
    assert set(lies) == {"error", "error in a write", "short write", "cut short", "dropped", "late",
                         "twice", "short read", "deleted late"}
    print(f"{share(SCHEDULES)} schedules, {reached} copies verified, {sum(lies.values())} lies: "
          f"{dict(lies)}")


@with_damage
def test_a_verified_copy_that_vanishes_later_leaves_older_ones(folder: Path) -> None:
    """Files were lost after Drive had shown them: that is why three are kept."""
    for seed in range(share(100)):
        draw = random.Random(seed)
        store = Store(folder / f"{seed}", folder / f"{seed} mirror")
        assert store.mirror
        for step in range(draw.randrange(3, 7)):
            store.save(step, make_state(step))
            assert store.mirror.close(60)
        lost = draw.sample(range(step - 2, step + 1), 2)
        for path in store.mirror.path.glob("ckpt-*"):
            if int(path.name.split("-")[1]) in lost:
                path.write_bytes(b"") if draw.random() < 0.5 else path.unlink()
        assert newest(store.mirror.path) == ({step - 2, step - 1, step} - set(lost)).pop()
        store.close()


def test_the_mirror_never_overwrites_and_deletes_only_after_truncating(folder: Path) -> None:
    class Witness(WatchedDisk):
        def before(self, number: int, name: str, args: tuple[Any, ...]) -> None:
            assert name != "replace"  # a rename proves nothing on Drive
            if name == "open" and args[1] & os.O_CREAT:
                assert args[1] & os.O_EXCL and not args[0].exists()
            if name == "unlink":
                assert args[0].stat().st_size == 0
                assert len([key for key in verified(mirror)
                            if key.step > int(args[0].name.split("-")[1])]) >= 3

    store = Store(folder / "here", folder / "there")
    assert (mirror := store.mirror)
    mirror.disk = Witness()
    for step in range(8):
        store.save(step, make_state(step))
        assert mirror.close(60)
    assert sorted(key.step for key in mirror.copies()) == [5, 6, 7]
    store.close()


@with_damage
def test_prune_counts_only_what_verifies(folder: Path) -> None:
    """Damaged newer ones do not push good older ones out."""
    store = Store(folder)
    for step in (1, 2, 3, 10, 11, 12):
        store.save(step, make_state(step))
        store.folder.keep = 6
    for path in folder.glob("ckpt-1?-*"):
        path.write_bytes(b"damaged")
    again = Store(folder)
    assert newest(folder) == 3
    again.save(4, make_state(4))
    assert sorted({key.step for key in Folder(folder).copies()}) == [2, 3, 4, 10, 11, 12]
    assert newest(folder) == 4
