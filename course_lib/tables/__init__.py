"""Results as tables: errors over seeds with their intervals, and paired differences.

A table is a pandas DataFrame with all digits; errors are percent. Printed, or at the end of a
notebook's cell, it shows one decimal in at most seven columns, and names its data below.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, ClassVar, Self, cast

import numpy as np
import pandas as pd

from course_lib import zoo
from course_lib.attacks import PGD
from course_lib.data import Dataset, Split, load
from course_lib.errors import CourseError, pick
from course_lib.evaluation import evaluate
from course_lib.fairness import Errors, Report, Spread, t95
from course_lib.tables.display import Table
from course_lib.zoo import Root, StoredModel, budget, seeds_of, stored_models

LEVELS = {"recipe": [], "seed": ["seed"], "class": ["seed", "class"]}  # each has a row per ...
FACTS = ["figure", "attack", "eps", "images", "data"]
# in a table with one row per model: the title of an attack and its budget in 255ths
TITLES = {("", 0): "standard", ("pgd20", 8): "robust 8/255", ("pgd20", 16): "robust 16/255",
          ("autoattack", 8): "AutoAttack 8/255", ("pgd20-fine", 2.55): "robust 0.01",
          ("pgd20-adult", 2550): "robust 10 units"}
WIDE = [f"{title} {which}" for title in TITLES.values() for which in ("avg", "worst")]
MISSED = "pgd20 misses more than 5 points of the errors that AutoAttack finds"
LONGEST = 6 * 3600  # seconds of training that fit into a session without a GPU
LEGEND = ("Errors in percent, mean ± standard deviation over seeds. n: AutoAttack's test images "
          f"per class × seeds. !: {MISSED}.")
Row = dict[str, Any]


def results(*patterns: str, attack: str | None = None, eps: float | str | None = None,
            level: str = "recipe", images: int | None = None, root: Root = None) -> Table:
    """Stored errors of the recipes that fit a pattern such as "exp1/*" (without one, of all).

    One row per recipe and figure: mean, sd and 95 % interval over n seeds; with level="seed" or
    "class" one row per seed, or seed and class. `attack` and `eps` (0.03 or "8/255") choose
    reports. The seeds of a recipe share their images: the set that most seeds have, then the
    largest, or one of `images`. AutoAttack on other images has its own rows.

    >>> results("exp1/natural", attack="pgd20", eps="8/255").round(1)["mean"].to_list()
    [11.4, 32.8, 56.5, 96.7]
    """
    by = pick(LEVELS, level, "level")
    rows = [row for models in _by_recipe(patterns, root)
            for row in _errors(models, attack, eps, images, by_class="class" in by)]
    if not rows and (attack, eps, images) != (None, None, None):
        raise CourseError(f"No report under attack={attack!r}, eps={eps!r}, images={images!r} is "
                          "stored. results() without them shows what is.")
    if not by:
        return _over_seeds(rows)
    return Table(rows, columns=["recipe", *by, *FACTS, "error", "warnings"])


def compare(*names: Any, attack: str | None = None, eps: float | str | None = None,
            root: Root = None) -> Table:
    """How recipes differ from the first: mean difference and 95 % interval in points.

    Differences are taken seed by seed, because a seed gives both models the same first weights and
    order of images, and on the same images. The names may also be given as one list.

    >>> compare("exp2/control", "exp2/reweight-05", attack="pgd20")["verdict"][1]
    'lower'
    """
    names = tuple(names[0]) if len(names) == 1 and not isinstance(names[0], str) else names
    return _paired(_errors(_comparable(names, root), attack, eps), names)


def score_results(*patterns: str, root: Root = None) -> Table:
    """Stored unfairness scores over seeds, one row per recipe and score: in points, CRU_eps in grey
    levels of 255 or a table's units. A model of static copies adds its error on copies."""
    return _over_seeds(_scores(stored_models(root, *patterns)))


def compare_scores(*names: str, root: Root = None) -> Table:
    """How the scores of recipes differ from those of the first, paired by seed as in `compare`.

    >>> table = compare_scores("scores/cifar10-standard", "scores/cifar10-robust")
    >>> dict(zip(table["figure"], table["verdict"]))["CAU"]
    'inconclusive'
    """
    return _paired(_scores(_comparable(names, root)), names)


def overview(*patterns: str, root: Root = None) -> pd.DataFrame:
    """One row per recipe, for README and shell, as LEGEND explains.

    >>> print(overview("exp1")["standard avg"][0])
    11.44 ± 0.07
    """
    rows = []
    for models in _by_recipe(patterns, root):
        if any(m.reports for m in models):  # a trial has none
            found, classes = wide(models), len(models[0].reports[0].classes)
            row = {"model": models[0].name, "data": models[0].data, "seeds": len(models),
                   "classes": classes, **{t: str(Spread.of(e[t] / 100 for e in found if t in e))
                                          for t in WIDE if any(t in e for e in found)}}
            if sizes := [e["AutoAttack images"] for e in found if "AutoAttack images" in e]:
                mark = " !" * any(zoo.flagged(m.reports) for m in models)
                row["n"] = f"{sizes[0] // classes} × {len(sizes)}{mark}"
            rows.append(row)
    table = pd.DataFrame(rows, columns=["model", "data", "classes", "seeds", *WIDE, "n"])
    return table.dropna(axis="columns", how="all")


def list_models(*patterns: str, root: Root = None) -> pd.DataFrame:
    """One row per stored model that fits a pattern such as "cifar10/*": recipe, seed, data, method,
    errors on the test set in percent, and the size of its weights and where they are."""
    files = zoo.model_files(root)
    rows = [{"recipe": m.name, "seed": m.seed, "data": m.data, "method": m.method, **errors,
             **files.place(m.files.get("weights"))}
            for models in _by_recipe(patterns, root)
            for m, errors in zip(models, wide(models), strict=True)]
    shown = [t for t in WIDE if not t.startswith("robust 16")]
    head = ["recipe", "seed", "data", "method", *shown, "AutoAttack images", "bytes", "where"]
    return pd.DataFrame(rows, columns=head).round(2).dropna(axis="columns", how="all")


def stored_reports(models: Root = None, names: Sequence[str] = ()) -> list[Row]:
    """One object per stored report: recipe, seed, attack, eps, classes, counts, nat, rob."""
    return [{"recipe": m.name, "seed": m.seed, **r.to_json()} for m in stored_models(models, *names)
            for r in m.reports]


class Benchmark(Table):
    """One row per model, errors in percent; `reports` holds them class by class."""

    _metadata: ClassVar = ["reports"]
    reports: dict[str, dict[str, Report]]  # model -> attack -> report

    @classmethod
    def of(cls, reports: dict[str, dict[str, Report]], missed: dict[str, bool]) -> Self:
        """Standard errors, and those under each attack; a warning where PGD-20 `missed` errors."""
        rows = []
        for model, mine in reports.items():
            errors = {"standard": next(iter(mine.values())).nat, **{a: mine[a].rob for a in mine}}
            words = [*(w for r in mine.values() for w in r.warnings), MISSED * missed[model]]
            rows.append({"model": model, "warnings": joined(words), **{
                f"{a}{end}": 100 * v for a, e in errors.items()
                for end, v in (("", e.mean), (" worst", e.worst))}})
        table = cls(rows)
        table.reports = reports
        return table

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

    `data` is a name, or what `evaluate` takes. `per_class` takes this many test images
    per class and attacks stored models on them, too. `autoattack=True` adds AutoAttack; a
    number is its images per class. A column has one set of images: a stored model
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
    reports, missed = {name: mine}, {name: zoo.flagged([*mine.values(), *again])}
    for m in stored_models(root) if title and zoo.model_files(root).entries() else ():
        if m.seed or "weights" not in m.files or (m.data, {r.classes for r in m.reports}) != (
                title, {test.classes}):
            continue
        sizes = {sum(r.nat.counts) for r in m.reports}  # less than the whole test set has others
        stored = {a: s for a, r in mine.items() for s in zoo.under(m.reports, a, r.eps)
                  if s.nat.counts == r.nat.counts and len(test) in sizes}
        for a in (a for a in attacks if per_class and a not in stored):
            stored[a] = evaluate(zoo.load_model(m.name, root=root), images, a, progress=False)
        if attacks[0] in stored and m.name != name:
            reports[m.name] = {a: stored[a] for a in mine if a in stored}
            missed[m.name] = zoo.flagged(m.reports)
    order = sorted(reports, key=lambda n: (n != name, missed[n], reports[n][attacks[0]].rob.worst))
    table = Benchmark.of({n: reports[n] for n in order}, missed)
    table.attrs["note"] = [f"Average / worst class. Data: {title or 'your own'}.", *(
        f"{a} {budget(r.eps)}: {sum(r.nat.counts):,} images." for a, r in mine.items())]
    return table


def spread(name: str, kind: str = "rob", which: str = "mean", attack: str = "pgd20",
           eps: float = 8 / 255, *, minus: str = "", root: Root = None) -> Spread:
    """An error over the seeds of a recipe: `kind` is nat, rob or bnd; `which` is mean, worst, or a
    class. With `minus`, its difference from that recipe, seed by seed on the same images."""
    values, other = dict[tuple[str, int], float](), minus or name
    models = {(m.name, m.seed): m.reports for m in _comparable((name, other), root)}
    for key, r in next(iter(zoo.columns(models, attack, eps)), {}).items():
        errors = pick({"nat": r.nat, "rob": r.rob, "bnd": r.bnd}, kind, "kind of error")
        of_class = dict(zip(r.classes, errors.by_class.tolist(), strict=True))
        values[key] = pick({"mean": errors.mean, "worst": errors.worst, **of_class}, which,
                           "average or class")
    paired = [value - (values[minus, seed] if minus else 0) for (recipe, seed), value in
              sorted(values.items()) if recipe == name and (other, seed) in values]
    if not paired:
        raise CourseError(f"No seed of {name} {minus and f'and {minus} '}is examined by {attack} "
                          f"at {budget(eps)} on the same images: make examine WHICH={name}")
    return Spread.of(paired)


def history(name: str, word: str = "loss", *, root: Root = None) -> pd.DataFrame:
    """One row per epoch, means over the seeds of a recipe: the loss or lr; nat or rob, the errors
    on validation data; or a part of the method's state such as lam0, one column per class."""
    runs, classes = [], list[str]()
    for m in seeds_of(name, root=root):
        classes = m.record["made_from"]["classes"]
        rows = [{**row["state"], **(row["validation"] or [{}])[-1], **row}
                for row in m.record["history"]]
        runs.append([pick(row, word, "part of a history") for row in rows])
    values = np.mean(runs, axis=0)
    return pd.DataFrame(values, pd.RangeIndex(1, len(values) + 1, name="epoch"),
                        [word] if values.ndim == 1 else [*classes, "all"][:values.shape[1]])


def interval(s: Spread, digits: int = 1, sign: str = "") -> str:
    """A mean with its 95 % interval, in percent; `sign="+"` is for differences.

    >>> interval(Spread.of([0.1, 0.2, 0.3]), sign="+")
    '+20.0 [-4.8, +44.8]'
    """
    mean, low, high = (f"{100 * v:{sign}.{digits}f}" for v in (s.mean, s.low, s.high))
    return mean if s.n == 1 else f"{mean} [{low}, {high}]"


def prediction(s: Spread) -> tuple[float, float]:
    """The 95 % interval for the value of one more training.

    >>> [round(end, 2) for end in prediction(Spread.of([0.1, 0.2, 0.3]))]
    [-0.3, 0.7]
    """
    # mean -+ t_{n-1} sd sqrt(1 + 1/n)
    reach = t95(s.n - 1) * s.sd * math.sqrt(1 + 1 / s.n)
    return s.mean - reach, s.mean + reach


def verdict(s: Spread, near: float = 0.01) -> str:
    """A difference in one word; "no difference" only if the interval is within `near` of zero.

    >>> verdict(Spread.of([-0.10, -0.20, -0.15])), verdict(Spread.of([0.1, -0.2]))
    ('lower', 'inconclusive')
    """
    if s.n == 1:
        return "one seed"
    if s.high < 0 or s.low > 0:
        return "lower" if s.high < 0 else "higher"
    return "no difference" if max(-s.low, s.high) <= near else "inconclusive"


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
    from 0, are shuffled: what chance alone does to groups of these sizes.

    >>> permuted_ranges([0, 0, 1, 1], [0, 1, 0, 1], times=3).tolist()
    [1.0, 0.0, 1.0]
    """
    values, groups = np.asarray(values, float), np.asarray(groups)
    rng, counts = np.random.default_rng(0), np.bincount(groups)
    return np.array([np.ptp(np.bincount(rng.permutation(groups), values) / counts)
                     for _ in range(times)])


def _by_recipe(patterns: Sequence[str], root: Root) -> Iterator[list[StoredModel]]:
    return ([*group] for _, group in groupby(stored_models(root, *patterns), lambda m: m.name))


def _comparable(names: Sequence[str], root: Root) -> list[StoredModel]:
    """The stored models of these recipes, if all have one data set and the same classes."""
    models = seeds_of(*names, root=root)
    kinds = {(m.data, *sorted(r.classes)): m.name for m in models for r in m.reports}
    if len(kinds) > 1:
        given = "; ".join(f"{name}: {', '.join(kind)}" for kind, name in kinds.items())
        raise CourseError(f"These are models of different data sets or classes: {given}. Give "
                          "models with the same.")
    return models


def _errors(models: Sequence[StoredModel], attack: str | None = None,
            eps: float | str | None = None, images: int | None = None,
            by_class: bool = False) -> Iterator[Row]:
    """One row per model, figure and attack, as `results` describes them."""
    # PGD reads '8/255', too
    level = None if eps is None else PGD(eps=cast(float, eps), scale=(1.0,)).eps
    chosen = {(m.name, m.seed): zoo.under(m.reports, attack, level) for m in models}
    missed = {(m.name, m.seed) for m in models if zoo.flagged(m.reports)}
    attacks = dict.fromkeys((r.attack, r.eps) for mine in chosen.values() for r in mine)
    for name, at in ((None, None), *attacks):  # the first is for standard errors
        kind = "standard" if name is None else "robust"
        found = zoo.columns(chosen, name, at, images)
        for (recipe, seed), r in (pair for column in found[:None if name == "autoattack" else 1]
                                  for pair in column.items()):
            words, errors = ([], r.nat) if name is None else ([*r.warnings], r.rob)
            if name == "pgd20" and at and abs(at - 8 / 255) < 1e-6 and (recipe, seed) in missed:
                words.append(MISSED)
            row = {"recipe": recipe, "seed": seed, "attack": name or "", "eps": at or 0.0,
                   "data": models[0].data, "warnings": "; ".join(words)}
            if by_class:
                yield from ({**row, "class": c, "figure": kind, "error": 100 * e, "images": n}
                            for c, e, n in zip(r.classes, errors.by_class.tolist(), errors.counts,
                                               strict=True))
            else:
                figures = {"average": errors.mean, "worst class": errors.worst}
                yield from ({**row, "figure": f"{kind} {figure}", "error": 100 * value,
                             "images": sum(errors.counts)} for figure, value in figures.items())


def wide(models: Sequence[StoredModel]) -> list[Row]:
    """The errors of each model under TITLES; each column is on the same images."""
    table: dict[tuple[str, int], Row] = {(m.name, m.seed): {} for m in models}
    images: dict[str, int] = {}
    for row in _errors(models):
        title = TITLES.get((row["attack"], round(255 * row["eps"], 2)))
        if title and images.setdefault(title, row["images"]) == row["images"]:
            mine, which = table[row["recipe"], row["seed"]], row["figure"].split()[1]
            mine[f"{title} {'avg' if which == 'average' else which}"] = row["error"]
            if row["attack"] == "autoattack":
                mine["AutoAttack images"] = row["images"]
    return list(table.values())


def _scores(models: Sequence[StoredModel]) -> Iterator[Row]:
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


def _paired(rows: Iterable[Row], names: Sequence[str]) -> Table:
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
    pairs["warnings"] = [*map(joined, pairs[["warnings", "warnings before"]].values)]
    table = _over_seeds(pairs, "minus")
    table["verdict"] = [verdict(Spread(*row), near=1) for row in
                        table[["mean", "sd", "low", "high", "n"]].itertuples(index=False)]
    return table.rename(columns={"mean": "difference"})


def _over_seeds(rows: Iterable[Row] | pd.DataFrame, *more: str) -> Table:
    """Mean, sd, interval and n of the rows that differ in nothing but the seed."""
    keys = ["recipe", *more, *FACTS]
    table = pd.DataFrame(rows, columns=[*keys, "error", "warnings"])
    groups = table.groupby(keys, sort=False).agg(list)
    return Table([{**dict(zip(keys, key, strict=True)), **vars(Spread.of(errors)),
                   "warnings": joined(words)} for key, errors, words in groups.itertuples()],
                 columns=[*keys, "mean", "sd", "low", "high", "n", "warnings"])


def how_long(recipes: Sequence[str], full: bool) -> str:
    """How long the recipes' trainings took, the median over their seeds; with `full` an error if
    together they are too much for a CPU."""
    times = {name: statistics.median(m.record["seconds"] for m in stored_models(None, name))
             for name in recipes}
    if full and (total := sum(times.values())) > LONGEST:
        raise CourseError(f"FULL would take about {total / 3600:.0f} hours here, since this "
                          "runtime has no GPU. In Colab: Runtime, Change runtime type, T4 GPU, "
                          "then run everything again. Or leave FULL off: no result needs it.")
    return "\n".join(f"{name}: {seconds / 60:.1f} minutes on one CPU core (measured)"
                     for name, seconds in times.items())


def joined(words: Iterable[str]) -> str:
    """Warnings in one cell, each once."""
    return "; ".join(dict.fromkeys(filter(None, words)))
