"""The explorer as a reader meets it: every control is moved in a real browser, and the page's words
and picture follow."""

import re
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, TimeoutError

from tests.browser.servers import KEPT, browser, opened, server

CODE = "from course_lib.explorer import explore\nexplore()"
EXCHANGED = """old => { const i = document.querySelector('img.explorer-figure');
    const note = document.querySelector('.explorer-note');
    const text = note.innerText.replace(/ Click a cell of .*/, '');
    return i && i.src !== old && i.complete && i.alt && text === i.alt }"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as b:
        yield b


class Seen:
    """The explorer on a page."""

    def __init__(self, page: Page, kind: str) -> None:
        self.page, self.kind = page, kind
        self.figure = page.locator("img.explorer-figure")
        self.note = page.locator(".explorer-note")

    def after(self, act: Callable[[], object], words: str) -> str:
        """Do something, and wait until the note holds the words and the picture and its text for
        the blind went along."""
        before = self.figure.get_attribute("src")
        act()
        self.says(words)
        self.page.wait_for_function(EXCHANGED, arg=before)
        assert self.figure.count() == 1, "one picture, exchanged"
        return self.note.inner_text()

    def says(self, words: str) -> None:
        try:
            self.page.wait_for_function(
                "words => document.querySelector('.explorer-note')?.innerText.includes(words)",
                arg=words)
        except TimeoutError:
            KEPT.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=KEPT / f"{self.kind}-failed.png")
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

    def slide(self, key: str) -> None:
        handle = self.page.locator(".noUi-handle, .ui-slider-handle")
        handle.focus()
        handle.press(key)


@pytest.fixture(scope="module", params=("voila", "lab"))
def seen(request: pytest.FixtureRequest, chrome: Browser,
         tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A page that shows the explorer, and what serves it."""
    folder = tmp_path_factory.mktemp(request.param)
    with server(request.param, folder, CODE) as address:
        page = opened(chrome, request.param, address)
        yield Seen(page, request.param)
        page.close()


def test_models_attack_and_budget(seen: Seen) -> None:
    seen.says("exp1/natural: average 55")
    seen.after(lambda: seen.slide("ArrowRight"), "at 10/255")
    seen.after(lambda: seen.slide("ArrowLeft"), "at 8/255")
    seen.after(lambda: seen.page.get_by_label("mean over all seeds").check(), "5 seeds: average")
    seen.after(lambda: seen.page.get_by_label("mean over all seeds").uncheck(), "natural: average")
    assert seen.after(lambda: seen.choose("beside", "(no second model)"),
                      "exp1/natural").count("average") == 1
    seen.after(lambda: seen.choose("beside", "exp3/remargin-05"), "exp3/remargin-05: average")


def test_a_click_on_the_matrix_shows_the_images_of_the_cell(seen: Seen) -> None:
    """The cells lie over the picture: the seventh row and the fifth column of the right matrix."""
    for width in (1400, 760):
        seen.page.set_viewport_size({"width": width, "height": 1500})
        seen.after(lambda: seen.press("Confusion matrix"), "The framed cell")
        cell = seen.page.get_by_role("button", name="Shirt taken for Coat", exact=True)
        picture, box = seen.figure.bounding_box() or {}, cell.bounding_box() or {}
        assert 0.7 < (box["x"] - picture["x"]) / picture["width"] < 0.78
        assert 0.5 < (box["y"] - picture["y"]) / picture["height"] < 0.6
        seen.after(cell.click, "images of Shirt are taken for Coat by exp1/natural")
    seen.page.set_viewport_size({"width": 1400, "height": 1500})


def test_attack_now(seen: Seen) -> None:
    seen.press("Errors by class")
    seen.says("95 % intervals")
    seen.choose("Attack", "cw20, attack now")
    seen.says("press Attack now")
    seen.figure.wait_for(state="detached")  # nothing is shown that was not computed
    seen.fill("images per class", "3")
    seen.press("Attack now")
    seen.says("cw20 at 8/255 on 30 test images")
    # the progress bar came to its end
    seen.page.get_by_text(re.compile(r"^(\d+) of \1$")).wait_for()
    seen.after(lambda: seen.choose("Attack", "PGD-20, precomputed"), "10000 test images")


def test_the_keyboard_reaches_every_control(seen: Seen) -> None:
    """Tab goes from one to the next; nothing needs a mouse."""
    page = seen.page
    seen.press("Errors by class")  # a view with an attack and its budget
    seen.says("95 % intervals")
    page.get_by_label("Model", exact=True).focus()
    reached = ""
    for _ in range(40):
        page.keyboard.press("Tab")
        reached += page.evaluate("""() => { const e = document.activeElement;
            const what = e.getAttribute('role') || e.type || e.className || '';
            return [e.tagName, what, e.innerText || e.labels?.[0]?.innerText, '\\n'].join(' ') }""")
    for part in ("SELECT select-one", "slider", "BUTTON", "Errors by class", "Scores",
                 "Open the folder"):
        assert part in reached, f"{part} was not reached:\n{reached}"
