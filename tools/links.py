"""Do the addresses in texts and notebooks still answer? python -m tools.links (asks the network, so
it is no test)"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FINE = {403, 405, 429}  # there, but not for a program


def addresses() -> Iterator[tuple[str, str]]:
    """(address, the file it stands in); placeholders and addresses of this machine are left out."""
    texts = ("*.md", "*.cff", "docs/*.md", "notebooks/*.py", "course_lib/**/*.py")
    for path in sorted(path for pattern in texts for path in ROOT.glob(pattern)):
        for found in re.findall(r"https?://[^\s<>\"'`)\]}\\]+", path.read_text(encoding="utf-8")):
            if not re.match(r"https?://(?:[\w.]*example\.org|127\.|localhost)", found):
                yield found.rstrip(".,;:"), str(path.relative_to(ROOT))


def answers(address: str) -> str:
    """"", or what is wrong."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"},
                                     method="GET")
    try:
        with urllib.request.urlopen(request, timeout=30):
            return ""
    except urllib.error.HTTPError as error:
        return "" if error.code in FINE else f"HTTP {error.code}"
    except (OSError, ValueError) as error:
        return str(error)


def main() -> int:
    places: dict[str, str] = dict(addresses())
    with ThreadPoolExecutor(8) as pool:
        wrong = {address: word for address, word in zip(places, pool.map(answers, places),
                                                        strict=True) if word}
    for address, word in wrong.items():
        print(f"{places[address]}: {address}: {word}")
    print(f"{len(places)} addresses, {len(wrong)} of them do not answer")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
