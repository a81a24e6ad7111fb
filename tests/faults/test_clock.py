"""The clock set back and forward by a year changes nothing: steps decide."""

from __future__ import annotations

import os
import time
from itertools import product
from pathlib import Path

import pytest

from course_lib.checkpoints import Store
from tests.faults.shims import make_state

YEAR = 365 * 24 * 3600.0


@pytest.mark.parametrize(("before", "after"), list(product((-YEAR, 0.0, YEAR), repeat=2)))
def test_the_same_choice_whatever_the_clock_says(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                 before: float, after: float) -> None:
    now = time.time
    store = Store(folder / "here", folder / "there")
    assert store.mirror
    for step, shift in ((1, before), (2, after), (3, before), (4, after), (5, 0.0)):
        monkeypatch.setattr(time, "time", lambda shift=shift: now() + shift)
        store.open({"run": 1}, {})
        store.save(step, make_state(step))
        assert store.mirror.close(60)
        for place in (folder / "here", folder / "there"):
            for path in place.glob(f"ckpt-{step}-*"):
                os.utime(path, (now() + shift, now() + shift))
        assert (store.latest() or (0,))[0] == step
        store.close()
    for place in (folder / "here", folder / "there"):
        assert sorted({int(path.name.split("-")[1]) for path in place.glob("ckpt-*")}) == [3, 4, 5]
        for i, path in enumerate(sorted(place.iterdir())):
            os.utime(path, (now() + YEAR * (i % 3 - 1),) * 2)
        assert (Store(place).latest() or (0,))[0] == 5
