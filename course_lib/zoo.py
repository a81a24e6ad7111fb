"""Names to verified models and their results.

serialized_models/manifest.json names a weights file and a record for every recipe and seed, with
their sha256. Bytes are read, hashed, and only then parsed; tensors must fit their network. Tables
are pandas DataFrames, and errors in them are percent.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors.torch
from torch import nn

from course_lib.errors import CourseError, matching, pick
from course_lib.fairness import Report, Spread
from course_lib.files import Entries, StoredFiles, in_cache, inside, parse_json
from course_lib.models import build

if TYPE_CHECKING:
    from pandas import DataFrame

Root = Path | str | None  # a folder of stored models; None is `models_dir()`
Rows = Sequence[dict[str, Any]]  # the reports of one model, as its record stores them
K = TypeVar("K", bound=Hashable)
# Errors in tables: title, kind, attack ("" is any, for standard errors) and budget in 255ths.
FIGURES = (("standard", "nat", "", 0), ("robust 8/255", "rob", "pgd20", 8),
           ("robust 16/255", "rob", "pgd20", 16), ("AutoAttack 8/255", "rob", "autoattack", 8),
           ("robust 0.01", "rob", "pgd20-fine", 2.55),
           ("robust 10 units", "rob", "pgd20-adult", 2550))
TRAIN = ("Train it: python -m course_lib train {name} --seed {seed}. The model is then in runs "
         "(--models runs, COURSE_MODELS=runs).")
TITLES = tuple(f"{title} {which}" for title, *_ in FIGURES for which in ("avg", "worst"))


def models_dir() -> Path:
    """$COURSE_MODELS, or serialized_models/ beside the package."""
    default = Path(__file__).parent.parent / "serialized_models"
    return Path(os.environ.get("COURSE_MODELS") or default)


def model_files(root: Root = None) -> StoredFiles:
    """The folder of stored models."""
    return StoredFiles(Path(root or models_dir()), "models",
                       "Restore it (git checkout) or run `make models`.")


def manifest(root: Root = None) -> Entries:
    """recipe -> seed (as text) -> {"weights": {file, sha256}, "record": {file, sha256}}"""
    files = model_files(root)
    path = files.folder / "manifest.json"
    if not path.is_file():
        raise CourseError(f"{path} is not there. Clone the whole repository, set COURSE_MODELS to "
                          "a folder of models, or run `make models`.")
    entries = files.entries()
    for seed, rows in (pair for seeds in entries.values() for pair in seeds.items()):
        if not (seed.isdecimal() and len(seed) <= 20
                and all(isinstance(row, dict) for row in rows.values())):
            raise CourseError(f"{path} is damaged: its seed {seed[:30]!r} names no files. "
                              f"{files.remake}")
    return entries


def entry(name: str, seed: int, root: Root = None) -> dict[str, Any]:
    """The manifest's rows for one model: "record" and, where they are kept, "weights"."""
    seeds = pick(manifest(root), name, "model")
    if str(seed) not in seeds:
        raise CourseError(f"{name} is stored for seeds {', '.join(sorted(seeds))}, not for "
                          f"{seed!r}. {TRAIN.format(name=name, seed=seed)}")
    return seeds[str(seed)]


def verified(row: Mapping[str, Any], root: Root = None) -> bytes:
    """The bytes of a file that the manifest names, if their sha256 is right."""
    return model_files(root).read(row)


def load_record(name: str, *, seed: int = 0, root: Root = None) -> dict[str, Any]:
    """Everything stored about one training: recipe, versions, history and reports."""
    return _record(entry(name, seed, root), root)


def _record(files: Mapping[str, Any], root: Root) -> dict[str, Any]:
    row = files.get("record", {})
    return parse_json(verified(row, root), Path(str(row["file"])))


def load_model(name: str, *, seed: int = 0, root: Root = None) -> nn.Module:
    """A trained model by its recipe's name, verified, in eval mode.

    >>> load_model("exp1/natural").training
    False
    """
    files = entry(name, seed, root)
    if "weights" not in files:
        raise CourseError(f"Only the record of {name} (seed {seed}) is stored; its weights are "
                          f"not. {TRAIN.format(name=name, seed=seed)}")
    made = _record(files, root).get("made_from")
    classes = made.get("classes") if isinstance(made, dict) else None
    if not made or not isinstance(classes, list) or not 2 <= len(classes) <= 1000:
        raise CourseError(f"{name}: its record does not name its 2 to 1000 classes. Restore the "
                          "record or make it again.")
    model = build(str(made.get("model")), classes=len(classes))
    load_weights(model, verified(files["weights"], root), name)
    return model.eval()


def load_weights(model: nn.Module, raw: bytes, name: str) -> None:
    """Put safetensors bytes into a model whose tensors have these names, shapes and types."""
    try:
        tensors = safetensors.torch.load(raw)
    except Exception as e:  # the parser's errors have no common family
        raise CourseError(f"{name}: the weights cannot be read ({type(e).__name__}: "
                          f"{str(e)[:100]}). Restore the file or make it again.") from None
    given, expected = ({k: (v.shape, v.dtype) for k, v in state.items()}
                       for state in (tensors, model.state_dict()))
    if odd := sorted(k for k in given | expected if given.get(k) != expected.get(k)):
        raise CourseError(f"{name}: the weights do not fit {type(model).__name__}: "
                          f"{', '.join(odd[:5])} differ in name, shape or type.")
    if bad := [k for k, v in tensors.items() if v.is_floating_point() and not v.isfinite().all()]:
        raise CourseError(f"{name}: {', '.join(bad[:5])} holds NaN or infinity. Restore the file "
                          "or make it again.")
    model.load_state_dict(tensors)


def report_rows(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A record's reports as they are stored."""
    rows = record.get("reports", [])
    try:
        sound = isinstance(rows, list) and all(r["eps"] >= 0 and sum(r["counts"]) > 0
                                               and Report.from_json(r) for r in rows)
    except (CourseError, KeyError, TypeError, IndexError):
        sound = False
    if not sound:
        raise CourseError(f"{name}: its record's reports are damaged. Restore the record or make "
                          "it again.")
    return rows


def images(row: Mapping[str, Any]) -> int:
    """The number of images behind a stored report."""
    return sum(row["counts"])


def chosen(rows: Iterable[dict[str, Any]], attack: str, eps: float,
           per_class: int | None = None) -> dict[str, Any] | None:
    """The row of this attack ("" is any) and budget on the most images, or on `per_class` images
    of each class."""
    mine = [r for r in rows if not attack or (r["attack"] == attack and abs(r["eps"] - eps) < 1e-6)]
    return max((r for r in mine if per_class is None or {*r["counts"]} == {per_class}),
               key=images, default=None)


def alike(models: Mapping[K, Rows], attack: str, eps: float,
          size: int | None = None) -> dict[K, dict[str, Any]]:
    """A row of each model, all on the same images: those that most models share, then the most
    images. With `size`, on exactly so many images."""
    mine = {k: {tuple(r["counts"]): r for r in reversed(rows) if chosen([r], attack, eps)}
            for k, rows in models.items()}
    shared = Counter(c for found in mine.values() for c in found if size in (None, sum(c)))
    best = max(shared, key=lambda c: (shared[c], sum(c)), default=())
    return {k: found[best] for k, found in mine.items() if best in found}


def load_report(name: str, *, seed: int = 0, attack: str = "pgd20", eps: float = 8 / 255,
                per_class: int | None = None, root: Root = None) -> Report:
    """A stored report of one model: on the whole test set, or on its first `per_class` images of
    each class."""
    rows = report_rows(load_record(name, seed=seed, root=root), name)
    if row := chosen(rows, attack, eps, per_class):
        return Report.from_json(row)
    on = "" if per_class is None else f" on {per_class} images per class"
    stored = ", ".join(f"{r['attack']} at {budget(r['eps'])} on {images(r):,} images" for r in rows)
    raise CourseError(f"No report of {name} under {attack} at {budget(eps)}{on} is stored. There "
                      f"is: {stored}.")


def load_reports(name: str, *, root: Root = None, **words: Any) -> list[Report]:
    """The reports of every seed of a recipe; the arguments are those of `load_report`."""
    return [load_report(name, seed=int(seed), root=root, **words)
            for seed in sorted(pick(manifest(root), name, "model"), key=int)]


def reports(name: str, attack: str = "pgd20", eps: float = 8 / 255, *, images: int | None = None,
            root: Root = None) -> dict[int, Report]:
    """The stored reports of a recipe by seed, all on the same images (on so many, with `images`);
    empty where there are none."""
    stored = stored_models(root, name) if name in manifest(root) else []
    models = {m.seed: m.reports for m in stored if m.name == name}
    return {s: Report.from_json(row) for s, row in alike(models, attack, eps, images).items()}


def missing(*names: str, attack: str = "", root: Root = None) -> bool:
    """True where a recipe is not trained, or not examined by this attack; prints what to do."""
    stored = model_files(root).entries()
    lines = [f"{n} is not trained yet: make models WHICH={n}\n" if n not in stored else
             f"{n} is not examined by {attack} yet: make examine WHICH={n}\n"
             for n in names if n not in stored or (attack and not reports(n, attack, root=root))]
    sys.stdout.writelines(lines)
    return bool(lines)


def load_scores(name: str, *, seed: int = 0, root: Root = None) -> list[dict[str, Any]]:
    """The unfairness scores in one model's record, or none."""
    rows = load_record(name, seed=seed, root=root).get("scores", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "score" in r for r in rows):
        raise CourseError(f"{name}: its record's scores are damaged. Restore the record, or make "
                          f"them again: course_lib score {name}")
    return rows


@dataclass(frozen=True)
class StoredModel:
    """One model of the manifest: the rows of its files, and its record."""

    name: str
    seed: int
    files: dict[str, Any]
    record: dict[str, Any]

    @property
    def reports(self) -> list[dict[str, Any]]:
        return report_rows(self.record, self.name)

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe in its record; empty where there is none."""
        made = self.record.get("made_from")
        recipe = made.get("recipe") if isinstance(made, dict) else None
        return recipe if isinstance(recipe, dict) else {}


def stored_models(root: Root = None, *patterns: str) -> list[StoredModel]:
    """All stored models, or those whose names match a pattern such as "exp1" or "exp2/rew*"."""
    stored = manifest(root)
    names = sorted(matching(stored, patterns) if patterns else stored)
    if patterns and not names:
        pick(stored, patterns[0], "model")  # it says which names there are
    return [StoredModel(name, int(seed), stored[name][seed], _record(stored[name][seed], root))
            for name in names for seed in sorted(stored[name], key=int)]


def stored_reports(root: Root = None) -> list[dict[str, Any]]:
    """One object per stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    return [{"recipe": m.name, "seed": m.seed, **row} for m in stored_models(root)
            for row in m.reports]


def figures(models: Mapping[K, Rows]) -> dict[K, dict[str, float]]:
    """The errors of each model by title; those of one title are on the same images."""
    found: dict[K, dict[str, float]] = {key: {} for key in models}
    for title, kind, attack, eps in FIGURES:
        for key, row in alike(models, attack, eps / 255).items():
            errors = getattr(Report.from_json(row), kind)
            found[key] |= {f"{title} avg": errors.mean, f"{title} worst": errors.worst,
                           f"{title} images": images(row)}
    return found


def list_models(root: Root = None) -> DataFrame:
    """One row per stored model: recipe, seed, data, method, errors on the test set in percent, and
    the size of its weights and where they are."""
    import pandas as pd

    rows = []
    for m in stored_models(root):
        method = m.recipe.get("method")
        errors = figures({0: m.reports})[0]
        rows.append({"recipe": m.name, "seed": m.seed, "data": m.recipe.get("dataset"),
                     "method": method.get("name") if isinstance(method, dict) else None,
                     **{t: round(100 * errors[t], 2) for t in TITLES if t in errors},
                     "AutoAttack images": errors.get("AutoAttack 8/255 images"),
                     **_place(m.files.get("weights"), root)})
    columns = ["recipe", "seed", "data", "method", *TITLES, "AutoAttack images", "bytes", "where"]
    return pd.DataFrame(rows, columns=[c for c in columns if any(
        r.get(c) is not None for r in rows) and not c.startswith("robust 16")])


def _place(weights: dict[str, Any] | None, root: Root) -> dict[str, Any]:
    """How many bytes of these weights are on this machine, and where."""
    if weights is None:
        return {"bytes": 0, "where": "report only"}
    files, sha256 = model_files(root), str(weights.get("sha256"))
    for path, where in ((inside(files.folder, weights.get("file")), "bundled"),
                        (inside(in_cache(""), sha256), "cache")):
        if path is not None and os.path.isfile(path):
            return {"bytes": path.stat().st_size, "where": where}
    source = files.release().get(sha256, {})
    return {"bytes": 0, "where": "to download" if {"url", "drive"} & source.keys() else "to make"}


def results(*patterns: str, root: Root = None) -> DataFrame:
    """One row per recipe: errors as mean ± standard deviation over seeds.

    `patterns` such as "exp1" or "exp2/rew*" choose recipes. AutoAttack ran on n images per class ×
    seeds; "!" marks recipes where PGD-20 misses more than 5 points of a model's errors.

    >>> print(results("exp1")["standard avg"][0])
    11.44 ± 0.07
    """
    import pandas as pd

    rows = []
    for name, group in groupby(stored_models(root, *patterns), key=lambda m: m.name):
        models = [m for m in group if m.reports]
        if not models:  # a trial, which never saw the test set
            continue
        by_seed = {m.seed: m.reports for m in models}
        errors = pd.DataFrame(figures(by_seed))
        row = {"model": name, "data": models[0].recipe.get("dataset"), "seeds": len(models),
               "classes": len(models[0].reports[0]["classes"]),
               **{t: Spread.of(errors.loc[t].dropna()) for t in TITLES if t in errors.index}}
        if strong := list(alike(by_seed, "autoattack", 8 / 255).values()):
            mark = " !" if any(map(flagged, by_seed.values())) else ""
            row["n"] = f"{min(strong[0]['counts'])} × {len(strong)}{mark}"
        rows.append(row)
    columns = ["model", "data", "classes", "seeds", *TITLES, "n"]
    return pd.DataFrame(rows, columns=[c for c in columns if any(c in row for row in rows)])


def flagged(rows: Rows, eps: float = 8 / 255) -> bool:
    """Does PGD-20 miss more than 5 points of this model's errors, on average or in the worst class?
    Only reports on the same images are compared."""
    for row in rows:
        weak = chosen([r for r in rows if r["counts"] == row["counts"]], "pgd20", eps)
        if weak is not None and chosen([row], "autoattack", eps):
            strong, found = Report.from_json(row).rob, Report.from_json(weak).rob
            if max(strong.mean - found.mean, strong.worst - found.worst) > 0.05 + 1e-9:
                return True
    return False


class Difference(Spread):
    """A paired difference over seeds, shown in points with its 95 % interval."""

    def __str__(self) -> str:
        interval = "" if self.n == 1 else f" [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"
        return f"{100 * self.mean:+.2f}{interval}"


def compare(names: Sequence[str], *, root: Root = None) -> DataFrame:
    """One row per figure: recipes side by side, and how each differs from the first.

    The models of one figure saw the same images. Differences are taken seed by seed, because a seed
    gives both the same first weights and order of images; they have 95 % t-intervals.
    """
    import pandas as pd

    if isinstance(names, str) or len(names) < 2:
        raise CourseError(f"compare was given {names!r}; give it a list of two names or more, such "
                          "as those in list_models().")
    stored = {name: seeds for name, seeds in manifest(root).items() if seeds}
    for name in names:
        pick(stored, name, "model")
    models = {(m.name, m.seed): m for m in stored_models(root, *names) if m.name in names}
    data = {name: m.recipe.get("dataset") for (name, _), m in models.items()}
    classes = {n: Report.from_json(r).classes for (n, _), m in models.items() for r in m.reports}
    if max(len(set(filter(None, found.values()))) for found in (data, classes)) > 1:
        listed = ", ".join(f"{n} ({data[n]}, {len(classes.get(n, ()))} classes)" for n in names)
        raise CourseError(f"compare was given models of different data sets or classes: {listed}. "
                          "Give it models with the same.")
    errors = pd.DataFrame(figures({key: m.reports for key, m in models.items()}))
    errors = errors.loc[[t for t in TITLES if t in errors.index]]
    table = {name: _over_seeds(errors[name], Spread) for name in names}
    table |= {f"{name} - {names[0]}": _over_seeds(errors[name] - errors[names[0]], Difference)
              for name in names[1:]}
    return pd.DataFrame(table, index=errors.index, dtype=object).rename_axis("figure")


def _over_seeds(errors: DataFrame, kind: type[Spread]) -> list[Spread | None]:
    return [kind.of(row.dropna()) if row.notna().any() else None for _, row in errors.iterrows()]


def budget(eps: float) -> str:
    """An attack's eps: in 255ths where that is a short number; above 1 in a table's own units.

    >>> budget(8 / 255), budget(0.01), budget(0.5), budget(10)
    ('8/255', '0.01', '0.5', '10 units')
    """
    if eps > 1:
        return f"{eps:g} units"
    levels, tenths = f"{255 * eps:.3g}", round(255 * eps, 1)
    short = abs(255 * eps - tenths) < 1e-4 and float(levels) == tenths
    return f"{levels}/255" if short else f"{eps:.3g}"


def markdown(lines: Iterable[Iterable[Any]], *words: str) -> str:
    """A Markdown table of a head and rows; the columns called `words` to the left."""
    head, *body = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    rule = ["---" if column in words else "---:" for column in head]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))
