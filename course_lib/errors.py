"""CourseError and the few checks that raise it."""

import difflib
import pkgutil
from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any, TypeVar

T = TypeVar("T")
# what Python raises where a value is of another kind or size than was expected
UNFIT = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError


class CourseError(Exception):
    """A mistake that the reader can correct: what was given, what is allowed, what to do."""


class CourseWarning(UserWarning):
    """A figure that may mislead, and why."""


def pick(table: Mapping[str, T], name: object, what: str) -> T:
    """The entry of `name` in a table; the error for an unknown name suggests others."""
    if isinstance(name, str) and name in table:
        return table[name]
    raise CourseError(f"Unknown {what} {name!r:.100}.{instead(table, name)}")


def instead(names: Collection[str], name: object) -> str:
    """Suggestions for an unknown name: names that contain it, in any case, or the nearest one;
    and the known names, unless they are many and one is suggested."""
    low, by_length = f"{name}".lower()[:100], sorted(names, key=len)
    words = {w: n for n in reversed(by_length) for w in (n.lower(), *n.lower().split("/"))}
    like = [n for n in by_length if low and low in n.lower()][:10] or [
        words[near] for near in difflib.get_close_matches(low, words, 1)]
    hint = f" Did you mean {', '.join(map(repr, like))}?" if like else ""
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return hint if hint and more else f"{hint} Known: {', '.join(sorted(names)[:10])}{more}."


def several(given: Any) -> list[Any]:
    """The items of a collection; a string or a single object becomes a list of one."""
    try:
        return [given] if isinstance(given, str) else list(given)
    except TypeError:
        return [given]


def integer(value: object, what: str, least: int) -> int:
    """`value`, if it is a whole number from `least` to 2**63 - 1; otherwise an error."""
    if type(value) is bool or not isinstance(value, Integral) or not least <= int(value) < 2**63:
        raise CourseError(f"{what} is {value!r:.100}; it must be a whole number, {least} or more.")
    return int(value)


def resolve(entry: Any) -> Any:
    """The object that "module:name" names, imported now; any other entry as it is."""
    return pkgutil.resolve_name(entry) if isinstance(entry, str) else entry
