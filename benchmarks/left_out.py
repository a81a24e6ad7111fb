"""Trainings with one example left out on a dask cluster: two workers beside one, one thread each.
 python -m benchmarks.left_out [--part times 100 48000]: by default 100 examples left out of the
embedded images' 4,800; the second number asks for another training set (48,000 is the whole one and
takes its time).
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import distributed

from benchmarks.harness import main, part
from course_lib.lab.leave_out import leave_out

RECIPE, LEFT_OUT, TRAINING = "luf/fashion-mnist-standard", 100, 4800


def seconds(workers: int, left_out: int, limit: int | None) -> tuple[float, list[int]]:
    """Wall time of the trainings, without that of starting the workers and of reading the data, and
    the flips they found."""
    words: dict[str, Any] = {"designs": ["paired"], "limit": limit, "progress": False}
    with tempfile.TemporaryDirectory() as place, distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1",
        dashboard_address=None, silence_logs="ERROR"
    ) as cluster, distributed.Client(cluster, set_as_default=False) as client:
        client.run(_warm, limit)
        out = Path(place)
        start = time.perf_counter()
        (record,) = leave_out([RECIPE], left_out=left_out, out=out, models=out,
                              scheduler=cluster.scheduler_address, **words)
        return time.perf_counter() - start, record["flips"]


def _warm(limit: int | None) -> int:
    from course_lib.lab.leave_out import training_data

    return len(training_data(RECIPE, limit, None)[1])


def times(left_out: str = str(LEFT_OUT), training: str = str(TRAINING)) -> dict[str, Any]:
    limit = None if int(training) >= 48_000 else round(int(training) / 0.8)
    found = {n: seconds(n, int(left_out), limit) for n in (1, 2)}
    assert found[1][1] == found[2][1], "the same trainings must flip the same predictions"
    return {"seconds": {str(n): s for n, (s, _) in found.items()}, "left_out": int(left_out),
            "training": int(training)}


def whole() -> tuple[list[str], list[list[Any]], Any]:
    raw = part("left_out", "equal", "times")
    one = raw["seconds"]["1"]
    rows = [[n, s, s / (raw["left_out"] + 1), one / s] for n, s in raw["seconds"].items()]
    return ["workers of one thread", "s", "s a training", "times as fast as one"], rows, raw


if __name__ == "__main__":
    main("left_out", f"{LEFT_OUT} trainings with one example left out, on dask workers", whole,
         {"times": times})
