"""The committed notebooks: each one beside its source, in order, and no defect that the checks
would let through."""

import copy
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools.addresses import addressed
from tools.check_notebooks import faults, faults_of, text_of
from tools.common import NOTEBOOKS, ROOT
from tools.notebooks import stored

SOURCES = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
MADE = [source for source in SOURCES if source.with_suffix(".ipynb").is_file()]
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
    code[1].outputs = [new_output("display_data",
                                  {"image/png": "iVBORw0KGgo=",
                                   "text/plain": "<Figure size 200x100 with 1 Axes>"})]
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


def edited_and_not_run(nb: NotebookNode) -> None:
    """The source and the notebook alike, as an editor with Jupytext does; only the outputs are of
    before."""
    nb.cells[-1].source = nb.cells[-1].source.replace("1 / 3", "2 / 6")


def forget_alt(nb: NotebookNode) -> None:
    next(cell for cell in nb.cells if "alt" in cell.metadata).metadata.pop("alt")


def add_widget(nb: NotebookNode) -> None:
    nb.cells[-1].outputs.append(new_output("display_data",
                                           {"application/vnd.jupyter.widget-view+json":
                                            {"model_id": "0"}}))


MUTATIONS: dict[str, tuple[Callable[[NotebookNode], object], str]] = {
    "a stored error": (add_error, "an error is stored"),
    "a warning": (add_output("UserWarning: look here", "stderr"), "stderr"),
    "a machine's path": (add_output("saved in /home/someone/course"), "path of one machine"),
    "an address": (add_output("<object at 0x7f00aa>"), "address is shown"),
    "a count out of order": (set_count(9), "execution counts"),
    "a missing count": (set_count(None), "execution counts"),
    "an unpaired edit": (edit_source, "differ"),
    "a cell gone": (lambda nb: nb.cells.pop(), "cells"),
    "no alt text": (forget_alt, "alt text"),
    "a live widget": (add_widget, "live widget"),
    "widget state": (lambda nb: nb.metadata.__setitem__("widgets", {}), "metadata.widgets"),
    "a machine's Python": (lambda nb: nb.metadata.language_info.__setitem__("version", "3.11.7"),
                           "version of one machine"),
    "a skipped heading": (lambda nb: nb.cells.append(new_markdown_cell("#### Deep")),
                          "skips a level"),
    "two titles": (lambda nb: nb.cells.append(new_markdown_cell("# Another")), "one title"),
    "an image without words": (lambda nb: nb.cells.append(new_markdown_cell("![](a.png)")),
                               "alt text"),
    "the same id twice": (lambda nb: nb.cells[0].__setitem__("id", nb.cells[1].id), "not unique"),
    "a tag lost": (lambda nb: nb.cells[1].metadata.pop("tags"), "tags"),
    "an output of before the edit": (edited_and_not_run, "other code"),
    "an output of nobody knows what": (lambda nb: nb.metadata.pop("course"), "other code"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_defect_is_found(name: str) -> None:
    mutate, words = MUTATIONS[name]
    notebook = copy.deepcopy(good())
    mutate(notebook)
    assert any(words in fault for fault in faults(notebook, DEMO, "00_demo"))


def test_defects_of_the_source_are_found() -> None:
    elsewhere = addressed(DEMO, "00_demo", "https://github.com/someone/elsewhere")
    assert any("make notebooks" in fault for fault in faults(stored(good(), elsewhere, None),
        elsewhere, "00_demo"))


def test_size_and_absence_are_found(tmp_path: Path) -> None:
    source = tmp_path / "00_demo.py"
    source.write_text(DEMO)
    assert any("missing" in fault for fault in faults_of(source))
    large = good()
    large.cells[-1].outputs[0].text += "x" * 1_000_000
    nbformat.write(large, source.with_suffix(".ipynb"))
    assert any("1000000 at most" in fault for fault in faults_of(source))


def checked(code: str, *outputs: NotebookNode) -> NotebookNode:
    return new_code_cell(code, execution_count=1, outputs=list(outputs))


def printed(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def table(number: str) -> NotebookNode:
    data = {"text/markdown": f"| error |\n|---|\n| {number} |",
            "text/plain": "<IPython.core.display.Markdown object>"}
    return new_output("execute_result", data, execution_count=1)


TABLE = "from IPython.display import Markdown\nMarkdown('| error |\\n|---|\\n| 0.33 |')"
CELLS = {  # cell -> does it pass?
    "a right number": (checked("print(0.33)", printed("0.33\n")), True),
    "a changed number": (checked("print(0.33)", printed("0.34\n")), False),
    "a right table": (checked(TABLE, table("0.33")), True),
    "a changed number in a table": (checked(TABLE, table("0.34")), False),
    "a line too many": (checked("print(0.33)", printed("0.33\n0.33\n")), False),
    "an exception": (new_code_cell("assert 0.33 > 1", execution_count=1), False),
    "a stale output": (checked("print('by the new code')", printed("by the old code\n")), False),
    "a right number after all that": (checked("print(0.33)", printed("0.33\n")), True),
}


def test_nbval_as_we_call_it_catches_what_changed(tmp_path: Path) -> None:
    """The options are pyproject's own, so the net is the one that `make test` spreads."""
    nbformat.write(new_notebook(cells=[cell for cell, _ in CELLS.values()]),
                   tmp_path / "small.ipynb")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    options = [word for word in project["tool"]["pytest"]["ini_options"]["addopts"]
               if "nbval" in word and "sanitize" not in word]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    words = [*options, f"--nbval-sanitize-with={SANITIZE}", "-p", "no:cacheprovider", "-rA",
             "--color=no", "-c", str(tmp_path / "none.ini")]
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    found = {int(n): verdict for verdict, n in re.findall(
        r"^(PASSED|FAILED) \S*small\.ipynb::Cell (\d+)", done.stdout, re.M)}
    wanted = {n: "PASSED" if passes else "FAILED" for n, (_, passes) in enumerate(CELLS.values())}
    assert len(options) >= 3 and found == wanted, done.stdout + done.stderr


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a12_cells_whose_output_is_not_compared_say_why(source: Path) -> None:
    """A set-up cell is about the machine; sliders and the panel are stored as still pictures."""
    cells = nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells
    ignored = [{*c.metadata.get("tags", [])} for c in cells
               if "nbval-ignore-output" in c.metadata.get("tags", [])]
    assert 1 <= len(ignored) <= 8 and all(t & {"setup", "slider", "panel"} for t in ignored)


def test_a12_a_tampered_number_fails(tmp_path: Path) -> None:
    """In any cell with a printed result, as anybody calls it: pytest --nbval."""
    notebook = nbformat.read(SOURCES[1].with_suffix(".ipynb"), as_version=4)
    cell = next(c for c in notebook.cells if c.cell_type == "code" and any(
        re.search(r"\d\.\d", o.get("text", "")) for o in c.outputs))
    (output,) = [o for o in cell.outputs if re.search(r"\d\.\d", o.get("text", ""))]
    output.text = re.sub(r"\.(\d)", lambda m: f".{(int(m[1]) + 1) % 10}", output.text, count=1)
    nbformat.write(notebook, tmp_path / "tampered.ipynb")
    done = subprocess.run([sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "-q",
                           "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"),
                           f"--rootdir={ROOT}", "-x", str(tmp_path / "tampered.ipynb")], cwd=ROOT,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "Cell" in done.stdout, done.stdout[-2000:]


def sanitized(text: str) -> str:
    """As nbval sees an output before it compares."""
    rules = ConfigParser()
    rules.read(SANITIZE)
    for name in rules.sections():
        text = re.sub(rules[name]["regex"], rules[name]["replace"], text)
    return text


@pytest.mark.parametrize("source", MADE, ids=lambda source: source.stem)
def test_no_digit_of_a_checked_output_is_hidden_from_nbval(source: Path) -> None:
    """What the sanitizer takes out cannot be compared: it must not take a figure. Every digit is
    changed in turn. Only the hours that a training takes may differ."""
    marked = [c for c in nbformat.read(source.with_suffix(".ipynb"), as_version=4).cells
              if c.cell_type == "code" and "nbval-ignore-output" not in c.metadata.get("tags", [])
              and ".how_long(" not in c.source]
    lines = [line for cell in marked for output in cell.outputs
             for line in text_of(output).splitlines()]
    assert sum(c.isdigit() for line in lines for c in line) > 20, "figures to compare"
    for line in lines:
        for at in (n for n, c in enumerate(line) if c.isdigit()):
            other = f"{line[:at]}{(int(line[at]) + 1) % 10}{line[at + 1 :]}"
            assert sanitized(other) != sanitized(
                line), f"{line!r}: the digit at {at} may change and nbval would not see it"
