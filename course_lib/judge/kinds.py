"""What arguments and fields may be, by their annotations: so the public face answers in words."""

import functools
import inspect
from collections.abc import Mapping
from itertools import repeat
from numbers import Integral, Real
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from course_lib.errors import UNFIT, CourseError

FREE = ("patterns", "attack")  # several; what acts like one will do
hints = functools.cache(get_type_hints)  # every recipe asks for the same four classes'


@functools.cache
def door(thing: Any) -> Any:
    """A function that answers a wrong value with a CourseError; a class or module whose public
    functions now do. A wrong keyword, and a fault of a reader's model, stay Python's errors."""
    if not inspect.isfunction(thing):
        for name in getattr(thing, "__all__", [*vars(thing)]):
            if (name[0] != "_" or name == "__init__") and inspect.isfunction(vars(thing)[name]):
                setattr(thing, name, door(vars(thing)[name]))
        return thing

    @functools.wraps(thing)
    def call(*values: Any, **words: Any) -> Any:
        try:
            return thing(*values, **words)
        except UNFIT as error:
            if error.__traceback__ and not error.__traceback__.tb_next:  # a wrong keyword
                raise
            given = inspect.signature(thing).bind(*values, **words).arguments
            check_kinds(given, thing)
            if "model" in given:
                raise
            raise CourseError(f"{thing.__qualname__} cannot use what it was given "
                              f"({type(error).__name__}: {error!s:.200}).") from error
    vars(call)["__func__"] = thing  # this is what the identity of a checkpoint holds
    return call


def check_kinds(given: Mapping[str, Any], thing: Any) -> None:
    """An error for the first argument or field that is not of the kind that its annotation names"""
    for name, kind in hints(thing).items():
        if name in given and name not in FREE and not fits(given[name], kind):
            raise CourseError(f"{name} is {given[name]!r:.100}; {thing.__qualname__} takes "
                              f"{inspect.formatannotation(kind)} here.")


def fits(value: Any, kind: Any) -> bool:
    """Is a value of the kind that an annotation names, and each value in a tuple?"""
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(fits(value, k) for k in inside)
    if getattr(value, "is_meta", False):  # a tensor without values
        return origin is Any
    if origin in (int, float):  # NumPy's, too
        return isinstance(value, Integral if origin is int else Real) and type(value) is not bool
    if origin is tuple and inside and isinstance(value, tuple):
        return (... in inside or len(value) == len(inside)) and all(
            map(fits, value, repeat(inside[0]) if ... in inside else inside))
    return origin is Any or not isinstance(origin, type) or isinstance(value, origin)
