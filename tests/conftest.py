"""What holds for every test: no network, no data but the embedded, one thread, the same draws each
time."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports torch, and inherited by every process a test starts, the notebooks'
# kernels among them.
os.environ["OMP_NUM_THREADS"] = "1"
# holds what is compiled, never data
os.environ["COURSE_CACHE"] = str(Path(__file__).parent.parent / "build" / "test-cache")
os.environ.pop("COURSE_MODELS", None)
os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
for _name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ[_name] = "http://127.0.0.1:9"  # the discard port: a request fails at once
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1"

import hypothesis
import matplotlib.pyplot
import pytest

matplotlib.use("Agg")
hypothesis.settings.register_profile("course", deadline=None, derandomize=True, database=None,
                                     max_examples=40)
hypothesis.settings.load_profile("course")

LOCAL = {"127.0.0.1", "::1", "localhost", "0.0.0.0"}


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A test that reaches beyond this machine fails, on a machine with a network too."""
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in LOCAL:
            raise OSError(f"a test asked the network for {address}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_only)
        yield


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The patch by which the recipes are joined by two that train in a blink."""
    from tests.helpers import with_tiny_recipes

    with_tiny_recipes(monkeypatch)
    return monkeypatch


@pytest.fixture
def closed() -> Iterator[None]:
    yield
    matplotlib.pyplot.close("all")
