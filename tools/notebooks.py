"""Make notebooks/*.ipynb from their .py sources: addresses written, executed, outputs stored, cell
ids kept.

    python -m tools.notebooks [beginning of a name] [--addresses]
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

import jupytext
import nbformat
from jupytext.combine import map_outputs_to_inputs
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from tools.addresses import addressed
from tools.common import ToolError, sources, write
from tools.execute import executed

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"file_extension": ".py", "mimetype": "text/x-python", "name": "python",
            "pygments_lexer": "ipython3"}
TRAVELS = ("colab", "accelerator")  # what a source's header may say about where it is opened
# cells whose text comes from the address, and whose outputs are not kept
WRITTEN = ("badges", "setup")


def code_hash(notebook: NotebookNode) -> str:
    """Of all code that has outputs to show for itself: it tells whether outputs are of this
    code."""
    code = [c.source for c in notebook.cells if c.cell_type == "code"
            and not set(WRITTEN) & set(c.metadata.get("tags", []))]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()[:16]


def keep_ids(notebook: NotebookNode, before: NotebookNode | None) -> None:
    """Cells that were there keep their ids; a new one gets an id made from its text, the same on
    every machine."""
    old = before.cells if before else []
    taken: set[str] = set()
    for cell, j in zip(notebook.cells, map_outputs_to_inputs(notebook.cells, old), strict=True):
        name, n = (old[j].get("id", "") if j is not None else ""), 0
        while not name or name in taken:
            name, n = hashlib.sha256(f"{n}{cell.cell_type}{cell.source}".encode()).hexdigest()[
                :8], n + 1
        cell["id"] = name
        taken.add(name)


def stored(run: NotebookNode, source: str, before: NotebookNode | None) -> NotebookNode:
    """What is committed: the source's cells with the outputs of the run, and nothing of this
    machine."""
    notebook = jupytext.reads(source, fmt="py:percent")
    for cell, done in zip(notebook.cells, run.cells, strict=True):
        if cell.cell_type == "code":
            # what the set-up cell says is about the machine it ran on
            cell.outputs = [] if "setup" in cell.metadata.get("tags", []) else done.outputs
            cell.execution_count = done.execution_count
    travels = {name: notebook.metadata[name] for name in TRAVELS if name in notebook.metadata}
    course = {"code": code_hash(notebook)}
    notebook.metadata = nbformat.from_dict({**travels, "kernelspec": KERNEL,
                                            "language_info": LANGUAGE, "course": course})
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    keep_ids(notebook, before)
    return notebook


def make(source: Path, label: str) -> None:
    text, target = source.read_text(encoding="utf-8"), source.with_suffix(".ipynb")
    new = addressed(text, source.stem)
    if new != text:
        write(source, new)
    run = executed(source, label)
    before = nbformat.read(target, as_version=4) if target.is_file() else None
    notebook = stored(run.notebook, new, before)
    nbformat.validate(notebook)
    write(target, nbformat.writes(notebook, indent=1).rstrip("\n") + "\n")
    source.touch()  # Jupytext opens a pair only while the source is the newer one
    done = f"executed in {run.seconds} s" if run.fresh else "unchanged since it was executed"
    print(f"{target.name}: {done}", flush=True)


def readdress(source: Path) -> None:
    """Write the badges and the setup cell afresh in both files; they have no outputs, so nothing is
    executed."""
    target = source.with_suffix(".ipynb")
    write(source, addressed(source.read_text(encoding="utf-8"), source.stem))
    fresh = {tag: cell.source for cell in jupytext.read(source, fmt="py:percent").cells
             for tag in cell.metadata.get("tags", [])}
    notebook = nbformat.read(target, as_version=4)
    for cell in notebook.cells:
        for tag in set(WRITTEN) & set(cell.metadata.get("tags", [])):
            cell.source = fresh[tag]
    write(target, nbformat.writes(notebook, indent=1).rstrip("\n") + "\n")
    source.touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("only", nargs="?", default="",
                        help="the beginning of a name, e.g. 01; all of them without it")
    parser.add_argument("--addresses", action="store_true",
                        help="only write the badges and setup cells, without executing anything")
    args = parser.parse_args()
    failed = []
    chosen = sources(args.only)
    if args.addresses:
        for source in chosen:
            readdress(source)
        return 0
    for n, source in enumerate(chosen, 1):
        try:
            make(source, f"[{n}/{len(chosen)}] {source.stem}")
        except CellExecutionError as error:
            failed.append(source.name)
            print(f"\n{source.name} stopped at this cell; its .ipynb was left as it was:\n{error}",
                  file=sys.stderr)
    if failed:
        print(f"Not made: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
