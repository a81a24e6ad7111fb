"""Execute the course offline into build/course/ and print the table of results: python -m
tools.build_course"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import nbformat
import pandas as pd
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from course_lib import __main__ as shell
from course_lib.tables import LEGEND, overview, results
from course_lib.zoo import budget
from tools import pages
from tools.common import BUILD, ToolError, sources, write
from tools.execute import AT_ONCE, executed
from tools.pages import TEMPLATES, Summary, index, page, results_page, summary
from tools.readme_results import results_table

COURSE = BUILD / "course"


def attempt(source: Path, label: str) -> tuple[Summary, NotebookNode | None]:
    """Execute one notebook; one that fails does not keep the others from being made."""
    try:
        run = executed(source, label)
    except CellExecutionError as error:
        print(f"\n{source.name} stopped at this cell:\n{error}", file=sys.stderr)
        return Summary(source.stem, source.stem, "", failed=f"{error.ename}: {error.evalue}"), None
    if not run.fresh:
        print(f"{label}: nothing it depends on has changed", flush=True)
    return summary(run.notebook, source.stem, run.seconds, run.fresh), run.notebook


def build(chosen: list[Path], out: Path) -> list[Summary]:
    """Write a page for each notebook, and take away the pages of notebooks that are gone. Two
    notebooks run at a time: most of one is imports and drawing, which keep one core busy."""
    labels = [f"[{n}/{len(chosen)}] {source.stem}" for n, source in enumerate(chosen, 1)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = list(pool.map(attempt, chosen, labels))
    everything = write_pages(done, out)
    made = {this.page for this in everything if not this.failed}
    for old in out.glob("[0-9][0-9]_*.html"):
        if old.name not in made:
            old.unlink()
    return everything


def write_pages(done: list[tuple[Summary, NotebookNode | None]], out: Path) -> list[Summary]:
    """The pages; one whose notebook, neighbours and layout are as before stays. Its last line says
    what it was made from."""
    everything = [this for this, _ in done]
    layout = [version("nbconvert"), *(path.read_text() for path in (
        Path(pages.__file__), *sorted(TEMPLATES.iterdir())))]
    for this, notebook in done:
        if notebook:
            near = [(s.stem, s.title) for s in everything], replace(this, seconds=0, fresh=False)
            made_from = repr([layout, near, nbformat.writes(notebook)]).encode()
            last = f"<!-- {hashlib.sha256(made_from).hexdigest()} -->\n"
            path = out / this.page
            if not (path.is_file() and path.read_text().endswith(last)):
                write(path, page(notebook, this, everything) + last)
    return everything


def write_index(everything: list[Summary], out: Path) -> None:
    write(out / "results.html", results_page(LEGEND, tables()))
    write(out / "index.html", index(everything, results_table()))


def tables() -> Iterator[tuple[str, pd.DataFrame]]:
    """All stored recipes: averages over the seeds, then PGD-20 at the smallest stored budget class
    by class; a title and a table for each data set."""
    for data, rows in sorted(overview().groupby("data"), key=lambda part: -len(part[1])):
        yield (f"{data}: average and worst class",
               rows.drop(columns=["data", "classes"]).dropna(axis="columns", how="all"))
    rows = pd.DataFrame(results(level="class"))
    rows = rows[rows["attack"].str.startswith("pgd20")]
    rows = rows[rows["eps"] == rows.groupby(["data", "attack"])["eps"].transform("min")]
    for (data, attack, eps), part in sorted(rows.groupby(["data", "attack", "eps"]),
                                            key=lambda part: -len(part[1])):
        means = part.groupby(["recipe", "class"], sort=False)["error"].mean().unstack()
        yield (f"{data}: each class under {attack} at {budget(eps)}",
               means.rename_axis(columns=None).reset_index(names="model"))


def main() -> int:
    everything = build(sources(), COURSE)
    write_index(everything, COURSE)
    print(flush=True)
    table = shell.main(["results"])
    failed = [this.stem for this in everything if this.failed]
    if failed:
        print(f"These notebooks stopped with an error: {', '.join(failed)}", file=sys.stderr)
    print(f"Open {COURSE / 'index.html'} in a browser.")
    return bool(failed or table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
