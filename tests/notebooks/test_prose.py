"""Numbers in sentences: each one that is a result is computed again from what is stored.

prose.toml says how. A new number without an entry there fails, and so does a sentence that changed.
"""

import importlib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from tools.common import ROOT

PROSE = tomllib.loads((Path(__file__).parent / "prose.toml").read_text(encoding="utf-8"))
TEXTS = {p.stem: p for folder in ("notebooks/*.ipynb", "README.md", "docs/*.md")
         for p in ROOT.glob(folder)}
FALSE = ("Shirt gains 19 points (95 % interval 15 to 23).", "It rises by 7.", "It costs 0.4.", "9 "
         "of its 13 predictions hold.", "43 % are lost, 4.5 times as many.", "Seven of nine gain.")


@cache
def scope() -> dict[str, Any]:
    found: dict[str, Any] = {"np": np}
    for module in map(importlib.import_module, PROSE["modules"]):
        found |= vars(module) | {module.__name__.rpartition(".")[2]: module}
    for name, expression in PROSE["names"].items():
        found[name] = eval(expression, found)
    return found


@cache
def read(stem: str, kind: str = "markdown") -> str:
    """All Markdown of a text, or all code of a notebook, in one line."""
    text = TEXTS[stem].read_text(encoding="utf-8")
    if TEXTS[stem].suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = " ¶ ".join(c.source for c in cells if c.cell_type == kind)
    return " ".join(text.split())


def tied(stem: str) -> Iterator[tuple[int, int, str, dict[str, str]]]:
    """Where the {numbers} of the entries stand, with the expression or the origin of each."""
    for words, value in PROSE.get(stem, {}).items():
        parts, origin = re.split(r"\{(.*?)\}", words), value if isinstance(value, dict) else {}
        values = [value] * (len(parts) // 2) if isinstance(value, str | dict) else value
        assert len(values) == len(parts) // 2, f"one expression for each number: {words!r}"
        assert read(stem).count("".join(parts)) == 1, f"not exactly once in {stem}: {words!r}"
        for n, source in enumerate(values):
            at = read(stem).index("".join(parts)) + sum(map(len, parts[:2 * n + 1]))
            yield at, at + len(parts[2 * n + 1]), "" if origin else source, origin


def untied(stem: str, more: str = "") -> list[str]:
    """What looks like a result in the text, or in it after one more sentence, and has no entry."""
    text, new = f"{more} {read(stem)}", len(more) + 1
    hidden = re.sub("|".join(PROSE["not_results"]), lambda m: "¤" * len(m[0]), text)
    places = {n + new for start, end, *_ in tied(stem) for n in range(start, end)}
    return [f"{m[0]!r} in: {text[max(m.start() - 60, 0):m.end() + 40]}" for m in re.finditer(
        "|".join(PROSE["results"]), hidden, re.I) if not {*range(*m.span())} <= places]


def agrees(shown: str, value: Any) -> bool:
    """Does the sentence show this value, with its own number of decimals? Or does it hold?"""
    shown = str({word: n for n, word in enumerate(PROSE["words"])}.get(shown.lower(), shown))
    return (bool(value) if isinstance(value, bool | np.bool_) else
            f"{abs(value):,.{len(shown.partition('.')[2])}f}" == shown.lstrip("±−+-"))


@pytest.mark.parametrize("stem", sorted(TEXTS))
def test_each_number_in_prose_is_what_is_stored(stem: str) -> None:
    for start, end, expression, origin in tied(stem):
        value = eval(expression, scope()) if expression else True
        assert agrees(read(stem)[start:end], value), f"{read(stem)[start - 60:end]!r}: {value}"
        assert origin.get("asserted", "") in read(stem, "code"), f"no such code: {origin}"
    assert not untied(stem), "tie these numbers in prose.toml to what is stored"
    for sentence in FALSE:
        assert untied(stem, sentence), f"a new number would not be found: {sentence}"
