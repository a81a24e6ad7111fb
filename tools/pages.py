"""Executed notebooks to pages that need no network: styles and figures inside, formulas as
MathML. What is wider than the page (tables, formulas) scrolls in a box of class "wide"."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tools.addresses import badges
from tools.common import TEMPLATES

PLUMBING = {"setup", "slider", "panel"}  # tags
HEADING = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>', re.S)
THIN = '<mspace width="0.167em" />'
TEX = (  # and characters, as TeX has them
    ('<mn mathvariant="double-struck">1</mn>', "<mn>&#x1D7D9;</mn>"),
    ("&#x029F5;", "&#x02216;"),  # a backslash that few fonts have
    ("<mo>arg</mo>", "<mi>arg</mi>"),  # `max` has the space between them
    ("(</m(?:n|i|sub|sup)>)<mi>log</mi>", rf"\1{THIN}<mi>log</mi>"),
    ("<mi>log</mi>(?!<mo)", f"<mi>log</mi>{THIN}"),
    ('<mo(?: stretchy="false")?>(&#x0007C;|&#x02016;)',
     r'<mo stretchy="false" lspace="0" rspace="0">\1'),
    # a plus or minus after ( [ or = is a sign
    ("(&#x000(?:28|5B|3D);</mo>)<mo>(&#x02212;|&#x0002B;)", r'\1<mo form="prefix">\2'))


def mathml(tex: str, display: bool = False) -> str:
    """A formula as MathML, which browsers draw themselves; its TeX as it stands where it cannot be
    read."""
    tex = html.unescape(tex).strip()
    plain = re.sub(r"{(align|equation|gather)}", r"{\1*}", tex)  # no numbers: as notebooks show it
    plain = re.sub(r"\\arg(?![a-zA-Z])", r"\\operatorname{arg}", plain)
    if display:  # limits under and over, as display style has them
        plain = re.sub(r"\\(max|min|sup|inf)\s*_", r"\\\1\\limits_", plain)
    try:
        drawn = str(convert(plain, display="block" if display else "inline"))
        for pattern, new in TEX:
            drawn = re.sub(pattern, new, drawn)
    except Exception:  # latex2mathml raises many kinds; a formula must never cost the page
        drawn = ""
    unknown = not drawn or re.search(r">\s*\\[a-zA-Z]", drawn)
    return f'<code class="tex">{html.escape(tex)}</code>' if unknown else drawn


class MathMLRenderer(IPythonRenderer):
    """nbconvert's own renderer, but for formulas."""

    def inline_math(self, body: str) -> str:
        long = len(body) > 60  # no browser breaks it at the end of a line
        return f'<span class="wide inline">{mathml(body)}</span>' if long else mathml(body)

    def block_math(self, body: str) -> str:
        return f'<span class="wide">{mathml(body, display=True)}</span>'

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


def markdown(source: str, attachments: dict[str, Any] | None = None) -> str:
    renderer = MathMLRenderer(escape=False, attachments=attachments or {})
    text = str(MarkdownWithMath(renderer=renderer).render(source))
    # a formula and the comma behind it stay in one line
    return re.sub(r"(<math[^>]*inline(?:(?!</math>).)*</math>[),.;:?]+)",
                  r'<span class="joined">\1</span>', text, flags=re.S)


def scrolling(text: str) -> str:
    """Each table in a box of its own."""
    return re.sub(r"<table.*?</table>", r'<div class="wide">\g<0></div>', text, flags=re.S)


def code(source: str) -> str:
    """Highlighted code, in which the rest of a long line stands right of its beginning."""
    lines = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()
    return "".join(f'<span class="line" style="--in: {len(plain) - len(plain.lstrip())}ch">{line}'
                   "\n</span>" for plain, line in zip(source.splitlines(), lines, strict=True))


class PageExporter(HTMLExporter):
    """The cells of a notebook as HTML, without the page around them."""

    def default_filters(self) -> Any:
        yield from super().default_filters()
        yield "markdown2html", markdown
        yield "code", code


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
                        and not re.match(r"[#|!<>$[-]|\* ", p.lstrip())), "")


def reading_time(notebook: NotebookNode) -> str:
    """What the notebook says after **Time:**, in Markdown."""
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.search(r"\*\*Time:\*\* *(.+?)(?:\n\s*\n|\*\*|\Z)", prose, re.S)
    return " ".join(found[1].split()) if found else ""


def summary(notebook: NotebookNode, stem: str, seconds: float = 0.0,
            fresh: bool = False) -> Summary:
    title, blurb = describe(notebook, stem)
    return Summary(stem, title, blurb, seconds, fresh, reading=reading_time(notebook),
                   links=elsewhere(stem))


def elsewhere(stem: str) -> tuple[tuple[str, str], ...]:
    """The badges' words and addresses: links, since their images would need a network. None without
    a public address."""
    return tuple(re.findall(r"\[!\[([^]]*)\]\([^)]*\)\]\(([^)]*)\)",
                            badges(f"notebooks/{stem}.ipynb")))


@cache
def template(name: str) -> Template:
    loader = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True,
                         undefined=StrictUndefined, trim_blocks=True)
    loader.filters["markdown"] = lambda text: scrolling(markdown(text))
    loader.filters["words"] = lambda text: re.sub(r"^<p>(.*)</p>\s*$", r"\1",
                                                  markdown(text).strip(), flags=re.S)
    return loader.get_template(name)


def folded(cell: NotebookNode) -> NotebookNode:
    """The cell with what its page folds. A solution is folded with its outputs. Of plumbing, the
    first line stays: forms, cells with the tags in PLUMBING, and three lines of imports or more
    at the beginning of a cell."""
    lines, tags = cell.source.splitlines(), {*cell.metadata.get("tags", [])}
    form, title = bool(lines) and lines[0].startswith("# @title "), ""
    imports = re.match(r"(?:(?:import|from) .*\n(?:[ )].*\n)*\n*)*", cell.source + "\n")
    n = imports[0].count("\n") if imports else 0
    if "solution" in tags:
        title, n = lines.pop(0).removeprefix("# @title ") if form else "Solution", 0
    elif form or PLUMBING & tags:
        n = len(lines)
    more = "\n".join(lines[1:n]).rstrip()
    if more.count("\n") < 1:
        more, n = "", 0
    cell = cell.copy()
    cell.metadata = {**cell.metadata, "fold": {
        "title": title, "more": more, "first": "\n".join(lines[:n][:1]),
        "rest": "\n".join(lines[n:])}}
    return cell


def page(notebook: NotebookNode, this: Summary, everything: list[Summary]) -> str:
    """The page of one notebook, with its own table of contents and its neighbours."""
    shown = notebook.copy()
    shown.cells = [folded(cell) if cell.cell_type == "code" else cell for cell in notebook.cells
                   if not has(cell, "badges")]
    body, _ = PageExporter(template_file=str(TEMPLATES / "cells.html.j2")).from_notebook_node(shown)
    headings = [(name, re.sub(r"<a .*?</a>", "", text)) for name, text in HEADING.findall(body)]
    at = [s.stem for s in everything].index(this.stem)
    before, after = (everything[at - 1] if at else None), (everything[at + 1]
                                                           if at + 1 < len(everything) else None)
    return template("page.html.j2").render(body=scrolling(body), this=this, headings=headings,
                                           before=before, after=after)


def index(everything: list[Summary], results: str) -> str:
    """The page that shows what there is, with a table of results in Markdown."""
    results = re.sub(r"\(notebooks/(\w+)\.ipynb\)", r"(\1.html)", results)
    return template("index.html.j2").render(everything=everything, results=results)


def results_page(legend: str, parts: Iterable[tuple[str, pd.DataFrame]]) -> str:
    """The page of all results: a title and a table each, which a click on a column's head sorts."""
    shown = [(title, table.to_html(index=False, border=0, na_rep="", classes="sortable",
                                   float_format="{:.1f}".format)) for title, table in parts]
    return template("results.html.j2").render(legend=legend, parts=shown)
