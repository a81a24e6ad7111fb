"""Every stored model under your own sliders: `explore()`."""

from typing import Any


def explore(models: Any = None) -> Any:
    """The explorer as a widget: make it the last line of a cell.

    `models` is a name or names from list_models(), or a network of your own (or several by name,
    {"mine": model}), which is attacked at once beside a stored one.
    """
    from course_lib.explorer.widgets import Panel

    return Panel(models)
