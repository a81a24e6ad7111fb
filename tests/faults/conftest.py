import tempfile
from pathlib import Path

import pytest

from tests.faults.shims import MEMORY


@pytest.fixture
def folder():
    """An empty folder, in memory where there is such a place."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as path:
        yield Path(path)
