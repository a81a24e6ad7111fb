"""Executed notebooks to pages that need no network: styles and figures inside, formulas as
MathML."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from tools.addresses import badges
from tools.common import TEMPLATES

HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.S)


def mathml(tex: str, display: bool = False) -> str:
    """A formula as MathML, which browsers draw themselves; its TeX as it stands where it cannot be
    read."""
    tex = html.unescape(tex).strip()
    plain = re.sub(r"{(align|equation|gather)}", r"{\1*}", tex)  # no numbers: as notebooks show it
    plain = re.sub(r"\\arg(?![a-zA-Z])\s*", r"\\operatorname{arg}\\,", plain)
    if display:  # limits under and over, as display style has them
        plain = re.sub(r"\\(max|min|sup|inf)\s*_", r"\\\1\\limits_", plain)
    try:
        drawn = str(convert(plain, display="block" if display else "inline"))
    except Exception:  # latex2mathml raises many kinds; a formula must never cost the page
        drawn = ""
    unknown = not drawn or re.search(r">\s*\\[a-zA-Z]", drawn)
    return f'<code class="tex">{html.escape(tex)}</code>' if unknown else drawn


class MathMLRenderer(IPythonRenderer):
    """nbconvert's own renderer, but for formulas."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display=True)

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", display=True)


def markdown(source: str, attachments: dict[str, Any] | None = None) -> str:
    renderer = MathMLRenderer(escape=False, attachments=attachments or {})
    return str(MarkdownWithMath(renderer=renderer).render(source))


class PageExporter(HTMLExporter):
    """The cells of a notebook as HTML, without the page around them."""

    def _template_name_default(self) -> str:
        return "basic"

    def default_filters(self) -> Any:
        yield from super().default_filters()
        yield "markdown2html", markdown


@dataclass(frozen=True)
class Summary:
    """What the index says of a notebook."""

    stem: str
    title: str
    blurb: str
    seconds: float = 0.0
    fresh: bool = False
    failed: str = ""
    reading: str = ""  # how long it takes a reader, in the notebook's own words
    links: tuple[tuple[str, str], ...] = ()  # where else it can be opened: words and address

    @property
    def page(self) -> str:
        return f"{self.stem}.html"

    @property
    def time(self) -> str:
        return f"{self.seconds:.0f} s" if self.seconds < 90 else f"{self.seconds / 60:.0f} min"


def has(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def describe(notebook: NotebookNode, stem: str) -> tuple[str, str]:
    """A notebook's title and the first paragraph under it, in Markdown."""
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"
             and not has(cell, "badges")]
    text = "\n\n".join(cell.source for cell in prose)
    found = re.search(r"^# +(.+?)\s*$", text, re.M)
    title = found[1] if found else stem
    paragraphs = re.split(r"\n\s*\n", text[found.end() :] if found else text)
    return title, next((p.strip() for p in paragraphs if p.strip()
                        and p.lstrip()[0] not in "#|!<>-*$["), "")


def reading_time(notebook: NotebookNode) -> str:
    """What the notebook says after **Time:**, in Markdown."""
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"^\*\*Time:\*\* *(.+?)(?:\n\s*\n|\Z)", prose, re.M | re.S)
    return " ".join(found[1].split()) if found else ""


def elsewhere(stem: str) -> tuple[tuple[str, str], ...]:
    """The badges' words and addresses: links, since their images would need a network. None without
    a public address."""
    return tuple(re.findall(r"\[!\[([^]]*)\]\([^)]*\)\]\(([^)]*)\)",
                            badges(f"notebooks/{stem}.ipynb")))


@cache
def template(name: str) -> Template:
    loader = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True,
                         undefined=StrictUndefined, trim_blocks=True)
    loader.filters["markdown"] = markdown
    loader.filters["words"] = lambda text: re.sub(r"^<p>(.*)</p>\s*$", r"\1",
                                                  markdown(text).strip(), flags=re.S)
    return loader.get_template(name)


def style() -> str:
    return (TEMPLATES / "style.css").read_text(encoding="utf-8") + HtmlFormatter(
        style="default").get_style_defs(".highlight")


def folded(cell: NotebookNode) -> NotebookNode:
    """The set-up cell shows what it says, not how: a form in the notebook, nothing to run on a
    page."""
    if not has(cell, "setup"):
        return cell
    cell = cell.copy()
    cell.metadata = {**cell.metadata, "transient": {"remove_source": True}}
    return cell


def page(notebook: NotebookNode, this: Summary, everything: list[Summary]) -> str:
    """The page of one notebook, with its own table of contents and its neighbours."""
    shown = notebook.copy()
    shown.cells = [folded(cell) for cell in notebook.cells if not has(cell, "badges")]
    body, _ = PageExporter().from_notebook_node(shown)
    headings = [(name, re.sub(r"<a .*?</a>", "", text)) for name, text in HEADING.findall(body)]
    at = [s.stem for s in everything].index(this.stem)
    before, after = (everything[at - 1] if at else None), (everything[at + 1]
                                                           if at + 1 < len(everything) else None)
    return template("page.html.j2").render(body=body, this=this, headings=headings, before=before,
                                           after=after, style=style())


def index(everything: list[Summary], results: str) -> str:
    """The page that shows what there is, with the results in Markdown as a table."""
    return template("index.html.j2").render(everything=everything, results=results, style=style())


def results_page(results: str, by_class: str) -> str:
    """The page of all results: two tables in Markdown."""
    return template("results.html.j2").render(results=results, by_class=by_class, style=style())
