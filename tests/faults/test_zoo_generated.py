"""Generated manifests, releases, records and weights: the zoo refuses with a CourseError, or is
right; it writes in the cache only."""

import copy
import functools
import hashlib
import json
import operator
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.fairness import Report
from course_lib.lab import doctor
from course_lib.lab.publish import publish
from course_lib.models import build
from course_lib.tables import compare, list_models, results
from course_lib.zoo import load_model, load_record, load_report
from tests.faults.shims import MEMORY, share
from tests.helpers import THREE, report

NAME, OTHER = "a/b", "a/c"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner:
    st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=8)
NASTY: list[Any] = [
    "../outside/secret", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, ".", "", "manifest.json",
    "a/b/../../../outside/secret", "http://127.0.0.1:9/x", "https://[", "file:///etc/passwd",
    "0" * 64, "lenet5", "resnet18", 10**400, -1, 0, 1e308, float("nan"), True, None, [], {}, [[]],
    {"file": []}, {"sha256": {}}, {"0": {}}, {"9" * 5000: {}}, {"\u0664": {}}, {"-1": {}},
    ["cat"] * 2000, [0.5, 0.5], [1, 2, 3], [10**400] * 3]
KEYS = ["0", "00", "1", "format", "eps", "../x"]
BENDS = st.one_of(st.sampled_from(NASTY), JSON)
EXAMPLES = settings(max_examples=share(250))
KINDS = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn]
CALLS: list[Callable[[Path], Any]] = [
    lambda root: str(list_models(root=root)) + list_models(root=root)._repr_html_(),
    lambda root: results(root=root).to_string(),
    lambda root: load_record(NAME, root=root),
    lambda root: load_report(NAME, root=root),
    lambda root: str(compare([NAME, OTHER], root=root)),
    lambda root: list(doctor.models()),
]


def places(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside."""
    yield here
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(
        tree, list) else ()
    for key, below in inside:
        yield from places(below, (*here, key))


@st.composite
def bent(draw: st.DrawFn, tree: Any) -> Any:
    """A tree in which one to three places hold something else, are gone or have another key."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(sorted(places(tree), key=repr)))
        if not way:
            continue
        parent = functools.reduce(operator.getitem, way[:-1], tree)
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename"]))
        if how == "replace":
            # what is bent next must not be the list above
            parent[way[-1]] = copy.deepcopy(draw(BENDS))
            continue
        old = parent.pop(way[-1])
        if how == "rename" and isinstance(parent, dict):
            parent[draw(st.text(max_size=5) | st.sampled_from(KEYS))] = old
    return tree


def record(seed: int = 0) -> dict[str, Any]:
    made = {"model": "lenet5", "classes": list(THREE),
            "recipe": {"dataset": "tiny", "method": {"name": "natural"}}}
    return {"recipe": NAME, "seed": seed, "made_from": made,
            "reports": [report().to_json(), report(eps=16 / 255).to_json()], "history": []}


class Place:
    """A folder of models that is put right again, with a cache beside it and a file outside that
    nobody may touch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "models"
        (folder / "outside").mkdir()
        (folder / "outside" / "secret").write_text("secret")
        publish(NAME, 0, build("lenet5", classes=3), record(), self.root)
        publish(OTHER, 0, build("lenet5", classes=3), record(), self.root)
        self.manifest = json.loads((self.root / "manifest.json").read_text())
        self.weights = (self.root / NAME / "seed0.safetensors").read_bytes()
        self.release = {"format": 1, "files": {hashlib.sha256(self.weights).hexdigest(): {
            "size": len(self.weights), "url": "http://127.0.0.1:9/x", "hosts": ["127.0.0.1"]}}}
        self.good = {p: p.read_bytes() for p in self.root.rglob("*") if p.is_file()}

    def restore(self) -> None:
        for path in {p for p in self.root.rglob("*") if p.is_file()} - self.good.keys():
            path.unlink()
        for path, raw in self.good.items():
            path.write_bytes(raw)

    def put(self, kind: str, raw: bytes) -> None:
        """A file of other content whose hash the manifest has."""
        content = copy.deepcopy(self.manifest)
        what = content["models"][NAME]["0"][kind]
        what["sha256"] = hashlib.sha256(raw).hexdigest()
        (self.root / what["file"]).write_bytes(raw)
        (self.root / "manifest.json").write_text(json.dumps(content))

    def files(self) -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in self.folder.rglob("*") if p.is_file()
                and "cache" not in p.relative_to(self.folder).parts}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_CACHE", folder + "/cache")
        patch.setenv("COURSE_MODELS", folder + "/models")
        yield Place(Path(folder))


def refused(place: Place) -> int:
    """How many of the calls refuse it. What is not refused is right, and nothing is written."""
    before, count = place.files(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in CALLS:
            try:
                call(place.root)
            except (CourseError, UserWarning) as e:  # a table leaves a model out with a warning
                assert len(str(e)) > 20
                count += 1
        try:
            model = load_model(NAME, root=place.root)
            assert model(torch.zeros(1, 1, 32, 32)).isfinite().all()
        except CourseError:
            count += 1
    assert place.files() == before
    return count


def spoilt(draw: st.DataObject, tree: Any) -> bytes:
    """Bent, or no JSON of ours at all."""
    ours, any_json = (kind.map(json.dumps).map(str.encode) for kind in (bent(tree), JSON))
    return draw.draw(st.one_of(ours, ours, any_json, st.binary(max_size=100),
                               st.integers(2, 5).map(lambda n: b'{"models":' * 10**n)))


@pytest.mark.parametrize("kind", ["manifest", "release", "record"])
@EXAMPLES
@given(st.data())
def test_generated_json(place: Place, kind: str, data: st.DataObject) -> None:
    place.restore()
    if kind == "record":
        place.put("record", spoilt(data, record()))
    else:
        (place.root / f"{kind}.json").write_bytes(spoilt(data, getattr(place, kind)))
    if kind == "release":  # whatever it says of weights that are not bundled, they cannot be had
        (place.root / NAME / "seed0.safetensors").unlink()
    assert refused(place) or kind != "release"


@EXAMPLES
@given(st.data())
def test_generated_weights(place: Place, data: st.DataObject) -> None:
    """Bytes changed, cut, put in or taken out, in the header above all."""
    place.restore()
    raw = bytearray(place.weights)
    header = 8 + int.from_bytes(raw[:8], "little")
    where = st.integers(0, header - 1) | st.integers(0, len(raw) - 1)
    for _ in range(data.draw(st.integers(1, 4))):
        at, new = min(data.draw(where), len(raw)), data.draw(st.binary(max_size=8))
        raw[at : at + data.draw(st.sampled_from([len(new), 0, 8]))] = new
    end = data.draw(st.sampled_from([len(raw), len(raw), header, 8, 3, 0]))
    place.put("weights", bytes(raw[:end]))
    refused(place)


@EXAMPLES
@given(st.data())
def test_generated_tensors(place: Place, data: st.DataObject) -> None:
    """A good file of other tensors."""
    place.restore()
    tensors = dict(build("lenet5", classes=3).state_dict())
    name = data.draw(st.sampled_from([*tensors, "../../x", "conv1", ""]))
    kind = data.draw(st.sampled_from(KINDS))
    shape = data.draw(st.lists(st.integers(0, 6), max_size=4))
    tensors[name] = data.draw(st.sampled_from([torch.zeros, torch.ones]))(shape).to(kind)
    place.put("weights", safetensors.torch.save(tensors))
    with pytest.raises(CourseError, match="do not fit"):
        load_model(NAME, root=place.root)


def test_what_is_not_spoilt_is_not_refused(place: Place) -> None:
    """The calls themselves can succeed."""
    place.restore()
    assert refused(place) == 0
    assert load_report(NAME, root=place.root) == Report.from_json(record()["reports"][0])
