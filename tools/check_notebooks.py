"""What is wrong with a committed notebook, in words: python -m tools.check_notebooks"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

from tools.addresses import addressed
from tools.common import ROOT, ToolError, sources
from tools.notebooks import code_hash

LARGEST = 1_000_000  # bytes: what a browser opens at once
MACHINE = re.compile(
    r"(?<![\w.~/:-])/(?:home|root|Users|tmp|work|mnt|private|var|usr|opt|srv)/[\w.]|[A-Z]:\\Users")
TEXTS = ("text/plain", "text/html", "text/markdown")


def text_of(output: NotebookNode) -> str:
    """All the words of an output."""
    words = [output.get("text", "")] + [str(output.get("data", {}).get(kind, "")) for kind in TEXTS]
    return "\n".join([*words, *output.get("traceback", [])])


def code_of(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def unpaired(notebook: NotebookNode, source: str) -> Iterator[str]:
    """The .py and the .ipynb have the same cells."""
    of_source, of_notebook = jupytext.reads(source, fmt="py:percent").cells, notebook.cells
    if len(of_source) != len(of_notebook):
        yield f"the source has {len(of_source)} cells, the notebook {len(of_notebook)}"
    for n, (mine, stored) in enumerate(zip(of_source, of_notebook, strict=False), 1):
        for what in ("cell_type", "source"):
            if mine[what] != stored[what]:
                yield (f"cell {n}: the {what} of the source and of the notebook differ, near "
                       f"{stored.source[:40]!r}")
        if mine.metadata.get("tags", []) != stored.metadata.get("tags", []):
            yield f"cell {n}: the tags of the source and of the notebook differ"


def unexecuted(notebook: NotebookNode) -> Iterator[str]:
    """Every code cell was run, in order, in one go."""
    counts = [cell.execution_count for cell in code_of(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        yield f"execution counts are {counts}, not 1 to {len(counts)} in order"
    if not any(cell.outputs for cell in code_of(notebook)):
        yield "no cell has a stored output"


def stale(notebook: NotebookNode) -> Iterator[str]:
    """The outputs are of the code that stands there."""
    if notebook.metadata.get("course", {}).get("code") != code_hash(notebook):
        yield "the outputs were made by other code than stands there: make notebooks"


def bad_outputs(notebook: NotebookNode) -> Iterator[str]:
    """Outputs say what a reader needs, and nothing of the machine they were made on."""
    for n, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                yield f"cell {n}: an error is stored: {output.ename}"
            if output.get("name") == "stderr":
                yield f"cell {n}: something was written to stderr: {output.text[:80]!r}"
            if any("widget" in kind for kind in output.get("data", {})):
                yield f"cell {n}: a live widget is stored, which shows nothing on paper"
            if found := re.search(r"at 0x[0-9a-f]+", text_of(output)):
                yield f"cell {n}: an object's address is shown: {found[0]}"


def machine_paths(notebook: NotebookNode) -> Iterator[str]:
    for n, cell in enumerate(notebook.cells, 1):
        for text in (cell.source, *map(text_of, cell.get("outputs", []))):
            found = MACHINE.search(text) or re.search(re.escape(str(ROOT)), text)
            if found:
                yield (f"cell {n}: a path of one machine: "
                       f"{text[found.start() : found.start() + 40]!r}")


def unseen(notebook: NotebookNode) -> Iterator[str]:
    """Every figure has a text for those who do not see it: alt="..." on the cell's first line in
    the source."""
    for n, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            figure = any(kind.startswith("image/") for kind in output.get("data", {}))
            if figure and not (cell.metadata.get("alt")
                               or output.metadata.get("image/png", {}).get("alt")):
                yield (f'cell {n}: a figure without alt text; write # %% alt="what it shows" above '
                       'the cell in the source')
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"]+\")",
                                                      cell.source):
            yield f"cell {n}: an image without alt text"


def disordered(notebook: NotebookNode) -> Iterator[str]:
    """One title, then headings that go down one level at a time."""
    prose = "\n".join(re.sub(r"```.*?```", "", cell.source, flags=re.S) for cell in notebook.cells
                      if cell.cell_type == "markdown")
    levels = [len(marks) for marks in re.findall(r"^(#{1,6}) +\S", prose, re.M)]
    if levels[:1] != [1] or levels.count(1) != 1:
        yield f"there is to be one title (#), first of all headings; the levels are {levels}"
    if any(b > a + 1 for a, b in pairwise(levels)):
        yield f"a heading skips a level: {levels}"


def set_up(notebook: NotebookNode, source: str, stem: str) -> Iterator[str]:
    """The badges and the setup cell are there, and as the one address in pyproject.toml makes
    them."""
    tags = [tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])]
    for tag in ("badges", "setup"):
        if tags.count(tag) != 1:
            yield (f'there is to be one cell with tags=["{tag}"] (its text is written by make '
                   f'notebooks), not {tags.count(tag)}')
    if addressed(source, stem) != source:
        yield ("the badges or the setup cell are not as the address in pyproject.toml makes them: "
               "make notebooks")


def left_over(notebook: NotebookNode) -> Iterator[str]:
    for name in set(notebook.metadata) - {"kernelspec", "language_info", "jupytext", "colab",
                                          "accelerator", "course"}:
        yield f"metadata.{name} is stored, which no reader needs"
    if notebook.metadata.get("language_info", {}).get("version"):
        yield "the version of one machine's Python is stored"
    ids = [cell.get("id") for cell in notebook.cells]
    if None in ids or len(set(ids)) != len(ids):
        yield "cell ids are missing or not unique"


def faults(notebook: NotebookNode, source: str, stem: str) -> list[str]:
    """Everything that is wrong with a notebook, given its source and its name."""
    found = [*unpaired(notebook, source), *set_up(notebook, source, stem)]
    for check in (unexecuted, stale, bad_outputs, machine_paths, unseen, disordered, left_over):
        found += check(notebook)
    return found


def faults_of(source: Path) -> list[str]:
    """Everything that is wrong with the committed notebook beside a source."""
    stored = source.with_suffix(".ipynb")
    if not stored.is_file():
        return [f"{stored.name} is missing: make notebooks"]
    size = ([f"{stored.stat().st_size} bytes, {LARGEST} at most: draw smaller or fewer figures"]
            if stored.stat().st_size > LARGEST else [])
    return size + faults(nbformat.read(stored, as_version=4), source.read_text(encoding="utf-8"),
                         source.stem)


def main() -> int:
    wrong = {source.stem: faults_of(source) for source in sources()}
    for stem, found in wrong.items():
        print(f"{stem}: {'in order' if not found else ''}", *found, sep="\n  " if found else "")
    return any(wrong.values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
