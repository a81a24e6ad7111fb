"""The explorer's panel: controls, one figure and its text. The only file that knows ipywidgets, 7.7
or 8.

It uses core widgets only and exchanges one picture. The keyboard reaches every control, and the
text beside the figure describes it.
"""

from __future__ import annotations

import base64
import html
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as w

from course_lib.attacks import ATTACKS
from course_lib.errors import CourseError
from course_lib.explorer.curves import BUDGETS
from course_lib.explorer.sources import COLUMNS, as_csv, as_html, table
from course_lib.explorer.views import CELLS, STORED, Choice, Drawing, Explorer

TITLES = {"errors": "Errors by class", "budgets": "All budgets", "confusion": "Confusion matrix",
          "cell": "Images of a cell", "image": "One image", "fairness": "Source and target",
          "scores": "Scores", "history": "Training", "table": "Table"}
WITHOUT_ATTACK = ("scores", "history", "table")
NONE = "(no second model)"
WIDE: Any = {"description_width": "initial"}
FLOW: Any = {"flex_flow": "row wrap", "align_items": "center"}
WRONG = "background: #fdf1ea; border-left: 4px solid #b3470d; padding: 4px 8px;"


class Panel(w.VBox):
    """The controls, the figure and the text of one explorer."""

    def __init__(self, models: Sequence[str] | None, folder: str | Path | None, out: Path) -> None:
        self.explorer, self.out = Explorer(models), out
        # JupyterLab may answer two controls in two threads of the kernel (subshells)
        self.lock, self.busy = threading.RLock(), False
        self.drawing: Drawing | None = None
        self.rows: Any = []
        self.picture, self.note, self.saved = w.HTML(), w.HTML(), w.HTML()
        names = list(self.explorer.models)
        first = [m for m in models or Choice.models if m in names] or names[:2]
        for control in (*self._model_controls(names, first), *self._cell_controls(),
                        *self._table_controls()):
            control.observe(self.draw, names="value")
        super().__init__([_line(self.one, self.two), self.attacked, self.live, self.view,
                          self.score, self.cell, self.sorting, self.note, self.picture,
                          self._saving(), self._own("" if folder is None else str(folder))])
        if folder is not None and Path(folder).is_dir():
            self.act(self.open_folder)
        self.draw()

    def _model_controls(self, names: list[str], first: Sequence[str]) -> list[w.Widget]:
        """Models, attack and budget, and the view."""
        self.one = _drop("Model", names, first[0])
        self.two = _drop("beside", [NONE, *names], first[1] if len(first) > 1 else NONE)
        live = [(f"{name}, attack now", name) for name in ATTACKS]
        self.attack = _drop("Attack", [("PGD-20, precomputed", STORED), *live], STORED)
        self.eps = w.IntSlider(value=8, min=BUDGETS[0], max=BUDGETS[-1],
                               step=BUDGETS[1] - BUDGETS[0], description="ε (of 255)", style=WIDE)
        self.attacked = _line(self.attack, self.eps)
        self.per_class = _number("images a class", 20, 1000, "180px")
        self.go = self._button("Attack now", "Run the attack on the first images of each class",
                               self.attack_now)
        self.progress = w.IntProgress(value=0, max=1, description="", layout={"width": "220px"})
        self.live = _line(self.per_class, self.go, self.progress)
        self.view = _toggle((title, view) for view, title in TITLES.items())
        self.score = _drop("score", [("", "")], "")
        return [self.one, self.two, self.attack, self.eps, self.per_class, self.view, self.score]

    def _cell_controls(self) -> list[w.Widget]:
        """A cell of the confusion matrix, and an image in it."""
        self.of = _toggle([("first model", 0), ("second model", 1)])
        self.row, self.column = _drop("class", [("", 0)], 0), _drop("taken for", [("", 0)], 0)
        self.number = _number("image", 1, 1, "140px")
        self.often = self._button("Most frequent mistake",
                                  "Choose the largest cell off the diagonal", self.to_mistake)
        self.images = self._button("Show the images of this cell", "Go to the images of this cell",
                                   lambda: self.turn_to("cell"))
        self.this = self._button("Show this image", "Go to this image",
                                 lambda: self.turn_to("image"))
        self.in_cell = [self.row, self.column, self.number, self.often, self.images, self.this]
        self.cell = _line(self.of, *self.in_cell)
        return [self.of, self.row, self.column, self.number]

    def _table_controls(self) -> list[w.Widget]:
        self.sort = _drop("sorted by", list(COLUMNS), "model")
        self.down = w.Checkbox(value=False, description="largest first", indent=False,
                               layout={"width": "130px"})
        self.words = w.Text(description="only rows with", placeholder="exp2 frl", style=WIDE)
        self.sorting = _line(self.sort, self.down, self.words)
        return [self.sort, self.down, self.words]

    def _saving(self) -> w.Widget:
        self.to_csv = self._button("Save the numbers (CSV)", "The numbers shown, as a table",
                                   lambda: self.save("csv"))
        self.to_png = self._button("Save the figure (PNG)", "The figure shown, as a picture",
                                   lambda: self.save("png"))
        return _line(self.to_csv, self.to_png, self.saved)

    def _own(self, folder: str) -> w.Widget:
        """A folder of one's own."""
        self.folder = w.Text(value=folder, description="Your own runs, in", placeholder="results",
                             style=WIDE, layout={"width": "420px"})
        self.opener = self._button(
            "Open the folder", "Put finished and checkpointed runs beside the bundled models",
            self.open_folder)
        return _line(self.folder, self.opener)

    def choice(self) -> Choice:
        """The choice that the controls show."""
        two = self.two.value
        models = (self.one.value,) if two in (NONE, self.one.value) else (self.one.value, two)
        return Choice(self.view.value, models, self.attack.value, self.eps.value,
                      min(self.of.value, len(models) - 1), self.row.value, self.column.value,
                      self.number.value, self.per_class.value, self.score.value)

    def act(self, action: Callable[[], None]) -> None:
        """One action after the other. An error becomes a sentence. Controls that the action moves
        do not draw."""
        with self.lock:
            self.busy = True
            try:
                action()
            except Exception as error:  # a reader's own files may hold anything
                self.say(str(error) if isinstance(error, CourseError) else "This cannot be shown "
                         f"({type(error).__name__}: {str(error)[:200]}). Choose something else.",
                         WRONG)
            finally:
                self.busy = False

    def say(self, text: str, style: str = "") -> None:
        self.note.value = ('<div role="status" class="explorer-note" style="max-width: 900px; '
                           f'line-height: 1.4; {style}">{html.escape(text)}</div>')

    def draw(self, change: object = None) -> None:
        """Show what the controls ask for."""
        with self.lock:  # another thread waits; a control that this one moves returns
            if not self.busy:
                self.act(self._redraw)

    def _redraw(self) -> None:
        try:
            self._arrange(self.view.value)
            self._show_table() if self.view.value == "table" else self._show_figure()
        except Exception:
            self.picture.value, self.drawing, self.rows = "", None, []
            raise

    def _arrange(self, view: str) -> None:
        """Show the controls that the view uses, and hide the others."""
        attacked, live = view not in WITHOUT_ATTACK, self.attack.value != STORED
        shown = {self.cell: view in (*CELLS, "history", "fairness"), self.sorting: view == "table",
                 self.score: view == "scores", self.attacked: attacked,
                 self.live: view == "fairness" or (attacked and live),
                 **dict.fromkeys(self.in_cell, view in CELLS)}
        for control, visible in shown.items():
            control.layout.display = None if visible else "none"

    def _show_figure(self) -> None:
        if self.view.value in CELLS:
            self._offer_cells()
        if self.view.value == "scores":
            self._offer(self.score, self.explorer.scores(self.choice().models) or [""])
        self.drawing = self.explorer.draw(self.choice())
        self.rows, alt = self.drawing.rows, self.drawing.alt
        self.picture.value = (f'<img class="explorer-figure" style="max-width: 100%" alt="'
                              f'{html.escape(alt)}" src="{_url(self.drawing.png(), "image/png")}">')
        self.say(alt)

    def _offer_cells(self) -> None:
        """Offer the model's classes, at first its most frequent mistake, and the cell's images."""
        choice = self.choice()
        classes = self.explorer.curve(choice.models[choice.of], choice).classes
        options = tuple((c, i) for i, c in enumerate(classes))
        if self.row.options != options:
            mistake = self.explorer.mistake(choice)
            for control, value in ((self.row, mistake.row), (self.column, mistake.column)):
                control.options, control.value = options, value
        self.number.max = max(1, len(self.explorer.places(self.choice())))

    def _offer(self, control: w.Dropdown, options: Sequence[str]) -> None:
        """New options; the choice stays if it is still among them."""
        if control.options != tuple(options):
            value = control.value if control.value in options else options[0]
            control.options, control.value = tuple(options), value

    def _show_table(self) -> None:
        n, sort = len(self.explorer.models), self.sort.value
        self.rows = table(self.explorer.models, sort=sort, down=self.down.value,
                          words=self.words.value)
        self.drawing = None
        self.picture.value = ('<div style="overflow-x: auto; max-height: 480px">'
                              f'{as_html(self.rows, n)}</div>')
        self.say(f"{len(self.rows)} of {n} models, sorted by {sort}. Errors in percent.")

    def turn_to(self, view: str) -> None:
        self.view.value = view
        self._redraw()

    def attack_now(self) -> None:
        """Run the chosen attack, with progress; other controls wait."""
        if self.attack.value == STORED:
            raise CourseError("The precomputed attack needs no running. Choose one that says: "
                              "attack now.")
        self.progress.value = 0
        self.explorer.attack(self.choice(), self._tick)
        self._redraw()

    def _tick(self, done: int, total: int) -> None:
        self.progress.max, self.progress.value = total, done
        self.progress.description = f"{done} of {total}"

    def to_mistake(self) -> None:
        mistake = self.explorer.mistake(self.choice())
        self.row.value, self.column.value, self.number.value = mistake.row, mistake.column, 1
        self._redraw()

    def open_folder(self) -> None:
        """Add a reader's own runs to the models."""
        new = self.explorer.add(self.folder.value)
        names = list(self.explorer.models)
        self._offer(self.one, names)
        self._offer(self.two, [NONE, *names])
        self._redraw()
        self.say(f"{len(new)} of your own are among the models now: "
                 f"{', '.join(new[:5])}{' …' if len(new) > 5 else ''}.")

    def save(self, kind: str) -> None:
        """Write the figure or its numbers to a file, and offer it as a download."""
        if kind == "csv":
            raw, mime = as_csv(self.rows).encode(), "text/csv"
        elif self.drawing is None:
            raise CourseError("There is no figure to save here. Choose a view that draws one.")
        else:
            raw, mime = self.drawing.png(150), "image/png"
        path = self.out / f"{self.view.value}-{self.eps.value}.{kind}"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        except OSError as error:
            raise CourseError(f"{path} cannot be written ({error.strerror or error}). Give "
                              "explore(out=...) a folder that you may write to.") from None
        link = f'<a download="{path.name}" href="{_url(raw, mime)}">download it</a>'
        self.saved.value = (f'<span role="status">Saved to {html.escape(str(path))}; '
                            f'{link}.</span>')

    def _button(self, text: str, tip: str, action: Callable[[], None]) -> w.Button:
        button = w.Button(description=text, tooltip=tip, layout={"width": "auto"})
        button.on_click(lambda _: self.act(action))
        return button


def _line(*controls: w.Widget) -> w.HBox:
    return w.HBox(controls, layout=FLOW)


def _drop(description: str, options: Sequence[Any], value: Any) -> w.Dropdown:
    return w.Dropdown(description=description, options=list(options), value=value, style=WIDE)


def _toggle(options: Any) -> w.ToggleButtons:
    return w.ToggleButtons(options=list(options), style={"button_width": "auto"})


def _number(description: str, value: int, most: int, width: str) -> w.BoundedIntText:
    return w.BoundedIntText(value=value, min=1, max=most, description=description, style=WIDE,
                            layout={"width": width})


def _url(raw: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(raw).decode()}"
