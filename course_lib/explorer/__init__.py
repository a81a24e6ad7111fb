"""Every stored model under your own sliders: `explore()`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.explorer.widgets import Panel


def explore(models: Sequence[str] | None = None, *, folder: str | Path | None = None,
            out: str | Path = "explorer") -> Panel:
    """The explorer as a widget: make it the last line of a cell.

    `models` are names from list_models(); by default it holds every stored model. `folder` is one
    of your own, with finished or checkpointed runs (a field in the panel opens others). Tables and
    figures are saved to `out`.
    """
    from course_lib.explorer.widgets import Panel

    return Panel([models] if isinstance(models, str) else models, folder, Path(out))
