"""What arguments, fields, images and answers of a network may be, and what is wrong with others:
so the public face answers in words."""

import functools
import inspect
import math
import operator
import re
from collections.abc import Mapping
from itertools import repeat
from numbers import Integral, Real
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from course_lib.errors import UNFIT, CourseError, integer, pick

FREE = ("patterns", "attack")  # several; what acts like one will do
BELOW = {"<": operator.lt, "<=": operator.le}
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


def check_fields(thing: Any) -> None:
    """An error for the first field that is not of its kind or beyond its class's `limits`: a field
    and its names to choose from, or a text such as "0 <= mix <= 1". Numbers become Python's."""
    check_kinds(vars(thing), kind := type(thing))
    for limit in kind.limits:
        word = limit.split()[2] if isinstance(limit, str) else limit[0]
        given = getattr(thing, word)
        for value in given if isinstance(given, tuple) else (given,):
            if not isinstance(limit, str):
                pick(dict.fromkeys(limit[1]), value, f"{word} of {kind.__name__}")
            elif value is not None and not within(value, limit):
                raise CourseError(f"{word} is {given}; {kind.__name__} takes {limit}.")
    vars(thing).update({k: v.item() for k, v in vars(thing).items() if isinstance(v, np.generic)})


def within(value: float, limit: str) -> bool:
    """Does a number keep a limit?

    >>> within(0.0, "0 <= mix < 1"), within(1.0, "0 <= mix < 1")
    (True, False)
    """
    low, first, _, second, high = limit.split()
    return BELOW[first](float(low), value) and BELOW[second](value, float(high))


def check_shape(name: str, make: Any, shape: Mapping[str, Any]) -> dict[str, Any]:
    """The shape, its sizes as int; an error if the network `name` cannot be built with it."""
    takes = inspect.signature(make)
    try:
        takes.bind(**shape)
    except TypeError:
        raise CourseError(f"{name} cannot be built with {', '.join(sorted(shape))}; it takes "
                          f"{', '.join(takes.parameters)}. To move it: .to('cuda').") from None
    whole = {word for word, parameter in takes.parameters.items() if type(parameter.default) is int}
    return {word: integer(value, f"{word} of {name}", 2 if word == "classes" else 1)
            if word in whole else value for word, value in shape.items()}


def check_training(model: Any, method: Any, optim: Any, store: Any, validate: Any) -> None:
    """An error for the first part of a training that is something else, with an example of it, or
    for parts that do not go together."""
    for given, part, example in (
            (model, "parameters", 'build("lenet5")'), (method, "loss", 'METHODS["pgd_at"]()'),
            (optim, "make", 'Optim("adam", lr=1e-3)'), (store, "save", 'Store("runs/mine")')):
        known = hasattr(given, part) or (given is None and part == "save")
        if isinstance(given, type) or not known:
            raise CourseError(f"fit was given {given!r}; it needs something like {example}.")
    if method.update_every not in (None, "epoch"):
        integer(method.update_every, 'update_every (None, "epoch" or a number of batches)', 1)
    if optim.averaging and optim.averaging.accept and not validate:
        raise CourseError("Averaging(accept=…) needs validation data; pass validate= to fit.")


def check_loss(method: Any, out: Any, epoch: int, batch: int) -> tuple[Tensor, float, Any]:
    """The loss that a method returned, its value, and its statistics; an error if it is none."""
    loss, stats = out if isinstance(out, tuple) and len(out) == 2 else (out, {})
    if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
        given = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise CourseError(f"{type(method).__name__}.loss returned {given}. Return losses.mean(), "
                          "or one such number and a dict of statistics.")
    if not math.isfinite(value := loss.item()):  # for this the host waits, once
        raise CourseError(f"The loss became {value} in epoch {epoch + 1}, batch {batch + 1}. Try a "
                          "smaller learning rate.")
    return loss, value, stats


def of_forward(error: Exception, model: Any, x: Tensor) -> Exception:
    """A network's error in words, where images do not fit it; any other error as it is."""
    if not re.match("(?s)(?!CUDA).*(shape|size|channel|imens| input|type|device|leaf)", str(error)):
        return error
    return CourseError(f"{type(model).__name__} cannot take images of shape {tuple(x.shape)} and "
                       f"{x.dtype} on {x.device} (images.float() makes them float32, .to(..) moves "
                       f"them): {error}")


def of_logits(model: Any, logits: Any, top: int) -> CourseError:
    """The error for what are no logits, or too few for the labels."""
    labels = f", labels run to {top}" if top >= 0 else ""
    return CourseError(f"{type(model).__name__} gives a {described(logits)}{labels}. "
                       "It must give logits alone, [B, classes]. Build it with classes= as the "
                       "data set has.")


def of_images(x: Any, y: Any = None, stored: bool = False) -> CourseError:
    """The error for what are no images, or no labels of them where `y` is given."""
    if y is not None:
        return CourseError(f"{len(x)} images need {len(x)} labels, a tensor of int64 from 0 on "
                           f"{x.device}; given: {described(y)}. Split.of(x, y) takes lists, too.")
    return CourseError("Images must be a tensor [N, C, H, W] of "
                       f"{'bytes or ' * stored}float32 in [0, 1]; given: {described(x)}. Divide "
                       "pixels by 255 (images.float() / 255), leave out Normalize (networks do "
                       "that), or call Split.of(x, y).")


def described(given: Any) -> str:
    """A tensor by its type, shape and range; anything else by its class.

    >>> from torch import arange
    >>> described(arange(6).reshape(2, 3)), described([1])
    ('torch.int64 tensor of shape (2, 3), from 0 to 5 on cpu', 'list')
    """
    if not isinstance(given, Tensor):
        return type(given).__name__
    span = "" if given.is_complex() or given.is_meta or not given.numel() else (
        f", from {given.float().min():g} to {given.float().max():g}")
    return f"{given.dtype} tensor of shape {tuple(given.shape)}{span} on {given.device}"


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
