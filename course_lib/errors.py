"""CourseError and the few checks that raise it."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

T = TypeVar("T")


class CourseError(Exception):
    """A mistake that the reader can correct: what was given, what is allowed, what to do."""


def pick(table: Mapping[str, T], name: object, what: str) -> T:
    """The entry of `name` in a table; the error for an unknown name lists the names.

    >>> pick({"lenet5": 1}, "lenet5", "model")
    1
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name).lower(), table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CourseError(f"Unknown {what} {name!r}.{hint} There is: {', '.join(sorted(table))}.")


def matching(names: Collection[str], patterns: Sequence[str]) -> list[str]:
    """The names that fit a pattern such as exp1/pgd-*, or are in a group such as exp1.

    The list is empty where no pattern fits. Patterns of which only some fit are an error.

    >>> matching(["exp1/natural", "exp10/natural"], ["exp1"])
    ['exp1/natural']
    """
    fits = {p: [n for n in names if fnmatch(n, p) or n.startswith(p.rstrip("/") + "/")]
            for p in patterns}
    if any(fits.values()) and (bad := [p for p in patterns if not fits[p]]):
        raise CourseError(f"Nothing is called {', '.join(bad)}, so nothing was done for the others "
                          f"either. There is: {', '.join(names)}.")
    return [n for n in names if any(n in some for some in fits.values())]


def integer(value: object, what: str, least: int) -> int:
    """`value`, if it is a whole number of at least `least`; otherwise an error about `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise CourseError(f"{what} is {value!r}; it must be a whole number, {least} or more.")
    return value


def resolve(entry: Any) -> Any:
    """The object that "module:name" names, imported now; any other entry as it is."""
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)
