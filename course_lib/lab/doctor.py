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
from course_lib.zoo import manifest, model_files

PYTHON = (3, 11)
# bytes free: less than the first is a warning, less than the second is bad
ENOUGH, LITTLE = 1 << 30, 64 << 20


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
    for check in CHECKS:
        try:
            findings += check()
        except (CourseError, metadata.PackageNotFoundError) as e:
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
    from packaging.requirements import Requirement

    state, least = "ok" if sys.version_info >= PYTHON else "bad", ".".join(map(str, PYTHON))
    yield Finding("Python", state, platform.python_version(),
                  "" if state == "ok" else f"Use Python {least} or later.")
    path = Path(__file__).parents[2] / "requirements.txt"
    lines = (path.read_text(encoding="utf-8").splitlines() if path.is_file()
             else metadata.requires("course-lib") or [])
    for wanted in (Requirement(line) for line in lines if line.strip() and line[0] != "#"):
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            version = "not installed"
        fits = version != "not installed" and wanted.specifier.contains(version, prereleases=True)
        yield Finding(wanted.name, "ok" if fits else "bad", version,
                      "" if fits else f"pip install --upgrade '{wanted}'")


def embedded_data() -> Iterator[Finding]:
    """Every file of the embedded data against the hash in its contents.json."""
    for folder in sorted(p for p in data.EMBEDDED.iterdir() if p.is_dir()):
        if (folder / "contents.json").is_file():
            rows = [{"file": name, "sha256": sha256}
                    for name, sha256 in contents(folder)[1].items()]
            yield _hashed(f"embedded {folder.name}", rows, folder,
                          "Reinstall the course (or: git checkout course_lib).")
        else:  # its loader knows the hashes and checks them
            data.load(folder.name)
            yield Finding(f"embedded {folder.name}", "ok", "every hash right")


def models() -> Iterator[Finding]:
    """Every file that the manifest names; those in release.json may be absent."""
    folder, elsewhere = model_files().folder, model_files().release()

    def absent(row: dict[str, Any]) -> bool:
        path, sha256 = files.inside(folder, row.get("file")), str(row.get("sha256"))
        return (path is not None and sha256 in elsewhere and not os.path.isfile(path)
                and not files.in_cache(sha256).is_file())

    named = [row for seeds in manifest().values() for rows in seeds.values()
             for row in rows.values()]
    here = [row for row in named if not absent(row)]
    yield _hashed("stored models", here, folder, "git checkout serialized_models, or make models.")
    if away := len(named) - len(here):
        yield Finding("models not bundled", "warn", f"{away} files",
                      "load_model downloads them; else see serialized_models/README.md.")


def _hashed(what: str, rows: Sequence[dict[str, Any]], folder: Path, do: str) -> Finding:
    """Whether the files of a folder have the hashes beside their names."""
    bad = []
    for row in rows:
        try:
            model_files(folder).read(row)
        except CourseError:
            bad.append(str(row.get("file")))
    if not bad:
        return Finding(what, "ok", f"{len(rows)} files, every hash right")
    more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
    return Finding(what, "bad", f"damaged or missing: {', '.join(bad[:5])}{more}", do)


def kernel() -> Iterator[Finding]:
    """Whether LeNet-5 is served by C++, and if not, why."""
    reason = native.reason()
    yield Finding("C++ kernel", "warn" if reason else "ok", reason or "serves LeNet-5", reason and
                  "PyTorch does the same, slower. For the kernel: unset COURSE_NATIVE, and "
                  "apt-get install g++.")


def disk() -> Iterator[Finding]:
    """Space and rights where the course writes, and in Google Drive where it is mounted."""
    places = {"cache": files.cache_dir(), "runs": Path("runs").absolute(),
              "temporary files": Path(tempfile.gettempdir())}
    if (home := colab.DRIVE / "MyDrive").is_dir():
        places["Google Drive"] = home / colab.FOLDER
    elif colab.whereabouts() == "colab":
        yield Finding("Google Drive", "warn", "not mounted",
                      "Tick SAVE_TO_DRIVE in the set-up cell to keep what you train.")
    for name, place in places.items():
        try:
            near = next(p for p in (place, *place.parents) if p.exists())  # so nothing is created
            if name != "Google Drive":  # where a deleted file would fill the bin
                tempfile.TemporaryFile(dir=near).close()
            free = shutil.disk_usage(near).free
        except OSError as e:
            yield Finding(name, "bad", f"{place}: {e.strerror or e}",
                          "Choose a folder you may write to, or free some space.")
            continue
        state = "ok" if free >= ENOUGH else "warn" if free >= LITTLE else "bad"
        yield Finding(name, state, f"{place}: {free / 1e9:.1f} GB free",
                      "" if state == "ok" else "Free some space.")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (versions, embedded_data, models, kernel,
                                                       disk)
