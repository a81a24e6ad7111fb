"""What the commands share: where things are, the project's address, and writing a file whole or not
at all."""

from __future__ import annotations

import os
import tomllib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
BUILD = ROOT / "build"
TEMPLATES = Path(__file__).parent / "templates"


class ToolError(Exception):
    """Something a command cannot go on from, said so that its reader knows what to do."""


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def address() -> str:
    """The project's public address: the one line in pyproject.toml."""
    return str(project()["urls"]["Repository"]).rstrip("/")


def release() -> str:
    """The tag of the release that this is, or is on the way to."""
    return f"v{project()['version']}"


def sources(only: str = "", folder: Path = NOTEBOOKS) -> list[Path]:
    """The notebooks' sources, NN_topic.py, in order; `only` is the beginning of a name."""
    found = sorted(p for p in folder.glob("[0-9][0-9]_*.py") if p.name.startswith(only))
    if not found:
        raise ToolError(f"No notebook source {only}*.py in {folder}; a source is called "
                        "NN_topic.py, for example 01_unfairness.py.")
    return found


def write(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def every_model(root: Path | None = None) -> list[Any]:
    """All stored models; a damaged record, which tables leave out, is an error here."""
    from course_lib.errors import CourseError
    from course_lib.zoo import stored_models

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Left out", UserWarning)
        try:
            return stored_models(root)
        except UserWarning as e:
            raise CourseError(str(e)) from None


def markdown(lines: Iterable[Iterable[Any]], *words: str) -> str:
    """A Markdown table of a head and rows; the columns called `words` to the left.

    >>> print(markdown([("class", "error"), ("Shirt", 43)], "class"))
    | class | error |
    | --- | ---: |
    | Shirt | 43 |
    """
    head, *body = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    rule = ["---" if column in words else "---:" for column in head]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))
