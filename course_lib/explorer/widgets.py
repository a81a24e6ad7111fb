"""The explorer's panel: controls, one figure and its text. The only file that knows ipywidgets, 7.7
or 8.

It uses core widgets only and exchanges one picture. The keyboard reaches every control, and the
text beside the figure describes it.
"""

from __future__ import annotations

import base64
import dataclasses
import html
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipywidgets as w

from course_lib.attacks import ATTACKS
from course_lib.errors import CourseError
from course_lib.explorer.curves import BUDGETS
from course_lib.explorer.sources import COLUMNS, as_csv, as_html, table
from course_lib.explorer.views import STORED, VIEWS, Choice, Drawing, Explorer
from course_lib.files import write_together

TITLES = {name: view.title for name, view in VIEWS.items()} | {"table": "Table"}
NONE = "(no second model)"
LINES = (  # the parts of each line, after the word in `View.uses` that shows them
    {"always": "one two"}, {"attack": "attack eps"},
    {"live": "per_class", "attack now": "attack_now progress"}, {"always": "view"},
    {"score": "score"}, {"of": "of", "cell": "row column number to_mistake show_cell show_image"},
    {"table": "sort down words"}, {"always": "note"}, {"always": "picture"},
    {"always": "save_csv save_png saved"}, {"always": "folder open_folder"})
WIDE: Any = {"description_width": "initial"}
FLOW: Any = {"flex_flow": "row wrap", "align_items": "center"}
WRONG = "background: #fdf1ea; border-left: 4px solid #b3470d; padding: 4px 8px;"


def parts(names: Sequence[str], one: str, two: str, folder: str) -> dict[str, w.Widget]:
    """The widgets of a panel by name. A button has the name of the method that it calls."""
    live = [(f"{name}, attack now", name) for name in ATTACKS]
    return {
        "one": _drop("Model", names, one), "two": _drop("beside", [NONE, *names], two),
        "attack": _drop("Attack", [("PGD-20, precomputed", STORED), *live], STORED),
        "eps": w.IntSlider(value=8, min=BUDGETS[0], max=BUDGETS[-1], step=BUDGETS[1] - BUDGETS[0],
                           description="ε (of 255)", style=WIDE),
        "per_class": _number("images a class", 20, 1000, "180px"),
        "attack_now": _button("Attack now", "Run the attack on the first images of each class"),
        "progress": w.IntProgress(value=0, max=1, description="", layout={"width": "220px"}),
        "view": _toggle((title, view) for view, title in TITLES.items()),
        "score": _drop("score", [""], ""),
        "of": _toggle([("first model", 0), ("second model", 1)]),
        "row": _drop("class", [("", 0)], 0), "column": _drop("taken for", [("", 0)], 0),
        "number": _number("image", 1, 1, "140px"),
        "to_mistake": _button("Most frequent mistake", "Choose the largest cell off the diagonal"),
        "show_cell": _button("Show the images of this cell", "Go to the images of this cell"),
        "show_image": _button("Show this image", "Go to this image"),
        "sort": _drop("sorted by", COLUMNS, "model"),
        "down": w.Checkbox(value=False, description="largest first", indent=False,
                           layout={"width": "130px"}),
        "words": w.Text(description="only rows with", placeholder="exp2 frl", style=WIDE),
        "note": w.HTML(), "picture": w.HTML(), "saved": w.HTML(),
        "save_csv": _button("Save the numbers (CSV)", "The numbers shown, as a table"),
        "save_png": _button("Save the figure (PNG)", "The figure shown, as a picture"),
        "folder": w.Text(value=folder, description="Your own runs, in", placeholder="results",
                         style=WIDE, layout={"width": "420px"}),
        "open_folder": _button("Open the folder", "Put finished and checkpointed runs beside the "
                               "bundled models"),
    }


def _drop(description: str, options: Sequence[Any], value: Any) -> w.Dropdown:
    return w.Dropdown(description=description, options=options, value=value, style=WIDE)


def _toggle(options: Iterable[Any]) -> w.ToggleButtons:
    return w.ToggleButtons(options=list(options), style={"button_width": "auto"})


def _number(description: str, value: int, most: int, width: str) -> w.BoundedIntText:
    return w.BoundedIntText(value=value, min=1, max=most, description=description, style=WIDE,
                            layout={"width": width})


def _button(text: str, tip: str) -> w.Button:
    return w.Button(description=text, tooltip=tip, layout={"width": "auto"})


class Panel(w.VBox):
    """The controls, the figure and the text of one explorer."""

    def __init__(self, models: Sequence[str] | None, folder: str | Path | None, out: Path) -> None:
        self.explorer, self.out = Explorer(models), out
        # JupyterLab may answer two controls in two threads of the kernel (subshells)
        self.lock, self.busy = threading.RLock(), False
        self.drawing: Drawing | None = None
        self.rows: Any = []
        names = list(self.explorer.models)
        one, two = [*([m for m in models or Choice.models if m in names] or names), NONE][:2]
        by_name = parts(names, one, two, str(folder or ""))
        self.part = SimpleNamespace(**by_name)
        for name, part in by_name.items():
            if isinstance(part, w.Button):
                part.on_click(lambda _, name=name: self.act(getattr(self, name)))
            elif name != "folder":
                part.observe(self.draw, names="value")
        self.shown: dict[str, list[w.Widget]] = {
            word: [by_name[name] for name in names.split()]
            for line in LINES for word, names in line.items() if word != "always"}
        lines = [[by_name[name] for name in " ".join(line.values()).split()] for line in LINES]
        super().__init__([w.HBox(line, layout=FLOW) if line[1:] else line[0] for line in lines])
        if folder is not None and Path(folder).is_dir():
            self.act(self.open_folder)
        self.draw()

    def choice(self) -> Choice:
        """The choice that the controls show."""
        models = dict.fromkeys(m for m in (self.part.one.value, self.part.two.value) if m != NONE)
        fields = (f.name for f in dataclasses.fields(Choice) if f.name != "models")
        return Choice(models=tuple(models), **{f: getattr(self.part, f).value for f in fields})

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
        self.part.note.value = (
            '<div role="status" class="explorer-note" style="max-width: 900px; line-height: 1.4; '
            f'{style}">{html.escape(text)}</div>')

    def draw(self, change: object = None) -> None:
        """Show what the controls ask for."""
        with self.lock:  # another thread waits; a control that this one moves returns
            if not self.busy:
                self.act(self._redraw)

    def _redraw(self) -> None:
        view = self.part.view.value
        uses = {"table"} if view == "table" else set(VIEWS[view].uses)
        if "attack" in uses and self.part.attack.value != STORED:
            uses |= {"live", "attack now"}
        for word, controls in self.shown.items():
            for control in controls:
                control.layout.display = None if word in uses else "none"
        try:
            self._show_table() if view == "table" else self._show_figure(uses)
        except Exception:
            self.part.picture.value, self.drawing, self.rows = "", None, []
            raise

    def _show_figure(self, uses: set[str]) -> None:
        if "cell" in uses:
            self._offer_cells()
        if "score" in uses:
            self._offer(self.part.score, self.explorer.scores(self.choice().models) or [""])
        self.drawing = self.explorer.draw(self.choice())
        self.rows, alt = self.drawing.rows, self.drawing.alt
        self.part.picture.value = (
            f'<img class="explorer-figure" style="max-width: 100%" alt="{html.escape(alt)}" '
            f'src="{_url(self.drawing.png(), "image/png")}">')
        self.say(alt)

    def _offer_cells(self) -> None:
        """Offer the model's classes, at first its most frequent mistake, and the cell's images."""
        classes = self.explorer.detail(self.choice()).classes
        options = tuple((c, i) for i, c in enumerate(classes))
        if self.part.row.options != options:
            mistake = self.explorer.mistake(self.choice())
            for control, value in zip((self.part.row, self.part.column), mistake, strict=True):
                control.options, control.value = options, value
        self.part.number.max = max(1, len(self.explorer.places(self.choice())))

    def _offer(self, control: w.Dropdown, options: Sequence[str]) -> None:
        """New options; the choice stays if it is still among them."""
        if control.options != tuple(options):
            value = control.value if control.value in options else options[0]
            control.options, control.value = tuple(options), value

    def _show_table(self) -> None:
        sort = self.part.sort.value
        self.drawing, self.rows = None, table(self.explorer.models, sort=sort,
                                              down=self.part.down.value,
                                              words=self.part.words.value)
        self.part.picture.value = ('<div style="overflow-x: auto; max-height: 480px">'
                                   f'{as_html(self.rows)}</div>')
        self.say(f"{len(self.rows)} of {len(self.explorer.models)} models, sorted by {sort}. "
                 "Errors in percent on the test set, average and worst class; robust: PGD-20.")

    def show_cell(self) -> None:
        self.part.view.value = "cell"
        self._redraw()

    def show_image(self) -> None:
        self.part.view.value = "image"
        self._redraw()

    def attack_now(self) -> None:
        """Run the chosen attack, with progress; other controls wait."""
        self.part.progress.value = 0
        self.explorer.attack(self.choice(), self._tick)
        self._redraw()

    def _tick(self, images: int, total: int) -> None:
        bar = self.part.progress
        bar.max, bar.value = total, bar.value + images
        bar.description = f"{bar.value} of {total}"

    def to_mistake(self) -> None:
        self.part.row.value, self.part.column.value = self.explorer.mistake(self.choice())
        self.part.number.value = 1
        self._redraw()

    def open_folder(self) -> None:
        """Add a reader's own runs to the models."""
        new = self.explorer.add(self.part.folder.value)
        names = list(self.explorer.models)
        self._offer(self.part.one, names)
        self._offer(self.part.two, [NONE, *names])
        self._redraw()
        self.say(f"{len(new)} of your own are among the models now: "
                 f"{', '.join(new[:5])}{' …' if len(new) > 5 else ''}.")

    def save_csv(self) -> None:
        self._save(as_csv(self.rows).encode(), "csv", "text/csv")

    def save_png(self) -> None:
        if self.drawing is None:
            raise CourseError("There is no figure to save here. Choose a view that draws one.")
        self._save(self.drawing.png(150), "png", "image/png")

    def _save(self, raw: bytes, kind: str, mime: str) -> None:
        """Write a file, and offer it as a download."""
        path = self.out / f"{self.part.view.value}-{self.part.eps.value}.{kind}"
        write_together({path: raw})
        self.part.saved.value = (
            f'<span role="status">Saved to {html.escape(str(path))}; '
            f'<a download="{path.name}" href="{_url(raw, mime)}">download it</a>.</span>')


def _url(raw: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(raw).decode()}"
