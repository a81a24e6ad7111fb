"""The explorer's panel: controls, a figure and its text. Only this file knows ipywidgets (7.7, 8).

It uses core widgets only and exchanges one picture. The keyboard reaches every control, and the
text beside the figure describes it.
"""

import base64
import dataclasses
import html
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets as w

from course_lib import plots
from course_lib.attacks import ATTACKS
from course_lib.errors import CourseError
from course_lib.explorer.curves import BUDGETS, from_folder
from course_lib.explorer.views import STORED, VIEWS, Choice, Explorer

NONE = "(no second model)"
WIDE: Any = {"description_width": "initial"}
FLOW: Any = {"flex_flow": "row wrap", "align_items": "center"}
WRONG = "background: #fdf1ea; border-left: 4px solid #b3470d; padding: 4px 8px;"
OVER = Path(__file__).with_name("matrix.css").read_text(encoding="utf-8")


def parts(names: Sequence[str], one: str, two: str) -> list[dict[str, dict[str, w.Widget]]]:
    """The controls of each line by name, under the word in `View.uses` that shows them."""
    drop, number = partial(w.Dropdown, style=WIDE), partial(w.BoundedIntText, style=WIDE, min=1)
    button = partial(w.Button, layout={"width": "auto"})
    live = [(f"{name}, attack now", name) for name in ATTACKS]
    return [
        {"always": {
            "one": drop(description="Model", options=names, value=one),
            "two": drop(description="beside", options=[NONE, *names], value=two),
            "words": w.Text(description="Only models with", placeholder="fashion-mnist trades",
                            style=WIDE, continuous_update=False)}},
        {"always": {
            "folder": w.Text(description="Your own runs, in", placeholder="runs", style=WIDE,
                             layout={"width": "420px"}),
            "open_folder": button(description="Open the folder")}},
        {"attack": {
            "attack": drop(description="Attack", options=[("PGD-20, precomputed", STORED), *live]),
            "eps": w.IntSlider(value=8, min=BUDGETS[0], max=BUDGETS[-1],
                               step=BUDGETS[1] - BUDGETS[0], description="ε (of 255)", style=WIDE)},
         "seeds": {"seeds": w.Checkbox(description="mean over all seeds (8 or 16 of 255)",
                                       value=False, indent=False, layout={"width": "auto"})}},
        {"live": {"per_class": number(description="images per class", value=20, max=1000,
                                      layout={"width": "180px"})},
         "attack now": {"attack_now": button(description="Attack now"),
                        "progress": w.IntProgress(value=0, max=1, layout={"width": "220px"})}},
        {"always": {"view": w.ToggleButtons(options=[(v.title, name) for name, v in VIEWS.items()],
                                            style={"button_width": "auto"})}},
        {"score": {"score": drop(description="score", options=[""])}},
        {"cell": {"row": drop(description="class", options=[("", 0)]),
                  "column": drop(description="taken for", options=[("", 0)]),
                  "number": number(description="image", value=1, max=1, layout={"width": "11em"})}},
        {"always": {"note": w.HTML()}},
        # last for the keyboard, because the matrix has a hundred cells
        {"always": {"picture": w.HTML(layout={"width": "100%"})},
         "matrix": {"matrix": w.ToggleButtons(options=[])}}]


class Panel(w.VBox):
    """The controls, the figure and the text of one explorer."""

    def __init__(self, models: Any = None) -> None:
        self.explorer = Explorer(models)
        # JupyterLab may answer two controls in two threads of the kernel (subshells)
        self.lock, self.busy = threading.RLock(), False
        names = list(self.explorer.models)
        first = [m for m in Choice.models if models is None and m in names]
        one, two = [*(first or names), NONE][:2]
        self.lines = parts(names, one, two)
        by_name = {n: control for line in self.lines for group in line.values()
                   for n, control in group.items()}
        self.part = SimpleNamespace(**by_name)
        actions: dict[str, Callable[[], str | None]] = {
            "words": self.choose, "matrix": self.click, "attack_now": self.attack_now,
            "open_folder": self.open_folder}
        for name, control in by_name.items():
            react = partial(lambda action, _: self.act(action), actions.get(name))
            if isinstance(control, w.Button):
                control.on_click(react)
            elif name != "folder":
                control.observe(react, names="value")
        super().__init__([w.HBox([control for group in line.values() for control in group.values()],
                                 layout=FLOW) for line in self.lines])
        self.part.matrix.add_class("explorer-matrix")
        self.children[-1].add_class("explorer-stage")
        if self.explorer.mine:  # no answers of theirs are stored
            self.part.attack.value = "pgd20"
            self.act(self.attack_now)
        else:
            self.act()

    def choice(self) -> Choice:
        """The choice that the controls show."""
        models = dict.fromkeys(m for m in (self.part.one.value, self.part.two.value) if m != NONE)
        fields = (f.name for f in dataclasses.fields(Choice) if f.name != "models")
        return Choice(models=tuple(models), **{f: getattr(self.part, f).value for f in fields})

    def act(self, action: Callable[[], str | None] | None = None) -> None:
        """Do something, then show what the controls ask for. An action may return a sentence to
        show instead of the figure's text; an error becomes one, too."""
        with self.lock:  # another thread waits
            if self.busy:  # a control that this thread moves
                return
            self.busy = True
            try:
                sentence = action() if action else None
                self.draw()
                if sentence:
                    self.say(sentence)
            except Exception as error:  # a reader's own files may hold anything
                self.say(str(error) if isinstance(error, CourseError) else "This cannot be shown "
                         f"({type(error).__name__}: {str(error)[:200]}). Choose something else.",
                         WRONG)
            finally:
                self.busy = False

    def say(self, text: str, style: str = "") -> None:
        self.part.note.value = (
            '<div role="status" class="explorer-note" style="max-width: 900px; line-height: 1.4; '
            f'{style}">{html.escape(text)}</div>')

    def draw(self) -> None:
        """Show the controls that the view uses, and its figure."""
        uses = {"always", *VIEWS[self.part.view.value].uses}
        if "attack" in uses and self.part.attack.value != STORED and not (
                "seeds" in uses and self.part.seeds.value):
            uses |= {"live", "attack now"}
            self.part.attack_now.disabled = not self.explorer.waiting(self.choice())
        for word, group in (pair for line in self.lines for pair in line.items()):
            for control in group.values():
                control.layout.display = None if word in uses else "none"
        try:
            if "cell" in uses:
                self._offer_cells()
            if "score" in uses:
                self._offer(self.part.score, self.explorer.scores(self.choice().models) or [""])
            figure: Any = self.explorer.draw(self.choice()).figure
            alt = figure.get_label()
        except Exception:
            self.part.picture.value = ""
            raise
        data = base64.b64encode(plots.png(figure)).decode()  # which lays the figure out, too
        at = figure.axes[-1].get_position()
        sides = {"left": at.x0, "top": 1 - at.y1, "width": at.width, "height": at.height}
        style = "; ".join(f"--{side}: {100 * part}%" for side, part in sides.items())
        self.part.picture.value = (
            f'<style>{OVER} .explorer-stage {{{style}; --cells: {len(self.part.row.options)}}}'
            '</style><img class="explorer-figure" style="display: block; width: 100%" '
            f'alt="{html.escape(alt)}" src="data:image/png;base64,{data}">')
        if self.part.view.value == "confusion":  # only now, when its style is there
            self.part.matrix.layout.display = None
            alt += " Click a cell of the right matrix to see its images."
        self.children[-1].layout.max_width = f"{100 * figure.get_figwidth():.0f}px"
        self.say(alt)

    def _offer_cells(self) -> None:
        """Offer the model's classes, at first its most frequent mistake, and the cell's images."""
        part, classes = self.part, self.explorer.source(self.part.one.value).classes
        options = tuple((c, i) for i, c in enumerate(classes))
        if part.row.options != options:
            mistake = self.explorer.mistake(self.choice())
            for control, value in zip((part.row, part.column), mistake, strict=True):
                control.options, control.value = options, value
            part.matrix.options = [(f"{a} taken for {b}", (i, j)) for a, i in options
                                   for b, j in options]
        part.matrix.value = None  # the next click changes it, whatever cell it is on
        part.number.max = max(1, len(self.explorer.cell(self.choice())[0]))

    def _offer(self, control: w.Dropdown, options: Sequence[str]) -> None:
        """New options; the choice stays if it is still among them."""
        if control.options != tuple(options):
            value = control.value if control.value in options else options[0]
            control.options, control.value = tuple(options), value

    def show(self, view: str) -> None:
        self.part.view.value = view

    def click(self) -> None:
        """Show the images of the cell of the matrix that was clicked."""
        self.part.row.value, self.part.column.value = self.part.matrix.value
        self.part.number.value = 1
        self.show("cell")

    def attack_now(self) -> None:
        """Run the chosen attack, with progress; other controls wait."""
        bar = self.part.progress
        bar.value = 0

        def tick(images: int, total: int) -> None:
            bar.max, bar.value = total, bar.value + images
            bar.description = f"{bar.value} of {total}"

        self.explorer.attack(self.choice(), tick)

    def choose(self) -> str | None:
        """Offer only models with these words in their names and descriptions."""
        words = self.part.words.value.casefold().split()
        every = [*self.explorer.models]
        names = [label for label, source in self.explorer.models.items()
                 if all(word in source.words for word in words)]
        self._offer(self.part.one, names or every)
        self._offer(self.part.two, [NONE, *(names or every)])
        return None if names else "No model has all of these words, so every model is offered."

    def open_folder(self) -> str:
        """Add a reader's own runs to the models."""
        new = from_folder(self.part.folder.value, self.explorer.models.values())
        self.explorer.models |= new
        self.part.words.value = ""  # so that they are offered
        self.choose()
        return (f"{len(new)} of your own are among the models now: "
                f"{', '.join([*new][:5])}{' …' if len(new) > 5 else ''}.")
