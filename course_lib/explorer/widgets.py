"""explore(): every model under your own sliders. The only file that knows ipywidgets, 7.7 or 8;
what is shown is made in explorer.py.
 Core widgets only, and one picture that is exchanged: nothing piles up, everything can be reached
with the keyboard, and a sentence stands beside each figure for those who do not see it.
"""

from __future__ import annotations

import base64
import html
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ipywidgets as w

from course_lib.attacks import ATTACKS
from course_lib.errors import CourseError
from course_lib.explorer.curves import BUDGETS
from course_lib.explorer.sources import COLUMNS, as_csv, as_html, table
from course_lib.explorer.views import CELLS, STORED, Explorer, Look, View

TITLES = {"errors": "Errors by class", "budgets": "All budgets", "confusion": "Confusion matrix",
          "cell": "Images of a cell",
          "image": "One image", "fairness": "Source and target", "scores": "Scores",
          "history": "Training", "table": "Table"}
WITHOUT_ATTACK = ("scores", "history", "table")
NONE = "(no second model)"
WIDE: Any = {"description_width": "initial"}


def explore(models: Sequence[str] | None = None, *, folder: str | Path | None = None,
            out: str | Path = "explorer") -> Panel:
    """The explorer as a widget: show it as the last line of a cell. Without `models` it holds all
    that are stored.

    `folder` is one of your own, with finished or checkpointed runs (a field in the panel takes
    others); tables and figures are saved to `out`.
    """
    return Panel(Explorer(models), list(models or Look.models), folder, Path(out))


class Panel(w.VBox):
    """The controls, the picture and the words of one explorer."""

    def __init__(self, explorer: Explorer, first: Sequence[str], folder: str | Path | None,
                 out: Path) -> None:
        self.explorer, self.out, self.quiet = explorer, out, False
        # JupyterLab may hand two controls' messages to two threads of the kernel (subshells)
        self.lock = threading.RLock()
        self.shown: View | None = None
        self.rows: list[dict[str, Any]] = []
        self.picture, self.note, self.saved = w.HTML(), w.HTML(), w.HTML()
        self._make_choice([m for m in first if m in explorer.models] or list(explorer.models)[:2])
        self._make_cell()
        self._make_table()
        self._make_own("" if folder is None else str(folder))
        super().__init__([w.HBox([self.one, self.two], layout=FLOW), self.attacked, self.live,
                          self.view,
                          self.score, self.cell, self.sorting, self.note, self.picture, self.saving,
                          self.own])
        if folder is not None and Path(folder).is_dir():
            self.open_folder()
        self.draw()

    def _make_choice(self, first: Sequence[str]) -> None:
        """Models, attack and budget, and which view."""
        names = list(self.explorer.models)
        self.one = _drop("Model", names, first[0])
        self.two = _drop("beside", [NONE, *names], first[1] if len(first) > 1 else NONE)
        live = [(f"{name}, attack now", name) for name in ATTACKS]
        self.attack = _drop("Attack", [("PGD-20, precomputed", STORED), *live], STORED)
        self.eps = w.IntSlider(value=8, min=BUDGETS[0], max=BUDGETS[-1],
                               step=BUDGETS[1] - BUDGETS[0], description="ε (of 255)", style=WIDE)
        self.attacked = w.HBox([self.attack, self.eps], layout=FLOW)
        self.per_class = w.BoundedIntText(value=20, min=1, max=1000, description="images a class",
                                          style=WIDE, layout={"width": "180px"})
        self.go = _button("Attack now", self.attack_now,
                          "Run the attack on the first images of each class")
        self.progress = w.IntProgress(value=0, max=1, description="", layout={"width": "220px"})
        self.live = w.HBox([self.per_class, self.go, self.progress], layout=FLOW)
        self.view = w.ToggleButtons(options=[(t, k) for k, t in TITLES.items()], value="errors",
                                    style={"button_width": "auto"})
        self.score = _drop("score", [("", "")], "")
        for control in (self.one, self.two, self.attack, self.eps, self.per_class, self.view,
                        self.score):
            control.observe(self.draw, names="value")

    def _make_cell(self) -> None:
        """Which cell of the confusion matrix, and which image in it."""
        self.of = w.ToggleButtons(options=[("first model", 0), ("second model", 1)], value=0,
                                  style={"button_width": "auto"})
        self.row, self.column = _drop("class", [("", 0)], 0), _drop("taken for", [("", 0)], 0)
        self.number = w.BoundedIntText(value=1, min=1, max=1, description="image", style=WIDE,
                                       layout={"width": "140px"})
        self.often = _button("Most frequent mistake", self.to_mistake,
                             "Choose the largest cell off the diagonal")
        self.images = _button("Show the images of this cell", lambda _: self.turn_to("cell"),
                              "Go to the images of this cell")
        self.this = _button("Show this image", lambda _: self.turn_to("image"), "Go to this image")
        self.cell = w.HBox([self.of, self.row, self.column, self.number, self.often, self.images,
                            self.this], layout=FLOW)
        for control in (self.of, self.row, self.column, self.number):
            control.observe(self.draw, names="value")

    def _make_table(self) -> None:
        self.sort = _drop("sorted by", list(COLUMNS), "model")
        self.down = w.Checkbox(value=False, description="largest first", indent=False,
                               layout={"width": "130px"})
        self.words = w.Text(description="only rows with", placeholder="exp2 frl", style=WIDE)
        self.sorting = w.HBox([self.sort, self.down, self.words], layout=FLOW)
        for control in (self.sort, self.down, self.words):
            control.observe(self.draw, names="value")

    def _make_own(self, folder: str) -> None:
        """Saving, and a folder of one's own."""
        self.to_csv = _button("Save the numbers (CSV)", lambda _: self.save("csv"),
                              "What is shown, as a table")
        self.to_png = _button("Save the figure (PNG)", lambda _: self.save("png"),
                              "What is shown, as a picture")
        self.saving = w.HBox([self.to_csv, self.to_png, self.saved], layout=FLOW)
        self.folder = w.Text(value=folder, description="Your own runs, in", placeholder="results",
                             style=WIDE, layout={"width": "420px"})
        self.opener = _button("Open the folder", self.open_folder,
                              "Put finished and checkpointed runs beside the bundled models")
        self.own = w.HBox([self.folder, self.opener], layout=FLOW)

    def look(self) -> Look:
        """Where the controls stand."""
        models = (self.one.value,) if self.two.value in (NONE, self.one.value) else (self.one.value,
            self.two.value)
        return Look(self.view.value, models, self.attack.value, self.eps.value,
                    min(self.of.value, len(models) - 1), self.row.value,
                    self.column.value, self.number.value, self.per_class.value, self.score.value)

    def turn_to(self, view: str) -> None:
        self.view.value = view

    @contextmanager
    def said(self, drawing: bool = False) -> Iterator[None]:
        """One thing after the other; what goes wrong is said in a sentence. Where drawing went
        wrong, there is nothing else to see."""
        with self.lock:
            try:
                yield
            # a reader's own files hold anything; a panel must not end in a traceback
            except Exception as error:
                odd = (f"This cannot be shown ({type(error).__name__}: {str(error)[:200]}). Choose "
                       "something else.")
                self.say(str(error) if isinstance(error, CourseError) else odd, wrong=True)
                if drawing:
                    self.picture.value, self.shown, self.rows = "", None, []

    def say(self, text: str, wrong: bool = False) -> None:
        ground = ("background: #fdf1ea; border-left: 4px solid #b3470d; padding: 4px 8px;" if wrong
                  else "")
        self.note.value = ('<div role="status" class="explorer-note" style="max-width: 900px; '
                           f'line-height: 1.4; {ground}">' f"{html.escape(text)}</div>")

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """What is moved inside does not draw."""
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def draw(self, change: object = None) -> None:
        """Show what the controls ask for. Controls that this moves do not call it again."""
        with self.said(drawing=True):  # from here on nobody else moves anything
            if not self.quiet:
                with self.quietly():
                    self._hide()
                    self._table() if self.view.value == "table" else self._figure()

    def _hide(self) -> None:
        """Leave what matters to the view."""
        view = self.view.value
        _show(self.cell, view in (*CELLS, "history", "fairness"))
        _show(self.sorting, view == "table")
        _show(self.score, view == "scores")
        _show(self.attacked, view not in WITHOUT_ATTACK)
        _show(self.live, view == "fairness" or (self.attack.value != STORED
                                                and view not in WITHOUT_ATTACK))
        for control in (self.row, self.column, self.number, self.often, self.images, self.this):
            _show(control, view in CELLS)

    def _figure(self) -> None:
        look = self.look()
        if look.view in CELLS:
            look = self._cell(look)
        if look.view == "scores":
            look = self._score(look)
        view = self.explorer.view(look)
        self.shown, self.rows = view, list(view.rows)
        self.picture.value = _picture(view)
        self.say(view.alt)

    def _cell(self, look: Look) -> Look:
        """Bring the choice of the cell in step with the model's classes: at first its most frequent
        mistake."""
        classes = self.explorer.curve(look.models[look.of], look).classes
        options = tuple((c, i) for i, c in enumerate(classes))
        if self.row.options != options:
            mistake = self.explorer.mistake(look)
            for control, value in ((self.row, mistake.row), (self.column, mistake.column)):
                control.options = options
                control.value = value
        n = max(1, len(self.explorer.places(self.look())))
        self.number.max = n
        return self.look()

    def _score(self, look: Look) -> Look:
        """Offer the scores that the models shown have; keep the choice where it is among them."""
        there = tuple(self.explorer.scores(look.models)) or ("",)
        if self.score.options != there:
            value = self.score.value if self.score.value in there else there[0]
            self.score.options = there
            self.score.value = value
        return self.look()

    def _table(self) -> None:
        found = table(self.explorer.models, sort=self.sort.value, down=self.down.value,
                      words=self.words.value)
        self.shown, self.rows = None, found
        self.picture.value = ('<div style="overflow-x: auto; max-height: '
                              f'480px">{as_html(found)}</div>')
        self.say(f"{len(found)} of {len(self.explorer.models)} models, sorted by "
                 f"{self.sort.value}. Errors in percent.")

    def attack_now(self, button: object = None) -> None:
        """Run the chosen attack, with progress; nothing else answers meanwhile."""
        with self.said():
            if self.attack.value == STORED:
                raise CourseError("The precomputed attack needs no running. Choose one that says: "
                                  "attack now.")
            self.progress.value = 0
            self.explorer.attack(self.look(), self._tick)
            self.draw()

    def _tick(self, done: int, total: int) -> None:
        self.progress.max, self.progress.value, self.progress.description = (total, done,
            f"{done} of {total}")

    def to_mistake(self, button: object = None) -> None:
        with self.said():
            mistake = self.explorer.mistake(self.look())
            with self.quietly():
                self.row.value, self.column.value, self.number.value = (mistake.row, mistake.column,
                    1)
            self.draw()

    def open_folder(self, button: object = None) -> None:
        """Put a reader's own runs beside the others."""
        with self.said():
            new = self.explorer.add(self.folder.value)
            names = list(self.explorer.models)
            with self.quietly():
                one, two = self.one.value, self.two.value
                self.one.options, self.two.options = names, [NONE, *names]
                self.one.value, self.two.value = one, two
            self.draw()
            self.say(f"{len(new)} of your own are among the models now: "
                     f"{', '.join(new[:5])}{' …' if len(new) > 5 else ''}.")

    def save(self, kind: str) -> None:
        """Write what is shown to a file, and offer it as a download."""
        with self.said():
            if kind == "png" and self.shown is None:
                raise CourseError("There is no figure to save here; choose a view that draws one.")
            raw = self.shown.png(150) if kind == "png" and self.shown else as_csv(
                self.rows).encode()
            name = f"{self.view.value}-{self.eps.value}.{kind}"
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                (self.out / name).write_bytes(raw)
            except OSError as error:
                why = f"{self.out / name} cannot be written ({error.strerror or error})."
                raise CourseError(
                    f"{why} Give explore(out=...) a folder that you may write to.") from None
            data, mime = base64.b64encode(
                raw).decode(), "image/png" if kind == "png" else "text/csv"
            link = f'<a download="{name}" href="data:{mime};base64,{data}">download it</a>'
            self.saved.value = ('<span role="status">Saved to '
                                f'{html.escape(str(self.out / name))}; {link}.</span>')


FLOW: Any = {"flex_flow": "row wrap", "align_items": "center"}


def _drop(description: str, options: Sequence[Any], value: Any) -> w.Dropdown:
    return w.Dropdown(description=description, options=list(options), value=value, style=WIDE)


def _button(text: str, do: Callable[[Any], None], tip: str) -> w.Button:
    button = w.Button(description=text, tooltip=tip, layout={"width": "auto"})
    button.on_click(do)
    return button


def _show(control: w.Widget, there: bool) -> None:
    control.layout.display = None if there else "none"


def _picture(view: View) -> str:
    """The figure as an image with its text."""
    data = base64.b64encode(view.png()).decode()
    return ('<img class="explorer-figure" style="max-width: 100%" '
            f'alt="{html.escape(view.alt, quote=True)}" ' f'src="data:image/png;base64,{data}">')
