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
import zipfile
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools import colab_twin
from tools.addresses import setup_code
from tools.colab_twin import Twin, Watch, killed_and_resumed, packages
from tools.common import ROOT, ToolError, sources
from tools.wheel import build

# one that is not made yet is another test's
NOTEBOOKS = [path for source in sources() if (path := source.with_suffix(".ipynb")).is_file()]
START = NOTEBOOKS[0]


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    home = tmp_path_factory.mktemp("twin")
    # what is compiled is shared with the other tests
    return Twin(colab_twin.borrowed(home / "venv"), home, colab_twin.repository(home),
                {"COURSE_CACHE": os.environ["COURSE_CACHE"]})


@pytest.fixture(autouse=True)
def another_machine(twin):
    twin.new_machine()


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
IMPORTS = {line for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells
           if cell.cell_type == "code" for line in cell.source.splitlines()
           if re.match(r"(from|import) .*[^(\\]$", line)}
HALF = ("import os\nos.makedirs('course.part/course_lib')\n"
        "open('course.part/course_lib/__init__.py', 'w').close()\n")
NO_ADDRESS = setup_code("https://example.org/x")
MODELS = ("import course_lib\nfrom course_lib import load, load_model, results\n"
          "load_model('exp1/pgd-at'), load('fashion-mnist', limit=1000)\n"
          "print(len(results('exp1')), course_lib.__file__)")
LINE = (r"Colab: Python \S+, torch \S+, CPU, \d+ threads\. Results go to \S+ only\. "
        r"Colab deletes .*\n")


def test_the_setup_cell_in_empty_folders(twin, tmp_path):
    """With all imports of the notebooks; after a clone that was cut short; with one uploaded file
    beside the notebook and no address: course.zip, or a wheel under its own name. Where it cannot
    go on, it says in a plain sentence what to do next."""
    good, wheel = setup_code(twin.address), build(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("lenet.cpp") for name in names)
    assert not [n for n in names if n.startswith("tests/") or "__pycache__" in n or ".so" in n]
    upload = f"import shutil\nshutil.copy({str(wheel)!r}, %r)\n"
    by_name = NO_ADDRESS.replace('COURSE = ""', f'COURSE = "{wheel.name}"')
    own = rf"(?s).*\n\d+ {twin.content}/\d/course/course_lib/__init__.py\n"
    cases = [
        ("\n".join([good, *sorted(IMPORTS), "import course_lib, os",
                    "assert course_lib.__file__.startswith(os.getcwd())"]), LINE),
        (HALF + good.replace("SAVE_TO_DRIVE = False", "SAVE_TO_DRIVE = True"),  # Drive is refused
         r"(?s).*Colab: Python .* only\. Colab deletes them with the machine.*"),
        (upload % "course.zip" + NO_ADDRESS + "\n" + MODELS, own),
        (upload % wheel.name + by_name + "\n" + MODELS, own),
        (setup_code("file:///nowhere/course.git"), r"(?s).*FileNotFoundError: "
         r"file:///nowhere/course\.git was not found\. Upload course\.zip.*"),
        (NO_ADDRESS, r"(?s).*FileNotFoundError: course\.zip was not found\. Upload .* again\..*"),
        (good.replace('COURSE = ""', 'COURSE = "my-course.zip"'),
         r"(?s).*FileNotFoundError: my-course\.zip was not found\..*")]
    folders = [twin.content / str(n) for n in range(len(cases))]
    for folder in folders:
        folder.mkdir()
    scripts = {str(folder): script for folder, (script, _) in zip(folders, cases, strict=True)}
    done = subprocess.run([str(twin.python), "-c", FORKS], input=json.dumps(scripts),
                          cwd=twin.content, env=twin.environment(TWIN_DRIVE="refused"),
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for told, (_, says) in zip(done.stdout.split("-----\n")[:-1], cases, strict=True):
        assert re.fullmatch(says, told), told
    for folder in folders[:2]:
        assert {p.name for p in folder.iterdir()} == {"course"}, "only the clone is left behind"


def test_the_first_notebook_whole_without_drive(twin):
    before = packages(twin.python)
    assert "first figure after" in colab_twin.without_drive(twin, START)
    assert packages(twin.python) == before


def test_a_training_is_killed_and_goes_on_on_another_machine(twin, monkeypatch):
    """Drive is asked for once on each machine, and has what the second one needs."""
    monkeypatch.setattr(colab_twin, "SMALL", "1500,8")
    before = twin.mounts
    assert re.fullmatch(r"killed after batch \d+, went on from there on another machine",
                        killed_and_resumed(twin, START, "run = fit("))
    assert twin.mounts == before + 2


@pytest.mark.parametrize(("steps", "goes_on"), [
    ({192, 288}, True), ({288}, True), ({96, 192, 288}, False), ({192}, False), (set(), False)])
def test_a_training_that_begins_anew_is_not_taken_for_one_that_goes_on(tmp_path, steps, goes_on):
    class Told(Twin):
        """Two runs that are only told of."""

        def run(self, notebook, *, kill=False, **words):
            store = self.course_in_drive / "00" / "small"
            store.mkdir(parents=True, exist_ok=True)
            for step in (96, 192) if kill else ():
                (store / f"ckpt-{step}-{hashlib.sha256().hexdigest()}").touch()
            return Watch({"00/small": {96, 192} if kill else steps}, killed="00/small" * kill)

    with nullcontext() if goes_on else pytest.raises(ToolError, match="did not go on"):
        told = killed_and_resumed(Told(Path("python"), tmp_path, "file:///nowhere"), START)
        assert told.startswith("killed after batch 192, went on")


def test_what_the_course_asks_for_is_what_colab_has():
    """So that nothing is installed there, least of all torch or numpy."""
    have = colab_twin.versions()
    asked = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines()
             if line and not line.startswith("#")]
    absent = {r.name for r in asked} - have.keys()
    assert absent == {"nbval"}, "checks notebooks; no notebook imports it"
    for requirement in asked:
        assert [s.operator for s in requirement.specifier] == [">="], "lower bounds only"
        version = have.get(requirement.name, "").replace("*", "0")
        assert not version or requirement.specifier.contains(version), f"{requirement}: {version}"
    assert Version(have["python"].replace(".*", "")) >= Version("3.11")
