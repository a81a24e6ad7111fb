"""What is in order on this machine and what is not: python -m course_lib doctor
 Each check yields findings: what was looked at, its state ("ok", "warn" or "bad"), what was found
and what to do about it. Only what is bad stops the course: a damaged file, a missing package, a
disk that is full.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from course_lib import colab, data, files, native
from course_lib.errors import CourseError
from course_lib.files import in_cache, inside, parse_json
from course_lib.machine import keep_memory
from course_lib.zoo import manifest, model_files, models_dir, verified

PYTHON = (3, 11)
# bytes free: less than the first is a warning, less than the second is bad
ENOUGH, LITTLE = 1 << 30, 64 << 20


COLUMNS = ("what", "state", "found", "do")


@dataclass(frozen=True)
class Finding:
    what: str
    state: str  # "ok", "warn" or "bad"
    found: str
    do: str = ""


def examine() -> list[Finding]:
    """Every finding. A check that fails itself is a finding, too."""
    found: list[Finding] = []
    for check in CHECKS:
        try:
            found += check()
        except CourseError as e:
            found.append(Finding(check.__name__.replace("_", " "), "bad", "cannot be checked",
                                 str(e)))
    return found


def table(found: list[Finding]) -> str:
    """One line per finding, and a verdict."""
    bad, warn = (sum(f.state == state for f in found) for state in ("bad", "warn"))
    verdict = f"{bad} bad, {warn} to note" if bad or warn else "All is well."
    lines = [(f.what, f.state, f.found, f.do) for f in (Finding(*COLUMNS), *found)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for line in lines]
    return "\n".join([*rows, verdict])


def versions() -> Iterator[Finding]:
    """Python and the packages against requirements.txt (or, installed, the same list in the
    package's metadata)."""
    python = platform.python_version()
    if sys.version_info < PYTHON:
        yield Finding("Python", "bad", python, f"Use Python {'.'.join(map(str, PYTHON))} or later.")
    else:
        yield Finding("Python", "ok", python)
    for wanted in requirements():
        try:
            have = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding(wanted.name, "bad", "not installed", f"pip install '{wanted}'")
            continue
        fits = wanted.specifier.contains(have, prereleases=True)
        yield Finding(wanted.name, "ok" if fits else "bad", have, "" if fits
                      else f"pip install --upgrade '{wanted}'")


def requirements() -> list[Any]:
    from packaging.requirements import InvalidRequirement, Requirement

    path = Path(__file__).parent.parent / "requirements.txt"
    try:
        lines = path.read_text(
            encoding="utf-8").splitlines() if path.is_file() else metadata.requires(
                "course-lib") or []
        found = [Requirement(line) for line in lines if line.strip()
                 and not line.lstrip().startswith("#")]
    except (InvalidRequirement, metadata.PackageNotFoundError) as e:
        raise CourseError(f"What the course needs is not to be read ({e}). Restore "
                          "requirements.txt, or install the course.") from None
    return [r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})]


def embedded_data() -> Iterator[Finding]:
    """Every file of the embedded data against the hash in its contents.json."""
    for folder in sorted(p for p in data.EMBEDDED.iterdir() if p.is_dir()):
        path = folder / "contents.json"
        if not path.is_file():  # its room knows the hashes, and checks them when it reads
            data.load(folder.name)
            yield Finding(f"embedded {folder.name}", "ok", "read, and what was read is right")
            continue
        hashes = parse_json(path.read_bytes(), path).get("sha256")
        if not isinstance(hashes, dict):
            raise CourseError(f"{path} names no hashes. Reinstall the course.")
        bad = [name for name, want in hashes.items() if _sha256(folder / Path(name).name) != want]
        what = f"embedded {folder.name}"
        if bad:
            yield Finding(what, "bad", f"damaged or missing: {', '.join(bad)}",
                          "Reinstall the course (or: git checkout course_lib).")
        else:
            yield Finding(what, "ok", f"{len(hashes)} files, every hash right")


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def models() -> Iterator[Finding]:
    """Every file the manifest names; what release.json names need not be here."""
    files = [f for seeds in manifest().values() for what in seeds.values() for f in what.values()]
    away, bad, absent = model_files().release(), [], 0
    for file in files:
        path = inside(models_dir(), file.get("file"))
        if path is not None and not os.path.isfile(path) and str(file.get("sha256")) in away:
            absent += not in_cache(str(file["sha256"])).is_file()
            continue
        try:
            verified(file)
        except CourseError:
            bad.append(str(file.get("file")))
    if bad:
        names = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        yield Finding("stored models", "bad", f"damaged or missing: {names}",
                      "git checkout serialized_models, or make models.")
    else:
        yield Finding("stored models", "ok", f"{len(files)} files, every hash right"
                      + (f", {absent} not here" if absent else ""))
    if absent:
        yield Finding("models not bundled", "warn", f"{absent} files",
                      "load_model downloads them; else see serialized_models/README.md.")


def allocator() -> Iterator[Finding]:
    """Whether large tensors keep their memory."""
    named = [name for name in os.environ if name.startswith("MALLOC_")]
    if named or "jemalloc" in os.environ.get("LD_PRELOAD", ""):
        yield Finding("allocator", "ok", "set by the environment")
    elif keep_memory():
        yield Finding("allocator", "ok", "glibc keeps its memory")
    else:
        yield Finding("allocator", "warn", "gives memory back after each tensor",
                      "Nothing; on Linux with glibc it is faster.")


def native_kernel() -> Iterator[Finding]:
    """Whether LeNet-5 is served by C++, and if not, why."""
    library = native.library()
    if library is not None:
        yield Finding("C++ kernel", "ok", f"serves LeNet-5 ({Path(library._name).stem})")
    elif os.environ.get("COURSE_NATIVE") == "0":
        yield Finding("C++ kernel", "warn", "turned off by COURSE_NATIVE=0",
                      "Unset it: LeNet-5 is several times faster.")
    else:
        yield Finding("C++ kernel", "warn", native.reason(),
                      "PyTorch does the same, slower; to have it: apt-get install g++.")


def disk() -> Iterator[Finding]:
    """Room and rights where the course writes."""
    for what, place in (("cache", files.cache_dir()), ("runs", Path("runs").absolute()),
                        ("temporary files", Path(tempfile.gettempdir()))):
        yield _writable(what, place)


def drive() -> Iterator[Finding]:
    """Google Drive, where it is mounted."""
    home = colab.DRIVE / "MyDrive"
    if home.is_dir():
        # what is deleted there fills the bin
        yield _writable("Google Drive", home / colab.FOLDER, touch=False)
    elif colab.whereabouts() == "colab":
        yield Finding("Google Drive", "warn", "not mounted",
                      "Tick SAVE_TO_DRIVE in the set-up cell to keep what you train.")


def _writable(what: str, place: Path, touch: bool = True) -> Finding:
    """Looked at in the nearest folder there is: nothing is left behind."""
    try:
        near = next(p for p in (place, *place.parents) if p.exists())
        if not os.access(near, os.W_OK):
            raise PermissionError(13, "Permission denied")
        if touch:
            with tempfile.TemporaryFile(dir=near) as f:
                f.write(b"x")
        free = shutil.disk_usage(near).free
    except OSError as e:
        return Finding(what, "bad", f"{place}: {e.strerror or e}",
                       "Choose a folder you may write to, or free some space.")
    state = "ok" if free >= ENOUGH else "warn" if free >= LITTLE else "bad"
    return Finding(what, state, f"{place}: {free / 1e9:.1f} GB free", "" if state == "ok"
                   else "Free some space.")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (versions, embedded_data, models, allocator,
                                                       native_kernel, disk, drive)
