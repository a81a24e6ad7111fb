"""The worked example of CONTRIBUTING.md: its diff applies to the project as it is, and what it says
to run runs."""

import json
import os
import re
import shutil
import subprocess
import sys

from course_lib.methods import METHODS
from tools.common import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DIFF = re.findall(r"```diff\n(.*?)```", TEXT, re.S)


def call(copy, *words):
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-m", *words], cwd=copy, env=environment,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_those_over_all_methods_and_the_command_take_it_in(tmp_path):
    assert "smooth_at" not in METHODS, "the example is in the project already"
    forget = shutil.ignore_patterns("__pycache__", "faults", "colab", "docs", "notebooks",
                                    "browser")
    for name in ("course_lib", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=forget)
    (copy := tmp_path).joinpath("pytest.ini").write_text(
        "[pytest]\npythonpath = . tests\naddopts = --import-mode=importlib -p no:nbval\n")
    (diff,) = DIFF
    done = subprocess.run(["git", "apply", "-"], cwd=copy, input=diff, capture_output=True,
                          text=True)
    assert not done.returncode, f"CONTRIBUTING.md's diff does not fit any more:\n{done.stderr}"
    told = call(copy, "pytest", "-q", "tests/test_smooth_at.py", "tests/methods/test_methods.py",
                "-k", "smooth_at")
    passed = re.search(r"(\d+) passed", told)
    assert passed and int(passed[1]) >= 8, told
    files = re.findall(r"(?m)^\+\+\+ b/(.*\.py)$", DIFF[0])
    call(copy, "ruff", "check", "--config", str(ROOT / "pyproject.toml"), *files)
    (line,) = re.findall(r"(?m)^python -m course_lib (train mine/smooth-at .*)$", TEXT)
    words = line.replace("--limit 2000", "--limit 200").replace("--epochs 2", "--epochs 1").split()
    method = json.loads(call(copy, "course_lib", *words, "--json"))["made_from"]["recipe"]["method"]
    assert (method["name"], method["smoothing"]) == ("smooth_at", 0.1)
