"""The built pages as a student opens them: from files, without a network, on a laptop's half screen
and on a phone. They are made from the stored notebooks."""

from contextlib import closing

import nbformat
import pytest

from course_lib.tables import overview
from tests.browser.servers import browser
from tools.build_course import write_index, write_pages
from tools.common import sources
from tools.pages import summary

NOTEBOOKS = {s.stem: nbformat.read(s.with_suffix(".ipynb"), as_version=4) for s in sources()}
# What leaves its column or hides a part of itself: only a .wide may scroll sideways.
FAULTS = """() => {
  const faults = [], more = document.documentElement.scrollWidth - innerWidth;
  if (more > 0) faults.push(`the page scrolls sideways by ${more}`);
  for (const column of document.querySelectorAll('main, .bar, .toc')) {
    const style = getComputedStyle(column), box = column.getBoundingClientRect();
    const left = box.left + parseFloat(style.paddingLeft) - 1;
    const right = box.right - parseFloat(style.paddingRight) + 1;
    for (const e of column.querySelectorAll('*')) {
      if (e.parentElement.closest('.wide, math') || !e.checkVisibility()) continue;
      const at = e.getBoundingClientRect();
      const hides = !e.matches('.wide') && getComputedStyle(e).overflowX !== 'visible'
        && e.scrollWidth > e.clientWidth + 1;
      if (hides || at.width && (at.left < left || at.right > right))
        faults.push(`<${e.localName} class="${e.className}"> ${e.textContent.trim().slice(0, 60)}`);
    }
  }
  for (const i of document.images)  // those with a width are drawn at 2x
    if (!i.alt || i.hasAttribute('width') && i.naturalWidth < 1.9 * i.width)
      faults.push(`${i.naturalWidth} pixels on ${i.width}: ${i.alt}`);
  return faults }"""
COLUMN = """n => [...document.querySelector('table.sortable').tBodies[0].rows].map(
  row => row.cells[n].innerText.trim())"""

SORTED = "all => all.map(head => [head.cellIndex, head.getAttribute('aria-sort')])"


@pytest.fixture(scope="module")
def chrome():
    with browser() as b:
        yield b


@pytest.fixture(scope="module")
def folder(chrome, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages")
    write_index(write_pages([(summary(n, s), n) for s, n in NOTEBOOKS.items()], out), out)
    return out


def opened(chrome, path, width=760, scripts=True):
    shown = chrome.new_page(viewport={"width": width, "height": 900}, offline=True,
                            java_script_enabled=scripts)
    shown.goto(path.as_uri())
    return closing(shown)


@pytest.mark.parametrize("name", [*NOTEBOOKS, "index", "results"])
def test_nothing_is_wider_than_its_column_and_solutions_are_folded(chrome, folder, name):
    with opened(chrome, folder / f"{name}.html") as shown:
        if name in NOTEBOOKS:
            code = shown.locator("details.solution:not([open]) pre")
            assert code.all_text_contents() == [
                cell.source.partition("\n")[2] + "\n" for cell in NOTEBOOKS[name].cells
                if "solution" in cell.metadata.get("tags", [])]
            assert not any(one.is_visible() for one in code.all())
            assert (setup := shown.get_by_text("SAVE_TO_DRIVE = False")).is_hidden()
            shown.get_by_text("Set up: run me first").click()
            assert setup.is_visible()
        for is_open in (False, True):
            shown.evaluate("yes => document.querySelectorAll('details').forEach(d => d.open = yes)",
                           is_open)
            for width in (1200, 760, 390):
                shown.set_viewport_size({"width": width, "height": 900})
                assert shown.evaluate(FAULTS) == [], f"{name} at {width} pixels"


def test_results_are_sorted_by_keyboard_and_mouse_and_need_no_scripts(chrome, folder):
    with opened(chrome, folder / "results.html") as shown:
        before, heads = shown.evaluate(COLUMN, 0), shown.locator("table.sortable >> nth=0 >> th")
        for title, key, order in (("AutoA", "Enter", "ascending"), ("AutoA", "", "descending"),
                                  ("standard", "", "ascending"), ("standard", " ", "descending")):
            button = heads.filter(has_text=title).first.get_by_role("button")
            button.press(key) if key else button.click()
            ((column, sorted_as),) = shown.locator("[aria-sort]").evaluate_all(SORTED)
            texts = shown.evaluate(COLUMN, column)
            errors = [float(text.split()[0]) for text in texts if text]
            assert sorted_as == order and errors == sorted(errors, reverse=order == "descending")
            assert not any(texts[len(errors):]), "empty cells come last"
        assert sorted(shown.evaluate(COLUMN, 0)) == sorted(before) != shown.evaluate(COLUMN, 0)

    with opened(chrome, folder / "results.html", scripts=False) as shown:
        names = {*shown.locator("td:first-child").all_inner_texts()}
        assert names == {*overview()["model"]} and shown.locator("th button").count() == 0
