"""Results as tables: errors over seeds with their intervals, and paired differences.

A table is a pandas DataFrame with all digits; errors are percent. Printed, or at the end of a
notebook's cell, it shows one decimal in at most seven columns, and names its data below.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from course_lib.data import Dataset, Split, load
from course_lib.errors import CourseError, pick
from course_lib.evaluation import evaluate
from course_lib.fairness import Errors, Report, Spread, t95
from course_lib.zoo import (
    Root,
    StoredModel,
    alike,
    budget,
    by_images,
    columns,
    figures,
    flagged,
    load_model,
    manifest,
    model_files,
    stored_models,
    titles,
)

LEVELS = {"recipe": [], "seed": ["seed"], "class": ["seed", "class"]}  # each has a row per ...
FACTS = ["figure", "attack", "eps", "images", "data"]
MISSED = "pgd20 misses more than 5 points of the errors that AutoAttack finds"
LEGEND = ("Errors in percent, mean ± standard deviation over seeds. n: AutoAttack's test images "
          f"per class × seeds. !: {MISSED}.")


class Table(pd.DataFrame):
    """A DataFrame that shows itself rounded, with a note below."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def shown(self) -> pd.DataFrame:
        """The table as text, in fewer columns."""
        text = pd.DataFrame(self).drop(columns=["data", "minus", "attack", "eps", "warnings"],
                                       errors="ignore")
        if {"figure", "attack", "eps"} <= {*self}:
            text["figure"] = [f"{figure}, {attack} {budget(eps)}" if eps else figure
                              for figure, attack, eps in zip(self["figure"], self["attack"],
                                                             self["eps"], strict=True)]
        for first, other, title, words in (("low", "high", "95 % interval", "{:.1f} to {:.1f}"),
                                           ("n", "images", "seeds × images", "{} × {:,}")):
            if {first, other} <= {*text}:
                pairs = zip(text[first], text.pop(other), strict=True)
                text[first] = ["" if math.isnan(a) else words.format(a, b) for a, b in pairs]
                text = text.rename(columns={first: title})
        text = text.map(lambda v: v if not isinstance(v, float) else "" if math.isnan(v)
                        else f"{v:.1f}")
        for mean in (c for c in text if f"{c} worst" in text):  # in one column
            pairs = zip(text[mean], text.pop(f"{mean} worst"), strict=True)
            text[mean] = [a and f"{a} / {b}" for a, b in pairs]
        return text

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
          for kind, e in kinds.items()), *(f"! {w}" for w in getattr(report, "warnings", ()))]
    return table


def results(*patterns: str, attack: str | None = None, eps: float | str | None = None,
            level: str = "recipe", images: int | None = None, root: Root = None) -> Table:
    """Stored errors of the recipes that fit a pattern such as "exp1/*" (without one, of all).

    One row per recipe and figure: mean, sd and 95 % interval over n seeds; with level="seed" or
    "class" one row per seed, or seed and class. `attack` and `eps` (0.03 or "8/255") choose
    reports. The seeds of a recipe have the same images: those that most seeds share, then the
    most, or so many `images`; AutoAttack on other images has rows of its own.

    >>> results("exp1/natural", attack="pgd20", eps="8/255").round(1)["mean"].to_list()
    [11.4, 32.8, 56.5, 96.7]
    """
    by = pick(LEVELS, level, "level")
    rows = [row for _, group in groupby(stored_models(root, *patterns), key=lambda m: m.name)
            for row in _rows([*group], attack, eps, images, by_class="class" in by)]
    if not rows and (attack, eps, images) != (None, None, None):
        raise CourseError(f"No report under attack={attack!r}, eps={eps!r}, images={images!r} is "
                          "stored. results() without them shows what is.")
    table = Table(rows, columns=["recipe", *(by or ["seed"]), *FACTS, "error", "warnings"])
    return table if by else _over_seeds(table, "recipe")


def compare(*names: Any, attack: str | None = None, eps: float | str | None = None,
            images: int | None = None, root: Root = None) -> Table:
    """How recipes differ from the first: mean difference and 95 % interval in points.

    Differences are taken seed by seed, because a seed gives both models the same first weights and
    order of images, and on the same images. The names may also be given as one list.

    >>> compare("exp2/control", "exp2/reweight-05", attack="pgd20")["verdict"][1]
    'lower'
    """
    names = tuple(names[0]) if len(names) == 1 and not isinstance(names[0], str) else names
    return _paired(_rows(comparable(*names, root=root), attack, eps, images), names)


def score_results(*patterns: str, root: Root = None) -> Table:
    """Stored unfairness scores over seeds, one row per recipe and score: in points, CRU_eps in grey
    levels of 255 or a table's units. A model of static copies adds its error on copies."""
    rows = _score_rows(stored_models(root, *patterns))
    return _over_seeds(pd.DataFrame(rows, columns=["recipe", "seed", *FACTS, "error", "warnings"]),
                       "recipe")


def compare_scores(*names: str, root: Root = None) -> Table:
    """How the scores of recipes differ from those of the first, paired by seed as in `compare`.

    >>> table = compare_scores("scores/cifar10-standard", "scores/cifar10-robust")
    >>> dict(zip(table["figure"], table["verdict"]))["CAU"]
    'inconclusive'
    """
    return _paired(_score_rows(comparable(*names, root=root)), names)


class Benchmark(Table):
    """One row per model, errors in percent; `reports` holds them class by class."""

    _metadata: ClassVar = ["reports"]
    reports: dict[str, dict[str, Report]]  # model -> attack -> report

    def by_class(self, attack: str = "pgd20", beside: int = 5) -> Table:
        """Your model's robust errors class by class, beside those of the first stored models."""
        under = self._under(attack, beside)
        classes = next(iter(under.values())).classes
        return Table({"class": classes, **{m: 100 * r.rob.by_class for m, r in under.items()}})

    def plot(self, ax: Any = None, attack: str = "pgd20", beside: int = 2, **words: Any) -> Any:
        """The same as bars, with the options of plots.class_bars."""
        from course_lib.plots import class_bars

        return class_bars(self._under(attack, beside), ax, **words)

    def _under(self, attack: str, beside: int) -> dict[str, Report]:
        pick(next(iter(self.reports.values())), attack, "attack of this benchmark")
        under = {m: r[attack] for m, r in self.reports.items() if attack in r}
        return {m: under[m] for m in [*under][: 1 + beside]}


def benchmark(model: Any, data: Any, *, autoattack: bool | int = False,
              per_class: int | None = None, name: str = "mine", progress: bool = True,
              root: Root = None) -> Benchmark:
    """Your model beside the stored ones (seed 0) of a data set: standard, PGD-20 and CW-20 errors.

    `data` is a name, or what `evaluate` takes. `per_class` takes only the first so many test images
    of each class, on which stored models are attacked, too. `autoattack=True` adds AutoAttack; a
    number takes so many images per class for it. A column has one set of images: a stored model
    without a report on these has no error there. The fairest come first, doubtful ones last.

    >>> benchmark("exp1/natural", "fashion-mnist", per_class=5)  # doctest: +SKIP
    """
    data = load(data) if isinstance(data, str) else data
    test, title = (data.test, data.name) if isinstance(data, Dataset) else (Split.of(data), "")
    images = test if per_class is None else test.per_class(per_class)
    attacks = ("pgd20", "cw20") if images.x.ndim > 2 else ("pgd20-adult",)
    cases: dict[str, Split] = dict.fromkeys(attacks, images)
    if autoattack:
        cases["autoattack"] = images if autoattack is True else images.per_class(autoattack)
    mine = {a: evaluate(model, part, a, progress=progress) for a, part in cases.items()}
    again = [evaluate(model, part, attacks[0], progress=progress) for a, part in cases.items()
             if part is not images]  # PGD-20 where AutoAttack was run
    reports, missed = {name: mine}, {name: flagged([*mine.values(), *again])}
    for m in stored_models(root) if title and model_files(root).entries() else ():
        if m.seed or "weights" not in m.files or (m.data, {r.classes for r in m.reports}) != (
                title, {test.classes}):
            continue
        stored = {a: by_images(m.reports, a, r.eps).get(r.nat.counts) for a, r in mine.items()}
        for a in (a for a in attacks if per_class and stored[a] is None):
            stored[a] = evaluate(load_model(m.name, root=root), images, a, progress=False)
        if stored[attacks[0]]:
            reports[m.name] = {a: r for a, r in stored.items() if r}
            missed[m.name] = flagged(m.reports)
    order = sorted(reports, key=lambda n: (n != name, missed[n], reports[n][attacks[0]].rob.worst))
    table = Benchmark([_in_percent(n, reports[n], MISSED * missed[n]) for n in order])
    table.reports = {n: reports[n] for n in order}
    table.attrs["note"] = [f"Average / worst class. Data: {title or 'your own'}.", *(
        f"{a} {budget(r.eps)}: {sum(r.nat.counts):,} images." for a, r in mine.items())]
    return table


def _in_percent(model: str, reports: dict[str, Report], word: str) -> dict[str, Any]:
    """A row of `benchmark`: standard errors, and those under each attack."""
    errors = {"standard": next(iter(reports.values())).nat, **{a: r.rob for a, r in
                                                               reports.items()}}
    words = _joined([*(w for r in reports.values() for w in r.warnings), word])
    return {"model": model, "warnings": words, **{
        f"{a}{end}": 100 * v for a, e in errors.items()
        for end, v in (("", e.mean), (" worst", e.worst))}}


def comparable(*names: str, root: Root = None) -> list[StoredModel]:
    """The stored models of these recipes, if all have one data set and the same classes."""
    for name in names:
        pick({n: seeds for n, seeds in manifest(root).items() if seeds}, name, "model")
    models = [m for m in stored_models(root, *names) if m.name in names]
    classes = {m.name: f"{m.name}: {m.data}, {', '.join(sorted(r.classes))}" for m in models
               for r in m.reports}
    if len({text.partition(": ")[2] for text in classes.values()}) > 1:
        raise CourseError("These are models of different data sets or classes: "
                          f"{'; '.join(classes.values())}. Give models with the same.")
    return models


def overview(*patterns: str, root: Root = None) -> pd.DataFrame:
    """One row per recipe, for README and shell, as LEGEND explains.

    >>> print(overview("exp1")["standard avg"][0])
    11.44 ± 0.07
    """
    rows = []
    examined = [m for m in stored_models(root, *patterns) if m.reports]  # a trial has no report
    for name, models in ((name, [*group]) for name, group in groupby(examined, lambda m: m.name)):
        errors = figures({m.seed: m.reports for m in models}).values()
        row = {"model": name, "data": models[0].data, "seeds": len(models),
               "classes": len(models[0].reports[0].classes),
               **{t: str(Spread.of(e[t] for e in errors if t in e)) for t in titles(errors)}}
        if sizes := [e[t] for e in errors if (t := "AutoAttack 8/255 images") in e]:
            mark = " !" * any(flagged(m.reports) for m in models)
            row["n"] = f"{sizes[0] // row['classes']} × {len(sizes)}{mark}"
        rows.append(row)
    head = ["model", "data", "classes", "seeds", *titles(rows), "n"]
    return pd.DataFrame(rows, columns=head).dropna(axis="columns", how="all")


def spread(name: str, kind: str = "rob", which: str = "mean", attack: str = "pgd20",
           eps: float = 8 / 255, *, minus: str = "", images: int | None = None,
           root: Root = None) -> Spread:
    """An error over the seeds of a recipe: `kind` is nat, rob or bnd; `which` is mean, worst, or a
    class. With `minus`, its difference from that recipe, seed by seed on the same images."""
    models = {(m.name, m.seed): m.reports for m in comparable(name, minus or name, root=root)}
    values: dict[str, dict[int, float]] = {name: {}, minus or name: {}}
    for (recipe, seed), r in alike(models, attack, eps, images).items():
        errors = pick({"nat": r.nat, "rob": r.rob, "bnd": r.bnd}, kind, "kind of error")
        of_class = dict(zip(r.classes, errors.by_class.tolist(), strict=True))
        values[recipe][seed] = pick({"mean": errors.mean, "worst": errors.worst, **of_class}, which,
                                    "average or class")
    seeds = sorted(values[name].keys() & values[minus or name].keys())
    if not seeds:
        raise CourseError(f"No seed of {name} {minus and f'and {minus} '}is examined by {attack} "
                          f"at {budget(eps)} on the same images: make examine WHICH={name}")
    return Spread.of(values[name][s] - (values[minus][s] if minus else 0) for s in seeds)


def interval(s: Spread, digits: int = 1, sign: str = "") -> str:
    """A mean with its 95 % interval, in percent; `sign="+"` is for differences.

    >>> interval(Spread.of([0.1, 0.2, 0.3]), sign="+")
    '+20.0 [-4.8, +44.8]'
    """
    mean, low, high = (f"{100 * v:{sign}.{digits}f}" for v in (s.mean, s.low, s.high))
    return mean if s.n == 1 else f"{mean} [{low}, {high}]"


def prediction(s: Spread) -> tuple[float, float]:
    """The 95 % interval for the value of one more training."""
    # mean -+ t_{n-1} sd sqrt(1 + 1/n)
    reach = t95(s.n - 1) * s.sd * math.sqrt(1 + 1 / s.n)
    return s.mean - reach, s.mean + reach


def verdict(s: Spread, near: float = 0.01) -> str:
    """A difference in one word; "no difference" only if the interval is within `near` of zero."""
    if s.n == 1:
        return "one seed"
    if s.high < 0 or s.low > 0:
        return "lower" if s.high < 0 else "higher"
    return "no difference" if max(-s.low, s.high) <= near else "inconclusive"


def history(name: str, word: str = "loss", *, root: Root = None) -> pd.DataFrame:
    """One row per epoch, means over the seeds of a recipe: the loss or lr; nat or rob, the errors
    on validation data; or a part of the method's state such as lam0, one column per class."""
    runs, classes = [], list[str]()
    for m in (m for m in stored_models(root, name) if m.name == name):
        classes = m.record["made_from"]["classes"]
        rows = [{**row["state"], **(row["validation"] or [{}])[-1], **row}
                for row in m.record["history"]]
        runs.append([pick(row, word, "part of a history") for row in rows])
    values = np.mean(runs, axis=0)
    return pd.DataFrame(values, pd.RangeIndex(1, len(values) + 1, name="epoch"),
                        [word] if values.ndim == 1 else classes)


def chance_range(errors: Errors, times: int = 10_000) -> tuple[float, float]:
    """The worst minus the best class if all classes were equally hard: the average range, and the
    range that chance exceeds one time in twenty.

    >>> [round(100 * v, 1) for v in chance_range(Errors((136,) * 10, (1000,) * 10))]
    [3.3, 4.8]
    """
    # wrong_c ~ Binomial(n_c, err) for every class c
    shape, rng = (times, len(errors.counts)), np.random.default_rng(0)
    ranges = np.ptp(rng.binomial(errors.counts, errors.mean, shape) / errors.counts, axis=1)
    return float(ranges.mean()), float(np.quantile(ranges, 0.95))


def permuted_ranges(values: Any, groups: Any, times: int = 1000) -> np.ndarray:
    """The largest minus the smallest group mean of `values` [N] when the `groups` [N], numbered
    from 0, are shuffled: what chance alone does to groups of these sizes."""
    values, groups = np.asarray(values, float), np.asarray(groups)
    rng, counts = np.random.default_rng(0), np.bincount(groups)
    return np.array([np.ptp(np.bincount(rng.permutation(groups), values) / counts)
                     for _ in range(times)])


def _rows(models: Sequence[StoredModel], attack: str | None, eps: float | str | None,
          images: int | None, by_class: bool = False) -> Iterator[dict[str, Any]]:
    """One row per model, figure and attack, as `results` describes them."""
    try:
        level = None if eps is None else float(Fraction(eps))
    except (ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise CourseError(f"eps is {eps!r}; give a budget such as 0.03 or '8/255'.") from None
    chosen = {(m.name, m.seed): [r for r in m.reports if attack in (None, r.attack)
                                 and (level is None or abs(r.eps - level) < 1e-6)] for m in models}
    missed = {(m.name, m.seed) for m in models if flagged(m.reports)}
    attacks = dict.fromkeys((r.attack, r.eps) for mine in chosen.values() for r in mine)
    for under in (None, *attacks):  # None is for standard errors
        those = {key: [r for r in mine if under in (None, (r.attack, r.eps))]
                 for key, mine in chosen.items()}
        kind, (name, at) = "robust" if under else "standard", under or ("", 0.0)
        found = columns(those, "", 0, images)
        for (recipe, seed), r in (pair for column in found[:None if name == "autoattack" else 1]
                                  for pair in column.items()):
            words = [*getattr(r, "warnings", ())] if under else []
            if name == "pgd20" and abs(at - 8 / 255) < 1e-6 and (recipe, seed) in missed:
                words.append(MISSED)
            row = {"recipe": recipe, "seed": seed, "attack": name, "eps": at,
                   "data": models[0].data, "warnings": "; ".join(words)}
            errors = r.rob if under else r.nat
            if by_class:
                yield from ({**row, "class": c, "figure": kind, "error": 100 * e, "images": n}
                            for c, e, n in zip(r.classes, errors.by_class.tolist(), errors.counts,
                                               strict=True))
            else:
                row["images"] = sum(errors.counts)
                yield {**row, "figure": f"{kind} average", "error": 100 * errors.mean}
                yield {**row, "figure": f"{kind} worst class", "error": 100 * errors.worst}


def _paired(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> Table:
    """The rows of each recipe minus those of the first one, seed by seed, over the seeds."""
    if len(names) < 2:
        raise CourseError(f"compare was given {', '.join(names) or 'nothing'}; give it two names "
                          "or more, such as those in list_models().")
    table = pd.DataFrame(rows, columns=["recipe", "seed", *FACTS, "error", "warnings"])
    is_first = table["recipe"] == names[0]
    pairs = table[~is_first].merge(table[is_first].assign(minus=names[0]).drop(columns="recipe"),
                                   on=["seed", *FACTS], suffixes=("", " before"))
    if pairs.empty:
        raise CourseError(f"{', '.join(names)} share no seed that was examined in the same way. "
                          f"results({names[0]!r}) shows what is stored.")
    pairs["error"] -= pairs["error before"]
    pairs["warnings"] = [*map(_joined, pairs[["warnings", "warnings before"]].values)]
    table = _over_seeds(pairs, "recipe", "minus")
    table["verdict"] = [verdict(Spread(*row), near=1) for row in
                        table[["mean", "sd", "low", "high", "n"]].itertuples(index=False)]
    return table.rename(columns={"mean": "difference"})


def _score_rows(models: Sequence[StoredModel]) -> Iterator[dict[str, Any]]:
    """One row per model and stored score, as `score_results` describes it."""
    for m, row in ((model, row) for model in models for row in model.record.get("scores", [])):
        kind, value = row["score"], row["value"]
        if kind == "EOU":
            values = {f"EOU, {row['group']}, label {label}": 100 * value[label] for label in (0, 1)}
        elif kind == "CRU_eps":
            scale, unit = (255, "grey levels") if row["cap"] <= 1 else (1, "units")
            search = ", increments" * (row["estimator"] == "increments")
            values = {f"CRU_eps ({unit}){search}": scale * value}
        elif kind == "static":
            values = {f"error on copies, {budget(row['eps'])}": 100 * (1 - row["accuracy"])}
        else:
            values = {kind + (f" at {budget(row['eps'])}" if kind == "CRU_s" else ""): 100 * value}
        yield from ({"recipe": m.name, "seed": m.seed, "figure": figure, "attack": "", "eps": 0.0,
                     "images": int(np.sum(row["counts"])), "data": m.data, "error": value,
                     "warnings": ""} for figure, value in values.items())


def _over_seeds(rows: pd.DataFrame, *names: str) -> Table:
    """Mean, sd, interval and n of the rows that differ in nothing but the seed."""
    keys = [*names, *FACTS]
    groups = rows.groupby(keys, sort=False)[["error", "warnings"]].agg(list)
    return Table([{**dict(zip(keys, key, strict=True)), **vars(Spread.of(errors)),
                   "warnings": _joined(words)} for key, errors, words in groups.itertuples()],
                 columns=[*keys, "mean", "sd", "low", "high", "n", "warnings"])


def _joined(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, words)))
