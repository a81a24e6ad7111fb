"""What the texts show is of today's reports, what they link to is there, and what is released holds
what it must."""

import json
import re
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest
from PIL import Image

from benchmarks import __main__ as benchmarks
from tools import release
from tools.common import ROOT, ToolError, sources
from tools.readme_results import FIGURE, SHOWN, draw, source_of_figure, written
from tools.wheel import build

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_as_the_stored_reports_make_it() -> None:
    assert written(README) == README, "make readme"


def test_the_readmes_figure_is_of_todays_reports_and_has_words(tmp_path: Path) -> None:
    with Image.open(FIGURE) as picture:
        assert picture.text["Source"] == source_of_figure(), "make readme"
        size = picture.size
    draw(tmp_path / "again.png")
    with Image.open(tmp_path / "again.png") as again:
        assert again.size == size
    (alt,) = re.findall(r"!\[([^\]]+)\]\(docs/who-pays\.png\)", README)
    assert len(alt) > 100 and FIGURE.stat().st_size < 100_000


def test_a_new_report_shows_in_the_figures_source(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools import readme_results

    real, before = readme_results.load_reports, source_of_figure()
    monkeypatch.setattr(readme_results, "load_reports", lambda name, eps: real(name, eps=eps)[:-1]
                        if name in SHOWN.values() else None)
    assert source_of_figure() != before


def test_the_readme_is_short_and_says_what_a_stranger_asks() -> None:
    prose = re.sub(r"(?s)<!-- (results|cifar10|figure) -->.*?<!-- /\1 -->", "", README)
    assert len(prose.split()) < 1_000
    headings = re.findall(r"(?m)^## (.+)$", README)
    assert headings == ["Two commands", "Three journeys", "Results at a glance", "Speed",
                        "What is not promised", "Where things are"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere_and_headings_are_in_order(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert re.match(r"https?://", link) or (path.parent / link).exists(), f"{path.name}: {link}"
    levels = [len(marks) for marks in re.findall(r"(?m)^(#+) ", text)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in pairwise(levels))


def test_the_syllabus_sends_nobody_to_a_section_that_is_not_there() -> None:
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


def test_the_wheel_holds_the_data_and_works_by_itself(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert any("embedded/fashion-mnist/" in name
               for name in names) and any(name.endswith("lenet.cpp") for name in names)
    assert not [name for name in names if name.startswith("tests/") or "__pycache__" in name
                or name.endswith(".so")]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
               "--target", str(tmp_path / "site"), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); import course_lib, json\n"
        "d = course_lib.load('fashion-mnist', limit=1000)\n"
        "n = len(course_lib.load_model('exp1/pgd-at').state_dict())\n"
        "n = len(course_lib.results('exp1')) * (n > 0)\n"
        "print(json.dumps([course_lib.__file__, len(d.train), len(d.val), len(d.test), n]))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True,
                          text=True, check=True)
    place, *lengths = json.loads(done.stdout)
    assert lengths[3] > 2, "the models of Experiment 1"
    assert place.startswith(str(tmp_path)) and lengths[:3] == [800, 200, 10000]


def test_every_place_names_the_same_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(set(release.named().values())) == 1, release.named()
    with pytest.raises(ToolError, match=r"No release v9\.9\.9: .*pyproject\.toml"):
        release.main(["v9.9.9"])
    release.main(["--notes"])
    assert capsys.readouterr().out.startswith("- ")


def test_ci_runs_only_targets_and_tools_that_exist() -> None:
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


def test_a_benchmark_replaces_its_own_table_and_no_other(tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "OUT", tmp_path)
    old = benchmarks.README.read_text(encoding="utf-8").partition(benchmarks.MARK)[2].strip()
    assert benchmarks.report(old).strip() == old
    title = "The explorer (sliders and zoo: median of 20)"
    made = {"title": title, "machine": {"cpu": "of another kind"}, "head": ["a"], "rows": [[1]],
            "raw": {}}
    (tmp_path / "explorer.json").write_text(json.dumps(made))
    before, after = old.split("\n## "), benchmarks.report(old).strip().split("\n## ")
    (new,) = [b for a, b in zip(before, after, strict=True) if a != b]
    assert new.split() == (
        f"{title} On another machine: cpu of another kind. | a | | --- | | 1 |".split())
