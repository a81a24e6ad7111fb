# @title Set up: run me first
SAVE_TO_DRIVE = False  # @param {type: "boolean"}

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ADDRESS, RELEASE = "@ADDRESS@", "@RELEASE@"


def fetch(clone: Path) -> Path:
    """Clone the release, or the newest state where there is no such release. Nothing is
    installed: torch and numpy stay as they are."""
    part, said = clone.with_name("course.part"), "git is not installed"
    for branch in (["--branch", RELEASE], []):
        shutil.rmtree(part, ignore_errors=True)
        command = ["git", "clone", "--quiet", "--depth", "1", *branch, ADDRESS,
                   str(part)]
        if shutil.which("git"):
            done = subprocess.run(command, capture_output=True, text=True,
                                  env={**os.environ, "GIT_TERMINAL_PROMPT": "0"})
            if done.returncode == 0:
                return part.rename(clone)
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    raise RuntimeError(f"The course could not be fetched from {ADDRESS} ({said}). Is "
                       "this machine on the network? On Kaggle: Settings, "
                       "Internet, on. Then run this cell again.")


def find_course() -> None:
    """Make course_lib importable: installed, in a clone around this notebook, or cloned
    now (Colab, Kaggle)."""
    if tuple(sys.version_info) < (3, 11):
        raise RuntimeError("The course needs Python 3.11 or later, and this is "
                           f"{sys.version.split()[0]}. In Colab: Runtime, Change "
                           "runtime type, the newest version. Elsewhere: start Jupyter "
                           "from a newer Python.")
    if importlib.util.find_spec("course_lib"):
        return
    # Kaggle first: it looks like Colab
    work = Path(
        "/kaggle/working") if "KAGGLE_KERNEL_RUN_TYPE" in os.environ else Path.cwd()
    clone = work / "course"
    around = [folder for folder in (clone, work, *work.parents)
              if (folder / "course_lib" / "__init__.py").is_file()]
    if not around and "example.org" in ADDRESS:
        raise RuntimeError("course_lib was not found, and the project has no public "
                           "address yet: open this notebook inside a clone.")
    if not around:
        fetch(clone)
    sys.path.insert(0, str(around[0] if around else clone))


find_course()
try:
    from course_lib import colab
except ModuleNotFoundError as e:
    lacking = (e.name or "").partition(".")[0]
    raise RuntimeError(f"This Python has no {lacking}. Run `%pip install --no-deps "
                       f"{lacking}` in a cell, then this cell again.") from None

session = colab.setup(drive=SAVE_TO_DRIVE)
print(session.line())
