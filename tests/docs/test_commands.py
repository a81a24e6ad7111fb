"""Every command that README, CONTRIBUTING and docs/ tell a reader to run is run here, in an empty
folder, shortened where it is long.
 COMMANDS says for each how: a new command in a text without an entry here fails, and so does an
entry that no text has any more.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from course_lib.__main__ import main, parser
from course_lib.experiments import RECIPES
from course_lib.zoo import matching
from tools.colab_twin import repository
from tools.common import ROOT

TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
STARTS = ("make", "python", ".venv/bin/python", "git", "pip", "cd", ".ci/run", "pre-commit")


def commands():
    """Command -> the text that has it: lines of ```bash blocks, and `words like these` that begin
    as a command does."""
    found = {}
    for path in TEXTS:
        text = re.sub(r"```diff\n.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
        blocks = re.findall(r"(?m)^ *```(?:bash|sh)\n(.*?)^ *```", text, re.S)
        prose = re.sub(r"(?m)^ *```.*?^ *```", "", text, flags=re.S)
        lines = [line.strip() for block in blocks for line in block.splitlines()]
        spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
        found.update({line: path.name for line in lines if line and not line.startswith("#")})
        found.update({span: path.name for span in spans
                      if (span.split()[0] in STARTS and " " in span) or span in {".ci/run"}})
    return found


def cli(line):
    """python -m course_lib ..., in this process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(shlex.split(line)[3:]) == 0
    assert out.getvalue().strip()


def shell(line, folder):
    done = subprocess.run(line, shell=True, cwd=folder,
                          env={**os.environ, "PYTHON": sys.executable}, capture_output=True,
                          text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{line}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of the repository with one small notebook as the course, and with this .venv."""
    empty = tmp_path_factory.mktemp("empty")
    shell(f"git clone {repository(empty)}", empty)
    folder = empty / "course"
    assert not (folder / "notebooks").is_symlink(), "its files are about to be deleted"
    for path in (folder / "notebooks").iterdir():
        path.unlink()
    shutil.copy(ROOT / "tests" / "notebooks" / "demo.py", folder / "notebooks" / "00_demo.py")
    (folder / ".venv").mkdir()
    for part in (path for path in Path(sys.prefix).iterdir() if path.name != ".ready"):
        (folder / ".venv" / part.name).symlink_to(part)
    # newer than whatever says what to install, whenever it is written: make must never install into
    # a .venv that is borrowed
    (folder / ".venv" / ".ready").touch()
    os.utime(folder / ".venv" / ".ready", (2**31, 2**31))
    assert "pip" not in shell("make -n run", folder)
    return folder


def target(line, folder):
    """Only whether make knows it: another test runs what it calls, or it takes long."""
    assert "No rule" not in shell(line.replace("make", "make -n", 1), folder)


def instead(other):
    return lambda line, folder: shell(other, folder)


def shortened(cuts):
    return lambda line, folder: cli(f"{line} {cuts}")


def understood(line, folder):
    """What takes a GPU, eight of them or a cluster: the course's own words are read, and the
    recipes are there."""
    words = parser().parse_args(shlex.split(line.partition("-m course_lib ")[2]))
    assert matching(RECIPES, getattr(words, "patterns", None) or [words.recipe])


def elsewhere(line, folder):
    """Another file runs it: the worked example and the clone above."""


COMMANDS = {  # how each is run, given its line and the clone
    **dict.fromkeys(["make run", "make help", "make notebooks",
                     ".venv/bin/python -m tools.notebooks --addresses",
                     ".venv/bin/python -m tools.check_notebooks"], shell),
    ".venv/bin/python -m tools.pin > constraints.txt.new && mv constraints.txt.new constraints.txt":
        instead(".venv/bin/python -m tools.pin > constraints.txt.new"),
    **dict.fromkeys([f"make {words}" for words in (
        "notebooks ONLY=01", "student", "lint", "bench", "bench ARGS=--readme", "faults",
        "sanitize", "bundle", "colab-twin")], target),
    **dict.fromkeys([
        "python -m course_lib train gpu/cifar10/preact_resnet18/pgd-at --seed 0",
        "torchrun --standalone --nproc-per-node 8 --max-restarts 3 -m course_lib train "
        "gpu/cifar10/preact_resnet18/pgd-at --seed 0",
        "python -m course_lib sweep exp1 exp4 --scheduler tcp://HEAD:8786 --out /shared/runs "
        "--models /shared/models",
        "python -m course_lib evaluate exp1/pgd-at --seed 0 --per-class 100 --models runs"],
        understood),
    **dict.fromkeys([
        # tests/docs/test_worked_example.py, tests/test_frozen.py, and two files of tests/lab/
        'make test ARGS="tests -k smooth_at"', "python -m tests.frozen.make",
        "python -m course_lib train mine/smooth-at --seed 0 --limit 2000 --epochs 2",
        "torchrun --standalone --nproc-per-node 2 --max-restarts 3 -m course_lib train "
        "exp1/pgd-at --seed 0", "dask scheduler",
        "dask worker tcp://HEAD:8786 --nworkers 16 --nthreads 1"], elsewhere),
    "make test": instead("make test ARGS=--version WORKERS=0"),
    "make lab": instead("make lab ARGS=--version"),
    "make explore": instead("make explore ARGS=--version"),
    ".ci/run": instead("bash -n .ci/run"),
    "pip install pre-commit": instead("grep -q pre-commit CONTRIBUTING.md"),
    "pre-commit install": instead("test -f .pre-commit-config.yaml"),
    'pip install -e ".[cluster]"': instead("grep -q ^cluster pyproject.toml"),
    ". .venv/bin/activate": instead(". .venv/bin/activate && python -c 'import course_lib'"),
    "python -m course_lib list": shortened(""),
    "python -m course_lib train exp1/pgd-at --seed 0": shortened("--limit 200 --epochs 1"),
    "python -m course_lib evaluate exp1/pgd-at --seed 0 --per-class 100":
        shortened("--per-class 2"),
    "python -m course_lib results --json": shortened(""),
}


def test_every_command_of_the_texts_is_known_here_and_the_other_way_round():
    found = commands()
    assert {line: text for line, text in found.items() if line not in COMMANDS} == {}
    assert [line for line in COMMANDS if line not in found] == []


# what it executes, `make run` and the checks use
SLOW_FIRST = sorted(COMMANDS, key=lambda line: line != "make notebooks")


@pytest.mark.parametrize("line", SLOW_FIRST)
def test_run(line, clone, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # commands without make work in any folder
    for name in [name for name in os.environ if name.startswith(("PYTEST_", "MAKE"))]:
        monkeypatch.delenv(name)
    COMMANDS[line](line, clone)


def test_make_run_and_make_notebooks_left_what_they_promise(clone):
    assert "00_demo.html" in (clone / "build" / "course" / "index.html").read_text()
    assert (clone / "notebooks" / "00_demo.ipynb").is_file()


def test_the_readmes_python_runs_as_it_stands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(?m)^ *```python\n(.*?)^ *```",
                        (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    starts = ("[", "model", "class")  # errors, a benchmark, a report
    for block, start in zip(blocks, starts, strict=True):
        with (contextlib.redirect_stdout(io.StringIO()) as out,  # untrained networks warn
              contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings(action="ignore")):
            for long, short in (("per_class(100)", "per_class(5)"), ("=20)", "=1)")):
                block = block.replace(long, short)
            exec(re.sub(r"(?m)^  ", "", block), {})
        assert out.getvalue().lstrip().startswith(start)
