"""The committed notebooks: each one beside its source, in order, and no defect that the checks would let through."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.addresses import addressed
from tools.check_notebooks import faults, faults_of
from tools.common import NOTEBOOKS, ROOT
from tools.notebooks import stored

SOURCES = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
DEMO = addressed((Path(__file__).parent / "demo.py").read_text(encoding="utf-8"), "00_demo")
SANITIZE = Path(__file__).parent / "sanitize.cfg"


def test_there_are_notebooks_and_each_has_its_source() -> None:
    assert SOURCES, f"no NN_topic.py in {NOTEBOOKS}"
    assert {p.stem for p in NOTEBOOKS.glob("*.ipynb")} == {p.stem for p in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_committed_notebook_is_in_order(source: Path) -> None:
    assert faults_of(source) == []


def good() -> NotebookNode:
    """The demonstration as it would be stored, with outputs written by hand."""
    import jupytext

    run = jupytext.reads(DEMO, fmt="py:percent")
    code = [cell for cell in run.cells if cell.cell_type == "code"]
    for n, cell in enumerate(code, 1):
        cell.execution_count = n
    code[1].outputs = [new_output("display_data", {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 200x100 with 1 Axes>"})]
    code[-1].outputs = [new_output("stream", name="stdout", text="0.33\n")]
    return stored(run, DEMO, None)


def test_a_notebook_in_order_has_no_faults() -> None:
    assert faults(good(), DEMO, "00_demo") == []


def add_error(nb: NotebookNode) -> None:
    nb.cells[-1].outputs.append(new_output("error", ename="ValueError", evalue="no", traceback=[]))


def add_output(text: str, name: str = "stdout") -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[-1].outputs.append(new_output("stream", name=name, text=text))


def set_count(value: int | None) -> Callable[[NotebookNode], None]:
    return lambda nb: nb.cells[-1].__setitem__("execution_count", value)


def edit_source(nb: NotebookNode) -> None:
    nb.cells[-1].source += "\n# changed in the notebook only"


def forget_alt(nb: NotebookNode) -> None:
    next(cell for cell in nb.cells if "alt" in cell.metadata).metadata.pop("alt")


def add_widget(nb: NotebookNode) -> None:
    nb.cells[-1].outputs.append(new_output("display_data", {"application/vnd.jupyter.widget-view+json": {"model_id": "0"}}))


MUTATIONS: dict[str, tuple[Callable[[NotebookNode], object], str]] = {
    "a stored error": (add_error, "an error is stored"),
    "a warning": (add_output("UserWarning: look here", "stderr"), "stderr"),
    "a machine's path": (add_output("saved in /home/someone/course"), "path of one machine"),
    "an address": (add_output("<object at 0x7f00aa>"), "address is shown"),
    "a count out of order": (set_count(9), "execution counts"),
    "a missing count": (set_count(None), "execution counts"),
    "an unpaired edit": (edit_source, "differ"),
    "a cell gone": (lambda nb: nb.cells.pop(), "cells"),
    "no output at a checked cell": (lambda nb: nb.cells[-1].__setitem__("outputs", []), "no stored text"),
    "no alt text": (forget_alt, "alt text"),
    "a live widget": (add_widget, "live widget"),
    "widget state": (lambda nb: nb.metadata.__setitem__("widgets", {}), "metadata.widgets"),
    "a machine's Python": (lambda nb: nb.metadata.language_info.__setitem__("version", "3.11.7"), "version of one machine"),
    "a skipped heading": (lambda nb: nb.cells.append(new_markdown_cell("#### Deep")), "skips a level"),
    "two titles": (lambda nb: nb.cells.append(new_markdown_cell("# Another")), "one title"),
    "an image without words": (lambda nb: nb.cells.append(new_markdown_cell("![](a.png)")), "alt text"),
    "the same id twice": (lambda nb: nb.cells[0].__setitem__("id", nb.cells[1].id), "not unique"),
    "a tag lost": (lambda nb: nb.cells[1].metadata.pop("tags"), "tags"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_defect_is_found(name: str) -> None:
    mutate, words = MUTATIONS[name]
    notebook = copy.deepcopy(good())
    mutate(notebook)
    assert any(words in fault for fault in faults(notebook, DEMO, "00_demo"))


def test_defects_of_the_source_are_found() -> None:
    no_check = DEMO.replace("# NBVAL_CHECK_OUTPUT\n", "")
    assert any("no cell is marked" in fault for fault in faults(stored(good(), no_check, None), no_check, "00_demo"))
    elsewhere = addressed(DEMO, "00_demo", "https://example.org/elsewhere")
    assert any("make notebooks" in fault for fault in faults(stored(good(), elsewhere, None), elsewhere, "00_demo"))


def test_size_and_absence_are_found(tmp_path: Path) -> None:
    source = tmp_path / "00_demo.py"
    source.write_text(DEMO)
    assert any("missing" in fault for fault in faults_of(source))
    large = good()
    large.cells[-1].outputs[0].text += "x" * 1_000_000
    nbformat.write(large, source.with_suffix(".ipynb"))
    assert any("1000000 at most" in fault for fault in faults_of(source))


def test_nbval_catches_a_changed_figure_and_an_exception(tmp_path: Path) -> None:
    """As the Makefile calls it: a right notebook passes; a changed number in a compared cell and an exception fail."""
    lines = {"right": ("print(0.33)", "0.33\n"), "changed": ("print(0.33)", "0.34\n"), "raises": ("assert 0.33 > 1", "0.33\n")}
    for name, (line, text) in lines.items():
        cell = new_code_cell(f"# NBVAL_CHECK_OUTPUT\n{line}", execution_count=1, outputs=[new_output("stream", name="stdout", text=text)])
        nbformat.write(new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-sanitize-with={SANITIZE}", "-p", "no:cacheprovider", "-rA", "--color=no"]
    command = [sys.executable, "-m", "pytest", *options, "-c", str(tmp_path / "none.ini"), str(tmp_path)]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    found = {name: verdict for verdict, name in re.findall(r"^(PASSED|FAILED) \S*?(\w+)\.ipynb", done.stdout, re.M)}
    assert found == {"right": "PASSED", "changed": "FAILED", "raises": "FAILED"}, done.stdout + done.stderr
