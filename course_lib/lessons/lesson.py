"""Exercises that check themselves, without a network.

    lesson.check("00.step", my_answer)
    lesson.hint("00.step")

An answer is a function or a plain value. It is run on the exercise's cases, and so are the right
answer and the known wrong ones. If it agrees with one on every case, it gets that one's remark.
"""

import copy
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from course_lib.errors import CourseError, integer, pick

# notebook -> the file of its exercises, imported when an exercise is asked for
FILES = {"00": "start_here", "01": "unfairness", "02": "reweight", "03": "remargin", "04": "bat",
         "05": "scores", "06": "theory", "08": "contest"}
Cases = Sequence[tuple[Any, ...]]  # the arguments of each call
TOLERANCE = 1e-4


def noise(seed: int, *shape: int) -> torch.Tensor:
    """Uniform numbers from 0 to 1 for a case, the same each time."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def from_paper(paper: str) -> dict[str, Any]:
    """The figures of a paper's tables, from printed.json."""
    return json.loads(Path(__file__).with_name("printed.json").read_bytes())[paper]


@dataclass(frozen=True)
class Exercise:
    """`mistakes` maps remarks to the wrong answers that they are for; hints.toml has more words."""

    solution: Callable[..., Any]
    cases: Cases = ((),)
    _: KW_ONLY
    mistakes: Mapping[str, Callable[..., Any]]
    hints: Sequence[str] = ()
    praise: str = ""


@dataclass(frozen=True)
class Verdict:
    """Displays its text. True if the answer is right."""

    right: bool
    text: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.text


def exercises() -> dict[str, Exercise]:
    """Every exercise of every notebook, by name: PAIR in the file of notebook 04 is "04.pair"."""
    words = tomllib.loads(Path(__file__).with_name("hints.toml").read_text(encoding="utf-8"))
    tasks = {f"{notebook}.{name.lower()}": task for notebook, file in FILES.items()
             for name, task in vars(import_module(f"course_lib.lessons.{file}")).items()
             if isinstance(task, Exercise)}
    return {name: replace(task, **words.get(name, {})) for name, task in tasks.items()}


def check(name: str, answer: Any) -> Verdict:
    """Is `answer` right? If not, the verdict says what may have gone wrong.

    >>> check("00.crossing", lambda right: sum(right)).right
    False
    """
    task = pick(exercises(), name, "exercise")
    given, wanted = _results(answer, task), _results(task.solution, task)
    if all(value is None or value is ... for value in given):
        return Verdict(False, "Nothing here yet. Write your answer in place of the dots and "
                       f"return it. lesson.hint({name!r}) helps.")
    if not (difference := _difference(given, wanted)):
        return Verdict(True, f"✓ Right. {task.praise}".strip())
    for remark, wrong in task.mistakes.items():
        if not _difference(given, _results(wrong, task)):
            return Verdict(False, f"✗ Not quite. {remark}")
    return Verdict(False, f"✗ Not yet. {difference} lesson.hint({name!r}) helps.")


def hint(name: str, n: int = 1) -> Verdict:
    """The n-th hint. Each hint gives a little more away than the one before."""
    hints = pick(exercises(), name, "exercise").hints
    if integer(n, "the number of the hint", 1) > len(hints):
        raise CourseError(f"{name} has {len(hints)} hints. Ask for lesson.hint({name!r}, "
                          f"{len(hints)}), or open the solution.")
    more = f" (The next one: lesson.hint({name!r}, {n + 1}).)" if n < len(hints) else ""
    return Verdict(False, f"Hint {n}: {hints[n - 1]}{more}")


def _results(answer: Any, task: Exercise) -> list[Any]:
    """The answer's result on each case, or the error that it raised."""
    results = []
    for case in task.cases:
        try:  # on a copy, because an answer may change its arguments in place
            results.append(answer(*copy.deepcopy(case)) if callable(answer) else answer)
        except Exception as error:
            results.append(error)
    return results


def _difference(given: Sequence[Any], wanted: Sequence[Any]) -> str:
    """How the first wrong result differs, without giving the answer away; "" if all are right."""
    for value, right in zip(given, wanted, strict=True):
        g, w = _numbers(value), _numbers(right)
        if isinstance(right, Exception) and type(value) is type(right):
            continue  # some known mistakes end in an error
        if isinstance(value, Exception):
            return f"Your code stopped with {type(value).__name__}: {value}."
        if g is None or w is None:
            return f"The answer should be made of numbers; {value!r} is not the right one."
        if g.shape != w.shape:
            return f"The result has shape {g.shape}; it should have {w.shape}."
        if np.allclose(g, w, rtol=TOLERANCE, atol=TOLERANCE):
            continue
        if np.isnan(g).any():
            return "The result holds NaN. Is something divided by zero?"
        if np.allclose(g, 100 * w, rtol=TOLERANCE, atol=TOLERANCE):
            return "This is 100 times too large: a percentage instead of a fraction."
        near = np.abs(g - w).max() < 0.1 * max(1e-9, np.abs(w).max())
        return f"The numbers are {'a little' if near else 'clearly'} off."
    return ""


def _numbers(value: Any) -> np.ndarray | None:
    try:
        return np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, dtype=float)
    except (TypeError, ValueError):
        return None
