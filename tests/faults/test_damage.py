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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib.checkpoints import Store
from course_lib.checkpoints.disk import NAME, Key
from course_lib.checkpoints.packing import pack
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
    """Of the files in `damaged`, the newest undamaged one is found, and each newer one is
    named."""
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
    newer = {match[0] for name in damaged if (match := NAME.fullmatch(name))
             and int(match[1]) > max(whole, default=0)}
    for stem in newer:
        reasons = [text for text in told if stem in text]
        assert len(reasons) == 1
        assert "skipped: it" in reasons[0]
    assert len(told) == len(newer)


@pytest.mark.parametrize("damage", BYTES, ids=lambda damage: damage.__name__)
def test_bytes_are_damaged(folder: Path, good: Files,
                           damage: Callable[[bytes, random.Random], bytes]) -> None:
    draw = random.Random(damage.__name__)
    for _ in range(share(CASES) // len(BYTES) + 1):
        damaged = dict(good)
        steps = draw.sample(STEPS, draw.choice((1, 1, 2, 3)))
        for name, data in good.items():
            while int(name.split("-")[1]) in steps and damaged[name] == data:
                damaged[name] = damage(data, draw)
        check(folder, good, damaged)


def test_files_are_swapped_missing_or_renamed(folder: Path, good: Files) -> None:
    for a, b in itertools.combinations(good, 2):
        check(folder, good, {**good, a: good[b], b: good[a]})
        check(folder, good, {name: data for name, data in good.items() if name not in (a, b)})
    for name in good:
        step = name.split("-")[1]
        later = name.replace(f"ckpt-{step}-", "ckpt-9-")
        found, told = newest_of(folder, {**good, later: good[name]})
        assert found == 3
        assert len(told) == 1
        assert f"its name says step 9, inside it says {step}" in told[0]


def newest_of(folder: Path, files: Files) -> tuple[int | None, list[str]]:
    lay_out(folder, files)
    found, told = newest(folder)
    return (found[0] if found else None), told


def forged(data: bytes) -> Files:
    """A checkpoint whose name and sha256 are in order: only its content can give it away."""
    return {str(Key(9, hashlib.sha256(data).hexdigest())): data}


STATE = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "other": torch.tensor(torch.nan)}
WEIGHTS = "['model']['w']"


def parts(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The header of safetensors, our JSON in it, and the tensors' bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return header, json.loads(header["__metadata__"]["checkpoint"]), data[end:]


def joined(header: str, body: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + body


def edited(change: Callable[[dict[str, Any], dict[str, Any]], object], body: bytes = b"") -> bytes:
    """A good checkpoint with a changed header, a changed JSON text in it, or other bytes behind."""
    header, content, old = parts(pack(9, {"rate": 0.1}, STATE)[1])
    change(header, content)
    header["__metadata__"] = {"checkpoint": json.dumps(content)}
    return joined(json.dumps(header), body or old)


def listed(content: dict[str, Any]) -> list[Any]:
    """What our JSON says of the weights: dtype, shape, axes."""
    return content["state"]["dict"][0][1]["dict"][0][1]["tensor"]  # type: ignore[no-any-return]


def weights(value: float) -> bytes:
    """The good checkpoint's tensors, with one weight changed."""
    _, _, body = parts(pack(9, {}, STATE)[1])
    last = torch.tensor(5.0).numpy().tobytes()
    assert body.count(last) == 1
    return body.replace(last, torch.tensor(value).numpy().tobytes())


class Runs:
    """A pickle that would make a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/tmp/course-tests-pickle-ran",)


def by_torch_save(state: Any) -> bytes:
    """As the course wrote checkpoints until format 1."""
    file = io.BytesIO()
    torch.save({"format": 1, "step": 9, "identity": {"rate": 0.1}, "state": state}, file)
    return file.getvalue()


NO_STATE = "does not hold a training state"
FORGERIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "long header": (lambda: edited(lambda h, c: c.update(pad="x" * (8 << 20))),
                    "longer than 8,388,608 bytes"),
    "a terabyte": (lambda: edited(lambda h, c: h[WEIGHTS].update(shape=[1 << 38])), NO_STATE),
    "beyond the end": (lambda: edited(lambda h, c: h[WEIGHTS].update(data_offsets=[0, 1 << 40])),
                       NO_STATE),
    "cut short": (lambda: edited(lambda h, c: None, weights(5.0)[:-1]), NO_STATE),
    "more at the end": (lambda: edited(lambda h, c: None, weights(5.0) + b"more"), NO_STATE),
    "NaN weights": (lambda: edited(lambda h, c: None, weights(torch.nan)),
                    r"\['model'\]\['w'\] is NaN or infinite"),
    "infinite weights": (lambda: edited(lambda h, c: None, weights(-torch.inf)), "NaN or infinite"),
    "a list": (lambda: edited(lambda h, c: c.update(state=[1, 2])), NO_STATE),
    "a number": (lambda: edited(lambda h, c: c.update(state=7)), NO_STATE),
    "no identity": (lambda: edited(lambda h, c: c.pop("identity")), NO_STATE),
    "another step": (lambda: edited(lambda h, c: c.update(step=8)),
                     "its name says step 9, inside it says 8"),
    "another format": (lambda: edited(lambda h, c: c.update(format=99)), "format 99"),
    "another run": (lambda: edited(lambda h, c: c.update(identity={"rate": 0.3})),
                    "made by another run: rate is 0.1, was 0.3"),
    "other shapes": (lambda: edited(lambda h, c: h[WEIGHTS].update(shape=[3, 2])),
                     "not as its header"),
    "other dtypes": (lambda: edited(lambda h, c: h[WEIGHTS].update(dtype="I32")),
                     "not as its header"),
    "other axes": (lambda: edited(lambda h, c: listed(c)[2].reverse()), "not as its header"),
    "an axis twice": (lambda: edited(lambda h, c: listed(c).__setitem__(2, [0, 0])), NO_STATE),
    "other names": (lambda: edited(lambda h, c: h.update(v=h.pop(WEIGHTS))),
                    NO_STATE),
    "unlisted": (lambda: edited(lambda h, c: c["state"]["dict"].pop()), NO_STATE),
    "unknown kind": (lambda: edited(lambda h, c: c["state"]["dict"].append(["x", {"code": [1]}])),
                     NO_STATE),
    "nested too deep": (lambda: joined('{"__metadata__":{"checkpoint":"' + "[" * 100_000 + '"}}'),
                        NO_STATE),
    "of nonsense": (lambda: joined("nonsense"), NO_STATE),
    "no metadata": (lambda: joined("{}"), NO_STATE),
    "zeros": (lambda: bytes(1000), NO_STATE),
    "empty": (lambda: b"", NO_STATE),
    "a pickle": (lambda: pickle.dumps(Runs()), "header is longer"),
    "of the old format": (lambda: by_torch_save(STATE), "header is longer"),
    "code": (lambda: by_torch_save(Runs()), "header is longer"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused_with_their_reason(folder: Path, good: Files, name: str) -> None:
    make, reason = FORGERIES[name]
    found, told = newest_of(folder, {**good, **forged(make())})
    assert found == 3
    assert len(told) == 1
    assert re.search(reason, told[0])
    assert not os.path.exists("/tmp/course-tests-pickle-ran")


def test_a_forgery_without_a_fault_would_be_loaded(folder: Path, good: Files) -> None:
    """So that the forgeries are refused for their fault, and not for how they are made."""
    data = edited(lambda h, c: None, weights(7.0))
    assert newest_of(folder, {**good, **forged(data)}) == (9, [])


def test_a_file_larger_than_any_checkpoint_is_not_read(folder: Path, good: Files,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.checkpoints.disk.MAX_BYTES",
                        most := max(map(len, good.values())))
    big = forged(pack(9, {"rate": 0.1}, {"w": torch.zeros(100_000)})[1])
    found, told = newest_of(folder, {**good, **big})
    assert found == 3
    assert f"its {most + 1:,} bytes do not hash to its name" in told[0]


def test_second_copies_of_drive_are_used(folder: Path, good: Files) -> None:
    """Drive may keep a damaged file under the name, and the good one as "name (1)"."""
    last = next(name for name in good if name.startswith("ckpt-3-"))
    for copy in (f"{last} (1)", f"{last} (27)"):
        assert newest_of(folder, {**good, last: b"half", copy: good[last]}) == (3, [])
