"""Numbers in sentences: each one that is a result is computed again from what is stored.

prose.toml says how. A new number without an entry there fails, and so does a sentence that changed.
"""

from __future__ import annotations

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
TEXTS = {p.stem: p for p in (*ROOT.glob("notebooks/*.ipynb"), ROOT / "README.md",
                             *ROOT.glob("docs/*.md"))}
FALSE = ("Reweight lowers the error of Shirt by 19 points (95 % interval 15 to 23).", "It rises by "
         "7.", "It falls from 31 to 12 percent.", "43 % of the shirts are lost, 4.5 times as many.",
         "Seven of nine classes pay, three points each.", "We confirm 9 of its 13 predictions.")


@cache
def scope() -> dict[str, Any]:
    found: dict[str, Any] = {"np": np}
    for name in PROSE["modules"]:
        module = importlib.import_module(name)
        found |= vars(module) | {name.rpartition(".")[2]: module}
    for name, expression in PROSE["names"].items():
        found[name] = eval(expression, found)
    return found


@cache
def read(stem: str, kind: str = "markdown") -> str:
    """All Markdown of a text, or all code of a notebook, in one line."""
    if TEXTS[stem].suffix == ".md":
        return " ".join(TEXTS[stem].read_text(encoding="utf-8").split())
    cells = nbformat.read(TEXTS[stem], as_version=4).cells
    return " ".join(" ¶ ".join(c.source for c in cells if c.cell_type == kind).split())


def tied(stem: str) -> Iterator[tuple[int, int, str, dict[str, str]]]:
    """Where the {numbers} of the entries stand, with the expression or the origin of each."""
    for words, value in PROSE.get(stem, {}).items():
        parts, origin = re.split(r"\{(.*?)\}", words), value if isinstance(value, dict) else {}
        values = [value] * (len(parts) // 2) if isinstance(value, str | dict) else value
        assert read(stem).count("".join(parts)) == 1, f"not exactly once in {stem}: {words!r}"
        assert len(values) == len(parts) // 2 > 0, f"an expression for each number: {words!r}"
        for n, source in enumerate(values):
            at = read(stem).index("".join(parts)) + sum(map(len, parts[:2 * n + 1]))
            yield at, at + len(parts[2 * n + 1]), "" if origin else source, origin


def untied(stem: str, more: str = "") -> list[str]:
    """What looks like a result in the text, or in it after one more sentence, and has no entry."""
    text, new = f"{more} {read(stem)}", len(more) + 1
    spans = [(start + new, end + new) for start, end, *_ in tied(stem)]
    hidden = re.sub("|".join(PROSE["not_results"]), lambda m: "¤" * len(m[0]), text)
    return [f"{m[0]!r} in: {text[max(m.start() - 60, 0):m.end() + 40]}"
            for m in re.finditer("|".join(PROSE["results"]), hidden, re.I)
            if not any(start <= m.start() and m.end() <= end for start, end in spans)]


def agrees(shown: str, value: Any) -> bool:
    """Does the sentence show this value, with its own number of decimals? Or does it hold?"""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if shown.lower() in PROSE["words"]:
        return round(value) == PROSE["words"].index(shown.lower())
    return f"{abs(value):,.{len(shown.partition('.')[2])}f}" == shown.lstrip("±−+-")


@pytest.mark.parametrize("stem", sorted(TEXTS))
def test_each_number_in_prose_is_what_is_stored(stem: str) -> None:
    for start, end, expression, origin in tied(stem):
        value = eval(expression, scope()) if expression else origin
        shown, where = read(stem)[start:end], read(stem)[max(start - 60, 0):end + 20]
        assert origin or agrees(shown, value), f"{where!r}: it is {value}"
        assert origin.get("asserted", "") in read(stem, "code"), f"{where!r}: no such code"
    assert not untied(stem), "tie these numbers in prose.toml to what is stored"


@pytest.mark.parametrize("stem", sorted(TEXTS))
@pytest.mark.parametrize("sentence", FALSE)
def test_a_new_number_is_found(stem: str, sentence: str) -> None:
    assert untied(stem, sentence) != untied(stem)
