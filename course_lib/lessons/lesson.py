"""Exercises that check themselves, offline: lesson.check("00.step", my_answer) and
lesson.hint("00.step").
 An answer, a function or a plain value, is tried on an exercise's cases beside the right one and
the known wrong ones; if it agrees with one of those on every case it gets that one's remark. The
exercises are in course_lib/lessons/, one file a notebook.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from course_lib.errors import CourseError, pick, whole


@dataclass(frozen=True)
class Exercise:
    """`cases` are lists of arguments; `mistakes` maps a remark to the wrong answer it is for."""

    solution: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]]
    hints: Sequence[str]
    cases: Callable[[], Sequence[tuple[Any, ...]]] = lambda: [()]
    praise: str = ""
    tolerance: float = 1e-4


@dataclass(frozen=True)
class Verdict:
    """Shown as its text; true when the answer is right."""

    right: bool
    text: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.text


def exercises() -> dict[str, Exercise]:
    """Every exercise of every notebook, by name."""
    return dict(importlib.import_module("course_lib.lessons").EXERCISES)


def check(name: str, answer: Any) -> Verdict:
    """Is the answer right, and if not, what might have gone wrong?"""
    task = pick(exercises(), name, "exercise")
    cases = task.cases()
    given, wanted = ([_result(a, case) for case in cases] for a in (answer, task.solution))
    if all(v is None or v is ... for v in given):
        return Verdict(False, "Nothing here yet. Write your answer in place of the dots and "
                       f"return it. lesson.hint({name!r}) helps.")
    if _agree(given, wanted, task.tolerance):
        return Verdict(True, f"✓ Right. {task.praise}".strip())
    for remark, wrong in task.mistakes.items():
        if _agree(given, [_result(wrong, case) for case in cases], task.tolerance):
            return Verdict(False, f"✗ Not quite. {remark}")
    return Verdict(False, f"✗ Not yet. {_difference(given, wanted, task.tolerance)} "
                   f"lesson.hint({name!r}) helps.")


def hint(name: str, n: int = 1) -> Verdict:
    """The n-th hint, each a little plainer than the one before."""
    hints = pick(exercises(), name, "exercise").hints
    if whole(n, "the number of the hint", 1) > len(hints):
        raise CourseError(f"{name} has {len(hints)} hints; ask for lesson.hint({name!r}, "
                          f"{len(hints)}), or open the solution.")
    more = f" (There is one more: lesson.hint({name!r}, {n + 1}).)" if n < len(hints) else ""
    return Verdict(False, f"Hint {n}: {hints[n - 1]}{more}")


def _result(answer: Any, case: tuple[Any, ...]) -> Any:
    """What the answer says to a case. It gets copies, so that changing its arguments in place harms
    nobody."""
    try:
        return answer(*copy.deepcopy(case)) if callable(answer) else answer
    except Exception as error:
        return error


def _agree(given: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> bool:
    return all(_same(g, w, tolerance) for g, w in zip(given, wanted, strict=True))


def _same(given: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, Exception):  # some known mistakes end in an error
        return type(given) is type(wanted)
    if isinstance(wanted, str):
        return isinstance(given, str) and given.strip().casefold() == wanted.casefold()
    g, w = _numbers(given), _numbers(wanted)
    return g is not None and w is not None and g.shape == w.shape and np.allclose(g, w,
        rtol=tolerance, atol=tolerance)


def _numbers(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, dtype=float)
    except (TypeError, ValueError):
        return None


def _difference(given: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> str:
    """What is wrong, without giving the answer away."""
    g, w = next((g, w) for g, w in zip(given, wanted, strict=True) if not _same(g, w, tolerance))
    if isinstance(g, Exception):
        return f"Your code stopped with {type(g).__name__}: {g}."
    numbers, right = _numbers(g), _numbers(w)
    if isinstance(w, str) or numbers is None or right is None:
        return (f"The answer is to be {'a word' if isinstance(w, str) else 'made of numbers'}; "
                f"{g!r} is not the one looked for.")
    if numbers.shape != right.shape:
        return f"The result has shape {numbers.shape}; it should have {right.shape}."
    if np.isnan(numbers).any():
        return "The result holds NaN: is something divided by nothing?"
    if np.allclose(numbers, 100 * right, rtol=tolerance, atol=tolerance):
        return "This is 100 times too large: a percentage, where a fraction was asked for."
    size = "a little" if np.abs(numbers - right).max() < 0.1 * max(1e-9,
        np.abs(right).max()) else "clearly"
    return f"The numbers are {size} off."
