"""Two versions of the course from one source: build/student/ without solutions and outputs,
build/instructor/ with all there is.

    python -m tools.student [beginning of a name]
 A student's notebook shows no result before the prediction was made, since nothing has been run. An
instructor's has every output, the solutions open, and under each exercise the remarks that
`lesson.check` has for known mistakes.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from course_lib.lessons.lesson import exercises
from tools.common import BUILD, ToolError, sources, write

STUDENT, INSTRUCTOR = BUILD / "student", BUILD / "instructor"


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def for_student(notebook: NotebookNode) -> NotebookNode:
    """Without solutions and outputs, but for the picture where the explorer's panel will be."""
    mine = copy.deepcopy(notebook)
    mine.cells = [cell for cell in mine.cells if "solution" not in tags(cell)]
    for cell in mine.cells:
        if cell.cell_type == "code" and "panel" not in tags(cell):
            cell.outputs, cell.execution_count = [], None
    mine.metadata.pop("course", None)
    return mine


def known_mistakes(name: str) -> str:
    """What a class gets wrong, and what the check says to it."""
    task = exercises()[name]
    said = "\n".join(f"- {remark}" for remark in task.mistakes)
    helps = "\n".join(f"{n}. {words}" for n, words in enumerate(task.hints, 1))
    return (f"**For the instructor.** `{name}` answers these mistakes:\n\n{said}\n\nHints, in "
            f"order:\n\n{helps}")


def for_instructor(notebook: NotebookNode) -> NotebookNode:
    """With outputs, open solutions, and the mistakes to expect."""
    mine = copy.deepcopy(notebook)
    cells = []
    for cell in mine.cells:
        if "solution" in tags(cell):
            cell.metadata.pop("cellView", None)
            cell.metadata.pop("jupyter", None)
            asked = re.findall(r"check\(\"([\w.]+)\"", cell.source)
            cells += [new_markdown_cell(known_mistakes(name),
                                        id=f"mistakes-{name.replace('.', '-')}"[:64])
                      for name in asked]
        cells.append(cell)
    mine.cells = cells
    mine.metadata.pop("course", None)
    return mine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("only", nargs="?", default="",
                        help="the beginning of a name, e.g. 01; all of them without it")
    for source in sources(parser.parse_args().only):
        notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
        for folder, version in ((STUDENT, for_student(notebook)),
                                (INSTRUCTOR, for_instructor(notebook))):
            nbformat.validate(version)
            write(Path(folder, f"{source.stem}.ipynb"), nbformat.writes(version, indent=1) + "\n")
        print(f"{source.stem}: build/student/ and build/instructor/", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
