"""Is this a release? python -m tools.release v1.2.3 compares the tag with all places that name the
version; --notes prints its changes."""

from __future__ import annotations

import re
import sys

from tools.common import ROOT, ToolError, release

PLACES = {  # file -> where it names the version
    "course_lib/__init__.py": r'__version__ = "([^"]+)"',
    "CHANGELOG.md": r"(?m)^## (\d+\.\d+\.\d+)",
}


def named() -> dict[str, str]:
    """File -> the version it names, as a tag; pyproject.toml is what the others are compared
    with."""
    found = {"pyproject.toml": release()}
    for place, pattern in PLACES.items():
        version = re.search(pattern, (ROOT / place).read_text(encoding="utf-8"))
        found[place] = f"v{version[1]}" if version else "no version"
    return found


def notes() -> str:
    """The newest part of CHANGELOG.md."""
    return re.split(r"(?m)^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1].partition(
        "\n")[2].strip()


def main(words: list[str]) -> None:
    if words == ["--notes"]:
        print(notes())
        return
    wrong = {place: version for place, version in named().items() if words and version != words[0]}
    if wrong or "(unreleased)" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        reason = wrong or "CHANGELOG.md still says (unreleased)"
        raise ToolError(f"No release {' '.join(words)}: {reason}. Set the version there, commit, "
                        "and tag again.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ToolError as error:
        sys.exit(str(error))
