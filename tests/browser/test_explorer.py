"""The explorer as a reader meets it: every control is moved in a real browser, and the page is
looked at, words and pixels."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, TimeoutError

from course_lib import Optim, build, fit, load
from course_lib.checkpoints import Store
from course_lib.methods import METHODS
from tests.browser.servers import KEPT, browser, opened, server

CODE = "from course_lib.explorer import explore\nexplore(out='saved')"
KINDS = ("voila", "lab")
EXCHANGED = ("old => { const i = document.querySelector('img.explorer-figure'); return i && i.src "
             "!== old && i.complete }")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as b:
        yield b


@pytest.fixture(scope="module", params=KINDS)
def there(request: pytest.FixtureRequest, chrome: Browser,
          tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Path, str]]:
    """A page that shows the explorer, the folder of its kernel, and what serves it."""
    folder = tmp_path_factory.mktemp(request.param)
    with server(request.param, folder, CODE) as address:
        page = opened(chrome, request.param, address)
        yield page, folder, request.param
        page.close()


class Seen:
    """The explorer on a page."""

    def __init__(self, page: Page, kind: str) -> None:
        self.page, self.kind = page, kind
        self.figure = page.locator("img.explorer-figure")
        self.note = page.locator(".explorer-note")

    def after(self, act: Callable[[], object], words: str) -> str:
        """Do something, wait until the note holds the words, and see that picture, text for the
        blind and pixels went along."""
        before, pixels = self.figure.get_attribute("src"), self.pixels()
        act()
        self.says(words)
        self.page.wait_for_function(EXCHANGED, arg=before)
        assert self.figure.count() == 1, "one picture, exchanged"
        assert self.pixels() != pixels
        assert self.figure.get_attribute("alt") == self.note.inner_text()
        return self.note.inner_text()

    def pixels(self) -> bytes:
        """The picture as it is painted; once more where it was exchanged at that moment."""
        for _ in range(20):
            with contextlib.suppress(Error):
                return self.figure.screenshot()
            self.page.wait_for_timeout(100)
        return self.figure.screenshot()

    def says(self, words: str) -> None:
        try:
            self.page.wait_for_function(
                "words => document.querySelector('.explorer-note')?.innerText.includes(words)",
                arg=words)
        except TimeoutError:
            self.kept("failed")
            raise AssertionError(
                f"The page does not say {words!r}, but: {self.note.inner_text()}") from None

    def choose(self, label: str, option: str) -> None:
        self.page.get_by_label(label, exact=True).select_option(label=option)

    def fill(self, label: str, text: str) -> None:
        field = self.page.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter")
        field.press("Tab")

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click()

    def kept(self, name: str) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=KEPT / f"{self.kind}-{name}.png")

    def slide(self, key: str) -> None:
        handle = self.page.locator(".noUi-handle, .ui-slider-handle")
        handle.focus()
        handle.press(key)


@pytest.fixture
def seen(there: tuple[Page, Path, str]) -> Seen:
    return Seen(there[0], there[2])


def test_models_attack_and_budget(seen: Seen) -> None:
    seen.says("exp1/natural: average 55")
    seen.kept("first")
    assert "10/255" in seen.after(lambda: seen.slide("ArrowRight"), "10/255")
    seen.after(lambda: seen.slide("Home"), "at 0/255")
    seen.after(lambda: seen.slide("ArrowRight"), "at 2/255")
    assert "exp1/natural" not in seen.after(lambda: seen.choose("Model", "exp1/pgd-at-mixed"),
                                            "exp1/pgd-at-mixed: average")
    assert seen.after(lambda: seen.choose("beside", "(no second model)"),
                      "exp1/pgd-at-mixed").count("average") == 1
    seen.after(lambda: seen.choose("beside", "exp3/remargin-05"), "exp3/remargin-05: average")


def test_every_view(seen: Seen) -> None:
    seen.choose("Model", "exp1/natural")
    heads = {"All budgets": "against the budget", "Confusion matrix": "Confusion matrices",
             "Images of a cell": "Shown: 1 to",
             "One image": "Test image", "Source and target": "is lost soonest",
             "Scores": "CAU: accuracy of each class",
             "Training": "Training of exp1/natural",
             "Errors by class": "95 % intervals"}
    for name, words in heads.items():
        seen.after(lambda name=name: seen.press(name), words)
        seen.kept(name.lower().replace(" ", "-"))
    seen.after(lambda: seen.press("Scores"), "CAU: accuracy of each class")
    seen.after(lambda: seen.choose("score", "CRU_s, pgd20 at 16/255"),
               "success of pgd20 at 16/255 on each class")
    seen.kept("score-chosen")
    seen.after(lambda: seen.press("Training"), "Training of exp1/natural")
    seen.after(lambda: seen.press("second model"), "Training of exp3/remargin-05")
    seen.after(lambda: seen.press("first model"), "Training of exp1/natural")


def test_from_a_cell_to_its_images_and_to_one_of_them(seen: Seen) -> None:
    seen.after(lambda: seen.press("Confusion matrix"), "The framed cell")
    seen.choose("class", "Bag")
    seen.says("images of Bag are")
    seen.after(lambda: seen.choose("class", "Shirt"), "images of Shirt are")
    seen.choose("taken for", "Bag")
    seen.says("are taken for Bag")
    seen.after(lambda: seen.choose("taken for", "Coat"), "are taken for Coat")
    seen.after(lambda: seen.press("Show the images of this cell"),
               "images of Shirt are taken for Coat by exp1/natural")
    first = seen.after(lambda: seen.press("Show this image"), "Test image")
    assert seen.after(lambda: seen.fill("image", "2"), "says") != first
    seen.press("Confusion matrix")
    seen.says("The framed cell")
    largest = seen.after(lambda: seen.press("Most frequent mistake"), "The framed cell")
    assert "Shirt are taken for Coat" not in largest


def test_attack_now(seen: Seen) -> None:
    seen.press("Errors by class")
    seen.says("95 % intervals")
    seen.choose("Attack", "cw20, attack now")
    seen.says("press Attack now")
    seen.figure.wait_for(state="detached")  # nothing is shown that was not computed
    seen.fill("images a class", "3")
    seen.press("Attack now")
    seen.says("cw20 at 2/255 on 30 test images")
    # the progress bar came to its end
    seen.page.get_by_text(re.compile(r"^(\d+) of \1$")).wait_for()
    seen.kept("attack-now")
    seen.after(lambda: seen.choose("Attack", "PGD-20, precomputed"), "10000 test images")


def test_table_and_saving(seen: Seen, there: tuple[Page, Path, str]) -> None:
    page, folder, _ = there
    rows = page.locator("table tbody tr").filter(has_text="exp")
    seen.after(lambda: seen.slide("ArrowRight"), "at 4/255")
    seen.press("Save the figure (PNG)")
    page.get_by_text("errors-4.png").wait_for()
    assert (folder / "saved" / "errors-4.png").read_bytes().startswith(b"\x89PNG")
    seen.press("Table")
    seen.says("sorted by model")
    rows.first.wait_for()
    many = rows.count()
    seen.fill("Only models with", "exp1 trades")
    seen.says("No model has all of these words")
    seen.fill("Only models with", "exp1")
    page.wait_for_function("n => { const k = document.querySelectorAll('table tbody tr').length; "
                           "return k > 0 && k < n }", arg=many)
    seen.choose("sorted by", "robust 8/255 worst")
    seen.says("sorted by robust 8/255 worst")
    page.get_by_label("largest first").check()
    page.wait_for_function("document.querySelector('table tbody tr "
                           "td').innerText.includes('exp1/natural')")
    seen.kept("table")
    seen.press("Save the numbers (CSV)")
    link = page.get_by_role("link", name="download it")
    page.get_by_text("table-4.csv").wait_for()
    written = (folder / "saved" / "table-4.csv").read_text()
    assert base64.b64decode((link.get_attribute("href")
                             or "").partition(",")[2]).decode() == written
    errors = [float(r["robust 8/255 worst"]) for r in csv.DictReader(io.StringIO(written))]
    assert len(errors) == rows.count() > 1 and errors == sorted(errors, reverse=True)


def test_runs_of_ones_own(seen: Seen, there: tuple[Page, Path, str]) -> None:
    _, folder, _ = there
    data, optim = load("fashion-mnist", limit=200), Optim(batch=50)
    fit(build("lenet5"), METHODS["natural"](), data, epochs=1, optim=optim, seed=0, progress=False,
        store=Store(folder / "runs" / "mine"))
    seen.press("Errors by class")
    seen.says("95 % intervals")
    seen.fill("Your own runs, in", "not-there")
    seen.press("Open the folder")
    seen.says("There is no folder 'not-there'")
    seen.fill("Your own runs, in", "runs")
    seen.press("Open the folder")
    seen.says("1 of your own")
    seen.choose("Model", "mine: checkpoint")
    seen.says("Choose a live attack and press Attack now")
    seen.press("Training")
    seen.says("Training of mine: checkpoint")
    seen.kept("own")


def test_the_keyboard_reaches_every_control(seen: Seen) -> None:
    """Tab goes from one to the next; nothing needs a mouse."""
    page = seen.page
    seen.press("Errors by class")  # a view with an attack and its budget
    seen.says("Choose a live attack")
    page.get_by_label("Model", exact=True).focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("""() => { const e = document.activeElement;
            const what = e.getAttribute('role') || e.type || e.className || '';
            return [e.tagName, what, e.innerText || e.labels?.[0]?.innerText || ''].join(' ') }"""))
    all_of_it = "\n".join(reached)
    for part in ("SELECT select-one", "slider", "BUTTON", "Errors by class", "Table",
                 "Save the numbers", "Open the folder"):
        assert part in all_of_it, f"{part} was not reached:\n{all_of_it}"
