"""Generated headers, manifests and names: a store refuses with a CourseError, skips with a warning,
or is right."""

from __future__ import annotations

import hashlib
import json
import tempfile
import warnings
import zipfile
from io import BytesIO
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.checkpoints.disk import NAME, Key
from course_lib.checkpoints.packing import pack, unpack
from course_lib.checkpoints.store import RECORD, Store
from course_lib.colab import Session
from course_lib.errors import CourseError
from tests.faults.shims import MEMORY, make_state, same, share

EXAMPLES = settings(max_examples=share(2_000))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
PACKED = pack(4, {"rate": 0.1}, make_state(4))
HEADER = zipfile.ZipFile(BytesIO(PACKED.data)).read("archive/data.pkl")
PARTS = {e.filename: (e.header_offset, e.file_size)
         for e in zipfile.ZipFile(BytesIO(PACKED.data)).infolist()}


def refused(data: bytes, marker: dict[str, object]) -> bool:
    """Is it refused by a CourseError? What is not refused must be a state."""
    try:
        _, state = unpack(data, Key(4, hashlib.sha256(data).hexdigest()), marker)
    except CourseError:
        return True
    assert isinstance(state, dict)
    return False


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, len(PACKED.data) - 1), st.integers(0, 255)), min_size=1,
                max_size=8))
def test_changed_bytes_under_a_matching_sha(changes: list[tuple[int, int]]) -> None:
    """Anywhere: records, names, directory. The sha256 would have seen it; this is what stands
    behind it."""
    data = bytearray(PACKED.data)
    for place, value in changes:
        data[place] = value
    refused(bytes(data), json.loads(PACKED.marker))


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, len(HEADER)), st.integers(0, 6), st.binary(max_size=6)),
                min_size=1, max_size=4))
def test_changed_headers(changes: list[tuple[int, int, bytes]]) -> None:
    header = HEADER
    for place, gone, new in changes:
        header = header[:place] + new + header[place + gone :]
    file = BytesIO()
    with zipfile.ZipFile(BytesIO(PACKED.data)) as old, zipfile.ZipFile(file, "w") as archive:
        for name in old.namelist():
            archive.writestr(name, header if name == "archive/data.pkl" else old.read(name))
    if header != HEADER:
        refused(file.getvalue(), json.loads(PACKED.marker))


@EXAMPLES
@given(st.one_of(JSON.map(json.dumps).map(str.encode), st.binary(max_size=200),
                 st.integers(2, 6).map(lambda n: b"[" * 10**n)))
def test_generated_markers(text: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings(
            record=True) as told:
        warnings.simplefilter("always")
        folder = Path(place)
        name = str(PACKED.key)
        (folder / name).write_bytes(PACKED.data)
        (folder / f"{name}.ok").write_bytes(text)
        assert Store(folder).latest() is None
        assert len(told) == 1
        (folder / f"{name}.ok").write_bytes(PACKED.marker)
        found = Store(folder).latest()
        assert found is not None
        assert same(found[1], make_state(4))


@EXAMPLES
@given(st.one_of(JSON.map(json.dumps).map(str.encode), st.binary(max_size=200)),
       st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_generated_records_and_identities(text: bytes, identity: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = Store(place)
        (Path(place) / RECORD).write_bytes(text)
        try:
            store.open(identity, {})
        except CourseError:
            return
        store.close()
        assert json.loads((Path(place) / RECORD).read_bytes())["format"]


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="/\x00", exclude_categories=("Cs",)), min_size=1,
            max_size=40),
    st.from_regex(r"ckpt-[0-9]{1,25}-[0-9a-f]{64}( \([0-9]{1,4}\))?(\.ok)?", fullmatch=True),
    st.tuples(
        st.sampled_from(["ckpt-4-", "ckpt--1-", "ckpt-04-", "CKPT-4-", "ckpt-\u0664-"]),
        st.sampled_from(["", ".ok", ".ok.ok", " (1)"])
    ).map(lambda parts: f"{parts[0]}{PACKED.key.sha}{parts[1]}"),
)


@EXAMPLES
@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from([PACKED.data, PACKED.marker, b""]))
def test_generated_names(names: list[str], data: bytes) -> None:
    """Beside a good checkpoint: it is found all the same, and what has no checkpoint's name is left
    alone."""
    good = {str(PACKED.key): PACKED.data, f"{PACKED.key}.ok": PACKED.marker}
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(place)
        for name in names:
            if name not in (".", "..", RECORD) and len(name.encode()) < 200 and name not in good:
                (folder / name).write_bytes(data)
        for name, text in good.items():
            (folder / name).write_bytes(text)
        others = {path.name for path in folder.iterdir() if not NAME.fullmatch(path.name)}
        store = Store(folder)
        found = store.latest()
        assert found is not None
        assert found[0] == 4
        assert same(found[1], make_state(4))
        store.save(5, make_state(5))  # prunes
        found = store.latest()
        assert found is not None
        assert found[0] == 5
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
