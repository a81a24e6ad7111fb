"""The course as a student in Colab meets it, in this Python and with a stand-in for Colab. `make
colab-twin` does all of it, and with Colab's versions.
 One machine for the file: a Python without the course, an empty folder, and the repository only as
a git address.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools.addresses import setup_code
from tools.colab_twin import (
    HERE,
    Twin,
    Watch,
    borrowed,
    killed_and_resumed,
    opened,
    packages,
    repository,
    versions,
    without_drive,
)
from tools.common import ROOT, ToolError, sources
from tools.wheel import build

# one that is not made yet is another test's
NOTEBOOKS = [path for source in sources() if (path := source.with_suffix(".ipynb")).is_file()]
START = NOTEBOOKS[0]


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Twin:
    home = tmp_path_factory.mktemp("twin")
    # what is compiled is shared with the other tests
    return Twin(borrowed(home / "venv"), home, repository(home),
                {"COURSE_CACHE": os.environ["COURSE_CACHE"]})


@pytest.fixture(autouse=True)
def another_machine(twin: Twin) -> Iterator[None]:
    twin.new_machine()
    yield


def test_the_twin_has_no_course_before_the_setup_cell(twin: Twin) -> None:
    script = "import importlib.util as u, torch, google.colab; print(u.find_spec('course_lib'))"
    done = subprocess.run([str(twin.python), "-c", script], cwd=twin.content,
                          env=twin.environment(), capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("None", 0), done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_setup_cell_is_the_same_everywhere(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells
             if "setup" in cell.metadata.get("tags", [])]
    assert [cell.source for cell in cells] == [setup_code()]
    assert cells[0].metadata["cellView"] == "form"


FORKS = """
import json, os, sys, traceback
import torch, numpy, matplotlib  # once for all: this is what takes time
for folder, script in json.load(sys.stdin).items():
    sys.stdout.flush()
    if not (child := os.fork()):
        os.chdir(folder)
        try:
            exec(compile(script, folder, "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    print("-----")
"""


def in_fresh_folders(twin: Twin, scripts: list[str], **words: str) -> list[str]:
    """What each script prints, in a folder and a process of its own."""
    folders = [twin.content / str(n) for n in range(len(scripts))]
    for folder in folders:
        folder.mkdir()
    orders = json.dumps(dict(zip(map(str, folders), scripts, strict=True)))
    command = [str(twin.python), "-c", FORKS]
    done = subprocess.run(command, input=orders, cwd=twin.content, env=twin.environment(**words),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("-----\n")[:-1]


def test_the_setup_cell_and_the_imports_of_every_notebook(twin: Twin) -> None:
    scripts = []
    for path in NOTEBOOKS:
        cells = [cell for cell in opened(path, twin.address).cells if cell.cell_type == "code"]
        setup = next(cell.source for cell in cells if "setup" in cell.metadata.get("tags", []))
        imports = [line for cell in cells for line in cell.source.splitlines()
                   if re.match(r"(from|import) .*[^(\\]$", line)]
        scripts.append("\n".join([setup, *imports, "import course_lib, os",
                                  "assert course_lib.__file__.startswith(os.getcwd())"]))
    for path, told in zip(NOTEBOOKS, in_fresh_folders(twin, scripts), strict=True):
        line = (r"Colab: Python \S+, torch \S+, CPU, \d+ threads\. "
                r"Results go to \S+ only\. Colab deletes .*\n")
        assert re.fullmatch(line, told), f"{path.stem}: {told}"
    assert all({p.name for p in folder.iterdir()} == {"course"}
               for folder in twin.content.iterdir()), "only the clone is left behind"


def test_what_the_setup_cell_says_when_it_cannot_go_on(twin: Twin) -> None:
    """A plain sentence with a next step, for each."""
    good = setup_code(twin.address)
    cases = {
        setup_code("file:///nowhere/course.git"):
            r"FileNotFoundError: file:///nowhere/course\.git was not found\. Upload course\.zip",
        setup_code("https://example.org/x"):
            r"FileNotFoundError: course\.zip was not found\. Upload course\.zip .* again\.",
        good.replace('COURSE = ""', 'COURSE = "my-course.zip"'):
            r"FileNotFoundError: my-course\.zip was not found\.",
        good.replace("SAVE_TO_DRIVE = False", "SAVE_TO_DRIVE = True"):  # Drive is refused
            r"Colab: Python .* only\. Colab deletes them with the machine"}
    for told, words in zip(in_fresh_folders(twin, [*cases], TWIN_DRIVE="refused"), cases.values(),
                           strict=True):
        assert re.search(words, told), told


def test_the_notebook_and_one_uploaded_file_are_enough(twin: Twin, tmp_path: Path) -> None:
    """No address and no network: course.zip beside the notebook, a wheel under its own name, and
    a file in Drive."""
    wheel = build(tmp_path)
    script = setup_code("https://example.org/x") + (
        "\nfrom course_lib import load_model, results\n"
        "load_model('exp1/pgd-at')\nprint(len(results('exp1')), course_lib.__file__)")
    script = script.replace("from course_lib import colab", "import course_lib\nfrom course_lib "
                            "import colab")
    uploads = [f"import shutil\nshutil.copy({str(wheel)!r}, {name!r})\n"
               for name in ("course.zip", wheel.name)]
    by_name = script.replace('COURSE = ""', f'COURSE = "{wheel.name}"')
    for folder, told in enumerate(in_fresh_folders(twin, [uploads[0] + script,
                                                          uploads[1] + by_name])):
        assert re.search(rf"\d+ {twin.content}/{folder}/course/course_lib/__init__.py", told), told


def test_a_clone_cut_short_is_made_again(twin: Twin) -> None:
    """The machine may stop in the middle of cloning: half a course is never taken for one."""
    half = ("import os\nos.makedirs('course.part/course_lib')\n"
            "open('course.part/course_lib/__init__.py', 'w').close()\n")
    (told,) = in_fresh_folders(twin, [half + setup_code(twin.address)])
    assert told.startswith("Colab: Python")
    assert [p.name for p in (twin.content / "0").iterdir()] == ["course"]


def test_the_first_notebook_whole_without_drive(twin: Twin) -> None:
    before = packages(twin.python)
    assert "first figure after" in without_drive(twin, START)
    assert packages(twin.python) == before


def test_a_training_is_killed_and_goes_on_on_another_machine(twin: Twin) -> None:
    """Drive is asked for once on each machine, and has what the second one needs."""
    before = twin.mounts
    assert re.fullmatch(r"killed after batch \d+, went on from there on another machine",
                        killed_and_resumed(twin, START, "run = fit("))
    assert twin.mounts == before + 2


@pytest.mark.parametrize(("steps", "goes_on"),
                         [({192, 288}, True), ({288}, True), ({96, 192, 288}, False),
                          ({192}, False), (set(), False)])
def test_a_training_that_begins_anew_is_not_taken_for_one_that_goes_on(tmp_path: Path,
        steps: set[int], goes_on: bool) -> None:
    class Told(Twin):
        """Two runs that are only told of."""

        def run(self, notebook: object, *, kill: bool = False, **words: str) -> Watch:
            store = self.course_in_drive / "00" / "small"
            store.mkdir(parents=True, exist_ok=True)
            for step in (96, 192) if kill else ():
                (store / f"ckpt-{step}-{hashlib.sha256().hexdigest()}").touch()
            return Watch({"00/small": {96, 192} if kill else steps, "other": {3}}, killed="00/small"
                         if kill else "")

    told = Told(Path("python"), tmp_path, "file:///nowhere")
    if goes_on:
        assert killed_and_resumed(told, START).startswith("killed after batch 192, went on")
    else:
        with pytest.raises(ToolError, match="did not go on"):
            killed_and_resumed(told, START)


def test_what_the_course_asks_for_is_what_colab_has() -> None:
    """So that nothing is installed there, least of all torch or numpy."""
    have = versions()
    asked = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines()
             if line and not line.startswith("#")]
    absent = {r.name for r in asked} - have.keys()
    assert absent == {"nbval"}, "checks notebooks; no notebook imports it"
    for requirement in asked:
        assert [s.operator for s in requirement.specifier] == [">="], "lower bounds only"
        version = have.get(requirement.name, "").replace("*", "0")
        assert not version or requirement.specifier.contains(version), f"{requirement}: {version}"
    assert Version(have["python"].replace(".*", "")) >= Version("3.11")


def test_the_list_of_versions_says_of_when_it_is_and_where_it_was_read() -> None:
    lists = sorted(HERE.glob("versions-*.txt"))
    assert lists and all(re.fullmatch(r"versions-20\d\d-(0[1-9]|1[0-2])\.txt", p.name)
                         for p in lists)
    assert all("googlecolab/backend-info" in p.read_text(encoding="utf-8") for p in lists)
