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
from course_lib.models import build

if TYPE_CHECKING:
    from pandas import DataFrame

    from course_lib.files import Entries, StoredFiles

Root = Path | str | None  # a folder of stored models; None is `models_dir()`
K = TypeVar("K", bound=Hashable)
# Errors in tables: title, kind, attack ("" is any, for standard errors) and budget in 255ths.
FIGURES = (("standard", "nat", "", 0), ("robust 8/255", "rob", "pgd20", 8),
           ("robust 16/255", "rob", "pgd20", 16), ("AutoAttack 8/255", "rob", "autoattack", 8),
           ("robust 0.01", "rob", "pgd20-fine", 2.55),
           ("robust 10 units", "rob", "pgd20-adult", 2550))
TITLES = tuple(f"{title} {which}" for title, *_ in FIGURES for which in ("avg", "worst"))
TRAIN = ("Train it: python -m course_lib train {name} --seed {seed}. The model is then in runs "
         "(--models runs, COURSE_MODELS=runs).")


def models_dir() -> Path:
    """$COURSE_MODELS, or serialized_models/: in an installed package, beside it in a clone."""
    here = Path(__file__).parent
    installed, cloned = here / "serialized_models", here.parent / "serialized_models"
    return Path(os.environ.get("COURSE_MODELS") or (installed if installed.is_dir() else cloned))


def model_files(root: Root = None) -> StoredFiles:
    """The folder of stored models."""
    from course_lib.files import StoredFiles

    return StoredFiles(Path(root or models_dir()), "models",
                       "Restore it (git checkout) or run `make models`.")


def manifest(root: Root = None) -> Entries:
    """recipe -> seed (as text) -> {"weights": {file, sha256}, "record": {file, sha256}}"""
    path = Path(root or models_dir()) / "manifest.json"
    if not path.is_file():
        raise CourseError(f"{path} is not there. Clone the whole repository, set COURSE_MODELS to "
                          "a folder of models, or run `make models`.")
    entries = model_files(root).entries()
    for seed, rows in (pair for seeds in entries.values() for pair in seeds.items()):
        if not (seed.isdecimal() and len(seed) <= 20
                and all(isinstance(row, dict) for row in rows.values())):
            raise CourseError(f"{path} is damaged: its seed {seed[:30]!r} names no files. Restore "
                              "it (git checkout) or run `make models`.")
    return entries


def entry(name: str, seed: int, root: Root = None) -> dict[str, Any]:
    """The manifest's rows for one model: "record" and, where they are kept, "weights"."""
    seeds = pick(manifest(root), name, "model")
    if str(seed) not in seeds:
        raise CourseError(f"{name} is stored for seeds {', '.join(sorted(seeds))}, not for "
                          f"{seed!r}. {TRAIN.format(name=name, seed=seed)}")
    return seeds[str(seed)]


@dataclass(frozen=True)
class StoredModel:
    """One model of the manifest: the rows of its files, its record, and its reports."""

    name: str
    seed: int
    files: dict[str, Any]
    record: dict[str, Any]
    data: str  # the data set that it was trained on
    method: str
    reports: list[Report]


def stored_models(root: Root = None, *patterns: str) -> list[StoredModel]:
    """All stored models, or those whose names match a pattern such as "exp1" or "exp2/rew*"."""
    stored = manifest(root)
    names = sorted(matching(stored, patterns) if patterns else stored)
    if patterns and not names:
        pick(stored, patterns[0], "model")  # it says which names there are
    return [_stored_model(name, int(seed), stored[name][seed], root)
            for name in names for seed in sorted(stored[name], key=int)]


def _stored_model(name: str, seed: int, files: dict[str, Any], root: Root) -> StoredModel:
    record = model_files(root).read_json(files.get("record", {}))
    try:
        recipe = record.get("made_from", {}).get("recipe", {})
        reports = [Report.from_json(row) for row in record.get("reports", [])]
        method = recipe.get("method", {}).get("name", "")
        if any(not r.eps >= 0 for r in reports):
            raise CourseError("a budget is negative")
    except (CourseError, AttributeError, TypeError) as e:
        raise CourseError(f"{name}: its record is damaged ({e}). Restore it or make it "
                          "again.") from None
    return StoredModel(name, seed, files, record, str(recipe.get("dataset", "")), str(method),
                       reports)


def load_record(name: str, *, seed: int = 0, root: Root = None) -> dict[str, Any]:
    """Everything stored about one training: recipe, versions, history and reports."""
    return model_files(root).read_json(entry(name, seed, root).get("record", {}))


def load_model(name: str, *, seed: int = 0, root: Root = None) -> nn.Module:
    """A trained model by its recipe's name, verified, in eval mode.

    >>> load_model("exp1/natural").training
    False
    """
    files, folder = entry(name, seed, root), model_files(root)
    if "weights" not in files:
        raise CourseError(f"Only the record of {name} (seed {seed}) is stored; its weights are "
                          f"not. {TRAIN.format(name=name, seed=seed)}")
    try:
        made = folder.read_json(files.get("record", {}))["made_from"]
        model = build(made["model"], classes=len(made["classes"]))
    except (KeyError, TypeError):
        raise CourseError(f"{name}: its record does not name its network and classes. Restore the "
                          "record or make it again.") from None
    load_weights(model, folder.read(files["weights"]), name)
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
    odd = [k for k in sorted(given | expected) if given.get(k) != expected.get(k)
           or not tensors[k].isfinite().all()]
    if odd:
        raise CourseError(f"{name}: the weights do not fit {type(model).__name__}: "
                          f"{', '.join(odd[:5])} differ in name, shape or type, or hold NaN or "
                          "infinity. Restore the file or make it again.")
    model.load_state_dict(tensors)


def load_scores(name: str, *, seed: int = 0, root: Root = None) -> list[dict[str, Any]]:
    """The unfairness scores in one model's record, or none."""
    return list(load_record(name, seed=seed, root=root).get("scores", []))


def by_images(reports: Sequence[Report], attack: str, eps: float) -> dict[tuple[int, ...], Report]:
    """The reports of an attack ("" is any) with this budget, by their images per class."""
    return {r.nat.counts: r for r in reversed(reports)
            if not attack or (r.attack == attack and abs(r.eps - eps) < 1e-6)}


def alike(models: Mapping[K, Sequence[Report]], attack: str, eps: float,
          size: int | None = None) -> dict[K, Report]:
    """A report of each model, all on the same images: those that most models share, then the most
    images. With `size`, on exactly so many images."""
    stored = {k: by_images(reports, attack, eps) for k, reports in models.items()}
    shared = Counter(n for mine in stored.values() for n in mine if size in (None, sum(n)))
    best = max(shared, key=lambda n: (shared[n], sum(n)), default=())
    return {k: mine[best] for k, mine in stored.items() if best in mine}


def reports(name: str, attack: str = "pgd20", eps: float = 8 / 255, *, images: int | None = None,
            root: Root = None) -> dict[int, Report]:
    """The stored reports of a recipe by seed, all on the same images (on so many, with `images`);
    empty where there are none."""
    seeds = manifest(root).get(name, {})
    models = {int(seed): _stored_model(name, int(seed), seeds[seed], root).reports
              for seed in sorted(seeds, key=int)}
    return alike(models, attack, eps, images)


def load_reports(name: str, *, attack: str = "pgd20", eps: float = 8 / 255,
                 root: Root = None) -> list[Report]:
    """The reports of every seed of a recipe, all on the same images."""
    return list(reports(name, attack, eps, root=root).values()) or [
        load_report(name, attack=attack, eps=eps, root=root)]  # which says what is stored


def load_report(name: str, *, seed: int = 0, attack: str = "pgd20", eps: float = 8 / 255,
                per_class: int | None = None, root: Root = None) -> Report:
    """A stored report of one model: on the whole test set, or on its first `per_class` images of
    each class."""
    stored = _stored_model(name, seed, entry(name, seed, root), root).reports
    mine = by_images(stored, attack, eps)
    if fits := [n for n in mine if per_class is None or {*n} == {per_class}]:
        return mine[max(fits, key=sum)]
    on = "" if per_class is None else f" on {per_class} images per class"
    listed = ", ".join(f"{r.attack} at {budget(r.eps)} on {sum(r.nat.counts):,} images"
                       for r in stored)
    raise CourseError(f"No report of {name} under {attack} at {budget(eps)}{on} is stored. There "
                      f"is: {listed}.")


def missing(*names: str, attack: str = "", root: Root = None) -> bool:
    """True where a recipe is not trained, or not examined by this attack; prints what to do."""
    stored = model_files(root).entries()
    lines = [f"{n} is not trained yet: make models WHICH={n}\n" if n not in stored else
             f"{n} is not examined by {attack} yet: make examine WHICH={n}\n"
             for n in names if n not in stored or (attack and not reports(n, attack, root=root))]
    sys.stdout.writelines(lines)
    return bool(lines)


def stored_reports(root: Root = None) -> list[dict[str, Any]]:
    """One object per stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    return [{"recipe": m.name, "seed": m.seed, **r.to_json()} for m in stored_models(root)
            for r in m.reports]


def figures(models: Mapping[K, Sequence[Report]]) -> dict[K, dict[str, float]]:
    """The errors of each model by title; those of one title are on the same images."""
    table: dict[K, dict[str, float]] = {key: {} for key in models}
    for title, kind, attack, eps in FIGURES:
        for key, report in alike(models, attack, eps / 255).items():
            errors = getattr(report, kind)
            table[key] |= {f"{title} avg": errors.mean, f"{title} worst": errors.worst,
                           f"{title} images": sum(errors.counts)}
    return table


def list_models(root: Root = None) -> DataFrame:
    """One row per stored model: recipe, seed, data, method, errors on the test set in percent, and
    the size of its weights and where they are."""
    import pandas as pd

    rows, files = [], model_files(root)
    for m in stored_models(root):
        errors = figures({0: m.reports})[0]
        rows.append({"recipe": m.name, "seed": m.seed, "data": m.data, "method": m.method,
                     **{t: round(100 * errors[t], 2) for t in TITLES if t in errors},
                     "AutoAttack images": errors.get("AutoAttack 8/255 images"),
                     **files.place(m.files.get("weights"))})
    titles = [t for t in TITLES if not t.startswith("robust 16")]
    columns = ["recipe", "seed", "data", "method", *titles, "AutoAttack images", "bytes", "where"]
    return pd.DataFrame(rows, columns=columns).dropna(axis="columns", how="all")


def results(*patterns: str, root: Root = None) -> DataFrame:
    """One row per recipe: errors as mean ± standard deviation over seeds.

    `patterns` such as "exp1" or "exp2/rew*" choose recipes. AutoAttack ran on n images per class ×
    seeds; "!" marks recipes where PGD-20 misses more than 5 points of a model's errors.

    >>> print(results("exp1")["standard avg"][0])
    11.44 ± 0.07
    """
    import pandas as pd

    rows = []
    examined = [m for m in stored_models(root, *patterns) if m.reports]  # a trial has no report
    for name, group in groupby(examined, key=lambda m: m.name):
        first, *_ = models = list(group)
        by_seed = {m.seed: m.reports for m in models}
        row = {"model": name, "data": first.data, "classes": len(first.reports[0].classes),
               "seeds": len(models), **over_seeds(pd.DataFrame(figures(by_seed)))}
        if strong := list(alike(by_seed, "autoattack", 8 / 255).values()):
            mark = " !" if any(map(flagged, by_seed.values())) else ""
            row["n"] = f"{min(strong[0].nat.counts)} × {len(strong)}{mark}"
        rows.append(row)
    table = pd.DataFrame(rows, columns=["model", "data", "classes", "seeds", *TITLES, "n"])
    return table.dropna(axis="columns", how="all")


def over_seeds(errors: DataFrame, kind: type[Spread] = Spread) -> dict[str, Spread | None]:
    """The spread of each title's errors, which are in one column per model."""
    rows = {t: errors.loc[t].dropna() for t in TITLES if t in errors.index}
    return {t: kind.of(row) if len(row) else None for t, row in rows.items()}


def flagged(reports: Sequence[Report], eps: float = 8 / 255) -> bool:
    """Does PGD-20 miss more than 5 points of this model's errors, on average or in the worst class?
    Only reports on the same images are compared."""
    strong, weak = (by_images(reports, attack, eps) for attack in ("autoattack", "pgd20"))
    pairs = [(strong[n].rob, weak[n].rob) for n in strong.keys() & weak.keys()]
    return any(max(s.mean - w.mean, s.worst - w.worst) > 0.05 + 1e-9 for s, w in pairs)


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
    models = [m for m in stored_models(root, *names) if m.name in names]
    data = {m.name: m.data for m in models}
    classes = {m.name: r.classes for m in models for r in m.reports}
    if max(len({*data.values()} - {""}), len({*classes.values()})) > 1:
        listed = ", ".join(f"{n} ({data[n]}, {len(classes.get(n, ()))} classes)" for n in names)
        raise CourseError(f"compare was given models of different data sets or classes: {listed}. "
                          "Give it models with the same.")
    errors = pd.DataFrame(figures({(m.name, m.seed): m.reports for m in models}))
    table = {name: over_seeds(errors[name]) for name in names}
    table |= {f"{name} - {names[0]}": over_seeds(errors[name] - errors[names[0]], Difference)
              for name in names[1:]}
    return pd.DataFrame(table, dtype=object).rename_axis("figure")


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
