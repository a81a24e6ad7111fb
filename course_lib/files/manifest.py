"""Folders of files that a manifest.json names with their sha256: hashed first, then parsed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from course_lib.errors import CourseError
from course_lib.files.atomic import locked, sweep, write_together
from course_lib.files.downloads import download, in_cache, sha256_of

Entries = dict[str, dict[str, dict[str, Any]]]  # name -> key (a seed, for example) -> entry


def inside(folder: Path, file: Any) -> Path | None:
    """The path of `file` in the folder; None where that leaves the folder, or is a link. A linked
    folder on the way is the user's own way to use another disk."""
    path = PurePath(file if isinstance(file, str) and "\0" not in file else "")
    if path.anchor or ".." in path.parts or not path.parts or os.path.islink(folder / path):
        return None
    return folder / path


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise CourseError(f"{path} cannot be read ({e.strerror or e}). Make it readable, or "
                          "restore it (git checkout).") from None


def parse_json(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object that the file at `path` holds as these bytes."""
    try:
        content = json.loads(raw)
        if isinstance(content, dict):
            return content
        reason = f"it holds a {type(content).__name__}"
    except (ValueError, RecursionError) as e:
        reason = f"{type(e).__name__}: {str(e)[:100]}"
    raise CourseError(f"{path} is damaged ({reason}). Restore it: git checkout {path.name}.")


def json_bytes(content: Any) -> bytes:
    return (json.dumps(content, indent=1) + "\n").encode()


@dataclass(frozen=True)
class StoredFiles:
    """A folder of files that its manifest.json names with their sha256."""

    folder: Path
    kind: str  # "models", "curves" or "luf": where manifest.json has its entries
    remake: str  # what to do about a damaged file

    def entries(self) -> Entries:
        """The manifest's entries; none where there is no manifest yet."""
        return self._table("manifest.json", self.kind, depth=2)

    def release(self) -> dict[str, dict[str, Any]]:
        """release.json: for the sha256 of files elsewhere, their size and url or Drive id."""
        return self._table("release.json", "files", depth=1)

    def _table(self, file: str, key: str, depth: int) -> dict[str, Any]:
        """A table of `depth` keys, the last of which gives an object."""
        path = self.folder / file
        if not path.is_file():
            return {}
        content = parse_json(read_bytes(path), path)
        if (format := content.get("format", 1)) != 1:
            raise CourseError(f"{path} has format {format!r}; this library reads 1. Update "
                              "whichever is older.")
        level: list[Any] = [content.get(key)]
        for _ in range(depth + 1):
            if not all(isinstance(row, dict) for row in level):
                raise CourseError(f"{path} is damaged: its {key} name no files. {self.remake}")
            level = [below for row in level for below in row.values()]
        return dict(content[key])

    def read(self, row: Mapping[str, Any]) -> bytes:
        """The bytes of row["file"], verified by row["sha256"]; downloaded if they are elsewhere."""
        path, sha256 = inside(self.folder, row.get("file")), str(row.get("sha256"))
        if path is None or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise CourseError(f"The manifest names {row.get('file')!r} with sha256 {sha256}; it "
                              f"must be a file inside {self.folder} with its hash. Restore "
                              "manifest.json.")
        have = ""
        for place in (path, self.recent / sha256, path):  # a writer may be at work
            # isfile is False for a name that the system refuses, too
            if os.path.isfile(place) and (have := sha256_of(raw := read_bytes(place))) == sha256:
                return raw
        if not have:
            return download(self.release().get(sha256, {}), sha256, path, self.remake)
        raise CourseError(f"{path} is damaged: its sha256 is {have[:12]}…, the manifest says "
                          f"{sha256[:12]}…. {self.remake}")

    def read_json(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object in row["file"], verified."""
        return parse_json(self.read(row), Path(str(row["file"])))

    def place(self, row: Mapping[str, Any] | None) -> dict[str, Any]:
        """How many bytes of this file are on this machine, and where."""
        if row is None:
            return {"bytes": 0, "where": "report only"}
        sha256 = str(row.get("sha256"))
        for path, where in ((inside(self.folder, row.get("file")), "bundled"),
                            (inside(in_cache(""), sha256), "cache")):
            if path is not None and os.path.isfile(path):
                return {"bytes": path.stat().st_size, "where": where}
        elsewhere = {"url", "drive"} & self.release().get(sha256, {}).keys()
        return {"bytes": 0, "where": "to download" if elsewhere else "to make"}

    @property
    def recent(self) -> Path:
        """Superseded contents by their sha256, for whoever has read the manifest before that."""
        return self.folder / ".recent"

    def change(self, edit: Callable[[Entries], Mapping[str, bytes]]) -> None:
        """Let `edit` change the entries and return new files; store all of it or nothing.

        At every moment, and after a kill, the manifest on disk names contents that are in their
        places or in `recent`.
        """
        with locked(self.folder):
            entries = self.entries()
            self._finish(entries)
            new, old = dict[Path, bytes](), dict[Path, bytes]()
            for file, raw in edit(entries).items():
                if (path := inside(self.folder, file)) is None:
                    raise CourseError(f"{file!r} is not a name for a file inside {self.folder}, or "
                                      "a link has it. Choose another name, or remove the link.")
                before = read_bytes(path) if path.is_file() else raw
                if before != raw:
                    old[self.recent / sha256_of(before)] = before
                new[path] = raw
            tidy = {name: dict(sorted(keys.items())) for name, keys in sorted(entries.items())}
            manifest = json_bytes({"format": 1, self.kind: tidy})
            write_together({**old, **new, self.folder / "manifest.json": manifest})

    def _finish(self, entries: Entries) -> None:
        """Put back what a change that was killed had put aside, and delete what is old."""
        aside = {path.name for path in self.recent.glob("*")}
        for row in (row for keys in entries.values() for entry in keys.values()
                    for row in (entry, *entry.values())
                    if isinstance(row, dict) and str(row.get("sha256")) in aside):
            path = inside(self.folder, row.get("file"))
            with contextlib.suppress(CourseError):  # a damaged row must not stop other changes
                if (raw := self.read(row)) and path and read_bytes(path) != raw:
                    write_together({path: raw})
        sweep(self.recent, "*")
        sweep(self.folder, "**/.part-*")
