"""Damaged files: never loaded, always named, and the last good checkpoint is found."""

import itertools
import json
import os
import pickle
import random
import re
import warnings

import pytest
import torch

from course_lib.checkpoints import Store
from course_lib.checkpoints.disk import pack
from course_lib.files import sha256_of
from tests.faults.shims import make_state, same, share

CASES = 2_400
STEPS = (1, 2, 3)


def flip(data, draw):
    out = bytearray(data)
    for place in draw.sample(range(8 * len(data)), draw.choice((1, 1, 2, 8))):
        out[place // 8] ^= 1 << place % 8
    return bytes(out)


BYTES = {  # from the good bytes and a source of chance
    "cut": lambda data, draw: data[: draw.randrange(len(data))], "flip": flip,
    "zero tail": lambda data, draw: data[: draw.randrange(len(data))].ljust(len(data), b"\0"),
    "html": lambda data, draw: b"<!DOCTYPE html><title>Google Drive - Quota exceeded</title>",
    "grown": lambda data, draw: data + draw.randbytes(draw.randrange(1, 5000))}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("good"))
    for step in STEPS:
        store.save(step, make_state(step, size=400))
    return {path.name: path.read_bytes() for path in store.dir.iterdir()}


def newest(folder, files):
    """The step that a new store finds among these files, as it was saved, and its warnings."""
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with warnings.catch_warnings(record=True, action="always") as told:
        step, state = Store(folder).latest() or (None, {})
    assert step not in STEPS or same(state, make_state(step, size=400))
    return step, [str(warning.message) for warning in told]


def check(folder, good, damaged):
    """Of the files in `damaged` the newest good one is found, and each newer one is named."""
    step, told = newest(folder, damaged)
    best = max((int(name[5]) for name in damaged if damaged[name] == good[name]), default=0)
    assert step == (best or None)
    newer = {name for name in damaged if int(name[5]) > best}
    assert len(told) == len(newer)
    assert all(any(name in text and "skipped: it" in text for text in told) for name in newer)


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_are_damaged(folder, good, kind):
    draw = random.Random(kind)
    for _ in range(share(CASES) // len(BYTES) + 1):
        damaged = dict(good)
        for name in draw.sample(sorted(good), draw.choice((1, 1, 2, 3))):
            while damaged[name] == good[name]:
                damaged[name] = BYTES[kind](good[name], draw)
        check(folder, good, damaged)


def test_files_are_swapped_missing_or_renamed(folder, good):
    for a, b in itertools.combinations(good, 2):
        check(folder, good, {**good, a: good[b], b: good[a]})
        check(folder, good, {name: data for name, data in good.items() if name not in (a, b)})
    for name in good:
        found, (told,) = newest(folder, {**good, f"ckpt-9{name[6:]}": good[name]})
        assert found == 3 and f"its name says step 9, inside it says {name[5]}" in told


def forged(data):
    """A checkpoint whose name and sha256 are in order: only its content can give it away."""
    return {f"ckpt-9-{sha256_of(data)}": data}


STATE = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "other": torch.tensor(torch.nan)}
WEIGHTS = "['model']['w']"


def joined(header, body=b""):
    return len(header).to_bytes(8, "little") + header.encode() + body


def edited(change, cut=0, more=b"", pad=0):
    """A good checkpoint with a changed header, a changed JSON text in it, or another end."""
    data = pack(9, {"identity": {"rate": 0.1}}, STATE)[1]
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    content = json.loads(header["__metadata__"]["checkpoint"])
    change(header, content)
    header["__metadata__"] = {"checkpoint": json.dumps(content)}
    return joined(json.dumps(header) + " " * pad, data[end : len(data) - cut] + more)


def axes(content):
    """What our JSON says of the order of the weights' axes."""
    return content["state"]["dict"][0][1]["dict"][0][1]["tensor"][2]


class Runs:
    """A pickle that would make a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("/tmp/course-tests-pickle-ran",)


NO_STATE = "does not hold a training state"
FORGERIES = {  # the bytes, and why they are refused
    "long header": (lambda: edited(lambda h, c: None, pad=100 << 20), NO_STATE),
    "a terabyte": (lambda: edited(lambda h, c: h[WEIGHTS].update(shape=[1 << 38])), NO_STATE),
    "cut short": (lambda: edited(lambda h, c: None, 1), NO_STATE),
    "more at the end": (lambda: edited(lambda h, c: None, more=b"more"), NO_STATE),
    "a list": (lambda: edited(lambda h, c: c.update(state=[1, 2])), NO_STATE),
    "no identity": (lambda: edited(lambda h, c: c.pop("identity")), NO_STATE),
    "another format": (lambda: edited(lambda h, c: c.update(format=99)), "format 99"),
    "other shapes": (lambda: edited(lambda h, c: h[WEIGHTS].update(shape=[3, 2])), "not as its h"),
    "other dtypes": (lambda: edited(lambda h, c: h[WEIGHTS].update(dtype="I32")), "not as its h"),
    "other axes": (lambda: edited(lambda h, c: axes(c).reverse()), "not as its header"),
    "an axis twice": (lambda: edited(lambda h, c: axes(c).__setitem__(1, 0)), NO_STATE),
    "other names": (lambda: edited(lambda h, c: h.update(v=h.pop(WEIGHTS))), NO_STATE),
    "unlisted": (lambda: edited(lambda h, c: c["state"]["dict"].pop()), NO_STATE),
    "unknown": (lambda: edited(lambda h, c: c["state"]["dict"].append(["x", {"code": [1]}])),
                NO_STATE),
    "nested too deep": (lambda: joined('{"__metadata__":{"checkpoint":"' + "[" * 100_000 + '"}}'),
                        NO_STATE),
    "no metadata": (lambda: joined("{}"), NO_STATE), "zeros": (lambda: bytes(1000), NO_STATE),
    "a pickle": (lambda: pickle.dumps(Runs()), NO_STATE)}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_files_are_refused_with_their_reason(folder, good, name):
    make, reason = FORGERIES[name]
    found, (told,) = newest(folder, {**good, **forged(make())})
    assert found == 3 and re.search(reason, told)
    assert not os.path.exists("/tmp/course-tests-pickle-ran")


def test_what_has_no_fault_is_loaded(folder, good):
    """So forgeries are refused for their fault, and not for how they are made. Drive may keep a
    damaged file under the name, and the good one as "name (1)"."""
    assert newest(folder, {**good, **forged(edited(lambda h, c: None))}) == (9, [])
    last = next(name for name in good if name.startswith("ckpt-3-"))
    assert newest(folder, {**good, last: b"half", f"{last} (1)": good[last]}) == (3, [])
