"""Execute the course offline into build/course/ and print the table of results: python -m
tools.build_course"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.fairness import class_spreads
from course_lib.tables import markdown
from course_lib.zoo import load_reports, manifest
from tools.common import BUILD, ToolError, results, sources, write
from tools.execute import executed
from tools.pages import Summary, describe, elsewhere, index, page, reading_time, results_page

COURSE = BUILD / "course"


def attempt(source: Path, label: str) -> tuple[Summary, NotebookNode | None]:
    """Execute one notebook; one that fails does not keep the others from being made."""
    try:
        run = executed(source, label)
    except CellExecutionError as error:
        print(f"\n{source.name} stopped at this cell:\n{error}", file=sys.stderr)
        return Summary(source.stem, source.stem, "", failed=f"{error.ename}: {error.evalue}"), None
    title, blurb = describe(run.notebook, source.stem)
    if not run.fresh:
        print(f"{label}: nothing it depends on has changed", flush=True)
    where, words = elsewhere(source.stem), reading_time(run.notebook)
    return Summary(source.stem, title, blurb, run.seconds, run.fresh, reading=words,
                   links=where), run.notebook


def build(chosen: list[Path], out: Path) -> list[Summary]:
    """Write a page for each notebook, and take away the pages of notebooks that are gone."""
    done = [attempt(source, f"[{n}/{len(chosen)}] {source.stem}") for n,
            source in enumerate(chosen, 1)]
    everything = [summary for summary, _ in done]
    for summary, notebook in done:
        if notebook:
            write(out / summary.page, page(notebook, summary, everything))
    made = {summary.page for summary in everything if not summary.failed}
    for old in out.glob("[0-9][0-9]_*.html"):
        if old.name not in made:
            old.unlink()
    return everything


def by_class() -> str:
    """Robust error of every class of every stored recipe, mean over the seeds, one table a set of
    classes."""
    tables: dict[tuple[str, ...], list[list[str]]] = {}
    for name in manifest():
        with suppress(CourseError):  # a model without this report
            reports = load_reports(name)
            classes = reports[0].classes
            means = [f"{100 * s.mean:.1f}" for s in class_spreads([r.rob for r in reports])]
            tables.setdefault(classes, [["model", *classes]]).append([name, *means])
    return "\n\n".join(markdown(lines, "model") for lines in tables.values())


def main() -> int:
    everything, table = build(sources(), COURSE), results("--markdown")
    write(COURSE / "results.html", results_page(table, by_class()))
    write(COURSE / "index.html", index(everything, table))
    print(f"\n{results()}", flush=True)
    failed = [summary.stem for summary in everything if summary.failed]
    if failed:
        print(f"These notebooks stopped with an error: {', '.join(failed)}", file=sys.stderr)
    print(f"Open {COURSE / 'index.html'} in a browser.")
    return bool(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
