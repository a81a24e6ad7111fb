"""Counting calls, for tests that stop a command and call it again."""

from collections.abc import Callable
from typing import Any

import pytest


def counted(monkeypatch: pytest.MonkeyPatch, room: Any, name: str, noted: Callable[..., Any],
            stop: int | None = None) -> list[Any]:
    """`noted` of the arguments of each call of room.name; the `stop`-th call is interrupted."""
    calls: list[Any] = []
    real = getattr(room, name)

    def watched(*args: Any, **words: Any) -> Any:
        calls.append(noted(*args, **words))
        if len(calls) == stop:
            raise KeyboardInterrupt
        return real(*args, **words)

    monkeypatch.setattr(room, name, watched)
    return calls
