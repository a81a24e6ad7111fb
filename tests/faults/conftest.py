from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.shims import MEMORY


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is closed waits long enough for its mirror, on a busy machine too."""
    monkeypatch.setattr("course_lib.checkpoints.Store.closing_time", 120.0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in memory where there is such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)
