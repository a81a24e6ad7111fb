"""How tables show themselves."""

import html
import math
from typing import Any

import pandas as pd

from course_lib.fairness import Report
from course_lib.zoo import budget


class Table(pd.DataFrame):
    """A DataFrame that shows itself rounded, with a note below."""

    @property
    def _constructor(self) -> Any:
        return Table

    def shown(self) -> pd.DataFrame:
        """The table as text, in fewer columns."""
        text = pd.DataFrame(self).drop(columns=["data", "minus", "attack", "eps", "warnings"],
                                       errors="ignore")
        if {"figure", "attack", "eps"} <= {*self}:
            text["figure"] = [f"{figure}, {attack} {budget(eps)}" if eps else figure
                              for figure, attack, eps in zip(self["figure"], self["attack"],
                                                             self["eps"], strict=True)]
        for first, other, title, words in (  # two columns as one
                ("low", "high", "95 % interval", "{:.1f} to {:.1f}"),
                ("n", "images", "seeds × images", "{} × {:,}"),
                *((c, f"{c} worst", c, "{:.1f} / {:.1f}") for c in text)):
            if {first, other} <= {*text}:
                pairs = zip(text[first], text.pop(other), strict=True)
                text[first] = ["" if math.isnan(a) else words.format(a, b) for a, b in pairs]
                text = text.rename(columns={first: title})
        return text.map(lambda v: v if not isinstance(v, float) else "" if math.isnan(v)
                        else f"{v:.1f}")

    def note(self) -> str:
        """The unit, the data, and warnings about figures."""
        words = ["Points, paired by seed." if "minus" in self else "Percent."]
        words += [f"{c}: {', '.join(self[c].unique())}." for c in ("data", "minus") if c in self]
        if "warnings" in self:
            words += [f"! {w}: {', '.join(these.iloc[:, 0].unique())}."
                      for w, these in self[self["warnings"] != ""].groupby("warnings")]
        return " ".join([*words, *self.attrs.get("note", [])])

    def __repr__(self) -> str:
        return f"{self.shown().to_string(index=False, max_rows=60)}\n{self.note()}"

    def _repr_html_(self) -> str:
        table = self.shown().to_html(index=False, border=0, max_rows=60)
        return f"{table}<p>{html.escape(self.note())}</p>"


def of_classes(report: Report) -> Table:
    """Report.frame(): one row per class."""
    kinds = {"standard": report.nat, "robust": report.rob}
    table = Table({"class": report.classes, "images": report.nat.counts, **{
        kind: 100 * e.by_class for kind, e in {**kinds, "boundary": report.bnd}.items()}})
    table.attrs["note"] = [
        f"Attack: {report.attack or 'unnamed'} {budget(report.eps)}.",
        *(f"Average {kind} error {100 * e.mean:.1f}, worst class {report.classes[e.worst_class]}."
          for kind, e in kinds.items()), *(f"! {w}" for w in report.warnings)]
    return table
