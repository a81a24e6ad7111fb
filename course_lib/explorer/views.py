"""What the explorer shows, without widgets: a Look says what is looked at, a View is what there is
to see.

    from course_lib.explorer.views import Explorer
    view = Explorer().look("errors", "exp1/natural", "exp1/pgd-at", eps=8)
    plots.show(view.ax, alt=view.alt)
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from course_lib.explorer import sources as gallery
from course_lib.explorer.curves import Curve, measure
from course_lib.explorer.sources import Seen
from course_lib.fairness import Report
from course_lib.scores import cau, success
from course_lib.zoo import budget, images

STORED = "stored"  # the attack whose answers lie beside the models: PGD-20 on every test image
# small steps, so that there is something to count
WITHSTOOD = PGD(step_size=0.4 / 255, steps=100, start="clean")
SHOWN = 12  # images of a cell
VECTORS = {
    "lam0": "λ of the standard error", "lam1": "λ of the boundary error", "margin": "margin (× ε)",
}


@dataclass(frozen=True)
class Look:
    """Where the reader stands: one or two models, an attack and its budget, and a cell of the
    confusion matrix with one image in it."""

    view: str = "errors"
    models: tuple[str, ...] = ("exp1/natural", "exp1/pgd-at")
    attack: str = STORED
    eps: int = 8  # grey levels of 255
    of: int = 0  # the model whose cell and history are shown
    row: int = 0  # the class the images are of
    column: int = 0  # the class they are taken for
    number: int = 1  # which image of the cell, from 1
    per_class: int = 20  # images of a class that a live attack takes
    score: str = ""  # which of the stored unfairness scores; the first of them without


@dataclass(frozen=True)
class View:
    """A figure, what it shows in words, and its numbers."""

    figure: Figure
    alt: str
    rows: list[dict[str, Any]]

    @property
    def ax(self) -> Axes:
        return self.figure.axes[0]

    def png(self, dpi: int = 90) -> bytes:
        drawn = io.BytesIO()
        with matplotlib.rc_context(plots.STYLE):
            self.figure.savefig(drawn, format="png", dpi=dpi, pil_kwargs={"compress_level": 1})
        return drawn.getvalue()


class Explorer:
    """The models, what was computed so far, and the views. Curves that are stored answer at once,
    everything else is kept once made."""

    def __init__(self, models: Sequence[str] | None = None, root: Path | None = None) -> None:
        every = gallery.stored(root)
        self.models = every if models is None else {name: pick(every, name, "model")
                                                    for name in models}
        if not self.models:
            raise CourseError("There is no model with weights to explore. Run `make models`, or "
                              "give names from list_models().")
        self.live: dict[tuple[str, str, int, int], Curve] = {}
        self.small: dict[tuple[str, int, int], tuple[Tensor, diagnostics.Steps]] = {}
        self.figure = Figure(layout="constrained")

    def add(self, folder: str | Path) -> list[str]:
        """Put what a folder of one's own holds among the models; the labels that came."""
        found = gallery.from_folder(folder)
        self.models |= found
        return list(found)

    def seen(self, label: str) -> Seen:
        return pick(self.models, label, "model")

    def curve(self, label: str, look: Look) -> Curve:
        """The model's answers at the budget looked at: stored ones, or those of an attack that was
        run."""
        if look.attack == STORED:
            return self.seen(label).curve()
        found = self.live.get((label, look.attack, look.eps, look.per_class))
        if found is None:
            raise CourseError(f"{label} has not been attacked by {look.attack} at {look.eps}/255 "
                              f"on {look.per_class} images a class yet: "
                              "press Attack now.")
        return found

    def attack(self, look: Look, tick: Callable[[int, int], None] = lambda done,
               total: None) -> None:
        """Run the live attack on what is looked at; `tick(done, total)` in images."""
        name = look.attack
        pick(ATTACKS, name, "live attack")
        todo = [m for m in look.models if (m, name, look.eps, look.per_class) not in self.live]
        for k, label in enumerate(todo):
            seen = self.seen(label)

            def counted(done: int, total: int, k: int = k) -> None:
                tick(k * total + done, len(todo) * total)

            self.live[label, name, look.eps, look.per_class] = measure(
                seen.model(), seen.test(), name, (look.eps,), per_class=look.per_class, batch=50,
                tick=counted
            )

    def look(self, view: str, *models: str, attack: str = STORED, eps: int = 8, row: str = "",
             column: str = "", number: int = 1,
             score: str = "") -> View:
        """A view without widgets. Without `row` and `column` the cell is the first model's most
        frequent mistake."""
        look = Look(view, tuple(m for m in models if m) or Look.models, attack,
                    whole(eps, "eps (of 255)", 0), number=number, score=score)
        if attack != STORED:
            self.attack(look)
        if view in CELLS:
            look = dataclasses.replace(self.mistake(look), **self._cell(look, row, column))
        return self.view(look)

    def _cell(self, look: Look, row: str, column: str) -> dict[str, Any]:
        """The places of class names, of those that were given."""
        places = {c: i for i, c in enumerate(self.curve(look.models[0], look).classes)}
        return {word: pick(places, name, "class") for word,
                name in (("row", row), ("column", column)) if name}

    def mistake(self, look: Look) -> Look:
        """The look at the most frequent mistake of the model in detail."""
        m = self.curve(look.models[look.of], look).confusion(look.eps).clone().fill_diagonal_(0)
        return dataclasses.replace(look, row=int(m.argmax()) // len(m),
                                   column=int(m.argmax()) % len(m), number=1)

    def view(self, look: Look) -> View:
        """Draw what is looked at into the one figure that all views share."""
        if not 1 <= len(look.models) <= 2:
            raise CourseError(f"{len(look.models)} models are to be shown; the explorer shows one, "
                              "or two side by side.")
        draw = pick(VIEWS, look.view, "view")
        self.figure.clear()
        with matplotlib.rc_context(plots.STYLE):
            alt, rows = draw(self, look)
        return View(self.figure, alt, rows)

    def axes(self, rows: int, columns: int, width: float, height: float,
             **words: Any) -> list[Axes]:
        self.figure.set_size_inches(width, height)
        return list(self.figure.subplots(rows, columns, squeeze=False, **words).flat)

    def detail(self, look: Look) -> Seen:
        return self.seen(look.models[min(look.of, len(look.models) - 1)])

    def scores(self, models: Sequence[str]) -> list[str]:
        """The unfairness scores that all of these models have; none where one of them cannot be
        read."""
        try:
            first, *rest = (scores_in(self.seen(m).record()) for m in models)
        except CourseError:
            return []
        return [name for name in first if all(name in other for other in rest)]

    def places(self, look: Look) -> Tensor:
        """Where in the test split the images of the chosen cell are."""
        return self.curve(self.detail(look).label, look).cell(look.eps, look.row, look.column)

    def withstood(self, label: str, look: Look) -> tuple[Tensor, diagnostics.Steps]:
        """Confusion over the attack's steps, and steps until each image is wrong, on the first
        images of each class."""
        key = (label, look.eps, look.per_class)
        if key not in self.small:
            seen, eps = self.seen(label), look.eps / 255
            part, model = seen.test().per_class(look.per_class), seen.model()
            path = diagnostics.confusion_path(model, part, diagnostics.QUICK.at(eps))
            self.small[key] = path, diagnostics.steps_to_wrong(model, part, WITHSTOOD.at(eps))
        return self.small[key]


@dataclass(frozen=True)
class Score:
    """An unfairness score of a record, opened up: it is the largest of `values` minus the
    smallest."""

    axis: str  # what each value is, in short
    what: str  # and in a sentence
    names: tuple[str, ...]  # classes, or groups under a label
    values: tuple[float, ...]
    value: tuple[float, ...]  # one number, or one for each label
    share: bool = True  # fractions, shown in percent


def scores_in(record: Mapping[str, Any]) -> dict[str, Score]:
    """Every score that a record holds: CAU and CRU_s from its reports on the most images, the
    others as they were made."""
    rows = record.get("reports", [])
    most = max(map(images, rows), default=0)
    found: dict[str, Score] = {}
    for report in (Report.from_json(r) for r in rows if images(r) == most):
        right, hit = 1 - report.nat.by_class, success(report)
        found.setdefault("CAU", Score("accuracy", "accuracy of each class", report.classes,
                                      tuple(right), (cau(report),)))
        which = f"{report.attack} at {budget(report.eps)}"
        hits = Score("attack's success", f"success of {which} on each class", report.classes,
                     tuple(hit), (float(np.ptp(hit)),))
        found[f"CRU_s, {which}"] = hits
    return found | dict(_made(row) for row in record.get("scores", [])
                        if row.get("score") in ("CRU_eps", "EOU"))


def _made(row: Mapping[str, Any]) -> tuple[str, Score]:
    """CRU_eps or EOU, from its row in a record."""
    if row["score"] == "CRU_eps":
        said = f"mean least ε of each class, found by {row['estimator']}, at most {row['cap']:.3g}"
        values = tuple(row["by_class"])
        return f"CRU_eps, {row['estimator']}", Score("mean least ε", said, tuple(row["classes"]),
                                                     values, (row["value"],), share=False)
    names = tuple(f"{g}, label {label}" for label in (0, 1) for g in row["groups"])
    said = f"mean confidence in class 1 of each {row['group']}, by true label"
    values = tuple(v for means in row["means"] for v in means)
    return f"EOU, {row['group']}", Score("mean confidence", said, names, values,
                                         tuple(row["value"]))


Drawn = tuple[str, list[dict[str, Any]]]


def _reports(x: Explorer, look: Look) -> dict[str, Report]:
    return {label: x.curve(label, look).report(look.eps) for label in look.models}


def _attack(look: Look, curve: Curve) -> str:
    name = "PGD-20" if look.attack == STORED else look.attack
    return f"{name} at {look.eps}/255 on {len(curve.y)} test images"


def errors(x: Explorer, look: Look) -> Drawn:
    """Errors by class: two models under attack side by side, or one model clean and under
    attack."""
    reports = _reports(x, look)
    (ax,) = x.axes(1, 1, 9, 3.8)
    first = next(iter(reports.values()))
    if len(reports) == 1:
        label = look.models[0]
        plots.class_bars({f"{label}, clean": first, f"{label}, under attack": first}, ax,
                         kind=["nat", "rob"])
    else:
        plots.class_bars(reports, ax)
    ax.set_ylim(0, 104)
    said = [f"{m}: average {100 * r.rob.mean:.1f} % (clean {100 * r.nat.mean:.1f} %), worst class "
            f"{r.worst_class} "
            f"{100 * r.rob.worst:.1f} %." for m, r in reports.items()]
    rows = [{"model": m, "class": c, "images": n, "standard error": a / n, "robust error": b / n,
             "low": low, "high": high}
            for m, r in reports.items()
            for c, n, a, b, (low, high) in zip(r.classes, r.nat.counts, r.nat.wrong, r.rob.wrong,
                                               r.rob.intervals(), strict=True)]
    head = (f"Errors by class under {_attack(look, x.curve(look.models[0], look))}, with 95 % "
            "intervals.")
    return " ".join([head, *said]), rows


def budgets(x: Explorer, look: Look) -> Drawn:
    """Every class's error over all budgets."""
    curves = {label: x.curve(label, look) for label in look.models}
    axes, rows, said = x.axes(1, len(curves), 9, 3.8, sharey=True), [], []
    for ax, (label, curve) in zip(axes, curves.items(), strict=True):
        reports = {eps / 255: curve.report(eps) for eps in curve.eps}
        hardest = sorted(range(len(curve.classes)),
                         key=lambda c: -curve.errors(look.eps).by_class[c])
        plots.budget_curves(reports, ax, named=[curve.classes[c]
                                                for c in (hardest[0], hardest[-1])])
        ax.axvline(look.eps, color="0.4", lw=1, ls=":")
        ax.set_xticks(curve.eps[:: max(1, len(curve.eps) // 8)])
        ax.set_title(label, fontsize=10, pad=22)
        rows += [{"model": label, "eps": eps, "class": c, "error": e} for eps in curve.eps
                 for c, e in zip(curve.classes, curve.errors(eps).by_class.tolist(), strict=True)]
        said.append(f"{label}: at {look.eps}/255 {curve.classes[hardest[0]]} is hardest, "
                    f"{curve.classes[hardest[-1]]} easiest.")
    return " ".join(["Robust error of each class against the budget of the attack.", *said]), rows


def matrix(x: Explorer, look: Look) -> Drawn:
    """The confusion matrix of one model, clean and under attack, in percent of each class."""
    label = x.detail(look).label
    curve = x.curve(label, look)
    rows: list[dict[str, Any]] = []
    for ax, eps, title in zip(x.axes(1, 2, 10, 4.4, sharey=True), (0, look.eps),
                              ("clean", f"attacked, {look.eps}/255"), strict=True):
        shares = diagnostics.shares(curve.confusion(eps)).numpy()
        plots.confusion(shares, curve.classes, ax, most=1.0)
        for text in list(ax.texts):
            # 200 texts to draw and measure are half of the time
            text.remove() if text.get_text() == "·" else text.set_in_layout(False)
        ax.add_patch(Rectangle((look.column - 0.5, look.row - 0.5), 1, 1, fill=False,
                               ec=plots.COLOURS[5], lw=2.5))
        ax.set_title(f"{label}, {title}", fontsize=10)
        rows += [{"model": label, "eps": eps, "class": a, "taken for": b,
                  "share": float(shares[i, j])}
                 for i, a in enumerate(curve.classes) for j, b in enumerate(curve.classes)]
    there, (a, b) = x.places(look), (curve.classes[look.row], curve.classes[look.column])
    return (f"Confusion matrices of {label}, clean and under {_attack(look, curve)}; rows are the "
            "true classes. "
            f"The framed cell: {len(there)} images of {a} are taken for {b} under attack."), rows


def cell(x: Explorer, look: Look) -> Drawn:
    """The images of one cell of the confusion matrix."""
    seen = x.detail(look)
    curve, there = x.curve(seen.label, look), x.places(look)
    a, b = curve.classes[look.row], curve.classes[look.column]
    (ax,) = x.axes(1, 1, 9, 3.4)
    first = (min(look.number, max(1, len(there))) - 1) // SHOWN * SHOWN
    some = there[first : first + SHOWN]
    if len(some):
        plots.images(seen.test().images(some), ax,
                     titles=[f"{first + i + 1}" for i in range(len(some))], columns=SHOWN // 2,
                     framed=[first + i + 1 == look.number for i in range(len(some))])
    else:
        ax.set_axis_off()
        ax.text(0.5, 0.5, f"No image of {a} is taken for {b}.", ha="center", va="center",
                transform=ax.transAxes)
    rows = [{"model": seen.label, "number": i + 1, "test image": int(p), "class": a, "taken for": b}
            for i, p in enumerate(there)]
    shown = f" Shown: {first + 1} to {first + len(some)}, as they are without the attack." if len(
        some) else ""
    return (f"{len(there)} images of {a} are taken for {b} by {seen.label} under "
            f"{_attack(look, curve)}.{shown}", rows)


def image(x: Explorer, look: Look) -> Drawn:
    """One image: clean, change, attacked; what each model believes before and after; and the way
    there."""
    there = x.places(look)
    if not len(there):
        return cell(x, look)
    place = there[[min(look.number, len(there)) - 1]]
    test, rows, said = x.detail(look).test(), [], []
    axes = x.axes(len(look.models), 3, 11, 3.1 * len(look.models), width_ratios=[2.2, 3, 2.6])
    for label, row in zip(look.models, np.array(axes).reshape(-1, 3), strict=True):
        words, numbers = _one_image(x.seen(label), test.images(place), int(test.y[place]), look,
                                    row)
        said.append(words)
        rows += numbers
    return (f"Test image {int(place)}, {test.classes[int(test.y[place])]}, under PGD-20 at "
            f"{look.eps}/255. {' '.join(said)}", rows)


def _one_image(seen: Seen, clean: Tensor, y: int, look: Look, axes: Any) -> Drawn:
    """One model's row of the view `image`."""
    model, classes = seen.model(), seen.test().classes
    walk = list(PGD(eps=look.eps / 255, step_size=max(1, look.eps / 4) / 255).path(model, clean,
        torch.tensor([y])))
    steps, right = torch.cat([z for z, _ in walk]), [bool(ok) for _, ok in walk]
    with torch.no_grad():
        p = model(torch.cat([clean, steps])).softmax(1)
    rival = int(p[-1].index_fill(0, torch.tensor(y), 0).argmax())
    plots.adversarial(clean[0], steps[-1], axes[0])
    axes[0].set_title(seen.label, fontsize=10)
    plots.probabilities({"clean": p[0], "attacked": p[-1]}, classes, axes[1])
    plots.walk(p[1:][:, [y, rival]], right, axes[2], labels=[classes[y], classes[rival]])
    first = next((t for t, ok in enumerate(right) if not ok), None)
    crosses = ("the path never crosses" if first is None
               else f"the path is first wrong at step {first}")
    words = (f"{seen.label} says {classes[int(p[0].argmax())]} ({float(p[0].max()):.0%}) to the "
             "clean image and "
             f"{classes[int(p[-1].argmax())]} ({float(p[-1].max()):.0%}) to the attacked one; "
             f"{crosses}.")
    return words, [{"model": seen.label, "step": t, "right": ok,
                    **{c: float(v) for c, v in zip(classes, p[t + 1], strict=True)}}
                   for t, ok in enumerate(right)]


def sides(x: Explorer, look: Look) -> Drawn:
    """Source-class fairness (who is lost, and how soon) and target-class fairness (what they are
    taken for)."""
    curves = {label: x.curve(label, look) for label in look.models}
    label, classes = x.detail(look).label, next(iter(curves.values())).classes
    over, soon, to = x.axes(1, 3, 11, 3.8)
    path = diagnostics.kept(x.withstood(label, look)[0])
    worst = [classes[int(c)] for c in (path[-1].argmin(), path[-1].argmax())]
    plots.class_curves((100 * path).tolist(), classes, over, named=worst, start=0,
                       xlabel="step t of the attack",
                       ylabel=f"still right (%), {label}")
    steps = {m: x.withstood(m, look)[1].mean for m in look.models}
    plots.numbers_by_class(steps, classes, soon,
                           ylabel=f"mean steps withstood ({WITHSTOOD.steps}: never lost)")
    target = {m: diagnostics.targets(c.confusion(look.eps), own=False) for m, c in curves.items()}
    plots.numbers_by_class({m: 100 * t.numpy() for m, t in target.items()}, classes, to,
                           ylabel="share of the wrong answers (%)")
    to.axhline(100 / len(classes), color="0.4", lw=1, ls=":")
    rows = [{"model": m, "class": c, "mean steps": float(steps[m][i]),
             "share of wrong answers": float(target[m][i]),
             "still right": float(diagnostics.kept(curves[m].confusion(look.eps))[i])}
            for m in look.models for i, c in enumerate(classes)]
    said = [f"{m}: {classes[int(np.argmin(steps[m]))]} is lost soonest ({np.min(steps[m]):.0f} "
            f"steps), {classes[int(t.argmax())]} takes "
            f"{float(t.max()):.0%} of the wrong answers; {float(diagnostics.from_uniform(t)):.0%} "
            "of them would have to move to be even."
            for m, t in target.items()]
    head = (f"Left and middle: the first {look.per_class} images of each class, live; right: "
            f"{_attack(look, curves[label])}.")
    return " ".join([head, *said]), rows


def history(x: Explorer, look: Look) -> Drawn:
    """How the training went: the loss, errors on validation data, and the method's memory by
    class."""
    seen = x.detail(look)
    epochs = seen.history
    if not epochs:
        raise CourseError(f"No training history of {seen.label} is stored yet; the first row comes "
                          "with the end of its first epoch.")
    checked = [Report.from_json(e["validation"][0]) for e in epochs if e.get("validation")]
    vectors = {k: [e["state"][k] for e in epochs] for k in VECTORS
               if k in epochs[0].get("state", {})}
    moving = {k: v for k, v in vectors.items() if np.ptp(np.array(v)) > 1e-6}
    n = 1 + bool(checked) + len(moving)
    axes = x.axes(-(-n // 3), min(n, 3), 11 if n > 1 else 6, 3.2 * -(-n // 3))
    plots.curves({"training loss": [e["loss"] for e in epochs]}, axes[0])
    if checked:
        lines = {"standard": [100 * r.nat.mean for r in checked],
                 "robust": [100 * r.rob.mean for r in checked],
                 "worst class": [100 * r.rob.worst for r in checked]}
        plots.curves(lines, axes[1], ylabel="validation error (%)")
    classes = checked[0].classes if checked else seen.test().classes
    for ax, (key, values) in zip(axes[1 + bool(checked) :], moving.items(), strict=False):
        named = [classes[c] for c in np.argsort(values[-1])[::-1][:2]]
        plots.class_curves(values, classes, ax, named=named, ylabel=VECTORS[key])
    for ax in axes[n:]:
        ax.set_axis_off()
    rows = [{"model": seen.label, "epoch": e["epoch"], "loss": e["loss"], "rate": e["lr"]}
            for e in epochs]
    said = (f"Training of {seen.label}: the loss went from {epochs[0]['loss']:.3f} to "
            f"{epochs[-1]['loss']:.3f} in {len(epochs)} epochs.")
    if checked:
        said += (" Robust error on validation data at the last check: average "
                 f"{100 * checked[-1].rob.mean:.1f} %, worst class "
                 f"{checked[-1].worst_class} {100 * checked[-1].rob.worst:.1f} %.")
    return said, rows


def unfairness(x: Explorer, look: Look) -> Drawn:
    """One stored unfairness score, opened up into the classes or groups it is a range over."""
    there = x.scores(look.models)
    if not there:
        raise CourseError(f"{' and '.join(look.models)} have no score in common that is stored. "
                          "Make them: python -m course_lib score NAME")
    name = pick({n: n for n in there}, look.score or there[0], "score")
    found = {m: scores_in(x.seen(m).record())[name] for m in look.models}
    first, *others = found.values()
    if any(o.names != first.names for o in others):
        raise CourseError(f"{' and '.join(look.models)} tell different classes or groups apart; "
                          "choose two models of one data set.")
    times, unit = (100.0, " points") if first.share else (1.0, "")
    (ax,) = x.axes(1, 1, 9, 3.8)
    plots.bars({m: s.values for m, s in found.items()}, first.names, ax,
               ylabel=first.axis + " (%)" * first.share, scale=times)
    rows = [{"model": m, "score": name, "of": n, "value": v} for m, s in found.items() for n,
            v in zip(s.names, s.values, strict=True)]
    said = [f"{m}: {' and '.join(f'{times * v:.4g}' for v in s.value)}{unit} between the lowest "
            "and the highest." for m, s in found.items()]
    return " ".join([f"{name}: {first.what}.", *said]), rows


VIEWS: dict[str, Callable[[Explorer, Look], Drawn]] = {
    "errors": errors, "budgets": budgets, "confusion": matrix, "cell": cell, "image": image,
    "fairness": sides, "scores": unfairness,
    "history": history,
}
CELLS = ("confusion", "cell", "image")  # the views that look at one cell
