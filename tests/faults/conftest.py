from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.shims import MEMORY

ROOT = Path(__file__).parents[2]


class Server:
    """The warm process of server.py, and its children."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True
        )

    def _ask(self, **order: Any) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, job: str, **words: Any) -> int:
        """The number of a new child, which is at work."""
        return self._ask(job=job, words=words)

    def wait(self, pid: int) -> int:
        """How it ended."""
        return self._ask(wait=pid)

    def run(self, job: str, **words: Any) -> int:
        return self.wait(self.start(job, **words))

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is closed waits long enough for its mirror, on a busy machine too."""
    monkeypatch.setattr("course_lib.checkpoints.Store.closing_time", 120.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()
