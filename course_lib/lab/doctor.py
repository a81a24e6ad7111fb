"""What is in order on this machine and what is not: python -m course_lib doctor.

Only a "bad" finding stops the course: a damaged file, a missing package, a full disk.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from course_lib import colab, data, files, native
from course_lib.datasets.sources import contents
from course_lib.errors import CourseError
from course_lib.files import in_cache, inside
from course_lib.machine import keep_memory
from course_lib.zoo import manifest, model_files, models_dir

PYTHON = (3, 11)
# bytes free: less than the first is a warning, less than the second is bad
ENOUGH, LITTLE = 1 << 30, 64 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: what, its state ("ok", "warn" or "bad"), what was found, and what
    to do about it."""

    what: str
    state: str
    found: str
    do: str = ""


def checkup() -> list[Finding]:
    """Every finding. A check that fails is a finding, too."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except CourseError as e:
            findings.append(Finding(check.__name__.replace("_", " "), "bad", "cannot be checked",
                                    str(e)))
    return findings


def text(findings: Sequence[Finding]) -> str:
    """The findings as columns, and the verdict."""
    rows = [("what", "state", "found", "do"), *map(astuple, findings)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    bad, warn = (sum(f.state == state for f in findings) for state in ("bad", "warn"))
    return "\n".join([*lines, f"{bad} bad, {warn} to note" if bad + warn else "All is well."])


def versions() -> Iterator[Finding]:
    """Python and the packages against requirements.txt or, installed, the package's metadata."""
    python = platform.python_version()
    yield (Finding("Python", "ok", python) if sys.version_info >= PYTHON else
           Finding("Python", "bad", python, f"Use Python {'.'.join(map(str, PYTHON))} or later."))
    for wanted in requirements():
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            yield Finding(wanted.name, "bad", "not installed", f"pip install '{wanted}'")
            continue
        fits = wanted.specifier.contains(version, prereleases=True)
        yield (Finding(wanted.name, "ok", version) if fits else
               Finding(wanted.name, "bad", version, f"pip install --upgrade '{wanted}'"))


def requirements() -> list[Any]:
    from packaging.requirements import InvalidRequirement, Requirement

    path = Path(__file__).parents[2] / "requirements.txt"
    try:
        lines = (path.read_text(encoding="utf-8").splitlines() if path.is_file()
                 else metadata.requires("course-lib") or [])
        wanted = [Requirement(line) for line in lines if line.strip() and line.lstrip()[0] != "#"]
    except (InvalidRequirement, metadata.PackageNotFoundError) as e:
        raise CourseError(f"The course's requirements cannot be read ({e}). Restore "
                          "requirements.txt, or install the course.") from None
    return [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]


def embedded_data() -> Iterator[Finding]:
    """Every file of the embedded data against the hash in its contents.json."""
    for folder in sorted(p for p in data.EMBEDDED.iterdir() if p.is_dir()):
        what = f"embedded {folder.name}"
        if (folder / "contents.json").is_file():
            _, hashes = contents(folder)
            yield _hashed(what, [{"file": Path(name).name, "sha256": sha256} for name, sha256 in
                                 hashes.items()], folder, "Reinstall the course (or: git checkout "
                          "course_lib).")
        else:  # its loader knows the hashes and checks them
            data.load(folder.name)
            yield Finding(what, "ok", "read, and what was read is right")


def models() -> Iterator[Finding]:
    """Every file that the manifest names; those in release.json may be absent."""
    named = [f for seeds in manifest().values() for entry in seeds.values() for f in entry.values()]
    away, root = model_files().release(), models_dir()
    elsewhere = [f for f in named if str(f.get("sha256")) in away
                 and (path := inside(root, f.get("file"))) and not os.path.isfile(path)]
    absent = sum(not in_cache(str(f["sha256"])).is_file() for f in elsewhere)
    yield _hashed("stored models", named, root, "git checkout serialized_models, or make models.",
                  elsewhere, f", {absent} not here" if absent else "")
    if absent:
        yield Finding("models not bundled", "warn", f"{absent} files",
                      "load_model downloads them; else see serialized_models/README.md.")


def _hashed(what: str, named: Sequence[dict[str, Any]], root: Path, do: str,
            skip: Sequence[dict[str, Any]] = (), more: str = "") -> Finding:
    """Whether the named files have the hashes that stand beside their names."""
    bad = []
    for file in (f for f in named if f not in skip):
        try:
            model_files(root).read(file)
        except CourseError:
            bad.append(str(file.get("file")))
    if not bad:
        return Finding(what, "ok", f"{len(named)} files, every hash right{more}")
    rest = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return Finding(what, "bad", f"damaged or missing: {', '.join(bad[:5])}{rest}", do)


def allocator() -> Iterator[Finding]:
    """Whether large tensors keep their memory."""
    chosen = any(name.startswith("MALLOC_") for name in os.environ)
    if chosen or "jemalloc" in os.environ.get("LD_PRELOAD", ""):
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
    """Space and rights where the course writes."""
    yield _writable("cache", files.cache_dir())
    yield _writable("runs", Path("runs").absolute())
    yield _writable("temporary files", Path(tempfile.gettempdir()))


def drive() -> Iterator[Finding]:
    """Google Drive, where it is mounted."""
    home = colab.DRIVE / "MyDrive"
    if home.is_dir():
        # a deleted file would fill Drive's bin
        yield _writable("Google Drive", home / colab.FOLDER, touch=False)
    elif colab.whereabouts() == "colab":
        yield Finding("Google Drive", "warn", "not mounted",
                      "Tick SAVE_TO_DRIVE in the set-up cell to keep what you train.")


def _writable(what: str, place: Path, touch: bool = True) -> Finding:
    """Tried in the nearest folder that exists, so that nothing is created."""
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
    return Finding(what, state, f"{place}: {free / 1e9:.1f} GB free",
                   "" if state == "ok" else "Free some space.")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (versions, embedded_data, models, allocator,
                                                       native_kernel, disk, drive)
