"""The badges and the setup cell of every notebook, from the one address in pyproject.toml."""

from __future__ import annotations

import re

from tools.common import TEMPLATES, address

BADGE = "[![{text}]({image})]({link})"
NO_ADDRESS = ("*To run this notebook on your computer, open it in a copy of the course. In Colab "
              "or Kaggle, upload it together with `course.zip`, which `make bundle` writes.*")


def badges(page: str = "", base: str | None = None) -> str:
    """Badges that open `page` (a path in the repository). Without a public address: how to open
    it all the same."""
    base = address() if base is None else base
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?", base)
    if not found:
        return NO_ADDRESS
    where = f"{found[1]}/blob/main/{page}"
    places = [
        ("Open in Colab", "https://colab.research.google.com/assets/colab-badge.svg",
         f"https://colab.research.google.com/github/{where}"),
        ("Open in Kaggle", "https://kaggle.com/static/images/open-in-kaggle.svg",
         f"https://kaggle.com/kernels/welcome?src={base}/blob/main/{page}"),
        ("Open in Binder", "https://mybinder.org/badge_logo.svg",
         f"https://mybinder.org/v2/gh/{found[1]}/main?labpath={page}"),
    ]
    return " ".join(BADGE.format(text=text, image=image, link=link) for text, image, link in places)


def setup_code(base: str | None = None) -> str:
    """The set-up cell. While pyproject.toml has a placeholder it names no address."""
    text, base = (TEMPLATES / "setup_cell.py").read_text(encoding="utf-8"), base or address()
    return text.replace("@ADDRESS@", "" if "example.org" in base else base).strip()


def chunks(text: str) -> list[str]:
    """A percent source, cut before every cell; together they are the text again."""
    return re.split(r"(?m)^(?=# %%)", text)


def tagged(chunk: str, tag: str) -> bool:
    """Does the cell's first line carry this tag?"""
    found = re.search(r"tags=\[([^\]]*)\]", chunk.split("\n", 1)[0])
    return bool(found and f'"{tag}"' in found[1])


def addressed(text: str, stem: str, base: str | None = None) -> str:
    """The source of a notebook with its cells tagged "badges" and "setup" written afresh;
    everything else stays as it is."""
    new = []
    for chunk in chunks(text):
        head = chunk.split("\n", 1)[0]
        if tagged(chunk, "badges"):
            chunk = f"{head}\n# {badges(f'notebooks/{stem}.ipynb', base)}\n\n"
        elif tagged(chunk, "setup"):
            chunk = f"{head}\n{setup_code(base)}\n\n"
        new.append(chunk)
    return "".join(new).rstrip("\n") + "\n"
