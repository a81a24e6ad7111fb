"""Stored reports as rows and tables: recipe by recipe, mean and spread over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from course_lib.fairness import Report, Spread
from course_lib.zoo import load_record, manifest

COLUMNS = (("standard", "nat", 8), ("robust 8/255", "rob", 8), ("robust 16/255", "rob", 16))  # PGD-20


def rows(root: Path | None = None) -> list[dict[str, Any]]:
    """One object a stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    found = []
    for name, seeds in manifest(root).items():
        for seed in sorted(seeds, key=int):
            record = load_record(name, seed=int(seed), root=root)
            found += [{"recipe": name, "seed": int(seed), **report} for report in record["reports"]]
    return found


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a recipe: seeds, and for each column the spread of the average and of the worst class."""
    out = []
    for name in dict.fromkeys(r["recipe"] for r in found):
        row: dict[str, Any] = {"recipe": name, "seeds": len({r["seed"] for r in found if r["recipe"] == name})}
        for title, kind, eps in COLUMNS:
            mine = [r for r in found if r["recipe"] == name and r["attack"] == "pgd20" and abs(r["eps"] - eps / 255) < 1e-6]
            errors = [getattr(Report.from_json(r), kind) for r in mine]
            if errors:
                row[title] = (Spread.of(e.mean for e in errors), Spread.of(e.worst for e in errors))
        out.append(row)
    return out


def table(found: list[dict[str, Any]], markdown: bool = False) -> str:
    """Errors in percent, average and worst class, mean ± sample standard deviation over seeds."""
    head = ["model", "seeds", *(f"{title} {what}" for title, _, _ in COLUMNS for what in ("avg", "worst"))]
    body = []
    for row in summary(found):
        body.append([row["recipe"], str(row["seeds"]), *(str(s) for title, _, _ in COLUMNS for s in row.get(title, ("", "")))])
    if markdown:
        lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    lines = [head, *body]
    first, *rest = (max(len(line[i]) for line in lines) for i in range(len(head)))
    return "\n".join("  ".join([line[0].ljust(first), *(c.rjust(w) for c, w in zip(line[1:], rest, strict=True))]) for line in lines)
