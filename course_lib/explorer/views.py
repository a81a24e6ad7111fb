"""What the explorer shows, without widgets.

    from course_lib.explorer.views import Explorer
    drawing = Explorer().look("errors", "exp1/natural", "exp1/pgd-at", eps=8)
    plots.show(drawing.ax, alt=drawing.alt)

A Choice says which models, attack and images; a Drawing is the figure, its text and its numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from course_lib import diagnostics, plots, zoo
from course_lib.attacks import ATTACKS, PGD
from course_lib.data import Split
from course_lib.errors import CourseError, integer, pick, several
from course_lib.explorer.curves import Curve, compute_curve
from course_lib.explorer.sources import Source, images_of, in_hand, stored
from course_lib.fairness import Report
from course_lib.scores import success

STORED = "stored"  # PGD-20 on every test image, whose predictions are stored beside the models
SLOW = PGD(step_size=0.4 / 255, steps=100, start="clean")  # small steps, to count them
PAGE = 12  # images of a cell
Rows = list[dict[str, Any]]
Drawn = tuple[str, Rows]


@dataclass(frozen=True)
class Choice:
    """One or two models, an attack and its budget, and one image in a cell of the confusion
    matrix."""

    view: str = "errors"
    models: tuple[str, ...] = ("exp1/natural", "exp1/pgd-at")
    attack: str = STORED
    eps: int = 8  # grey levels of 255
    of: int = 0  # the model whose cell and history are shown
    row: int = 0  # the true class of the images
    column: int = 0  # the predicted class
    number: int = 1  # which image of the cell, from 1
    per_class: int = 20  # images per class that a live attack takes
    score: str = ""  # which of the stored unfairness scores; by default the first


@dataclass(frozen=True)
class Drawing:
    """A figure, its description in words, and its numbers."""

    figure: Figure
    alt: str
    rows: Rows

    @property
    def ax(self) -> Axes:
        return self.figure.axes[0]

    def png(self, dpi: int = 90) -> bytes:
        file = io.BytesIO()
        with matplotlib.rc_context(plots.STYLE):
            self.figure.savefig(file, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
        return file.getvalue()


class Explorer:
    """The models, the results computed so far, and the views.

    Stored curves are shown at once. A live attack has to be run first; its result is remembered.
    """

    def __init__(self, models: Any = None, root: Path | None = None) -> None:
        every = stored(root)
        models = {"mine": models} if isinstance(models, nn.Module) else models
        self.mine = ({label: in_hand(label, model) for label, model in models.items()}
                     if isinstance(models, Mapping) else {})
        if same := {source.classes for source in self.mine.values()}:
            fit = {label: source for label, source in every.items() if source.classes in same}
            self.models = self.mine | fit | self.mine
        else:
            self.models = every if models is None else {
                m: pick(every, m, "model") for m in several(models)}
        if not self.models:
            raise CourseError("There is no model with weights to explore. Run `make models`, or "
                              "give names from list_models().")
        self.live: dict[tuple[Source, str, int, int], Curve] = {}
        self.figure = Figure(layout="constrained")  # all views share it

    def source(self, label: str) -> Source:
        return pick(self.models, label, "model")

    def curve(self, label: str, choice: Choice) -> Curve:
        """The model's predictions: stored ones, or those of an attack that was run."""
        key = (self.source(label), choice.attack, choice.eps, choice.per_class)
        if choice.attack == STORED:
            return key[0].curve
        if key not in self.live:
            raise CourseError(f"{label} has not been attacked by {choice.attack} at "
                              f"{choice.eps}/255 on {choice.per_class} images per class yet: press "
                              "Attack now.")
        return self.live[key]

    def waiting(self, choice: Choice) -> list[Source]:
        """The chosen models on which the live attack has not been run."""
        return [s for s in map(self.source, choice.models)
                if (s, choice.attack, choice.eps, choice.per_class) not in self.live]

    def attack(self, choice: Choice,
               tick: Callable[[int, int], None] = lambda images, total: None) -> None:
        """Run the live attack on the chosen models; `tick` gets the images of each batch, and of
        all."""
        pick(ATTACKS, choice.attack, "live attack")
        settings, todo = (choice.attack, choice.eps, choice.per_class), self.waiting(choice)
        total = sum(len(images_of(s.classes).per_class(choice.per_class)) for s in todo)
        for source in todo:
            self.live[source, *settings] = compute_curve(
                source.model, images_of(source.classes), choice.attack, (choice.eps,),
                per_class=choice.per_class, batch=50, tick=lambda n: tick(n, total))

    def look(self, view: str, *models: str, attack: str = STORED, eps: int = 8, row: str = "",
             column: str = "", number: int = 1, score: str = "") -> Drawing:
        """Draw a view without widgets. `row` and `column` are class names; without them the cell is
        the first model's most frequent mistake."""
        uses = pick(VIEWS, view, "view").uses
        choice = Choice(view, tuple(m for m in models if m) or Choice.models, attack,
                        integer(eps, "eps (of 255)", 0), number=number, score=score)
        if attack != STORED:
            self.attack(choice)
        if "cell" in uses:
            i, j = self.mistake(choice)
            classes = {c: k for k, c in enumerate(self.detail(choice).classes)}
            choice = replace(choice, row=pick(classes, row, "class") if row else i,
                             column=pick(classes, column, "class") if column else j)
        return self.draw(choice)

    def draw(self, choice: Choice) -> Drawing:
        if not 1 <= len(choice.models) <= 2:
            raise CourseError(f"{len(choice.models)} models were chosen; the explorer shows one or "
                              "two.")
        view = pick(VIEWS, choice.view, "view")
        if view.compares and len({self.source(m).classes for m in choice.models}) > 1:
            raise CourseError(f"{' and '.join(choice.models)} have different classes. Choose two "
                              "models of one data set.")
        self.figure.clear()
        with matplotlib.rc_context(plots.STYLE):
            return Drawing(self.figure, *view.draw(self, choice))

    def axes(self, columns: int, width: float, height: float, *, rows: int = 1,
             **words: Any) -> list[Axes]:
        self.figure.set_size_inches(width, height)
        return list(self.figure.subplots(rows, columns, squeeze=False, **words).flat)

    def detail(self, choice: Choice) -> Source:
        """The model whose cell and history are shown."""
        return self.source(choice.models[min(choice.of, len(choice.models) - 1)])

    def mistake(self, choice: Choice) -> tuple[int, int]:
        """The true and the predicted class of that model's most frequent mistake."""
        matrix = self.curve(self.detail(choice).label, choice).confusion(choice.eps)
        return divmod(int(matrix.fill_diagonal_(0).argmax()), len(matrix))

    def cell(self, choice: Choice) -> tuple[Tensor, str]:
        """The places in the test split of the images in the chosen cell, and a sentence on them."""
        source = self.detail(choice)
        curve = self.curve(source.label, choice)
        places = curve.cell(choice.eps, choice.row, choice.column)
        a, b = (curve.classes[c] for c in (choice.row, choice.column))
        return places, (f"{len(places)} images of {a} are taken for {b} by {source.label} under "
                        f"{_attack(choice, curve)}.")

    def scores(self, models: Sequence[str]) -> list[str]:
        """The unfairness scores that all of these models have."""
        first, *others = (scores_in(self.source(m).record) for m in models)
        return [name for name in first if all(name in other for other in others)]


def _attack(choice: Choice, curve: Curve) -> str:
    name = "PGD-20" if choice.attack == STORED else choice.attack
    return f"{name} at {choice.eps}/255 on {len(curve.y)} test images"


def rows_of(columns: Mapping[str, Any]) -> Rows:
    """One row per place in the lists among the columns; any other value is in every row."""
    (n,) = {len(values) for values in columns.values() if isinstance(values, list)}
    lists = [values if isinstance(values, list) else [values] * n for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def errors(x: Explorer, choice: Choice) -> Drawn:
    """Errors per class, clean and under attack. A dashed line is a model's average under attack."""
    curves = {m: x.curve(m, choice) for m in choice.models}
    reports = {m: c.report(choice.eps) for m, c in curves.items()}
    (ax,), states = x.axes(1, 9, 3.8), ("clean", "under attack")
    plots.class_bars({f"{m}, {state}": r for m, r in reports.items() for state in states}, ax,
                     kind=["nat", "rob"] * len(reports))
    for i, r in enumerate(reports.values()):
        ax.axhline(100 * r.rob.mean, color=plots.COLOURS[2 * i + 1], lw=1, ls="--")
    ax.set_ylim(0, 104)
    alt = [f"{m}: average {100 * r.rob.mean:.1f} % (clean {100 * r.nat.mean:.1f} %), worst class "
           f"{r.worst_class} {100 * r.rob.worst:.1f} %." for m, r in reports.items()]
    rows = [row for m, r in reports.items() for row in rows_of({
        "model": m, "class": [*r.classes], "images": [*r.nat.counts],
        "standard error": r.nat.by_class.tolist(), "robust error": r.rob.by_class.tolist(),
        "low": r.rob.intervals()[:, 0].tolist(), "high": r.rob.intervals()[:, 1].tolist()})]
    return " ".join([f"Errors by class under {_attack(choice, curves[choice.models[0]])}, with "
                     "95 % intervals.", *alt]), rows


def budgets(x: Explorer, choice: Choice) -> Drawn:
    """Every class's error over all budgets."""
    curves = {m: x.curve(m, choice) for m in choice.models}
    alt, rows = ["Robust error of each class against the budget of the attack."], Rows()
    for ax, (label, curve) in zip(x.axes(len(curves), 9, 3.8, sharey=True), curves.items(),
                                  strict=True):
        reports, names = {eps: curve.report(eps) for eps in curve.eps}, curve.classes
        order = np.argsort(-curve.report(choice.eps).rob.by_class, kind="stable")
        hardest, easiest = names[order[0]], names[order[-1]]
        plots.budget_curves({eps / 255: report for eps, report in reports.items()}, ax,
                            named=[hardest, easiest])
        ax.axvline(choice.eps, color="0.4", lw=1, ls=":")
        ax.set_xticks(curve.eps[:: max(1, len(curve.eps) // 8)])
        ax.set_title(label, fontsize=10, pad=22)
        for eps, r in reports.items():
            rows += rows_of({"model": label, "eps": eps, "class": [*names],
                             "error": r.rob.by_class.tolist()})
        alt.append(f"{label}: at {choice.eps}/255 {hardest} is hardest, {easiest} easiest.")
    return " ".join(alt), rows


def matrix(x: Explorer, choice: Choice) -> Drawn:
    """The confusion matrix of one model, clean and under attack, in percent of each class."""
    label, rows = x.detail(choice).label, []
    curve = x.curve(label, choice)
    for ax, eps, title in zip(x.axes(2, 10, 4.4, sharey=True), (0, choice.eps),
                              ("clean", f"attacked, {choice.eps}/255"), strict=True):
        shares = diagnostics.shares(curve.confusion(eps)).numpy()
        plots.confusion(shares, curve.classes, ax, most=1.0)
        for text in list(ax.texts):  # drawing and measuring 200 texts is half of the time
            text.remove() if text.get_text() == "·" else text.set_in_layout(False)
        ax.add_patch(Rectangle((choice.column - 0.5, choice.row - 0.5), 1, 1, **plots.FRAME))
        ax.set_title(f"{label}, {title}", fontsize=10)
        for name, share in zip(curve.classes, shares.tolist(), strict=True):
            rows += rows_of({"model": label, "eps": eps, "class": name,
                             "taken for": [*curve.classes], "share": share})
    return (f"Confusion matrices of {label}, clean and attacked; rows are the true classes. The "
            f"framed cell: {x.cell(choice)[1]}"), rows


def cell(x: Explorer, choice: Choice) -> Drawn:
    """The images of one cell of the confusion matrix."""
    source, (places, alt), (ax,) = x.detail(choice), x.cell(choice), x.axes(1, 9, 3.4)
    a, b = (source.classes[c] for c in (choice.row, choice.column))
    first = (min(choice.number, max(1, len(places))) - 1) // PAGE * PAGE
    page, numbers = places[first : first + PAGE], range(first + 1, len(places) + 1)[:PAGE]
    if len(page):
        plots.images(images_of(source.classes).images(page), ax, titles=[str(n) for n in numbers],
                     columns=PAGE // 2, framed=[n == choice.number for n in numbers])
        alt += f" Shown: {numbers[0]} to {numbers[-1]}, as they are without the attack."
    else:
        ax.set_axis_off()
        ax.text(0.5, 0.5, f"No image of {a} is taken for {b}.", ha="center", va="center",
                transform=ax.transAxes)
    return alt, rows_of({"model": source.label, "number": [*range(1, len(places) + 1)],
                         "test image": places.tolist(), "class": a, "taken for": b})


def image(x: Explorer, choice: Choice) -> Drawn:
    """One image, clean and attacked; the models' probabilities before and after; and the walk."""
    places, test = x.cell(choice)[0], images_of(x.detail(choice).classes)
    if not len(places):
        return cell(x, choice)
    place, n = int(places[min(choice.number, len(places)) - 1]), len(choice.models)
    axes = np.array(x.axes(3, 11, 3.1 * n, rows=n, width_ratios=[2.2, 3, 2.6])).reshape(n, 3)
    drawn = [_one_image(x.source(m), test.take([place]), choice.eps, row)
             for m, row in zip(choice.models, axes, strict=True)]
    return (f"Test image {place}, {test.classes[test.y[place]]}, under PGD-20 at {choice.eps}/255. "
            f"{' '.join(alt for alt, _ in drawn)}", [row for _, rows in drawn for row in rows])


def _one_image(source: Source, part: Split, eps: int, axes: Any) -> Drawn:
    """One model's row of the view `image`."""
    model, classes, clean, y = source.model, source.classes, part.images(), int(part.y)
    attack = PGD(eps=eps / 255, step_size=max(1, eps / 4) / 255)
    walk = list(attack.path(model, clean, part.y))
    steps, right = torch.cat([z for z, _ in walk]), [bool(ok) for _, ok in walk]
    with torch.no_grad():
        p = model(torch.cat([clean, steps])).softmax(1)
    rival = int(p[-1].index_fill(0, part.y, 0).argmax())
    plots.adversarial(clean[0], steps[-1], axes[0])
    axes[0].set_title(source.label, fontsize=10)
    plots.probabilities({"clean": p[0], "attacked": p[-1]}, classes, axes[1])
    plots.walk(p[1:][:, [y, rival]], right, axes[2], labels=[classes[y], classes[rival]])
    crosses = "never crosses" if all(right) else f"is first wrong at step {right.index(False)}"
    before, after = (f"{classes[int(q.argmax())]} ({float(q.max()):.0%})" for q in (p[0], p[-1]))
    return (f"{source.label} says {before} to the clean image and {after} to the attacked one; the "
            f"path {crosses}.",
            rows_of({"model": source.label, "step": [*range(len(right))], "right": right,
                     **dict(zip(classes, p[1:].T.tolist(), strict=True))}))


@lru_cache
def walks(source: Source, eps: int, n: int) -> tuple[Tensor, diagnostics.Steps]:
    """Confusion over the attack's steps, and steps until each image is wrong, on the first n images
    of each class."""
    part, level = images_of(source.classes).per_class(n), eps / 255
    return (diagnostics.confusion_path(source.model, part, diagnostics.QUICK.at(level)),
            diagnostics.steps_to_wrong(source.model, part, SLOW.at(level)))


def sides(x: Explorer, choice: Choice) -> Drawn:
    """Source-class fairness (which class is lost, and how soon) and target-class fairness (what its
    images are taken for)."""
    curves, label = {m: x.curve(m, choice) for m in choice.models}, x.detail(choice).label
    classes, (over, soon, to) = curves[label].classes, x.axes(3, 11, 3.8)
    walked = {m: walks(x.source(m), choice.eps, choice.per_class) for m in curves}
    steps = {m: withstood.mean for m, (_, withstood) in walked.items()}
    right = diagnostics.kept(walked[label][0])
    plots.class_curves((100 * right).tolist(), classes, over, x=range(len(right)),
                       named=[classes[int(c)] for c in (right[-1].argmin(), right[-1].argmax())],
                       xlabel="step t of the attack", ylabel=f"still right (%), {label}")
    plots.bars({m: t.tolist() for m, t in steps.items()}, classes, soon, scale=1,
               ylabel=f"mean steps withstood ({SLOW.steps}: never lost)")
    matrices = {m: c.confusion(choice.eps) for m, c in curves.items()}
    target = {m: diagnostics.targets(matrix, own=False) for m, matrix in matrices.items()}
    plots.bars({m: t.tolist() for m, t in target.items()}, classes, to,
               ylabel="share of the wrong answers (%)")
    to.axhline(100 / len(classes), color="0.4", lw=1, ls=":")
    for ax in (soon, to):  # long names of ten classes under a narrow figure
        ax.tick_params(axis="x", labelrotation=60)
    rows = [row for m in curves for row in rows_of({
        "model": m, "class": [*classes], "mean steps": steps[m].tolist(),
        "share of wrong answers": target[m].tolist(),
        "still right": diagnostics.kept(matrices[m]).tolist()})]
    alt = [f"{m}: {classes[int(np.argmin(steps[m]))]} is lost soonest ({np.min(steps[m]):.0f} "
           f"steps), {classes[int(t.argmax())]} takes {float(t.max()):.0%} of the wrong answers; "
           f"{float(diagnostics.from_uniform(t)):.0%} of them would have to move to be even."
           for m, t in target.items()]
    return " ".join([f"Left and middle: the first {choice.per_class} images of each class, live; "
                     f"right: {_attack(choice, curves[label])}.", *alt]), rows


def history(x: Explorer, choice: Choice) -> Drawn:
    """How the training went: the loss, and the validation errors where there are some."""
    source = x.detail(choice)
    epochs, label = source.record.get("history", []), source.label
    if not epochs:
        raise CourseError(f"No training history of {label} is stored yet; its first row is written "
                          "at the end of the first epoch.")
    losses = [e["loss"] for e in epochs]
    checks = [Report.from_json(e["validation"][0]) for e in epochs if e.get("validation")]
    first, *second = x.axes(2, 11, 3.2) if checks else x.axes(1, 6, 3.2)
    plots.curves({"training loss": losses}, first)
    alt = (f"Training of {label}: the loss went from {losses[0]:.3f} to {losses[-1]:.3f} in "
           f"{len(epochs)} epochs.")
    for ax in second:
        lines = {"standard": [100 * r.nat.mean for r in checks],
                 "robust": [100 * r.rob.mean for r in checks],
                 "worst class": [100 * r.rob.worst for r in checks]}
        plots.curves(lines, ax, ylabel="validation error (%)")
        alt += (f" Robust error on validation data at the last check: average "
                f"{lines['robust'][-1]:.1f} %, worst class {checks[-1].worst_class} "
                f"{lines['worst class'][-1]:.1f} %.")
    return alt, rows_of({"model": label, "epoch": [e["epoch"] for e in epochs], "loss": losses,
                         "rate": [e["lr"] for e in epochs]})


class Score(NamedTuple):
    """An unfairness score of a record: the largest value minus the smallest, row by row."""

    title: str
    names: Sequence[str]  # classes, or groups with a label
    values: Sequence[Sequence[float]]  # one row, or one per label
    percent: bool = True  # the values are fractions


def scores_in(record: Mapping[str, Any]) -> dict[str, Score]:
    """Every score of a record: CAU and CRU_s from its reports on the most images, the others as
    they are stored."""
    reports, scores = record.get("reports", []), dict[str, Score]()
    most = max((sum(r["counts"]) for r in reports), default=0)
    for report in (Report.from_json(r) for r in reports if sum(r["counts"]) == most):
        right, lost = ([*map(float, values)] for values in (1 - report.nat.by_class,
                                                            success(report)))
        attack = f"{report.attack} at {zoo.budget(report.eps)}"
        scores.setdefault("CAU", Score("accuracy of each class", report.classes, [right]))
        scores[f"CRU_s, {attack}"] = Score(f"success of {attack} on each class", report.classes,
                                           [lost])
    for row in record.get("scores", []):
        if row.get("score") == "CRU_eps":
            scores[f"CRU_eps, {row['estimator']}"] = Score(
                f"mean least ε of each class, at most {row['cap']:.3g}", row["classes"],
                [row["by_class"]], percent=False)
        if row.get("score") == "EOU":
            names = [f"{group}, label {label}" for label in (0, 1) for group in row["groups"]]
            scores[f"EOU, {row['group']}"] = Score("mean confidence in class 1", names,
                                                   row["means"])
    return scores


def unfairness(x: Explorer, choice: Choice) -> Drawn:
    """One stored unfairness score, split into the classes or groups that it is a range over."""
    common = x.scores(choice.models)
    if not common:
        raise CourseError(f"{' and '.join(choice.models)} have no stored score in common. "
                          "Compute them: python -m course_lib score NAME")
    name = pick({n: n for n in common}, choice.score or common[0], "score")
    scores = {m: scores_in(x.source(m).record)[name] for m in choice.models}
    first, (ax,) = scores[choice.models[0]], x.axes(1, 9, 3.8)
    times, sign, points = (100.0, " (%)", " points") if first.percent else (1.0, "", "")
    values = {m: [v for row in s.values for v in row] for m, s in scores.items()}
    plots.bars(values, first.names, ax, ylabel=first.title + sign, scale=times)
    alt = [f"{m}: {' and '.join(f'{times * np.ptp(row):.4g}' for row in s.values)}{points} between "
           "the lowest and the highest." for m, s in scores.items()]
    return " ".join([f"{name}: {first.title}.", *alt]), [row for m in scores for row in rows_of(
        {"model": m, "score": name, "of": [*first.names], "value": values[m]})]


class View(NamedTuple):
    """One way to look at models: its title, the controls that it uses, and its figure."""

    title: str
    uses: Set[str]  # attack and budget, live attack, of (which model), cell, score
    draw: Callable[[Explorer, Choice], Drawn]
    compares: bool = False  # the models class by class


VIEWS = {
    "errors": View("Errors by class", {"attack"}, errors, True),
    "budgets": View("All budgets", {"attack"}, budgets),
    "confusion": View("Confusion matrix", {"attack", "of", "cell"}, matrix),
    "cell": View("Images of a cell", {"attack", "of", "cell"}, cell),
    "image": View("One image", {"attack", "of", "cell"}, image, True),
    "fairness": View("Source and target", {"attack", "live", "of"}, sides, True),
    "scores": View("Scores", {"score"}, unfairness, True),
    "history": View("Training", {"of"}, history),
}
