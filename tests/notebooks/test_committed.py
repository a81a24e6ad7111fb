"""The committed notebooks: each one beside its source, in order, and no defect that the checks
would let through."""

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from tools.addresses import addressed
from tools.check_notebooks import faults, faults_of, text_of
from tools.common import NOTEBOOKS, ROOT
from tools.notebooks import stored

SOURCES = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.py"))
DEMO = addressed((Path(__file__).parent / "demo.py").read_text(encoding="utf-8"), "00_demo")


def test_there_are_notebooks_and_each_has_its_source_and_is_in_order():
    assert SOURCES, f"no NN_topic.py in {NOTEBOOKS}"
    assert {p.stem for p in NOTEBOOKS.glob("*.ipynb")} == {p.stem for p in SOURCES}
    assert {source.stem: faults_of(source) for source in SOURCES if faults_of(source)} == {}


def good():
    """The demonstration as it would be stored, with outputs written by hand."""
    import jupytext

    run = jupytext.reads(DEMO, fmt="py:percent")
    code = [cell for cell in run.cells if cell.cell_type == "code"]
    for n, cell in enumerate(code, 1):
        cell.execution_count = n
    figure = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure size 200x100 with 1 Axes>"}
    code[1].outputs = [new_output("display_data", figure)]
    code[-1].outputs = [new_output("stream", name="stdout", text="0.33\n")]
    return stored(run, DEMO, None)


def last(output, **words):
    """One more output at the end."""
    return lambda nb: nb.cells[-1].outputs.append(new_output(output, **words))


def said(text, name="stdout"):
    return last("stream", name=name, text=text)


def more(text):
    return lambda nb: nb.cells.append(new_markdown_cell(text))


WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "0"}}
MUTATIONS = {  # the defect, and a part of the fault that names it
    "a stored error": (last("error", ename="ValueError", evalue="no"), "an error is stored"),
    "a warning": (said("UserWarning: look here", "stderr"), "stderr"),
    "a machine's path": (said("saved in /home/someone/course"), "path of one machine"),
    "an address": (said("<object at 0x7f00aa>"), "address is shown"),
    "no count": (lambda nb: nb.cells[-1].update(execution_count=None), "execution counts"),
    "an unpaired edit": (lambda nb: nb.cells[-1].update(source="third = 1"), "differ"),
    "a cell gone": (lambda nb: nb.cells.pop(), "cells"),
    "no alt text": (lambda nb: [c.metadata.pop("alt", "") for c in nb.cells], "alt text"),
    "a live widget": (last("display_data", data=WIDGET), "live widget"),
    "widget state": (lambda nb: nb.metadata.update(widgets={}), "metadata.widgets"),
    "a machine's Python": (lambda nb: nb.metadata.language_info.update(version="3.11.7"),
                           "version of one machine"),
    "a skipped heading": (more("#### Deep"), "skips a level"),
    "two titles": (more("# Another"), "one title"),
    "an image without words": (more("![](a.png)"), "alt text"),
    "the same id twice": (lambda nb: nb.cells[0].update(id=nb.cells[1].id), "not unique"),
    "a tag lost": (lambda nb: nb.cells[1].metadata.pop("tags"), "tags"),
    "an output of before the edit": (lambda nb: nb.cells[-1].update(source="third"), "other code"),
    "an output of nobody knows what": (lambda nb: nb.metadata.pop("course"), "other code")}


def test_each_defect_is_found(tmp_path):
    (source := tmp_path / "00_demo.py").write_text(DEMO)
    assert any("missing" in fault for fault in faults_of(source))
    said("x" * 1_000_000)(large := good())
    nbformat.write(large, source.with_suffix(".ipynb"))
    assert any("1000000 at most" in fault for fault in faults_of(source))
    assert faults(good(), DEMO, "00_demo") == []
    for name, (mutate, words) in MUTATIONS.items():
        mutate(notebook := good())
        assert any(words in fault for fault in faults(notebook, DEMO, "00_demo")), name
    elsewhere = addressed(DEMO, "00_demo", "https://github.com/someone/elsewhere")
    assert any("make notebooks" in fault
               for fault in faults(stored(good(), elsewhere, None), elsewhere, "00_demo"))


def checked(code, printed="", **shown):
    outputs = [new_output("stream", name="stdout", text=printed)] if printed else []
    if shown:
        data = {"text/markdown": f"| error |\n|---|\n| {shown['number']} |",
                "text/plain": "<IPython.core.display.Markdown object>"}
        outputs = [new_output("execute_result", data, execution_count=1)]
    return new_code_cell(code, execution_count=1, outputs=outputs)


TABLE = "from IPython.display import Markdown\nMarkdown('| error |\\n|---|\\n| 0.33 |')"
CELLS = [  # cell, and does it pass?
    (checked("print(0.33)", "0.33\n"), True), (checked("print(0.33)", "0.34\n"), False),
    (checked(TABLE, number="0.33"), True), (checked(TABLE, number="0.34"), False),
    (checked("print(0.33)", "0.33\n0.33\n"), False), (checked("assert 0.33 > 1"), False),
    (checked("print('by the new code')", "by the old code\n"), False),
    (checked("print(0.33)", "0.33\n"), True)]


def test_a12_nbval_as_we_call_it_catches_what_changed(tmp_path):
    """Among it a number of a committed notebook. The options are pyproject's own, so the net is the
    one that `make test` spreads."""
    notebook, floats = nbformat.read(SOURCES[1].with_suffix(".ipynb"), as_version=4), r"\.(\d)"
    place, output = next((n, o) for n, cell in enumerate(notebook.cells) for o in cell.get(
        "outputs", ()) if re.search(r"\d" + floats, o.get("text", "")))
    output.text = re.sub(floats, lambda m: f".{(int(m[1]) + 1) % 10}", output.text, count=1)
    notebook.cells[place + 1:] = [cell for cell, _ in CELLS]
    nbformat.write(notebook, tmp_path / "small.ipynb")
    command = [sys.executable, "-m", "pytest", "-rA", "--color=no", "-p", "no:cacheprovider", "-c",
               str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    verdicts = re.findall(r"(?m)^(PASSED|FAILED) \S*::Cell (\d+)", done.stdout)
    found = [verdict for verdict, n in sorted(verdicts, key=lambda pair: int(pair[1]))]
    wanted = ["FAILED", *("PASSED" if passes else "FAILED" for _, passes in CELLS)]
    assert found[-len(wanted):] == wanted, done.stdout + done.stderr


RULES = ConfigParser()
RULES.read(Path(__file__).parent / "sanitize.cfg")


def sanitized(text):
    """As nbval sees an output before it compares."""
    for name in RULES.sections():
        text = re.sub(RULES[name]["regex"], RULES[name]["replace"], text)
    return text


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_no_digit_of_a_checked_output_is_hidden_from_nbval(source):
    """What the sanitizer takes out cannot be compared: it must not take a figure. Every digit is
    changed in turn. Only the hours that a training takes may differ. a12: a cell that is not
    compared is about the machine, or has a slider or a panel, stored as a still picture."""
    cells = [(c, {*c.metadata.get("tags", [])}) for c in nbformat.read(
        source.with_suffix(".ipynb"), as_version=4).cells if c.cell_type == "code"]
    ignored = [tags for _, tags in cells if "nbval-ignore-output" in tags]
    assert 1 <= len(ignored) <= 8 and all(t & {"setup", "slider", "panel"} for t in ignored)
    lines = [line for c, tags in cells if tags not in ignored and ".how_long(" not in c.source
             for output in c.outputs for line in text_of(output).splitlines()]
    assert sum(c.isdigit() for line in lines for c in line) > 20, "figures to compare"
    for line in lines:
        for at in (n for n, c in enumerate(line) if c.isdigit()):
            other = f"{line[:at]}{(int(line[at]) + 1) % 10}{line[at + 1 :]}"
            assert sanitized(other) != sanitized(line), f"{line!r}: the digit at {at} may change"
