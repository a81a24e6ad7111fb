"""The files of serialized_models/: named by manifest.json, hashed before they are believed, written
all or none.
 A file that is not bundled comes from the course's cache, or from an address that release.json
gives for its sha256.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib import fetch
from course_lib.errors import CourseError, pick
from course_lib.files import inside, locked, write_together

FORMAT = 1


def models_dir() -> Path:
    """$COURSE_MODELS, or serialized_models/ beside the package."""
    return Path(os.environ.get("COURSE_MODELS")
                or Path(__file__).parent.parent / "serialized_models")


def manifest(root: Path | None = None) -> dict[str, dict[str, dict[str, Any]]]:
    """recipe -> seed (as text) -> {"weights": {file, sha256}, "record": {file, sha256}}"""
    path = (root or models_dir()) / "manifest.json"
    if not path.is_file():
        raise CourseError(f"{path} is not there. Clone the repository whole, name its folder by "
                          "COURSE_MODELS, or run `make models`.")
    content = parse_json(_read(path), path)
    if content.get("format") != FORMAT or not isinstance(content.get("models"), dict):
        raise CourseError(f"{path} has format {content.get('format')!r}; this library reads "
                          f"{FORMAT}. Update whichever is older.")
    if not all(isinstance(seeds, dict) and all(_seed_row(*row) for row in seeds.items())
               for seeds in content["models"].values()):
        raise CourseError(f"{path} is damaged: a recipe's seeds do not name files. Restore it: git "
                          f"checkout {path.name}.")
    return content["models"]


def _seed_row(seed: str, what: Any) -> bool:
    return seed.isdecimal() and len(seed) < 10 and isinstance(what,
        dict) and all(isinstance(file, dict) for file in what.values())


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as e:
        raise CourseError(f"{path} is damaged ({type(e).__name__}: {str(e)[:100]}). Restore it: "
                          f"git checkout {path.name}.") from None
    if not isinstance(content, dict):
        raise CourseError(f"{path} holds a {type(content).__name__}, not an object. Restore it: "
                          f"git checkout {path.name}.")
    return content


def entry(name: str, seed: int, root: Path | None = None) -> dict[str, Any]:
    seeds = pick(manifest(root), name, "model")
    if str(seed) not in seeds:
        raise CourseError(
            f"{name} is stored for seeds {', '.join(sorted(seeds))}, not for {seed!r}. Train it: "
            f"python -m course_lib train {name} --seed {seed}; it is then in runs (--models runs, "
            "COURSE_MODELS=runs)."
        )
    return seeds[str(seed)]


def verified(what: Mapping[str, Any], root: Path | None = None) -> bytes:
    """The bytes of a file the manifest names, when they are the bytes it names."""
    root = root or models_dir()
    file, want = what.get("file"), what.get("sha256")
    path = inside(root, file)
    if path is None or not isinstance(want, str):
        raise CourseError(
            f"The manifest names {file!r} with sha256 {want!r}; it must be a file inside {root} "
            "with its hash. "
            "Restore manifest.json."
        )
    if not os.path.isfile(path):  # False for a name that the system refuses, too
        return _elsewhere(path, want, root)
    raw = _read(path)
    if (have := hashlib.sha256(raw).hexdigest()) != want:
        raise CourseError(
            f"{path} is damaged: its sha256 is {have[:12]}…, the manifest says {want[:12]}…. "
            "Restore it (git checkout) or run `make models`."
        )
    return raw


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as f:
            raw = f.read(fetch.LARGEST + 1)
    except OSError as e:
        raise CourseError(f"{path} cannot be read ({e.strerror or e}). Make it readable, or "
                          "restore it (git checkout).") from None
    if len(raw) > fetch.LARGEST:
        raise CourseError(f"{path} is missing or too large. Restore it (git checkout) or make it "
                          "again (make models).")
    return raw


def _elsewhere(path: Path, sha256: str, root: Path) -> bytes:
    """A file that is not bundled."""
    row = released(root).get(sha256)
    if row is not None:
        return fetch.fetch(sha256, row, path.name)
    if (raw := fetch.kept(sha256)) is not None:
        return raw
    raise CourseError(f"{path} is missing. Restore it (git checkout) or make it again (make "
                      "models).")


def released(root: Path | None = None) -> dict[str, dict[str, Any]]:
    """sha256 -> {size, and where it can be had: url, hosts, drive}: what is not bundled, by
    release.json."""
    path = (root or models_dir()) / "release.json"
    if not path.is_file():
        return {}
    files = parse_json(_read(path), path).get("files")
    if not isinstance(files, dict) or not all(isinstance(row, dict) for row in files.values()):
        raise CourseError(f"{path} is damaged: its files are no table of sizes and addresses. "
                          f"Restore it: git checkout {path.name}.")
    return files


@dataclass(frozen=True)
class Annexe:
    """A folder beside the models with a manifest of its own: recipe -> key -> {file, sha256,
    whatever else is told}."""

    word: str  # the folder's name, and the manifest's word for what is in it
    remake: str  # what to do about a damaged manifest
    format: int = 1

    def folder(self, root: Path | None = None) -> Path:
        return (root or models_dir()) / self.word

    def named(self, root: Path | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """What the manifest names; nothing where nothing is stored yet."""
        path = self.folder(root) / "manifest.json"
        if not path.is_file():
            return {}
        content = parse_json(path.read_bytes(), path)
        known = content.get(self.word)
        if content.get("format") != self.format or not isinstance(known, dict) or not all(
            isinstance(rows, dict) and all(isinstance(what, dict) for what in rows.values())
            for rows in known.values()
        ):
            raise CourseError(f"{path} is damaged or of another format than {self.format}. "
                              f"{self.remake}")
        return known

    def add(self, name: str, key: str, file: str, raw: bytes, root: Path | None = None,
            **told: Any) -> None:
        """Store a file and name it in the manifest: a reader sees both or neither."""
        base = self.folder(root)
        with locked(base):
            known = self.named(root)
            known.setdefault(name, {})[key] = {"file": file,
                                               "sha256": hashlib.sha256(raw).hexdigest(), **told}
            content = {"format": self.format, self.word:
                       {n: dict(sorted(rows.items())) for n, rows in sorted(known.items())}}
            write_together({base / file: raw, base
                            / "manifest.json": (json.dumps(content, indent=1) + "\n").encode()})

    def bytes_of(self, what: Mapping[str, Any], root: Path | None = None) -> bytes:
        return verified(what, self.folder(root))
