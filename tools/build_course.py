"""Execute the course offline into build/course/ and print the table of results: python -m tools.build_course"""

from __future__ import annotations

import sys
from pathlib import Path

from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from tools.common import BUILD, ToolError, results, sources, write
from tools.execute import executed
from tools.pages import Summary, describe, index, page

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
    return Summary(source.stem, title, blurb, run.seconds, run.fresh), run.notebook


def build(chosen: list[Path], out: Path) -> list[Summary]:
    """Write a page for each notebook, and take away the pages of notebooks that are gone."""
    done = [attempt(source, f"[{n}/{len(chosen)}] {source.stem}") for n, source in enumerate(chosen, 1)]
    everything = [summary for summary, _ in done]
    for summary, notebook in done:
        if notebook:
            write(out / summary.page, page(notebook, summary, everything))
    made = {summary.page for summary in everything if not summary.failed}
    for old in out.glob("[0-9][0-9]_*.html"):
        if old.name not in made:
            old.unlink()
    return everything


def main() -> int:
    everything = build(sources(), COURSE)
    write(COURSE / "index.html", index(everything, results("--markdown")))
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
