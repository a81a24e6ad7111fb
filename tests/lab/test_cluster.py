"""A sweep gives the same bits in one process and on a dask cluster, which may lose a worker without
losing its work."""

import os
import signal

import dask
import distributed
import pytest

from course_lib import CourseError
from course_lib.__main__ import main
from course_lib.lab.sweep import sweep
from course_lib.zoo import manifest


def hashes(place):
    """The sha256 of each seed's weights."""
    (seeds,) = manifest(place / "models").values()
    return {seed: files["weights"]["sha256"] for seed, files in seeds.items()}


def killed_once(mark):
    """In a worker: the first save of all is the end of its process, as on a machine that is taken
    away: no handler, no clean-up."""
    from course_lib.checkpoints import Store

    whole = Store.save

    def save(self, step, state):
        whole(self, step, state)
        try:
            with open(mark, "x") as f:
                f.write(f"{os.getpid()} {step}")
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    Store.save = save
    return os.getpid()


def test_a_killed_worker_costs_nothing_and_nothing_is_repeated(tmp_path):
    """From a shell, and to the bit what one process comes to, one task after the other."""
    alone, mark, written = tmp_path / "alone", tmp_path / "killed", []
    sweep(["exp1/natural"], seeds=2, limit=200, epochs=2, out=alone / "runs",
          models=alone / "models", jobs=1, progress=False)
    with (distributed.LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1",
                                   dashboard_address=":0", silence_logs="CRITICAL") as cluster,
          distributed.Client(cluster, set_as_default=False) as client):
        pids = {*client.run(killed_once, str(mark)).values()}
        for _ in range(2):
            assert main(["sweep", "exp1/natural", "--seeds", "2", "--limit", "200", "--epochs", "2",
                         "--out", str(tmp_path / "runs"), "--models", str(tmp_path / "models"),
                         "--scheduler", cluster.scheduler_address]) == 0
            assert hashes(tmp_path) == hashes(alone) and len({*hashes(alone).values()}) == 2
            written.append({p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")})
        pid, step = map(int, mark.read_text().split())
        assert pid in pids and 0 < step < 4  # in the middle: two batches an epoch, two epochs
        client.wait_for_workers(2, timeout=60)
        assert pid not in client.run(os.getpid).values()
    assert written[0] == written[1]


def test_a_scheduler_that_does_not_answer(tmp_path):
    with (dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
          pytest.raises(CourseError, match="No dask scheduler answers at tcp://127.0.0.1:9 ")):
        sweep(["exp1/natural"], out=tmp_path, models=tmp_path, scheduler="tcp://127.0.0.1:9")
