"""Generated headers, manifests and names: a store refuses with a CourseError, skips with a warning,
or is right."""

import json
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.checkpoints.disk import NAME
from course_lib.checkpoints.packing import FORMAT, pack, unpack
from course_lib.checkpoints.store import Store
from course_lib.colab import Session
from course_lib.errors import CourseError
from tests.faults.shims import MEMORY, make_state, newest, same, share

EXAMPLES = settings(max_examples=share(2_000))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
KEY, PACKED = pack(4, {"identity": {"rate": 0.1}}, make_state(4))
START = 8 + int.from_bytes(PACKED[:8], "little")  # of the tensors' bytes
HEADER = json.loads(PACKED[8:START])


def refused(data: bytes) -> bool:
    """Is it refused by a CourseError? What is not refused must be a state."""
    try:
        _, about, state = unpack(data, 4)
    except CourseError:
        return True
    assert isinstance(state, dict) and isinstance(about["identity"], dict)
    return False


@EXAMPLES
@given(st.lists(st.tuples(st.integers(8, START) | st.integers(8, len(PACKED)), st.integers(0, 6),
                          st.binary(max_size=6)), min_size=1, max_size=4))
def test_changed_bytes_under_a_matching_sha(changes: list[tuple[int, int, bytes]]) -> None:
    """In the header above all, of the length that it claims or another."""
    data, end = PACKED, START
    for place, gone, new in changes:
        data = data[:place] + new + data[place + gone :]
        end += (len(new) - gone) * (place < START)
    refused(data)
    refused((end - 8).to_bytes(8, "little") + data[8:])


@EXAMPLES
@given(JSON, st.sampled_from(["checkpoint", "state", "dict", "tensor", "tuple"]))
def test_generated_contents(value: object, kind: str) -> None:
    """Any JSON in the place of ours, of the state, or of what one of its objects holds."""
    content: object = {"format": FORMAT, "step": 4, "identity": {}, "state": {kind: value}}
    if kind in ("checkpoint", "state"):
        content = value if kind == "checkpoint" else {**content, "state": value}  # type: ignore[dict-item]
    header = {**HEADER, "__metadata__": {"checkpoint": json.dumps(content)}}
    text = json.dumps(header).encode()
    assert refused(len(text).to_bytes(8, "little") + text + PACKED[START:])


STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.lists(st.floats(width=32), max_size=4).map(torch.tensor),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(
        st.text() | st.integers() | st.booleans() | st.none(), inner),
    max_leaves=8,
)


@pytest.mark.filterwarnings("ignore:.*use it's argument")  # hypothesis: a draw may be shallow
@EXAMPLES
@given(st.dictionaries(st.text() | st.integers(), STATES, max_size=4))
def test_generated_states_come_back(state: dict[object, object]) -> None:
    """To the bit, with every type."""
    assert same(unpack(pack(4, {}, {"it": state})[1], 4)[2], {"it": state})


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="/\x00", exclude_categories=("Cs",)), min_size=1,
            max_size=40),
    st.from_regex(r"ckpt-[0-9]{1,25}-[0-9a-f]{64}( \([0-9]{1,4}\))?", fullmatch=True),
    st.tuples(
        st.sampled_from(["ckpt-4-", "ckpt--1-", "ckpt-04-", "CKPT-4-", "ckpt-\u0664-"]),
        st.sampled_from(["", ".ok", " (1)"])
    ).map(lambda parts: f"{parts[0]}{KEY.split('-')[2]}{parts[1]}"),
)


@EXAMPLES
@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from([PACKED, b""]))
def test_generated_names(names: list[str], data: bytes) -> None:
    """Beside a good checkpoint: it is found all the same, and what has no checkpoint's name is left
    alone."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place)
        for name in names:
            if name not in (".", "..") and len(name.encode()) < 200 and name != KEY:
                (folder / name).write_bytes(data)
        (folder / KEY).write_bytes(PACKED)
        others = {path.name for path in folder.iterdir() if not NAME.fullmatch(path.name)}
        assert newest(folder) == 4
        Store(folder).save(5, make_state(5))  # prunes
        assert newest(folder) == 5
        assert others <= {path.name for path in folder.iterdir()}


@EXAMPLES
@given(st.one_of(st.text(max_size=20), st.from_regex(r"(\.\.?|/|a|\\)*", fullmatch=True)))
def test_generated_store_names_stay_below_the_results(name: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        results = Path(place) / "results"
        session = Session("local", None, results)  # type: ignore[arg-type]
        try:
            store = session.store(name)
        except CourseError:
            return
        assert results.resolve() in store.dir.resolve().parents
