"""Write what README.md shows from elsewhere: the table of results and the badges: python -m tools.readme_results"""

from __future__ import annotations

import re
import sys

from tools.addresses import badges
from tools.common import ROOT, ToolError, address, results, write


def replaced(text: str, name: str, new: str) -> str:
    """The text with what stands between <!-- name --> and <!-- /name --> replaced."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ToolError(f"README.md needs one line {start} and one line {end} around what `make readme` writes.")
    return re.sub(f"{re.escape(start)}.*{re.escape(end)}", lambda _: f"{start}\n{new.strip()}\n{end}", text, flags=re.S)


def clone() -> str:
    return f"```sh\ngit clone {address()}\ncd {address().rsplit('/', 1)[-1]}\nmake run\nmake test\n```"


def main() -> None:
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, new in (("badges", badges("notebooks/00_start_here.ipynb")), ("clone", clone()), ("results", results("--markdown"))):
        text = replaced(text, name, new)
    write(path, text)


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(str(error))
