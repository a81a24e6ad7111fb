"""Rows that show themselves: a list of plain dicts that a shell prints and a notebook draws as a
table."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Show = Callable[[Any], str]


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


def budget(eps: float) -> str:
    """An attack's eps: of 255 where it is a number of grey levels or tenths of them, else as it is;
    above 1 a table's own units.

    >>> budget(8 / 255), budget(0.01), budget(0.5), budget(10)
    ('8/255', '0.01', '0.5', '10 units')
    """
    if eps > 1:
        return f"{eps:g} units"
    levels = f"{255 * eps:.3g}"
    tenths = round(255 * eps, 1)
    return f"{levels}/255" if abs(255 * eps
                                  - tenths) < 1e-4 and float(levels) == tenths else f"{eps:.3g}"


class Table(list[dict[str, Any]]):
    """A list of rows. `columns` names what is shown and how each value is written; a row may hold
    more than that.

    >>> Table([{"recipe": "exp1/natural", "error": 0.125, "file": "..."}], {"recipe": str, "error": percent})
    recipe        error
    exp1/natural  12.50
    """

    def __init__(self, rows: Iterable[dict[str, Any]], columns: Mapping[str, Show],
                 caption: str = "") -> None:
        super().__init__(rows)
        self.columns, self.caption = dict(columns), caption

    def lines(self) -> list[list[str]]:
        """The head and one line of text a row; what a row does not have is left empty."""
        shown = [["" if row.get(c) is None else show(row[c]) for c, show in self.columns.items()]
                 for row in self]
        return [list(self.columns), *shown]

    def words(self) -> list[bool]:
        """Which columns hold words, which stand to the left; figures stand to the right."""
        return [all(isinstance(row.get(c), str | None) for row in self) for c in self.columns]

    def __repr__(self) -> str:
        return "\n".join(filter(None, [aligned(self.lines(), self.words()), self.caption]))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        sides = [f'style="text-align: {"left" if word else "right"}"' for word in self.words()]
        head, *body = ([html.escape(cell) for cell in line] for line in self.lines())
        rows = ["".join(f"<td {side}>{cell}</td>" for side, cell in zip(sides, line, strict=True))
                for line in body]
        columns = "".join(f'<th scope="col" {side}>{cell}</th>' for side,
                          cell in zip(sides, head, strict=True))
        caption = ('<caption style="caption-side: bottom; text-align: '
                   f'left">{html.escape(self.caption)}</caption>' if self.caption else "")
        return f"<table>{caption}<thead><tr>{columns}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"

    def markdown(self) -> str:
        return markdown(self.lines(), self.words())


def aligned(lines: Sequence[Sequence[str]], words: Sequence[bool]) -> str:
    """Columns of text: words to the left, figures to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    columns = list(zip(widths, words, strict=True))
    padded = [[c.ljust(w) if left else c.rjust(w) for c,
               (w, left) in zip(line, columns, strict=True)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def markdown(lines: Sequence[Sequence[str]], words: Sequence[bool]) -> str:
    """A table for a README: words to the left, figures to the right."""
    rule = ["---" if left else "---:" for left in words]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                     for line in (lines[0], rule, *lines[1:]))
