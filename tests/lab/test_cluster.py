"""A sweep gives the same bits on any backend, and a dask cluster loses a worker without losing its
work."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

from course_lib import CourseError
from course_lib.__main__ import main
from course_lib.lab.sweep import sweep
from course_lib.zoo import manifest

SHORT: dict[str, Any] = {"seeds": 2, "limit": 200, "epochs": 2, "progress": False}


def trained(place: Path, **words: Any) -> dict[str, str]:
    """The sha256 of each seed's weights."""
    records = sweep(["exp1/natural"], out=place / "runs", models=place / "models", **SHORT, **words)
    assert sorted(r["seed"] for r in records) == [0, 1]
    return hashes(place)


def hashes(place: Path) -> dict[str, str]:
    (seeds,) = manifest(place / "models").values()
    return {seed: files["weights"]["sha256"] for seed, files in seeds.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process comes to, one task after the other."""
    found = trained(tmp_path_factory.mktemp("sequential"), backend="sequential", jobs=1)
    assert len(set(found.values())) == 2  # two seeds, two models
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[distributed.LocalCluster]:
    """A scheduler and two worker processes. A worker that dies is started again."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0",
        silence_logs="CRITICAL"
    ) as found:
        yield found


def test_dask_gives_the_same_bits_from_a_shell_and_repeats_nothing(
        expected: dict[str, str], tmp_path: Path, cluster: distributed.LocalCluster) -> None:
    written = []
    for _ in range(2):
        assert main(["sweep", "exp1/natural", "--seeds", "2", "--limit", "200", "--epochs", "2",
                     "--out", str(tmp_path / "runs"), "--models", str(tmp_path / "models"),
                     "--scheduler", cluster.scheduler_address]) == 0
        assert hashes(tmp_path) == expected
        written.append({p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")})
    assert written[0] == written[1]


def test_a_killed_worker_costs_nothing(expected: dict[str, str], tmp_path: Path,
                                       cluster: distributed.LocalCluster) -> None:
    """The first worker to save a checkpoint is killed there, as by a machine that is taken away: no
    handler, no clean-up."""
    mark = tmp_path / "killed"

    def killed_once(mark: str) -> int:
        """In a worker: the first save of all is the end of its process."""
        from course_lib.checkpoints import Store

        whole = Store.save

        def save(self: Store, step: int, state: dict[str, Any]) -> None:
            whole(self, step, state)
            try:
                with open(mark, "x") as f:
                    f.write(f"{os.getpid()} {step}")
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)

        Store.save = save  # type: ignore[method-assign]
        return os.getpid()

    with distributed.Client(cluster, set_as_default=False) as client:
        pids = set(client.run(killed_once, str(mark)).values())
        assert len(pids) == 2
        assert trained(tmp_path, scheduler=cluster.scheduler_address) == expected
        pid, step = map(int, mark.read_text().split())
        assert pid in pids and 0 < step < 4  # in the middle: two batches an epoch, two epochs
        client.wait_for_workers(2, timeout=60)
        assert pid not in client.run(os.getpid).values()


def test_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    with (dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
          pytest.raises(CourseError, match="No dask scheduler answers at tcp://127.0.0.1:9 ")):
        trained(tmp_path, scheduler="tcp://127.0.0.1:9")
