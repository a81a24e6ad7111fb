"""The one exception of the course, and how every room reads the names and numbers it is given."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any, TypeVar

T = TypeVar("T")


class CourseError(Exception):
    """Something a reader can put right. Its text says what was given, what is allowed, what to
    do."""


def pick(table: Mapping[str, T], name: object, what: str) -> T:
    """Look `name` up in a registry; an unknown name lists what there is.

    >>> pick({"lenet5": 1}, "lenet5", "model")
    1
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise CourseError(f"Unknown {what} {name!r}. There is: {', '.join(sorted(table))}.{hint}")


def matching(names: Collection[str], patterns: Sequence[str]) -> list[str]:
    """The names that a pattern such as exp1/pgd-* fits, or that lie under one such as exp1; none
    where no pattern fits any.

    >>> matching(["exp1/natural", "exp10/natural"], ["exp1"])
    ['exp1/natural']
    """
    fits = {p: [n for n in names if fnmatch(n, p) or n.startswith(p.rstrip("/") + "/")]
            for p in patterns}
    if any(fits.values()) and (bad := [p for p, those in fits.items() if not those]):
        raise CourseError(f"Nothing is called {', '.join(bad)}, so nothing was done for the others "
                          f"either. There is: {', '.join(names)}.")
    found = set().union(*fits.values())
    return [n for n in names if n in found]


def whole(value: object, what: str, least: int) -> int:
    """A whole number of at least `least`, or a plain word about it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CourseError(f"{what} is {value!r}; it must be a whole number, {least} or more.")
    return value


def resolve(entry: Any) -> Any:
    """The object that "module:name" names, imported now; any other entry as it is."""
    if not isinstance(entry, str):
        return entry
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)
