"""What the explorer shows, without widgets.

    from course_lib.explorer.views import Explorer
    drawing = Explorer().look("errors", "exp1/natural", "exp1/pgd-at", eps=8)
    plots.show(drawing.ax, alt=drawing.alt)

A Choice says which models, attack and images; a Drawing is the figure, its text and its numbers.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course_lib import diagnostics, plots
from course_lib.attacks import ATTACKS, PGD
from course_lib.errors import CourseError, pick, whole
from course_lib.explorer.curves import Curve, compute_curve
from course_lib.explorer.sources import Source, from_folder, images_of, stored
from course_lib.fairness import Report
from course_lib.scores import cau, success
from course_lib.zoo import budget
from course_lib.zoo import images as count

STORED = "stored"  # PGD-20 on every test image, whose predictions are stored beside the models
SLOW = PGD(step_size=0.4 / 255, steps=100, start="clean")  # small steps, to count them
PAGE = 12  # images of a cell
VECTORS = {"lam0": "λ of the standard error", "lam1": "λ of the boundary error",
           "margin": "margin (× ε)"}
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

    def __init__(self, models: Sequence[str] | None = None, root: Path | None = None) -> None:
        every = stored(root)
        self.models = every if models is None else {m: pick(every, m, "model") for m in models}
        if not self.models:
            raise CourseError("There is no model with weights to explore. Run `make models`, or "
                              "give names from list_models().")
        self.live: dict[tuple[Source, str, int, int], Curve] = {}
        self.walks: dict[tuple[Source, int, int], tuple[Tensor, diagnostics.Steps]] = {}
        self.figure = Figure(layout="constrained")  # all views share it

    def add(self, folder: str | Path) -> list[str]:
        """Add the models of a folder of one's own; returns their labels."""
        sources = from_folder(folder)
        self.models |= sources
        return list(sources)

    def source(self, label: str) -> Source:
        return pick(self.models, label, "model")

    def curve(self, label: str, choice: Choice) -> Curve:
        """The model's predictions: stored ones, or those of an attack that was run."""
        source, attack = self.source(label), choice.attack
        if attack == STORED:
            return source.curve
        key = (source, attack, choice.eps, choice.per_class)
        if key not in self.live:
            raise CourseError(f"{label} has not been attacked by {attack} at {choice.eps}/255 on "
                              f"{choice.per_class} images per class yet: press Attack now.")
        return self.live[key]

    def attack(self, choice: Choice,
               tick: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Run the live attack on the chosen models; `tick(done, total)` counts images."""
        pick(ATTACKS, choice.attack, "live attack")
        keys = [(self.source(m), choice.attack, choice.eps, choice.per_class)
                for m in choice.models]
        todo = [key for key in keys if key not in self.live]

        def counted(k: int) -> Callable[[int, int], None]:
            return lambda done, total: tick(k * total + done, len(todo) * total)

        for k, (source, attack, eps, n) in enumerate(todo):
            self.live[source, attack, eps, n] = compute_curve(
                source.model, images_of(source.classes), attack, (eps,), per_class=n, batch=50,
                tick=counted(k))

    def look(self, view: str, *models: str, attack: str = STORED, eps: int = 8, row: str = "",
             column: str = "", number: int = 1, score: str = "") -> Drawing:
        """Draw a view without widgets. `row` and `column` are class names; without them the cell is
        the first model's most frequent mistake."""
        choice = Choice(view, tuple(m for m in models if m) or Choice.models, attack,
                        whole(eps, "eps (of 255)", 0), number=number, score=score)
        if attack != STORED:
            self.attack(choice)
        if view in CELLS:
            choice = self.mistake(choice)
            places = {c: i for i, c in enumerate(self.detail(choice).classes)}
            choice = replace(choice, number=number,
                             row=pick(places, row, "class") if row else choice.row,
                             column=pick(places, column, "class") if column else choice.column)
        return self.draw(choice)

    def mistake(self, choice: Choice) -> Choice:
        """The same choice at the most frequent mistake of its model."""
        matrix = self.curve(self.detail(choice).label, choice).confusion(choice.eps)
        row, column = divmod(int(matrix.fill_diagonal_(0).argmax()), len(matrix))
        return replace(choice, row=row, column=column, number=1)

    def draw(self, choice: Choice) -> Drawing:
        if not 1 <= len(choice.models) <= 2:
            raise CourseError(f"{len(choice.models)} models were chosen; the explorer shows one or "
                              "two.")
        view = pick(VIEWS, choice.view, "view")
        self.figure.clear()
        with matplotlib.rc_context(plots.STYLE):
            return Drawing(self.figure, *view(self, choice))

    def axes(self, columns: int, width: float, height: float, *, rows: int = 1,
             **words: Any) -> list[Axes]:
        self.figure.set_size_inches(width, height)
        return list(self.figure.subplots(rows, columns, squeeze=False, **words).flat)

    def detail(self, choice: Choice) -> Source:
        """The model whose cell and history are shown."""
        return self.source(choice.models[min(choice.of, len(choice.models) - 1)])

    def places(self, choice: Choice) -> Tensor:
        """The places in the test split of the images in the chosen cell."""
        curve = self.curve(self.detail(choice).label, choice)
        return curve.cell(choice.eps, choice.row, choice.column)

    def scores(self, models: Sequence[str]) -> list[str]:
        """The unfairness scores that all of these models have; none if one cannot be read."""
        try:
            first, *others = (scores_in(self.source(m).record) for m in models)
        except CourseError:
            return []
        return [name for name in first if all(name in other for other in others)]

    def walk(self, label: str, choice: Choice) -> tuple[Tensor, diagnostics.Steps]:
        """Confusion over the attack's steps, and steps until each image is wrong, on the first
        images of each class."""
        source, eps, n = self.source(label), choice.eps, choice.per_class
        if (source, eps, n) not in self.walks:
            part, quick, slow = images_of(source.classes).per_class(n), diagnostics.QUICK, SLOW
            self.walks[source, eps, n] = (
                diagnostics.confusion_path(source.model, part, quick.at(eps / 255)),
                diagnostics.steps_to_wrong(source.model, part, slow.at(eps / 255)))
        return self.walks[source, eps, n]


def _attack(choice: Choice, curve: Curve) -> str:
    name = "PGD-20" if choice.attack == STORED else choice.attack
    return f"{name} at {choice.eps}/255 on {len(curve.y)} test images"


def _curves(x: Explorer, choice: Choice) -> dict[str, Curve]:
    """The curves of models that can be compared class by class."""
    curves = {m: x.curve(m, choice) for m in choice.models}
    _same(choice.models, [c.classes for c in curves.values()])
    return curves


def _same(models: Sequence[str], names: Sequence[Sequence[str]]) -> None:
    if any(n != names[0] for n in names):
        raise CourseError(f"{' and '.join(models)} have different classes or groups. Choose two "
                          "models of one data set.")


def errors(x: Explorer, choice: Choice) -> Drawn:
    """Errors per class: two models under attack, or one model clean and under attack."""
    curves = _curves(x, choice)
    reports = {m: c.report(choice.eps) for m, c in curves.items()}
    (first, report), (ax,) = next(iter(reports.items())), x.axes(1, 9, 3.8)
    if len(reports) == 1:
        plots.class_bars({f"{first}, clean": report, f"{first}, under attack": report}, ax,
                         kind=["nat", "rob"])
    else:
        plots.class_bars(reports, ax)
    ax.set_ylim(0, 104)
    alt = [f"{m}: average {100 * r.rob.mean:.1f} % (clean {100 * r.nat.mean:.1f} %), worst class "
           f"{r.worst_class} {100 * r.rob.worst:.1f} %." for m, r in reports.items()]
    rows = [{"model": m, "class": c, "images": n, "standard error": a / n, "robust error": b / n,
             "low": low, "high": high}
            for m, r in reports.items()
            for c, n, a, b, (low, high) in zip(r.classes, r.nat.counts, r.nat.wrong, r.rob.wrong,
                                               r.rob.intervals(), strict=True)]
    return " ".join([f"Errors by class under {_attack(choice, curves[first])}, with 95 % "
                     "intervals.", *alt]), rows


def budgets(x: Explorer, choice: Choice) -> Drawn:
    """Every class's error over all budgets."""
    curves = {m: x.curve(m, choice) for m in choice.models}
    alt, rows = ["Robust error of each class against the budget of the attack."], []
    for ax, (label, curve) in zip(x.axes(len(curves), 9, 3.8, sharey=True), curves.items(),
                                  strict=True):
        order = np.argsort(-curve.errors(choice.eps).by_class, kind="stable")
        hardest, easiest = curve.classes[order[0]], curve.classes[order[-1]]
        plots.budget_curves({eps / 255: curve.report(eps) for eps in curve.eps}, ax,
                            named=[hardest, easiest])
        ax.axvline(choice.eps, color="0.4", lw=1, ls=":")
        ax.set_xticks(curve.eps[:: max(1, len(curve.eps) // 8)])
        ax.set_title(label, fontsize=10, pad=22)
        rows += [{"model": label, "eps": eps, "class": c, "error": e} for eps in curve.eps
                 for c, e in zip(curve.classes, curve.errors(eps).by_class.tolist(), strict=True)]
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
        ax.add_patch(Rectangle((choice.column - 0.5, choice.row - 0.5), 1, 1, fill=False,
                               ec=plots.COLOURS[5], lw=2.5))
        ax.set_title(f"{label}, {title}", fontsize=10)
        rows += [{"model": label, "eps": eps, "class": a, "taken for": b,
                  "share": float(shares[i, j])}
                 for i, a in enumerate(curve.classes) for j, b in enumerate(curve.classes)]
    return (f"Confusion matrices of {label}, clean and under {_attack(choice, curve)}; rows are "
            f"the true classes. The framed cell: {_mistaken(x, choice)} under attack."), rows


def _mistaken(x: Explorer, choice: Choice) -> str:
    classes = x.detail(choice).classes
    return (f"{len(x.places(choice))} images of {classes[choice.row]} are taken for "
            f"{classes[choice.column]}")


def cell(x: Explorer, choice: Choice) -> Drawn:
    """The images of one cell of the confusion matrix."""
    source, places = x.detail(choice), x.places(choice)
    a, b = (source.classes[c] for c in (choice.row, choice.column))
    (ax,) = x.axes(1, 9, 3.4)
    first = (min(choice.number, max(1, len(places))) - 1) // PAGE * PAGE
    page, numbers = places[first : first + PAGE], range(first + 1, len(places) + 1)[:PAGE]
    alt = (f"{_mistaken(x, choice)} by {source.label} under "
           f"{_attack(choice, x.curve(source.label, choice))}.")
    if len(page):
        plots.images(images_of(source.classes).images(page), ax, titles=[str(n) for n in numbers],
                     columns=PAGE // 2, framed=[n == choice.number for n in numbers])
        alt += f" Shown: {numbers[0]} to {numbers[-1]}, as they are without the attack."
    else:
        ax.set_axis_off()
        ax.text(0.5, 0.5, f"No image of {a} is taken for {b}.", ha="center", va="center",
                transform=ax.transAxes)
    return alt, [{"model": source.label, "number": i, "test image": place, "class": a,
                  "taken for": b} for i, place in enumerate(places.tolist(), 1)]


def image(x: Explorer, choice: Choice) -> Drawn:
    """One image, clean and attacked; the models' probabilities before and after; and the walk."""
    places, test = x.places(choice), images_of(x.detail(choice).classes)
    _same(choice.models, [x.source(m).classes for m in choice.models])
    if not len(places):
        return cell(x, choice)
    place, n = int(places[min(choice.number, len(places)) - 1]), len(choice.models)
    clean, y = test.images([place]), int(test.y[place])
    axes = np.array(x.axes(3, 11, 3.1 * n, rows=n, width_ratios=[2.2, 3, 2.6])).reshape(n, 3)
    drawn = [_one_image(x.source(m), clean, y, choice, row)
             for m, row in zip(choice.models, axes, strict=True)]
    return (f"Test image {place}, {test.classes[y]}, under PGD-20 at {choice.eps}/255. "
            f"{' '.join(alt for alt, _ in drawn)}", [row for _, rows in drawn for row in rows])


def _one_image(source: Source, clean: Tensor, y: int, choice: Choice, axes: Any) -> Drawn:
    """One model's row of the view `image`."""
    model, classes, eps = source.model, source.classes, choice.eps
    attack = PGD(eps=eps / 255, step_size=max(1, eps / 4) / 255)
    walk = list(attack.path(model, clean, torch.tensor([y])))
    steps, right = torch.cat([z for z, _ in walk]), [bool(ok) for _, ok in walk]
    with torch.no_grad():
        p = model(torch.cat([clean, steps])).softmax(1)
    rival = int(p[-1].index_fill(0, torch.tensor(y), 0).argmax())
    plots.adversarial(clean[0], steps[-1], axes[0])
    axes[0].set_title(source.label, fontsize=10)
    plots.probabilities({"clean": p[0], "attacked": p[-1]}, classes, axes[1])
    plots.walk(p[1:][:, [y, rival]], right, axes[2], labels=[classes[y], classes[rival]])
    crosses = "never crosses" if all(right) else f"is first wrong at step {right.index(False)}"
    before, after = (f"{classes[int(q.argmax())]} ({float(q.max()):.0%})" for q in (p[0], p[-1]))
    return (f"{source.label} says {before} to the clean image and {after} to the attacked one; the "
            f"path {crosses}.",
            [{"model": source.label, "step": t, "right": ok,
              **dict(zip(classes, p[t + 1].tolist(), strict=True))} for t, ok in enumerate(right)])


def sides(x: Explorer, choice: Choice) -> Drawn:
    """Source-class fairness (which class is lost, and how soon) and target-class fairness (what its
    images are taken for)."""
    curves, label = _curves(x, choice), x.detail(choice).label
    classes, (over, soon, to) = curves[label].classes, x.axes(3, 11, 3.8)
    right = diagnostics.kept(x.walk(label, choice)[0])
    plots.class_curves((100 * right).tolist(), classes, over, start=0,
                       named=[classes[int(c)] for c in (right[-1].argmin(), right[-1].argmax())],
                       xlabel="step t of the attack", ylabel=f"still right (%), {label}")
    steps = {m: x.walk(m, choice)[1].mean for m in curves}
    plots.bars({m: t.tolist() for m, t in steps.items()}, classes, soon, scale=1,
               ylabel=f"mean steps withstood ({SLOW.steps}: never lost)")
    matrices = {m: c.confusion(choice.eps) for m, c in curves.items()}
    target = {m: diagnostics.targets(matrix, own=False) for m, matrix in matrices.items()}
    plots.bars({m: t.tolist() for m, t in target.items()}, classes, to,
               ylabel="share of the wrong answers (%)")
    to.axhline(100 / len(classes), color="0.4", lw=1, ls=":")
    rows = [{"model": m, "class": c, "mean steps": a, "share of wrong answers": b, "still right": r}
            for m in curves for c, a, b, r in zip(
                classes, steps[m].tolist(), target[m].tolist(),
                diagnostics.kept(matrices[m]).tolist(), strict=True)]
    alt = [f"{m}: {classes[int(np.argmin(steps[m]))]} is lost soonest ({np.min(steps[m]):.0f} "
           f"steps), {classes[int(t.argmax())]} takes {float(t.max()):.0%} of the wrong answers; "
           f"{float(diagnostics.from_uniform(t)):.0%} of them would have to move to be even."
           for m, t in target.items()]
    return " ".join([f"Left and middle: the first {choice.per_class} images of each class, live; "
                     f"right: {_attack(choice, curves[label])}.", *alt]), rows


def history(x: Explorer, choice: Choice) -> Drawn:
    """How the training went: the loss, the validation errors, and the method's state per class."""
    source = x.detail(choice)
    epochs, label = source.record.get("history", []), source.label
    if not epochs:
        raise CourseError(f"No training history of {label} is stored yet; its first row is written "
                          "at the end of the first epoch.")
    checks = [Report.from_json(e["validation"][0]) for e in epochs if e.get("validation")]
    vectors = {k: np.array([e["state"][k] for e in epochs]) for k in VECTORS
               if k in epochs[0].get("state", {})}
    vectors = {k: v for k, v in vectors.items() if np.ptp(v) > 1e-6}
    n = 1 + bool(checks) + len(vectors)
    down = -(-n // 3)
    first, *axes = x.axes(min(n, 3), 11 if n > 1 else 6, 3.2 * down, rows=down)
    plots.curves({"training loss": [e["loss"] for e in epochs]}, first)
    alt = (f"Training of {label}: the loss went from {epochs[0]['loss']:.3f} to "
           f"{epochs[-1]['loss']:.3f} in {len(epochs)} epochs.")
    if checks:
        lines = {"standard": [100 * r.nat.mean for r in checks],
                 "robust": [100 * r.rob.mean for r in checks],
                 "worst class": [100 * r.rob.worst for r in checks]}
        plots.curves(lines, axes.pop(0), ylabel="validation error (%)")
        alt += (f" Robust error on validation data at the last check: average "
                f"{lines['robust'][-1]:.1f} %, worst class {checks[-1].worst_class} "
                f"{lines['worst class'][-1]:.1f} %.")
    classes = checks[0].classes if checks else source.classes
    for key, values in vectors.items():
        plots.class_curves(values.tolist(), classes, axes.pop(0), ylabel=VECTORS[key],
                           named=[classes[c] for c in np.argsort(values[-1])[::-1][:2]])
    for ax in axes:
        ax.set_axis_off()
    return alt, [{"model": label, "epoch": e["epoch"], "loss": e["loss"], "rate": e["lr"]}
                 for e in epochs]


@dataclass(frozen=True)
class Score:
    """An unfairness score of a record: the largest of `values` minus the smallest."""

    axis: str  # the label of the values
    title: str  # the same in a sentence
    names: tuple[str, ...]  # classes, or groups with a label
    values: tuple[float, ...]
    value: tuple[float, ...]  # one number, or one per label
    share: bool = True  # fractions, shown in percent


def scores_in(record: Mapping[str, Any]) -> dict[str, Score]:
    """Every score of a record: CAU and CRU_s from its reports on the most images, the others as
    they are stored."""
    reports, scores = record.get("reports", []), dict[str, Score]()
    most = max(map(count, reports), default=0)
    for report in (Report.from_json(r) for r in reports if count(r) == most):
        right, hit = 1 - report.nat.by_class, success(report)
        scores.setdefault("CAU", Score("accuracy", "accuracy of each class", report.classes,
                                       tuple(right), (cau(report),)))
        attack = f"{report.attack} at {budget(report.eps)}"
        scores[f"CRU_s, {attack}"] = Score("attack's success", f"success of {attack} on each class",
                                           report.classes, tuple(hit), (float(np.ptp(hit)),))
    for row in record.get("scores", []):
        if row.get("score") == "CRU_eps":
            scores[f"CRU_eps, {row['estimator']}"] = Score(
                "mean least ε", f"mean least ε of each class, found by {row['estimator']}, at most "
                f"{row['cap']:.3g}", tuple(row["classes"]), tuple(row["by_class"]),
                (row["value"],), share=False)
        if row.get("score") == "EOU":
            scores[f"EOU, {row['group']}"] = Score(
                "mean confidence", f"mean confidence in class 1 of each {row['group']}, by true "
                "label", tuple(f"{g}, label {label}" for label in (0, 1) for g in row["groups"]),
                tuple(v for means in row["means"] for v in means), tuple(row["value"]))
    return scores


def unfairness(x: Explorer, choice: Choice) -> Drawn:
    """One stored unfairness score, split into the classes or groups that it is a range over."""
    common = x.scores(choice.models)
    if not common:
        raise CourseError(f"{' and '.join(choice.models)} have no stored score in common. "
                          "Compute them: python -m course_lib score NAME")
    name = pick({n: n for n in common}, choice.score or common[0], "score")
    scores = {m: scores_in(x.source(m).record)[name] for m in choice.models}
    _same(choice.models, [s.names for s in scores.values()])
    first, (ax,) = next(iter(scores.values())), x.axes(1, 9, 3.8)
    times, unit = (100.0, " points") if first.share else (1.0, "")
    plots.bars({m: s.values for m, s in scores.items()}, first.names, ax,
               ylabel=first.axis + " (%)" * first.share, scale=times)
    alt = [f"{m}: {' and '.join(f'{times * v:.4g}' for v in s.value)}{unit} between the lowest "
           "and the highest." for m, s in scores.items()]
    return " ".join([f"{name}: {first.title}.", *alt]), [
        {"model": m, "score": name, "of": n, "value": v} for m, s in scores.items()
        for n, v in zip(s.names, s.values, strict=True)]


VIEWS: dict[str, Callable[[Explorer, Choice], Drawn]] = {
    "errors": errors, "budgets": budgets, "confusion": matrix, "cell": cell, "image": image,
    "fairness": sides, "scores": unfairness, "history": history,
}
CELLS = ("confusion", "cell", "image")  # the views of one cell
