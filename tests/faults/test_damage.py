"""Damaged files: never loaded, always named, and the last good checkpoint is found."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import pickle
import random
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.checkpoints import Store
from course_lib.checkpoints.disk import NAME, Key
from course_lib.checkpoints.packing import FORMAT, pack, spec
from tests.faults.shims import make_state, same, share

CASES = 2_400
STEPS = (1, 2, 3)
Files = dict[str, bytes]


def cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flip(data: bytes, draw: random.Random) -> bytes:
    out = bytearray(data)
    for place in draw.sample(range(8 * len(data)), draw.choice((1, 1, 2, 8))):
        out[place // 8] ^= 1 << place % 8
    return bytes(out)


def zero_page(data: bytes, draw: random.Random) -> bytes:
    page = draw.randrange(max(1, len(data) // 512)) * 512
    return data[:page] + bytes(len(data[page : page + 512])) + data[page + 512 :]


def zero_tail(data: bytes, draw: random.Random) -> bytes:
    keep = draw.randrange(len(data))
    return data[:keep] + bytes(len(data) - keep)


def html(data: bytes, draw: random.Random) -> bytes:
    return b"<!DOCTYPE html><html><title>Google Drive - Quota exceeded</title></html>"


def grown(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.randrange(1, 5000))


BYTES: list[Callable[[bytes, random.Random], bytes]] = [cut, flip, zero_page, zero_tail, html,
                                                        grown]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Files:
    store = Store(tmp_path_factory.mktemp("good"))
    store.open({"rate": 0.1}, {})
    for step in STEPS:
        store.save(step, make_state(step, size=400))
    store.close()
    return {path.name: path.read_bytes() for path in store.dir.iterdir()
            if NAME.fullmatch(path.name)}


def newest(folder: Path) -> tuple[tuple[int, Any] | None, list[str]]:
    """What a new store finds, and its warnings."""
    store = Store(folder)
    store._identity = {"rate": 0.1}  # as after open(), without its files
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = store.latest()
    return found, [str(warning.message) for warning in told]


def lay_out(folder: Path, files: Files) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check(folder: Path, good: Files, damaged: Files) -> None:
    """Of the files in `damaged`, only whole checkpoints are found, the newest of them, and each
    other one above it is named."""
    lay_out(folder, damaged)
    whole = [step for step in STEPS if all(damaged.get(name) == data for name, data in good.items()
                                           if name.startswith(f"ckpt-{step}-"))]
    found, told = newest(folder)
    if not whole:
        assert found is None
    else:
        assert found is not None
        assert found[0] == max(whole)
        assert same(found[1], make_state(found[0], size=400))
    newer = {match[0].split(".")[0] for name in damaged if (match := NAME.fullmatch(name))
             and int(match[1]) > max(whole, default=0)}
    for stem in newer:
        reasons = [text for text in told if stem in text]
        assert len(reasons) == 1
        assert "skipped: it" in reasons[0]
    assert len(told) == len(newer)


@pytest.mark.parametrize("damage", BYTES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("which", ["bytes", "marker", "both"])
def test_bytes_are_damaged(folder: Path, good: Files,
                           damage: Callable[[bytes, random.Random], bytes], which: str) -> None:
    draw = random.Random(f"{damage.__name__} {which}")
    for _ in range(share(CASES) // (3 * len(BYTES)) + 1):
        damaged = dict(good)
        steps = draw.sample(STEPS, draw.choice((1, 1, 2, 3)))
        for name, data in good.items():
            if int(name.split("-")[1]) in steps and which in ("both", "marker"
                    if name.endswith(".ok") else "bytes"):
                damaged[name] = damage(data, draw)
                while damaged[name] == data:
                    damaged[name] = damage(data, draw)
        check_tolerant(folder, good, damaged)


def check_tolerant(folder: Path, good: Files, damaged: Files) -> None:
    """As check; but a marker may be changed without being damaged: spaces in JSON, or the unused
    count of bytes."""
    restored = dict(damaged)
    for name, data in damaged.items():
        if name.endswith(".ok") and meaning(data) == meaning(good[name]):
            restored[name] = good[name]
    check(folder, good, restored)


def meaning(marker: bytes) -> Any:
    try:
        value = json.loads(marker)
        return [value[word] for word in ("step", "sha256", "tensors")]
    except (ValueError, KeyError, TypeError):
        return marker


def test_files_are_swapped_missing_or_renamed(folder: Path, good: Files) -> None:
    for a, b in itertools.combinations(good, 2):
        check(folder, good, {**good, a: good[b], b: good[a]})
        check(folder, good, {name: data for name, data in good.items() if name not in (a, b)})
    for name in good:
        key = NAME.fullmatch(name)
        assert key
        later = name.replace(f"ckpt-{key[1]}-", "ckpt-9-")
        found, told = newest_of(folder, {**good, later: good[name]})
        assert found == 3
        assert len(told) == 1
        pair = {n.replace(f"ckpt-{key[1]}-", "ckpt-9-"): data for n, data in good.items()
                if n.startswith(f"ckpt-{key[1]}-")}
        found, told = newest_of(folder, {**good, **pair})
        assert found == 3
        assert "marker belongs to another" in told[0]


def newest_of(folder: Path, files: Files) -> tuple[int | None, list[str]]:
    lay_out(folder, files)
    found, told = newest(folder)
    return (found[0] if found else None), told


def forged(data: bytes, tensors: Any = None, step: int = 9) -> Files:
    """A checkpoint whose name, sha256 and marker are all in order: only what is in it can give it
    away."""
    sha = hashlib.sha256(data).hexdigest()
    marker = {"step": step, "sha256": sha, "bytes": len(data), "tensors": {} if tensors is None
              else tensors}
    name = str(Key(step, sha))
    return {name: data, f"{name}.ok": json.dumps(marker).encode()}


def saved(state: Any, **changes: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"format": FORMAT, "step": 9, "identity": {"rate": 0.1}, "state": state, **changes},
               file)
    return file.getvalue()


def rezip(data: bytes, change: Callable[[str, bytes], bytes] = lambda name, part: part, *,
          method: int = 0, extra: int = 0) -> bytes:
    """The archive again, with changed records, another compression, or more records."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        for i in range(extra):
            new.writestr(f"archive/data/x{i}", b"")
    return file.getvalue()


def longer_storage(elements: int) -> bytes:
    """A float storage of 200 elements that is declared to have more."""

    def change(name: str, part: bytes) -> bytes:
        return part.replace(b"K\xc8tq", b"J" + elements.to_bytes(4,
            "little") + b"tq") if name.endswith("data.pkl") else part

    return rezip(saved({"model": {"w": torch.zeros(200)}}), change)


class Runs:
    """A pickle that would make a file when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/course-tests-pickle-ran",)


def with_code() -> bytes:
    code = pickle.dumps({"format": FORMAT, "step": 9, "identity": {"rate": 0.1},
                         "state": {"model": Runs()}}, protocol=2)
    return rezip(saved({}), lambda name, part: code if name.endswith("data.pkl") else part)


def deep(depth: int) -> Any:
    return {"model": deep(depth - 1)} if depth else 0


BAD = torch.tensor([1.0, torch.nan])
FORGERIES: dict[str, tuple[Callable[[], Files], str]] = {
    "200k records": (lambda: forged(rezip(saved({}), extra=200_000)), "more than 20,000 entries"),
    "200k names": (lambda: forged(saved(dict.fromkeys(map(str, range(200_000)), torch.zeros(1)))),
                   "longer than 2,097,152 bytes"),
    "21k tensors": (lambda: forged(saved([x := torch.zeros(1), *(x[:] for _ in range(21_000))])),
                    "more than 20,000 entries"),
    "stride-0 bomb": (lambda: forged(saved({"model": {"w": torch.zeros(1).expand(1 << 40)}})),
                      "claims 4,398,046,511,104 bytes and has 4"),
    "stride-0 bomb with a marker": (
        lambda: forged(saved(s := {"model": {"w": torch.zeros(1).expand(1 << 40)}}), spec(s)),
        "claims 4,398,046,511,104 bytes and has 4",
    ),
    "part of a storage": (lambda: forged(saved(s := {"w": torch.zeros(9)[2:5]}), spec(s)),
                          "claims 12 bytes and has 36"),
    "storage longer than its record": (
        lambda: forged(longer_storage(1 << 20)),
        "declares a storage of 4,194,304 bytes whose record has 800",
    ),
    "storage shorter than its record": (lambda: forged(longer_storage(100)),
                                        "declares a storage of 400 bytes whose record has 800"),
    "compressed": (lambda: forged(rezip(saved({"w": torch.zeros(1 << 20)}),
                                        method=zipfile.ZIP_DEFLATED)), "compressed"),
    "NaN weights": (lambda: forged(saved(s := {"model": {"w": BAD}}), spec(s)),
                    r"\['model'\]\['w'\] is NaN or infinite"),
    "infinite weights": (lambda: forged(saved(s := {"model": {"w": BAD.new_full((2,), torch.inf)}}),
                                        spec(s)), "NaN or infinite"),
    "no state": (lambda: forged(saved([1, 2])), "something else"),
    "not a dict": (
        lambda: forged(rezip(saved({}), lambda n, p: pickle.dumps(7, protocol=2)
                             if n.endswith("data.pkl") else p)),
        "something else",
    ),
    "another step inside": (lambda: forged(saved({}, step=8)),
                            "its name says step 9, inside it says 8"),
    "another format": (lambda: forged(saved({}, format=99)), "format 99"),
    "another run": (lambda: forged(saved({}, identity={"rate": 0.3})),
                    "made by another run: rate is 0.1, was 0.3"),
    "other shapes": (
        lambda: forged(saved({"model": {"w": torch.zeros(2)}}),
                       spec({"model": {"w": torch.zeros(3)}})),
        "not those its marker lists",
    ),
    "other dtypes": (lambda: forged(saved({"w": torch.zeros(2)}),
                                    spec({"w": torch.zeros(2).double()})),
                     "not those its marker lists"),
    "other names": (lambda: forged(saved({"w": torch.zeros(2)}), spec({"v": torch.zeros(2)})),
                    "not those its marker lists"),
    "code": (lambda: forged(with_code()), "torch cannot read it"),
    "plain pickle": (lambda: forged(pickle.dumps({"format": FORMAT})), "not an archive"),
    "nested too deep": (lambda: forged(saved(deep(200))), "nested more than 50 deep"),
    "no header": (lambda: forged(zip_of({"archive/version": b"3"})), "header is missing"),
    "header of nonsense": (lambda: forged(zip_of({"archive/data.pkl": b"\x80\x02Q."})),
                           "header is not one of torch.save"),
    "empty": (lambda: forged(b""), "not an archive"),
}


def zip_of(files: Files) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused_with_their_reason(folder: Path, good: Files, name: str) -> None:
    make, reason = FORGERIES[name]
    lay_out(folder, {**good, **make()})
    found, told = newest(folder)
    assert found is not None
    assert found[0] == 3
    assert len(told) == 1
    assert re.search(reason, told[0])
    assert not os.path.exists("/tmp/course-tests-pickle-ran")


def test_a_forgery_without_a_fault_would_be_loaded(folder: Path, good: Files) -> None:
    """So that the forgeries are refused for their fault, and not for how they are made."""
    state = {"model": {"w": torch.zeros(200)}, "other": BAD}
    for data in (saved(state), rezip(saved(state))):
        found, told = newest_of(folder, {**good, **forged(data, spec(state))})
        assert (found, told) == (9, [])
    assert pack(9, {"rate": 0.1}, state).data


def test_a_file_larger_than_any_checkpoint_is_not_read(folder: Path, good: Files,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.checkpoints.disk.MAX_BYTES", max(map(len, good.values())))
    big = forged(saved({"w": torch.zeros(100_000)}))
    found, told = newest_of(folder, {**good, **big})
    assert found == 3
    assert "more than" in told[0]


def test_second_copies_of_drive_are_used(folder: Path, good: Files) -> None:
    """Drive may keep a damaged file under the name, and the good one as "name (1)"."""
    first = next(name for name in good if name.startswith("ckpt-3-") and not name.endswith(".ok"))
    for copy in (f"{first} (1)", f"{first} (27)"):
        found, told = newest_of(folder, {**good, first: b"half", copy: good[first]})
        assert (found, told) == (3, [])
    for copy in (f"{first} (1).ok", f"{first}.ok (1)"):
        found, told = newest_of(folder, {**good, f"{first}.ok": b"", copy: good[f"{first}.ok"]})
        assert (found, told) == (3, [])
