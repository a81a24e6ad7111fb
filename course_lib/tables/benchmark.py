"""Your model beside the stored ones."""

from typing import Any, ClassVar

from course_lib.data import Dataset, Split, load
from course_lib.errors import pick
from course_lib.evaluation import evaluate
from course_lib.fairness import Report
from course_lib.tables import MISSED, joined
from course_lib.tables.display import Table
from course_lib.zoo import Root, budget, flagged, load_model, model_files, stored_models, under


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
        stored = {a: s for a, r in mine.items() for s in under(m.reports, a, r.eps)
                  if s.nat.counts == r.nat.counts}
        for a in (a for a in attacks if per_class and a not in stored):
            stored[a] = evaluate(load_model(m.name, root=root), images, a, progress=False)
        if attacks[0] in stored:
            reports[m.name], missed[m.name] = stored, flagged(m.reports)
    order = sorted(reports, key=lambda n: (n != name, missed[n], reports[n][attacks[0]].rob.worst))
    table = Benchmark([_in_percent(n, reports[n], attacks[0], MISSED * missed[n]) for n in order])
    table.reports = {n: reports[n] for n in order}
    table.attrs["note"] = [f"Average / worst class. Data: {title or 'your own'}.", *(
        f"{a} {budget(r.eps)}: {sum(r.nat.counts):,} images." for a, r in mine.items())]
    return table


def _in_percent(model: str, reports: dict[str, Report], first: str, word: str) -> dict[str, Any]:
    """A row of `benchmark`: standard errors, and those under each attack."""
    errors = {"standard": reports[first].nat, **{a: r.rob for a, r in reports.items()}}
    words = joined([*(w for r in reports.values() for w in r.warnings), word])
    return {"model": model, "warnings": words, **{
        f"{a}{end}": 100 * v for a, e in errors.items()
        for end, v in (("", e.mean), (" worst", e.worst))}}
