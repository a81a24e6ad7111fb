"""The commands that make the notebooks, the pages and the README: what they keep, what they notice,
what they refuse."""

import asyncio
import json
import re
from pathlib import Path
from queue import Empty

import nbformat
import pytest
from jupyter_client.channels import AsyncZMQSocketChannel
from nbformat.v4 import new_code_cell, new_notebook

from tools import build_course, execute, notebooks, pages
from tools.addresses import addressed
from tools.common import ROOT, ToolError, address, sources, write
from tools.readme_results import replaced

DEMO = (Path(__file__).parent / "demo.py").read_text(encoding="utf-8")
GITHUB = "https://github.com/someone/some-course"
BROKEN = "# %% [markdown]\n# # It stops\n\n# %%\nprint(unknown)\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with one notebook made and built, and one that stops, built twice."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "00_demo.py").write_text(DEMO.replace("written by make notebooks", "as it stands"))
    (folder / "01_broken.py").write_text(BROKEN)
    (folder / "out").mkdir()
    (folder / "out" / "07_gone.html").write_text("from before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "KEPT", folder / "kept")
        patch.setattr(execute, "inputs", lambda: iter([]))
        notebooks.make(folder / "00_demo.py", "demo")
        runs = [build_course.build(sources(folder=folder), folder / "out") for _ in range(2)]
    (folder / "runs.json").write_text(json.dumps([[(s.stem, s.fresh, s.failed) for s in run]
                                                  for run in runs]))
    return folder


INTERACT = """
from ipywidgets import interact

@interact(k=(0, 10))
def show(k=3):
    print("k =", k)
"""


def test_a_slider_is_stored_as_what_it_showed_first(tmp_path):
    picture = '<img class="f" alt="1 &lt; 2" src="data:image/png;base64,iVBORw0KGgo=">'
    cells = [new_code_cell(INTERACT), new_code_cell("import ipywidgets\nipywidgets.IntSlider()"),
             new_code_cell(f"ipywidgets.VBox([ipywidgets.HTML({picture!r})])")]
    notebook = new_notebook(cells=cells)
    execute.execute(notebook, "sliders", tmp_path, {})
    execute.tidy(notebook)
    assert [(o.name, o.text) for o in notebook.cells[0].outputs] == [("stdout", "k = 3\n")]
    assert notebook.cells[1].outputs == [] and "widgets" not in notebook.metadata
    (drawn,) = notebook.cells[2].outputs
    assert drawn.data["image/png"] == "iVBORw0KGgo="
    assert drawn.metadata["image/png"]["alt"] == "1 < 2"


def test_a_broken_notebook_does_not_keep_the_others_from_being_made(built):
    for run in json.loads((built / "runs.json").read_text()):
        assert run == [["00_demo", False, ""],
                       ["01_broken", False, "NameError: name 'unknown' is not defined"]]
    assert {p.name for p in (built / "out").iterdir()} == {"00_demo.html"}
    assert {p.name for p in (built / "kept").iterdir()} == {"00_demo.ipynb"}


def test_the_stored_notebook_holds_outputs_and_nothing_of_the_machine(built):
    notebook = nbformat.read(built / "00_demo.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4]
    assert [output.output_type for output in code[1].outputs] == [
        "display_data"], "the figure stays, the progress bar goes"
    assert code[2].outputs[0].text == "no network, no models folder: None\n"
    assert code[3].outputs[0].text == "0.33\n"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "course"}
    assert notebook.metadata.course == {"code": notebooks.code_hash(notebook)}
    assert not any("execution" in cell.metadata for cell in notebook.cells)


def test_a_page_needs_no_network_and_shows_formulas(built):
    html = (built / "out" / "00_demo.html").read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|srcset)\s*=\s*["'](?!data:)|<link|<script|@import|url\(""",
                          html)
    assert (html.count("<math") == 2
            and "munder" in html), "the inline and the display formula, with its limits below"
    assert 'alt="A line that rises from 0 to 2"' in html
    assert '<a href="#What-you-will-learn">What you will learn</a>' in html
    assert "<td>Shirt</td>" in html
    assert "copy of the course. In Colab" not in html, "the badges are for the notebook only"


def test_formulas_are_drawn_or_stay_readable(monkeypatch):
    for tex in (r"\arg\max_j f_j(x)", r"\begin{align} a &= b \\ &= c \end{align}",
                r"\Pr[y \ne c \mid x']", r"\lVert \delta \rVert_\infty"):
        drawn = pages.mathml(tex, display=True)
        assert drawn.startswith("<math") and "\\" not in drawn and "(1)" not in drawn
    assert pages.mathml(r"\oddly{a} &lt; b") == r'<code class="tex">\oddly{a} &lt; b</code>'
    monkeypatch.setattr(pages, "convert", lambda *_, **__: 1 / 0)
    assert pages.mathml("a &lt; b") == '<code class="tex">a &lt; b</code>'


@pytest.mark.parametrize(("source", "tag", "first", "rest"), [
    ("import a\nfrom b import (\n    c)\n\nd = 1", "none", "import a", "d = 1"),
    ("d = 1\nimport a\nimport b\nimport c", "none", "", "d = 1\nimport a\nimport b\nimport c"),
    ("# @title Choose\nx = 1\ny = 2", "none", "# @title Choose", ""),
    ("@interact(k=3)\ndef f(k):\n    g(k)", "slider", "@interact(k=3)", ""),
    ("# @title Solution\nx = 1\ny = 2", "solution", "", "x = 1\ny = 2")])
def test_only_plumbing_is_folded(source, tag, first, rest):
    fold = pages.folded(new_code_cell(source, metadata={"tags": [tag]})).metadata["fold"]
    assert (fold["first"], fold["rest"]) == (first, rest)
    assert fold["title"] == ("Solution" if tag == "solution" else "")


def test_the_index_shows_every_notebook_and_the_results(built):
    done = [pages.Summary("00_demo", "0 · Demo $x$", "What it **shows**", 95.0),
            pages.Summary("01_b", "01_b", "", failed="NameError: <x>")]
    html = pages.index(done, "| model | error |\n|---|---:|\n| [n](notebooks/01_b.ipynb) | 11.5 |")
    assert ('<a href="00_demo.html">0 · Demo <math' in html and "<strong>shows</strong>" in html
            and "2 min" in html)
    assert html.count('"01_b.html"') == 1 and "NameError: &lt;x&gt;" in html
    assert re.search(r"<td[^>]*>11.5</td>", html)


def test_the_fingerprint_sees_every_input(tmp_path, monkeypatch):
    monkeypatch.setattr(execute, "ROOT", tmp_path)
    monkeypatch.setattr(execute, "__file__", str(tmp_path / "execute.py"))
    inputs = ("course_lib/a.py", "course_lib/datasets/embedded/x.gz",
              "serialized_models/manifest.json")
    for name in ("execute.py", *inputs):
        write(tmp_path / name, "one")
    seen = [execute.fingerprint("source"), execute.fingerprint("another source")]
    for name in (*inputs, "course_lib/new.py"):
        write(tmp_path / name, "two")
        seen.append(execute.fingerprint("source"))
    monkeypatch.setattr(execute.metadata, "version", lambda name: "0.0")
    seen.append(execute.fingerprint("source"))
    assert len(set(seen)) == len(seen)
    write(tmp_path / "course_lib/a.pyc", "a compiled file is no input")
    assert execute.fingerprint("source") == seen[-1]


def test_ids_are_kept_and_new_ones_do_not_depend_on_the_machine():
    run = notebooks.jupytext.reads(DEMO, fmt="py:percent")
    first = notebooks.stored(run, DEMO, None)
    for cell, name in zip(first.cells, "abcdefgh", strict=False):
        cell.id = name
    longer = DEMO.replace("# %%\nimport os", "# %%\nnew = 1\n\n# %%\nimport os")
    again = [notebooks.stored(notebooks.jupytext.reads(longer, fmt="py:percent"), longer, first)
             for _ in range(2)]
    ids = [cell.id for cell in again[0].cells]
    assert ids == [cell.id for cell in again[1].cells]
    assert [i for i in ids if len(i) == 1] == [cell.id for cell in first.cells]
    assert len(ids) == len(first.cells) + 1


def test_the_address_stands_in_one_place():
    """Whatever else shows it is written by a command: the notebooks, and lines of the README."""
    files = [*ROOT.iterdir(), *(p for folder in ("course_lib", "tools", "tests", "docs", ".github")
                                for p in (ROOT / folder).rglob("*"))]
    kinds = {".py", ".md", ".yml", ".toml", ".txt", ".j2", ".cff", ""}
    assert [p for p in files if p.is_file() and p.suffix in kinds and p.name not in {
        "README.md", "pyproject.toml"} and address() in p.read_text("utf-8", "ignore")] == []


def test_only_the_marked_part_of_the_readme_is_replaced(tmp_path):
    text = "before\n<!-- results -->\nold \\1\n<!-- /results -->\nafter\n"
    assert replaced(text, "results", "| new \\1 |\n") == (
        "before\n<!-- results -->\n| new \\1 |\n<!-- /results -->\nafter\n")
    with pytest.raises(ToolError, match="badges"):
        replaced(text, "badges", "x")
    with pytest.raises(ToolError, match="NN_topic"):
        sources(folder=tmp_path)


def test_an_address_is_written_without_executing_anything(tmp_path, monkeypatch):
    source, target = tmp_path / "00_demo.py", tmp_path / "00_demo.ipynb"
    source.write_text(addressed(DEMO, "00_demo"))
    run = notebooks.jupytext.reads(source.read_text(), fmt="py:percent")
    run.cells[-1].outputs = [nbformat.v4.new_output("stream", name="stdout", text="0.33\n")]
    before = notebooks.stored(run, source.read_text(), None)
    nbformat.write(before, target)
    monkeypatch.setattr("tools.addresses.address", lambda: GITHUB)
    notebooks.readdress(source)
    after = nbformat.read(target, as_version=4)
    changed = [cell.metadata.tags for cell, old in zip(after.cells, before.cells, strict=True)
               if cell != old]
    assert changed == [["badges"], ["setup"]] and GITHUB in source.read_text()
    assert after.cells[-1].outputs == run.cells[-1].outputs
    assert after.metadata.course == before.metadata.course, "the outputs are still of this code"
    assert [cell.source for cell in notebooks.jupytext.read(source, fmt="py:percent").cells] == [
        cell.source for cell in after.cells]


def test_a_message_whose_arrival_was_missed_is_found_within_a_second(monkeypatch):
    """pyzmq's wake-up is lost: a poll ends only with its own time, and finds the message then."""
    waited = []

    async def get_msg(self, timeout=None):
        waited.append(timeout)
        if len(waited) % 3:
            raise Empty
        return {"content": "2"}

    monkeypatch.setattr(AsyncZMQSocketChannel, "get_msg", get_msg)
    channel = object.__new__(execute.Channel)
    for timeout in (None, 600):
        assert asyncio.run(channel.get_msg(timeout)) == {"content": "2"}
    assert all(w is not None and w <= 1 for w in waited)
    with pytest.raises(Empty):
        asyncio.run(channel.get_msg(0))
    client = execute.Manager().client()
    assert client.shell_channel_class is client.iopub_channel_class is execute.Channel
