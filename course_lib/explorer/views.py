"""What the explorer shows, without widgets.

    from course_lib.explorer.views import Explorer
    plots.show(Explorer().look("errors", "exp1/natural", "exp1/pgd-at", eps=8))

A Choice says which models, attack and images; the label of the figure describes it in words.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
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
from course_lib.errors import CourseError, pick, several
from course_lib.explorer.curves import Curve, Source, compute_curve, images_of, in_hand, stored
from course_lib.fairness import Report
from course_lib.inference import frozen
from course_lib.scores import class_means, success

STORED = "stored"  # PGD-20 on every test image, whose predictions are stored beside the models
SLOW = PGD(step_size=0.4 / 255, steps=100, start="clean")  # small steps, to count them
PAGE = 12  # images of a cell


@dataclass(frozen=True)
class Choice:
    """Models, an attack and its budget, and an image in a cell of the first confusion matrix."""

    view: str = "errors"
    models: tuple[str, ...] = ("exp1/natural", "exp1/pgd-at")
    attack: str = STORED
    eps: int = 8  # grey levels of 255
    seeds: bool = False  # means over all stored seeds, in the view "errors"
    row: int = 0  # the true class of the images
    column: int = 0  # the predicted class
    number: int = 1  # which image of the cell, from 1
    per_class: int = 20  # images per class that a live attack takes
    score: str = ""  # which of the stored unfairness scores; by default the first

    @property
    def live(self) -> tuple[Any, ...]:
        return self.attack, self.eps, self.per_class

    def under(self, images: int) -> str:
        name = "PGD-20" if self.attack == STORED else self.attack
        return f"{name} at {self.eps}/255 on {images} test images"


class Explorer:
    """The models, the results computed so far, and the views.

    Stored curves are shown at once. A live attack has to be run first; its result is remembered.
    """

    def __init__(self, models: Any = None) -> None:
        models = {"mine": models} if isinstance(models, nn.Module) else models
        self.models, self.mine = stored(), dict[str, Source]()
        if models and isinstance(models, Mapping):
            self.mine = {label: in_hand(label, m) for label, m in models.items()}
            same = {source.classes for source in self.mine.values()}
            beside = {m: source for m, source in self.models.items() if source.classes in same}
            self.models = self.mine | beside | self.mine  # one's own come first, and stay
        elif models is not None:
            self.models = {m: pick(self.models, m, "model") for m in several(models)}
        if not self.models:
            raise CourseError("There is no model with weights to explore. Run `make models`, or "
                              "give names from list_models().")
        self.figure = Figure(layout="constrained")  # all views share it

    def source(self, label: str) -> Source:
        return pick(self.models, label, "model")

    def curve(self, label: str, choice: Choice) -> Curve:
        """The model's predictions: stored ones, or those of an attack that was run."""
        source = self.source(label)
        if choice.attack == STORED:
            return source.curve
        if choice.live not in source.live:
            raise CourseError(f"{label} was not attacked by {choice.attack} at {choice.eps}/255 on "
                              f"{choice.per_class} images per class yet: press Attack now.")
        return source.live[choice.live]

    def reports(self, label: str, choice: Choice) -> list[Report]:
        """The errors of one training, or of every stored seed of its recipe."""
        source = self.source(label)
        if not choice.seeds:
            return [self.curve(label, choice).report(choice.eps)]
        if not source.name:
            raise CourseError(f"{label} is one training. For means, choose a stored recipe.")
        attack = "pgd20" if choice.attack == STORED else choice.attack
        return zoo.load_reports(source.name, attack=attack, eps=choice.eps / 255, root=source.root)

    def waiting(self, choice: Choice) -> list[Source]:
        """The chosen models that the live attack would be run on: one's own always, since they may
        have been trained further."""
        return [s for s in map(self.source, choice.models)
                if choice.live not in s.live or not s.name]

    def attack(self, choice: Choice,
               tick: Callable[[int, int], None] = lambda images, total: None) -> None:
        """Run the live attack; `tick` gets the number of images of a batch, and of all."""
        pick(ATTACKS, choice.attack, "live attack")
        withstood.cache_clear()
        todo = self.waiting(choice)
        total = sum(len(images_of(s.classes).per_class(choice.per_class)) for s in todo)
        for source in todo:
            source.live[choice.live] = compute_curve(
                source.model, images_of(source.classes), choice.attack, (choice.eps,),
                per_class=choice.per_class, batch=50, tick=lambda n: tick(n, total))

    def look(self, view: str, *models: str, row: str = "", column: str = "",
             **words: Any) -> Axes:
        """Draw a view without widgets; `words` are those of a Choice. `row` and `column` are class
        names; without them the cell is the first model's most frequent mistake."""
        choice = Choice(view, tuple(m for m in models if m) or Choice.models, **words)
        if choice.attack != STORED and not choice.seeds:
            self.attack(choice)
        if "cell" in pick(VIEWS, view, "view").uses:
            i, j = self.mistake(choice)
            classes = {c: k for k, c in enumerate(self.source(choice.models[0]).classes)}
            choice = replace(choice, row=pick(classes, row, "class") if row else i,
                             column=pick(classes, column, "class") if column else j)
        return self.draw(choice)

    def draw(self, choice: Choice) -> Axes:
        if len({self.source(m).classes for m in choice.models}) > 1:
            raise CourseError(f"{' and '.join(choice.models)} have different classes: take others.")
        self.figure.clear()
        with matplotlib.rc_context(plots.STYLE):
            self.figure.set_label(pick(VIEWS, choice.view, "view").draw(self, choice))
        return self.figure.axes[0]

    def axes(self, columns: int, width: float, height: float, *, rows: int = 1,
             **words: Any) -> list[Axes]:
        self.figure.set_size_inches(width, height)
        return list(self.figure.subplots(rows, columns, squeeze=False, **words).flat)

    def mistake(self, choice: Choice) -> tuple[int, int]:
        """The true and the predicted class of the first model's most frequent mistake."""
        matrix = self.curve(choice.models[0], choice).confusion(choice.eps)
        return divmod(int(matrix.fill_diagonal_(0).argmax()), len(matrix))

    def cell(self, choice: Choice) -> tuple[Tensor, str]:
        """The places in the test split of the images in the chosen cell, and a sentence on them."""
        curve = self.curve(choice.models[0], choice)
        places = curve.cell(choice.eps, choice.row, choice.column)
        a, b = (curve.classes[c] for c in (choice.row, choice.column))
        return places, (f"{len(places)} images of {a} are taken for {b} by {choice.models[0]} "
                        f"under {choice.under(len(curve.y))}.")

    def scores(self, models: Sequence[str]) -> list[str]:
        """The unfairness scores that all of these models have."""
        first, *others = (scores_in(self.source(m).record) for m in models)
        return [name for name in first if all(name in other for other in others)]


def errors(x: Explorer, choice: Choice) -> str:
    """Errors per class, clean and under attack, of one training or as means over seeds. A dashed
    line is a model's average under attack."""
    models = {m: x.reports(m, choice) for m in choice.models}
    if choice.seeds:
        models = {f"{x.source(m).name}, {len(r)} seeds": r for m, r in models.items()}
    (ax,), first = x.axes(1, 9, 3.8), next(iter(models.values()))[0]
    bars = {f"{m}, {state}": r for m, r in models.items() for state in ("clean", "under attack")}
    plots.class_bars(bars, ax, kind=["nat", "rob"] * len(models))
    alt = f"Errors by class under {choice.under(sum(first.nat.counts))}, with 95 % intervals."
    for i, (m, reports) in enumerate(models.items()):
        clean, average = (100 * np.mean([getattr(r, kind).mean for r in reports])
                          for kind in ("nat", "rob"))
        of_class = 100 * np.mean([r.rob.by_class for r in reports], axis=0)
        ax.axhline(average, color=plots.COLOURS[2 * i + 1], lw=1, ls="--")
        alt += (f" {m}: average {average:.1f} % (clean {clean:.1f} %), worst class "
                f"{first.classes[of_class.argmax()]} {of_class.max():.1f} %.")
    ax.set_ylim(0, 104)
    return alt


def budgets(x: Explorer, choice: Choice) -> str:
    """Every class's error over all budgets."""
    curves = {m: x.curve(m, choice) for m in choice.models}
    alt = "Robust error of each class against the budget of the attack."
    for ax, (label, curve) in zip(x.axes(len(curves), 9, 3.8, sharey=True), curves.items(),
                                  strict=True):
        order = np.argsort(-curve.report(choice.eps).rob.by_class, kind="stable")
        hardest, easiest = (curve.classes[order[i]] for i in (0, -1))
        plots.budget_curves({eps / 255: curve.report(eps) for eps in curve.eps}, ax,
                            named=[hardest, easiest])
        ax.axvline(choice.eps, color="0.4", lw=1, ls=":")
        ax.set_xticks(curve.eps[:: max(1, len(curve.eps) // 8)])
        ax.set_title(label, fontsize=10, pad=22)
        alt += f" {label}: at {choice.eps}/255 {hardest} is hardest, {easiest} easiest."
    return alt


def matrix(x: Explorer, choice: Choice) -> str:
    """The first model's confusion matrix, clean and under attack, in percent of each class."""
    label = choice.models[0]
    curve = x.curve(label, choice)
    for ax, eps, title in zip(x.axes(2, 10, 4.4, sharey=True), (0, choice.eps),
                              ("clean", f"attacked, {choice.eps}/255"), strict=True):
        plots.confusion(diagnostics.shares(curve.confusion(eps)), curve.classes, ax)
        for text in (t for t in list(ax.texts) if t.get_text() == "·"):
            text.remove()  # drawing and measuring 200 texts is half of the time
        ax.add_patch(Rectangle((choice.column - 0.5, choice.row - 0.5), 1, 1, **plots.FRAME))
        ax.set_title(f"{label}, {title}", fontsize=10)
    return (f"Confusion matrices of {label}, clean and attacked; rows are the true classes. The "
            f"framed cell: {x.cell(choice)[1]}")


def cell(x: Explorer, choice: Choice) -> str:
    """The images of one cell of the confusion matrix."""
    (places, alt), (ax,) = x.cell(choice), x.axes(1, 9, 3.4)
    numbers = range(1, len(places) + 1)
    first = (min(choice.number, max(1, len(places))) - 1) // PAGE * PAGE
    if not (page := numbers[first : first + PAGE]):
        raise CourseError(f"{alt} Choose another cell.")
    test = images_of(x.source(choice.models[0]).classes)
    plots.images(test.images(places[page[0] - 1 : page[-1]]), ax, columns=PAGE // 2,
                 titles=[*map(str, page)], framed=[n == choice.number for n in page])
    return f"{alt} Shown: {page[0]} to {page[-1]}, as they are without the attack."


def image(x: Explorer, choice: Choice) -> str:
    """One image, clean and attacked; the models' probabilities before and after; and the walk."""
    (places, alt), classes = x.cell(choice), x.source(choice.models[0]).classes
    if not len(places):
        raise CourseError(f"{alt} Choose another cell.")
    place, n = int(places[min(choice.number, len(places)) - 1]), len(choice.models)
    part, eps = images_of(classes).take([place]), choice.eps
    clean, y = part.images(), int(part.y)
    attack = PGD(eps=eps / 255, step_size=max(1, eps / 4) / 255)
    axes = np.array(x.axes(3, 11, 3.1 * n, rows=n, width_ratios=[2.2, 3, 2.6])).reshape(n, 3)
    alt = f"Test image {place}, {classes[y]}, under PGD-20 at {eps}/255."
    for m, (pictures, bars, path) in zip(choice.models, axes, strict=True):
        model = x.source(m).model
        at = next(model.parameters(), clean).device
        walk = list(attack.path(model, clean.to(at), part.y.to(at)))
        steps, right = torch.cat([z for z, _ in walk]).cpu(), [bool(ok) for _, ok in walk]
        with torch.no_grad(), frozen(model):
            p = model(torch.cat([clean, steps]).to(at)).softmax(1).cpu()
        rival = int(p[-1].index_fill(0, part.y, 0).argmax())
        plots.adversarial(clean[0], steps[-1], pictures)
        pictures.set_title(m, fontsize=10)
        plots.probabilities({"clean": p[0], "attacked": p[-1]}, classes, bars)
        plots.walk(p[1:][:, [y, rival]], right, [classes[y], classes[rival]], path)
        before, after = (f"{classes[int(q.argmax())]} ({float(q.max()):.0%})" for q in p[[0, -1]])
        alt += (f" {m} predicts {before} when clean and {after} under attack; the path "
                + ("never crosses." if all(right) else
                   f"is first wrong at step {right.index(False)}."))
    return alt


@lru_cache
def withstood(source: Source, eps: int, n: int) -> list[float]:
    """How many small steps of an attack the first n images of each class withstand, on average."""
    part = images_of(source.classes).per_class(n)
    t, y = diagnostics.steps_to_wrong(source.model, part, SLOW.at(eps / 255))
    return class_means(t, y, len(part.classes)).tolist()


def sides(x: Explorer, choice: Choice) -> str:
    """How soon each class is lost (source fairness), and what its images become (target)."""
    curves, (soon, to) = {m: x.curve(m, choice) for m in choice.models}, x.axes(2, 11, 3.8)
    first = curves[choice.models[0]]
    classes = first.classes
    steps = {m: withstood(x.source(m), choice.eps, choice.per_class) for m in curves}
    target = {m: diagnostics.targets(c.confusion(choice.eps), own=False) for m, c in curves.items()}
    plots.bars(steps, classes, soon, scale=1,
               ylabel=f"mean steps withstood ({SLOW.steps}: never lost)")
    plots.bars({m: t.tolist() for m, t in target.items()}, classes, to,
               ylabel="share of the wrong answers (%)")
    to.axhline(100 / len(classes), color="0.4", lw=1, ls=":")
    alt = (f"Left: the first {choice.per_class} images of each class, live; right: "
           f"{choice.under(len(first.y))}.")
    for m, t in target.items():
        alt += (f" {m}: {classes[int(np.argmin(steps[m]))]} is lost soonest ({min(steps[m]):.0f} "
                f"steps), {classes[int(t.argmax())]} takes {t.max():.0%} of the wrong answers; "
                f"an even spread would change {diagnostics.from_uniform(t):.0%} of them.")
    return alt


def scores_in(record: Mapping[str, Any]) -> dict[str, tuple[str, Any, Any, float]]:
    """Every score of a record: what it compares, over which classes or groups, their values (a row
    per label), and a factor. A score is the largest value of a row minus the smallest. CAU and
    CRU_s come from the reports on the most images, the others are stored."""
    reports, scores = [*map(Report.from_json, record.get("reports", []))], dict[str, Any]()
    most = max((sum(r.nat.counts) for r in reports), default=0)
    for r in (r for r in reports if sum(r.nat.counts) == most):
        attack = f"{r.attack} at {zoo.budget(r.eps)}"
        scores["CAU"] = "accuracy of each class (%)", r.classes, [1 - r.nat.by_class], 100
        scores[f"CRU_s, {attack}"] = (f"success of {attack} on each class (%)", r.classes,
                                      [success(r)], 100)
    for row in record.get("scores", []):
        if row.get("score") == "CRU_eps":
            scores[f"CRU_eps, {row['estimator']}"] = (
                f"mean least ε of each class, at most {row['cap']:.3g}", row["classes"],
                [row["by_class"]], 1)
        if row.get("score") == "EOU":
            names = [f"{group}, label {label}" for label in (0, 1) for group in row["groups"]]
            scores[f"EOU, {row['group']}"] = ("mean confidence in class 1 (%)", names,
                                              row["means"], 100)
    return scores


def unfairness(x: Explorer, choice: Choice) -> str:
    """One stored unfairness score, split into the classes or groups that it is a range over."""
    if not (common := x.scores(choice.models)):
        raise CourseError(f"{' and '.join(choice.models)} have no stored score in common. "
                          "Compute them: python -m course_lib score NAME")
    name = pick({n: n for n in common}, choice.score or common[0], "score")
    scores = {m: scores_in(x.source(m).record)[name] for m in choice.models}
    title, names, _, scale = scores[choice.models[0]]
    plots.bars({m: np.concatenate(rows).tolist() for m, (_, _, rows, _) in scores.items()}, names,
               *x.axes(1, 9, 3.8), ylabel=title, scale=scale)
    ranges = [f" {m}: {' and '.join(f'{scale * np.ptp(row):.4g}' for row in rows)} between the "
              "lowest and the highest." for m, (_, _, rows, _) in scores.items()]
    return f"{name}: {title}.{''.join(ranges)}"


class View(NamedTuple):
    """One way to look at models: its title, the controls that it uses, and its figure."""

    title: str
    uses: Set[str]  # attack and budget, live attack, seeds, cell, score
    draw: Callable[[Explorer, Choice], str]


VIEWS = {
    "errors": View("Errors by class", {"attack", "seeds"}, errors),
    "budgets": View("All budgets", {"attack"}, budgets),
    "confusion": View("Confusion matrix", {"attack", "cell"}, matrix),
    "cell": View("Images of a cell", {"attack", "cell"}, cell),
    "image": View("One image", {"attack", "cell"}, image),
    "fairness": View("Source and target", {"attack", "live"}, sides),
    "scores": View("Scores", {"score"}, unfairness),
}
