"""What the texts show is of today's reports, what they link to is there, and what is released holds
what it must."""

import re
from itertools import pairwise

import nbformat
import pytest
from PIL import Image

from tools import release
from tools.common import ROOT, ToolError, sources
from tools.readme_results import FIGURE, source_of_figure, written

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_and_its_figure_are_as_the_stored_reports_make_them():
    assert written(README) == README, "make readme"
    with Image.open(FIGURE) as picture:
        assert picture.text["Source"] == source_of_figure(), "make readme"
    (alt,) = re.findall(r"!\[([^\]]+)\]\(docs/who-pays\.png\)", README)
    assert len(alt) > 100 and FIGURE.stat().st_size < 100_000


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere_and_headings_are_in_order(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert re.match(r"https?://", link) or (path.parent / link).exists(), f"{path.name}: {link}"
    levels = [len(marks) for marks in re.findall(r"(?m)^(#+) ", text)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in pairwise(levels))


def test_the_syllabus_sends_nobody_to_a_section_that_is_not_there():
    """Four sessions of 90 minutes, and every section it names is in the notebook it names."""
    text = (ROOT / "docs" / "syllabus.md").read_text(encoding="utf-8")
    sessions = re.split(r"(?m)^## Session ", text)[1:]
    assert [sum(int(m) for m in re.findall(r"(?m)^\| (\d+) \|", s)) for s in sessions] == [90] * 4
    have = {}
    for source in (source for source in sources() if source.with_suffix(".ipynb").is_file()):
        prose = "\n".join(c.source for c in nbformat.read(source.with_suffix(".ipynb"),
                                                          as_version=4).cells
                          if c.cell_type == "markdown")
        have[source.stem[:2]] = {int(n) for n in re.findall(r"(?m)^## (\d+) ·", prose)}
    for number, words in re.findall(r"\b(0\d)(?:\]\([^)]*\))?,? sections? ([\d, toand]+)", text):
        assert {int(n) for n in re.findall(r"\d+", words)} <= have[number], f"{number}: {words}"
    assert "## Rubric" in text and text.count("students can**") == 4


def test_every_place_names_the_same_version(capsys):
    assert len(set(release.named().values())) == 1, release.named()
    with pytest.raises(ToolError, match=r"No release v9\.9\.9: .*pyproject\.toml"):
        release.main(["v9.9.9"])
    release.main(["--notes"])
    assert capsys.readouterr().out.startswith("- ")


def test_ci_runs_only_targets_and_tools_that_exist():
    makefile = (ROOT / "Makefile").read_text()
    for path in [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".pre-commit-config.yaml"]:
        text = path.read_text()
        for line in re.findall(r"(?m)(?:run:|entry:|^ {10}) ?make ([a-z -]+)", text):
            for name in line.split():
                assert re.search(rf"(?m)^{name}:", makefile), f"{path.name}: make {name}"
        for name in re.findall(r"-m (tools\.\w+)", text):
            assert (ROOT / f"{name.replace('.', '/')}.py").is_file(), f"{path.name}: {name}"
        for name in re.findall(r"\btests/[\w/]+(?:\.py)?", text):
            assert (ROOT / name).exists(), f"{path.name}: {name}"
