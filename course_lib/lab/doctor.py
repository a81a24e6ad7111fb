"""What is in order on this machine and what is not: python -m course_lib doctor.

Each check returns what it found. It raises a CourseError, which says what to do, where something
stops the course, such as a damaged file or a full disk; a CourseWarning where nothing does.
"""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from course_lib import data, files, native
from course_lib.datasets import sources
from course_lib.errors import CourseError, CourseWarning
from course_lib.zoo import manifest, model_files

LITTLE = 1 << 28  # bytes free; with less the course stops soon


def checkup() -> list[dict[str, str]]:
    """What was checked, its state ("ok", "warn" or "bad"), and what was found."""
    rows = []
    for what, check in checks():
        try:
            state, found = "ok", check()
        except (CourseError, CourseWarning) as e:
            state, found = "bad" if isinstance(e, CourseError) else "warn", str(e)
        rows.append({"what": what, "state": state, "found": found})
    return rows


def checks() -> Iterator[tuple[str, Callable[[], str]]]:
    """Everything that is checked, by name."""
    from packaging.requirements import Requirement

    yield "Python", platform.python_version
    path = Path(__file__).parents[2] / "requirements.txt"  # of a clone
    lines = (path.read_text(encoding="utf-8").splitlines() if path.is_file()
             else metadata.requires("course-lib") or [])
    for wanted in (Requirement(line) for line in lines if line.strip() and line[0] != "#"):
        if not wanted.marker or wanted.marker.evaluate({"extra": ""}):
            yield wanted.name, partial(package, wanted)
    yield "import torchvision", torchvision
    for folder in sorted(p for p in data.EMBEDDED.iterdir() if p.is_dir()):
        yield f"embedded {folder.name}", partial(embedded_data, folder)
    yield "stored models", models
    yield "C++ kernel", kernel
    yield "cache", partial(space, files.cache_dir())
    yield "runs", partial(space, Path("runs").absolute())


def package(wanted: Any) -> str:
    """The version of a package, if it meets the Requirement."""
    version = next((d.version for d in metadata.distributions(name=wanted.name)), "")
    if not version or not wanted.specifier.contains(version, prereleases=True):
        raise CourseError(f"{version or 'not installed'}: pip install --upgrade '{wanted}'")
    return version


def torchvision() -> str:
    """Whether user code can import it; datasets/ works around one that is for another torch."""
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1]
        raise CourseWarning(f"{error:.200}. The course works all the same. For code of your own, "
                            "install the one built for your torch (pytorch.org/get-started).")
    return "works"


def embedded_data(folder: Path) -> str:
    """Every file of an embedded data set."""
    hashes = sources.contents(folder)["sha256"]
    for name, sha256 in hashes.items():
        sources.checked(folder / name, sha256)
    return f"{len(hashes)} files, every hash right"


def models() -> str:
    """Every record that the manifest names, and the weights here; load_model gets the others."""
    stored = model_files()
    rows = [row for seeds in manifest().values() for kinds in seeds.values()
            for kind, row in kinds.items() if kind == "record" or stored.place(row)["bytes"]]
    for row in rows:
        stored.read(row)
    return f"{len(rows)} files, every hash right"


def kernel() -> str:
    """Whether LeNet-5 is served by C++."""
    if reason := native.reason():
        raise CourseWarning(f"{reason}. PyTorch does the same, slower. For the kernel: unset "
                            "COURSE_NATIVE, or apt-get install g++.")
    return "serves LeNet-5"


def space(place: Path) -> str:
    """Space and rights where the course writes."""
    near = next(p for p in (place, *place.parents) if p.exists())  # so that nothing is created
    files.check_writable(near, LITTLE)
    return f"{place}: {shutil.disk_usage(near).free / 1e9:.1f} GB free"
