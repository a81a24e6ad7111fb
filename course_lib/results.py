"""Stored reports as rows and tables: recipe by recipe, mean and spread over seeds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.fairness import Report, Spread
from course_lib.zoo import FIGURES, chosen, load_record, manifest, models_dir, report_rows

STRONG, WEAK, EPS = "autoattack", "pgd20", 8 / 255
COLUMNS = tuple(row for row in FIGURES if row[2] != STRONG)  # PGD-20
TITLE = next(title for title, _, attack, _ in FIGURES if attack == STRONG)
TOO_MUCH = 0.05  # by which PGD-20 may say that a model is more robust than AutoAttack finds it


def known(root: Path | None = None) -> dict[str, dict[str, Any]]:
    """What is stored, by recipe and seed; empty where nothing is. A damaged manifest is an
    error."""
    return manifest(root) if (root or models_dir()).joinpath("manifest.json").is_file() else {}


def missing(*names: str, attack: str = "", root: Path | None = None) -> bool:
    """True where one of the recipes is not trained yet, or not examined by this attack; prints
    which, and how it is done."""
    there = known(root)
    for name in (gone := [n for n in names if n not in there
                          or (attack and not reports(n, attack, root=root))]):
        what, how = (f"examined by {attack}", "examine") if name in there else ("trained", "models")
        sys.stdout.write(f"{name} is not {what} yet: make {how} WHICH={name}\n")
    return bool(gone)


def reports(name: str, attack: str = WEAK, eps: float = EPS, *, images: int | None = None,
            root: Path | None = None) -> dict[int, Report]:
    """The stored reports of a recipe by seed, all on the same test images; of so many `images`,
    where a number is given."""
    seeds = sorted(map(int, known(root).get(name, {})))
    return alike({s: report_rows(load_record(name, seed=s, root=root), name) for s in seeds},
                 attack, eps, images)


def alike(models: Mapping[int, Sequence[dict[str, Any]]], attack: str, eps: float = EPS,
          images: int | None = None) -> dict[int, Report]:
    """Of each model's rows the one on those images that the most models share, the most images
    where several sets are."""
    mine = {s: {tuple(r["counts"]): r for r in found if r["attack"] == attack
                and abs(r["eps"] - eps) < 1e-6}
            for s, found in models.items()}
    models_on = Counter(counts for found in mine.values() for counts in found
                        if images in (None, sum(counts)))
    counts = max(models_on, key=lambda c: (models_on[c], sum(c)), default=())
    return {s: Report.from_json(found[counts]) for s, found in mine.items() if counts in found}


def rows(root: Path | None = None) -> list[dict[str, Any]]:
    """One object a stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    found = []
    for name, seeds in manifest(root).items():
        for seed in sorted(seeds, key=int):
            record = load_record(name, seed=int(seed), root=root)
            found += [{"recipe": name, "seed": int(seed), **report} for report in record["reports"]]
    return found


def flagged(reports: Sequence[dict[str, Any]], eps: float = EPS) -> bool:
    """Does PGD-20 overstate this model's robustness by more than 5 points, on average or in the
    worst class?

    Asked of the rows of one model, such as a record's "reports"; only reports on the same images
    are compared.
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
    """One row a recipe: seeds, and for each column the spread of the average and of the worst
    class.

    Where AutoAttack's reports are stored, also theirs, on how many images of a class ("n"), and how
    many seeds are flagged.
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
    """AutoAttack's figures, and on how many images of a class."""
    found = alike(models, STRONG).values()
    if not found:
        return {}
    spreads = (Spread.of(r.rob.mean for r in found), Spread.of(r.rob.worst for r in found))
    n = min(next(iter(found)).rob.counts)
    return {TITLE: spreads, "n": n, "flagged": sum(flagged(rows) for rows in models.values())}


def table(found: list[dict[str, Any]], markdown: bool = False) -> str:
    """Errors in percent, average and worst class, mean ± sample standard deviation over seeds; one
    table a set of classes.

    A column stands where any row has something in it. Of AutoAttack's, n is its images of a class
    over how many seeds, and "!" marks recipes with a model that PGD-20 calls more robust by over 5
    points.
    """
    by_classes: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for r in found:
        by_classes.setdefault(tuple(r["classes"]), []).append(r)
    return "\n\n".join(_table(some, markdown) for some in by_classes.values())


def _table(found: list[dict[str, Any]], markdown: bool) -> str:
    told = summary(found)
    titles = [title for title in (*(title for title, *_ in COLUMNS), TITLE)
              if any(title in row for row in told)]
    head = ["model", "seeds", *(f"{title} {what}" for title in titles for what in ("avg", "worst")),
            *["n"] * (TITLE in titles)]
    body = []
    for row in told:
        n = (f"{row['n']} × {row[TITLE][0].n}{' !' if row['flagged'] else ''}" if TITLE in row
             else "")
        cells = [row["recipe"], str(row["seeds"]),
                 *(str(s) for title in titles for s in row.get(title, ("", "")))]
        body.append(cells + [n] * (TITLE in titles))
    if markdown:
        lines = [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *body]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    lines = [head, *body]
    first, *rest = (max(len(line[i]) for line in lines) for i in range(len(head)))
    return "\n".join("  ".join([line[0].ljust(first),
                                *(c.rjust(w) for c, w in zip(line[1:], rest, strict=True))])
                     for line in lines)
