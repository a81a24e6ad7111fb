"""How long the explorer takes: python -m benchmarks.explorer
 The slider is moved by the keyboard in a real browser (Voilà), from the key to the new picture,
median of 20; what is measured beside it: from opening the page to the first figure, and what the
zoo takes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from benchmarks.harness import main, median_of
from tests.browser.servers import browser, opened, server

# each budget has a picture of its own
VIEWS = ("Errors by class", "All budgets", "Confusion matrix")
CODE = "from course_lib.explorer import explore\nexplore()"
MOVED = """(old) => new Promise(done => { const look = () => {
    const i = document.querySelector("img.explorer-figure");
    if (i && i.src !== old && i.complete) requestAnimationFrame(() => done(performance.now()))
    else setTimeout(look, 2) }; look() })"""


def moves(page: Page, n: int = 20) -> list[float]:
    """Milliseconds from a key on the slider to the new picture, painted."""
    handle, took = page.locator(".noUi-handle, .ui-slider-handle"), []
    handle.focus()
    for k in range(n):
        before = page.locator("img.explorer-figure").get_attribute("src")
        began = page.evaluate("performance.now()")
        handle.press("ArrowRight" if k % 20 < 10 else "ArrowLeft")
        took.append(page.evaluate(MOVED, before) - began)
        page.wait_for_timeout(50)
    return took


def in_browser() -> Iterator[tuple[str, float]]:
    with browser() as b, tempfile.TemporaryDirectory() as folder, server("voila", Path(folder),
            CODE) as address:
        began = time.perf_counter()
        page = opened(b, "voila", address)
        yield "page opened to first figure (kernel start and imports included)", 1000 * (
            time.perf_counter() - began)
        for view in VIEWS:
            page.get_by_role("button", name=view, exact=True).click()
            page.wait_for_timeout(1500)
            yield f"slider to new picture: {view}", statistics.median(moves(page))


def in_python() -> Iterator[tuple[str, float]]:
    from course_lib import list_models, load_model

    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import course_lib.explorer.widgets"], check=True)
    started = 1000 * (time.perf_counter() - began)
    yield "a new Python that imports the explorer", started
    yield "load_model of a LeNet-5", 1000 * median_of(lambda: load_model("exp1/natural"), 20)
    yield "list_models()", 1000 * median_of(list_models, 20)


def whole() -> tuple[list[str], list[list[Any]], Any]:
    rows = [[what, took] for what, took in chain(in_python(), in_browser())]
    return ["what", "ms"], rows, None


if __name__ == "__main__":
    main("explorer", "The explorer (sliders and zoo: median of 20)", whole, {})
