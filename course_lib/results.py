"""Stored reports as rows and tables: recipe by recipe, mean and spread over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib.fairness import Report, Spread
from course_lib.zoo import FIGURES, chosen, load_record, manifest

STRONG, WEAK, EPS = "autoattack", "pgd20", 8 / 255
COLUMNS = tuple(row for row in FIGURES if row[2] != STRONG)  # PGD-20
TITLE = next(title for title, _, attack, _ in FIGURES if attack == STRONG)
TOO_MUCH = 0.05  # by which PGD-20 may say that a model is more robust than AutoAttack finds it


def rows(root: Path | None = None) -> list[dict[str, Any]]:
    """One object a stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    found = []
    for name, seeds in manifest(root).items():
        for seed in sorted(seeds, key=int):
            record = load_record(name, seed=int(seed), root=root)
            found += [{"recipe": name, "seed": int(seed), **report} for report in record["reports"]]
    return found


def flagged(reports: Sequence[dict[str, Any]], eps: float = EPS) -> bool:
    """Does PGD-20 overstate this model's robustness by more than 5 points, on average or in the worst class?

    Asked of the rows of one model, such as a record's "reports"; only reports on the same images are compared.
    """
    for row in reports:
        if row["attack"] == STRONG and abs(row["eps"] - eps) < 1e-6:
            other = chosen([r for r in reports if r["counts"] == row["counts"]], WEAK, eps)
            if other is not None:
                strong, weak = Report.from_json(row).rob, Report.from_json(other).rob
                if max(strong.mean - weak.mean, strong.worst - weak.worst) > TOO_MUCH + 1e-9:
                    return True
    return False


def summary(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a recipe: seeds, and for each column the spread of the average and of the worst class.

    Where AutoAttack's reports are stored, also theirs, on how many images of a class ("n"), and how many seeds are flagged.
    """
    out = []
    for name in dict.fromkeys(r["recipe"] for r in found):
        models: dict[int, list[dict[str, Any]]] = {}
        for r in found:
            if r["recipe"] == name:
                models.setdefault(r["seed"], []).append(r)
        row: dict[str, Any] = {"recipe": name, "seeds": len(models)}
        for title, kind, attack, eps in COLUMNS:
            best = [chosen(reports, attack, eps / 255) for reports in models.values()]
            errors = [getattr(Report.from_json(r), kind) for r in best if r]
            if errors:
                row[title] = (Spread.of(e.mean for e in errors), Spread.of(e.worst for e in errors))
        out.append({**row, **_strong(models)})
    return out


def _strong(models: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """AutoAttack's figures on the images that the most seeds share, the most images where several do."""
    mine = [r for reports in models.values() for r in reports if r["attack"] == STRONG and abs(r["eps"] - EPS) < 1e-6]
    if not mine:
        return {}
    seeds = Counter(tuple(r["counts"]) for r in mine)
    counts = max(seeds, key=lambda c: (seeds[c], sum(c)))
    errors = [Report.from_json(r).rob for r in mine if tuple(r["counts"]) == counts]
    spreads = (Spread.of(e.mean for e in errors), Spread.of(e.worst for e in errors))
    return {TITLE: spreads, "n": min(counts), "flagged": sum(flagged(reports) for reports in models.values())}


def table(found: list[dict[str, Any]], markdown: bool = False) -> str:
    """Errors in percent, average and worst class, mean ± sample standard deviation over seeds; one table a set of classes.

    A column stands where any row has something in it. Of AutoAttack's, n is its images of a class over how many seeds, and
    "!" marks recipes with a model that PGD-20 calls more robust by over 5 points.
    """
    by_classes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for r in found:
        by_classes.setdefault(tuple(r["classes"]), []).append(r)
    return "\n\n".join(_table(some, markdown) for some in by_classes.values())


def _table(found: list[dict[str, Any]], markdown: bool) -> str:
    told = summary(found)
    titles = [title for title in (*(title for title, *_ in COLUMNS), TITLE) if any(title in row for row in told)]
    head = ["model", "seeds", *(f"{title} {what}" for title in titles for what in ("avg", "worst")), *["n"] * (TITLE in titles)]
    body = []
    for row in told:
        n = f"{row['n']} × {row[TITLE][0].n}{' !' if row['flagged'] else ''}" if TITLE in row else ""
        cells = [row["recipe"], str(row["seeds"]), *(str(s) for title in titles for s in row.get(title, ("", "")))]
        body.append(cells + [n] * (TITLE in titles))
    if markdown:
        lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    lines = [head, *body]
    first, *rest = (max(len(line[i]) for line in lines) for i in range(len(head)))
    return "\n".join("  ".join([line[0].ljust(first), *(c.rjust(w) for c, w in zip(line[1:], rest, strict=True))]) for line in lines)
