"""What is in order on this machine and what is not: python -m course_lib doctor.

Only a "bad" finding stops the course: a damaged file, a missing package, a full disk.
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from course_lib import data, files, native
from course_lib.datasets import adult, sources
from course_lib.errors import CourseError
from course_lib.zoo import manifest, model_files

LITTLE = 1 << 28  # bytes free; with less the course stops soon


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, its state ("ok", "warn" or "bad"), and what to do about it."""

    what: str
    state: str
    found: str
    do: str = ""


def checkup() -> list[Finding]:
    """Every finding. A check that fails is a finding, too."""
    findings: list[Finding] = []
    for check in (versions, torchvision, embedded_data, models, machine):
        try:
            findings += check()
        except CourseError as e:
            findings.append(Finding(check.__name__, "bad", "cannot be checked", str(e)))
    return findings


def text(findings: Sequence[Finding]) -> str:
    """The findings as columns, and the verdict."""
    rows = [("what", "state", "found", "do"), *map(astuple, findings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    bad, warn = (sum(f.state == state for f in findings) for state in ("bad", "warn"))
    return "\n".join([*lines, f"{bad} bad, {warn} to note" if bad + warn else "All is well."])


def versions() -> Iterator[Finding]:
    """The packages against requirements.txt or, installed, the package's metadata."""
    from packaging.requirements import Requirement

    yield Finding("Python", "ok", platform.python_version())
    path = Path(__file__).parents[2] / "requirements.txt"
    lines = (path.read_text(encoding="utf-8").splitlines() if path.is_file()
             else metadata.requires("course-lib") or [])
    for wanted in (Requirement(line) for line in lines if line.strip() and line[0] != "#"):
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
            fits = wanted.specifier.contains(version, prereleases=True)
        except metadata.PackageNotFoundError:
            version, fits = "not installed", False
        yield Finding(wanted.name, "ok" if fits else "bad", version,
                      "" if fits else f"pip install --upgrade '{wanted}'")


def torchvision() -> Iterator[Finding]:
    """Whether it can be imported, in a process of its own; the course works around one that has
    operators for another torch (see datasets/)."""
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True,
                          text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        yield Finding("import torchvision", "warn", done.stderr.strip().rpartition("\n")[2][:200],
                      "The course works all the same. For code of your own, install the "
                      "torchvision that was built for your torch (pytorch.org/get-started).")


def embedded_data() -> Iterator[Finding]:
    """Every file of the embedded data."""
    for folder in sorted(p for p in data.EMBEDDED.iterdir() if p.is_dir()):
        table = folder.name == "adult"  # which has no contents.json
        hashes = adult.SHA256 if table else sources.contents(folder)[1]
        yield hashed(f"embedded {folder.name}", [
            partial(sources.checked, folder / name, sha256) for name, sha256 in hashes.items()])


def models() -> Iterator[Finding]:
    """Every record that the manifest names, and the weights that are on this machine: load_model
    gets the others, or says how."""
    stored = model_files()
    yield hashed("stored models", [
        partial(stored.read, row) for seeds in manifest().values() for kinds in seeds.values()
        for kind, row in kinds.items() if kind == "record" or stored.place(row)["bytes"]])


def hashed(what: str, files: Sequence[Callable[[], bytes]]) -> Finding:
    """Whether each of these files can be read, which compares its hash."""
    bad = []
    for read in files:
        try:
            read()
        except CourseError as e:
            bad.append(str(e))
    return (Finding(what, "bad", f"{len(bad)} of {len(files)} files damaged or missing", bad[0])
            if bad else Finding(what, "ok", f"{len(files)} files, every hash right"))


def machine() -> Iterator[Finding]:
    """Whether LeNet-5 is served by C++, and space and rights where the course writes."""
    reason = native.reason()
    yield Finding("C++ kernel", "warn" if reason else "ok", reason or "serves LeNet-5", reason and
                  "PyTorch does the same, slower. For the kernel: unset COURSE_NATIVE, and "
                  "apt-get install g++.")
    for name, place in {"cache": files.cache_dir(), "runs": Path("runs").absolute()}.items():
        near = next(p for p in (place, *place.parents) if p.exists())  # so that nothing is created
        try:
            tempfile.TemporaryFile(dir=near).close()
            free = shutil.disk_usage(near).free
            state, found = "ok" if free >= LITTLE else "bad", f"{free / 1e9:.1f} GB free"
        except OSError as e:
            state, found = "bad", str(e.strerror or e)
        yield Finding(name, state, f"{place}: {found}", "" if state == "ok" else
                      "Free some space, or choose a folder that you may write to.")
