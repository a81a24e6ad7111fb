"""Generated headers, manifests, records, weights, names, and calls of every public door: a result
that is right, or a CourseError. A store skips what is damaged with a warning; the zoo writes in the
cache only."""

import copy
import functools
import hashlib
import inspect
import json
import operator
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import nn

import course_lib
from course_lib import METHODS, PGD, Optim, Split, Store, build, compare, list_models, results
from course_lib.checkpoints.disk import FORMAT, NAME, pack, unpack
from course_lib.colab import Session
from course_lib.errors import CourseError, several
from course_lib.fairness import Report, Spread
from course_lib.lab import doctor
from course_lib.lab.publish import publish
from course_lib.recipes import Recipe, run
from course_lib.training import Averaging
from course_lib.zoo import load_model, load_record, load_report
from tests import helpers
from tests.faults.shims import MEMORY, make_state, newest, same, share
from tests.helpers import THREE, report, split, tiny_dataset, with_tiny_recipes
from tests.test_plots import DRAWN

EXAMPLES, FEWER = settings(max_examples=share(2_000)), settings(max_examples=share(250))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner:
    st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=8)

# -------------------------------------------------------------------------------------- checkpoints

KEY, PACKED = pack(4, {"identity": {"rate": 0.1}}, make_state(4))
START = 8 + int.from_bytes(PACKED[:8], "little")  # of the tensors' bytes
HEADER = json.loads(PACKED[8:START])


def rejected(data):
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
def test_changed_bytes_under_a_matching_sha(changes):
    """In the header above all, of the length that it claims or another."""
    data, end = PACKED, START
    for place, gone, new in changes:
        data = data[:place] + new + data[place + gone :]
        end += (len(new) - gone) * (place < START)
    rejected(data)
    rejected((end - 8).to_bytes(8, "little") + data[8:])


@EXAMPLES
@given(JSON, st.sampled_from(["checkpoint", "state", "dict", "tensor", "tuple"]))
def test_generated_contents(value, kind):
    """Any JSON in the place of ours, of the state, or of what one of its objects holds."""
    content = {"format": FORMAT, "step": 4, "identity": {}, "state": {kind: value}}
    if kind in ("checkpoint", "state"):
        content = value if kind == "checkpoint" else {**content, "state": value}
    header = {**HEADER, "__metadata__": {"checkpoint": json.dumps(content)}}
    text = json.dumps(header).encode()
    assert rejected(len(text).to_bytes(8, "little") + text + PACKED[START:])


STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.lists(st.floats(width=32), max_size=4).map(torch.tensor),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(
        st.text() | st.integers() | st.booleans() | st.none(), inner), max_leaves=8)


@pytest.mark.filterwarnings("ignore:.*use it's argument")  # hypothesis: a draw may be shallow
@EXAMPLES
@given(st.dictionaries(st.text() | st.integers(), STATES, max_size=4))
def test_generated_states_come_back(state):
    """To the bit, with every type."""
    assert same(unpack(pack(4, {}, {"it": state})[1], 4)[2], {"it": state})


NAMES = st.one_of(
    st.text(st.characters(exclude_characters="/\x00", exclude_categories=("Cs",)), min_size=1,
            max_size=40),
    st.from_regex(r"ckpt-[0-9]{1,25}-[0-9a-f]{64}( \([0-9]{1,4}\))?", fullmatch=True),
    st.builds(lambda start, end: f"{start}{KEY.split('-')[2]}{end}",
              st.sampled_from(["ckpt-4-", "ckpt--1-", "ckpt-04-", "CKPT-4-", "ckpt-\u0664-"]),
              st.sampled_from(["", ".ok", " (1)"])))


@EXAMPLES
@given(st.lists(NAMES, min_size=1, max_size=4), st.sampled_from([PACKED, b""]))
def test_generated_names(names, data):
    """Beside a good checkpoint: it is found all the same, and what has no such name is left."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place, warnings.catch_warnings(action="ignore"):
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
def test_generated_store_names_stay_below_the_results(name):
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        folder = Path(place) / "results"
        try:
            store = Session("local", None, folder).store(name)
        except CourseError:
            return
        assert folder.resolve() in store.dir.resolve().parents

MODEL, OTHER = "a/b", "a/c"
NASTY = [
    "../outside/secret", "/etc/passwd", "a\0b", "\ud800", "x" * 5000, ".", "", "manifest.json",
    "a/b/../../../outside/secret", "http://127.0.0.1:9/x", "https://[", "file:///etc/passwd",
    "0" * 64, "lenet5", "resnet18", 10**400, -1, 0, 1e308, float("nan"), True, None, [], {}, [[]],
    {"file": []}, {"sha256": {}}, {"0": {}}, {"9" * 5000: {}}, {"\u0664": {}}, {"-1": {}},
    ["cat"] * 2000, [0.5, 0.5], [1, 2, 3], [10**400] * 3]
GONE, KEYS = object(), ["0", "00", "1", "format", "eps", "../x"]
KINDS = [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn]
CALLS = [
    lambda root: str(list_models(root=root)) + list_models(root=root)._repr_html_(),
    lambda root: results(root=root).to_string(), lambda root: load_record(MODEL, root=root),
    lambda root: load_report(MODEL, root=root), lambda root: doctor.models(),
    lambda root: str(compare([MODEL, OTHER], root=root))]


def places(tree, here=()):
    """The way to everything inside."""
    yield here
    for key, below in parts(tree):
        yield from places(below, (*here, key))


def parts(tree):
    return [*tree.items()] if isinstance(tree, dict) else [
        *enumerate(tree)] if isinstance(tree, list | tuple) else []


def changed(tree, way, value, key=None):
    """A copy with another value in one place (none at all for GONE), under another key if any."""
    if not way:
        return tree if value is GONE else value
    new = [(k, v) if k != way[0] else (k if key is None or way[1:] else key, changed(
        v, way[1:], value, key)) for k, v in parts(tree)]
    left = [(k, v) for k, v in new if v is not GONE]
    return dict(left) if isinstance(tree, dict) else type(tree)(v for _, v in left)


@st.composite
def bent(draw, tree):
    """A tree in which one to three places hold something else, are gone or have another key."""
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(sorted(places(tree), key=repr)[1:] or [()]))
        old = functools.reduce(lambda below, k: dict(parts(below))[k], way, tree)
        key = draw(st.text(max_size=5) | st.sampled_from(KEYS))
        bend = st.sampled_from(NASTY) | JSON
        tree = changed(tree, way, *draw(st.one_of(
            st.tuples(bend), st.tuples(bend), st.just((GONE,)), st.just((old, key)))))
    return tree


def record():
    return helpers.record(MODEL, 0, report(), report(eps=16 / 255), history=[])


class Place:
    """A folder of models that is put right again, with a cache beside it and a file outside that
    nobody may touch."""

    def __init__(self, folder):
        self.folder, self.root = folder, folder / "models"
        (folder / "outside").mkdir()
        (folder / "outside" / "secret").write_text("secret")
        for name in (MODEL, OTHER):
            publish(name, 0, build("lenet5", classes=3), record(), self.root)
        self.manifest = json.loads((self.root / "manifest.json").read_text())
        self.weights = (self.root / MODEL / "seed0.safetensors").read_bytes()
        self.release = {"format": 1, "files": {hashlib.sha256(self.weights).hexdigest(): {
            "size": len(self.weights), "url": "http://127.0.0.1:9/x", "hosts": ["127.0.0.1"]}}}
        self.good = {p: p.read_bytes() for p in self.root.rglob("*") if p.is_file()}

    def restore(self):
        for path in {p for p in self.root.rglob("*") if p.is_file()} - self.good.keys():
            path.unlink()
        for path, raw in self.good.items():
            path.write_bytes(raw)

    def put(self, kind, raw):
        """A file of other content whose hash the manifest has."""
        content = copy.deepcopy(self.manifest)
        what = content["models"][MODEL]["0"][kind]
        what["sha256"] = hashlib.sha256(raw).hexdigest()
        (self.root / what["file"]).write_bytes(raw)
        (self.root / "manifest.json").write_text(json.dumps(content))

    def files(self):
        return {p: p.stat().st_mtime_ns for p in self.folder.rglob("*") if p.is_file()
                and "cache" not in p.relative_to(self.folder).parts}

    def refused(self):
        """How many of the calls refuse it. What is not refused is right, and nothing is written."""
        before, count = self.files(), 0
        with warnings.catch_warnings(action="error"):
            for call in CALLS:
                try:
                    call(self.root)
                except (CourseError, UserWarning) as e:  # a table leaves a model out with a warning
                    assert len(str(e)) > 20
                    count += 1
            try:
                model = load_model(MODEL, root=self.root)
                assert model(torch.zeros(1, 1, 32, 32)).isfinite().all()
            except CourseError:
                count += 1
        assert self.files() == before
        return count


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_CACHE", folder + "/cache")
        patch.setenv("COURSE_MODELS", folder + "/models")
        yield Place(Path(folder))


@pytest.mark.parametrize("kind", ["manifest", "release", "record"])
@FEWER
@given(st.data())
def test_generated_json(place, kind, data):
    """Bent, or no JSON of ours at all."""
    place.restore()
    tree = record() if kind == "record" else getattr(place, kind)
    ours, other = (drawn.map(json.dumps).map(str.encode) for drawn in (bent(tree), JSON))
    raw = data.draw(st.one_of(ours, ours, other, st.binary(max_size=100),
                              st.integers(2, 5).map(lambda n: b'{"models":' * 10**n)))
    if kind == "record":
        place.put("record", raw)
    else:
        (place.root / f"{kind}.json").write_bytes(raw)
    if kind == "release":  # whatever it says of weights that are not bundled, they cannot be had
        (place.root / MODEL / "seed0.safetensors").unlink()
    assert place.refused() or kind != "release"


@FEWER
@given(st.data())
def test_generated_weights(place, data):
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
    place.refused()


def test_what_is_not_spoilt_is_not_refused(place):
    """The calls themselves can succeed."""
    place.restore()
    assert place.refused() == 0
    assert load_report(MODEL, root=place.root) == Report.from_json(record()["reports"][0])

SPLIT, REPORT, SPREAD = split(12), report(), Spread.of([0.1, 0.2])
NETWORK, AX = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), Figure().subplots()
SHAPES = st.lists(st.integers(0, 4), max_size=5)
ATOMS = st.one_of(
    st.none(), st.booleans(), st.floats(), st.sampled_from([-1, 0, 1, 2, 7, 2**31, 2**63, 10**400]),
    st.sampled_from(["", "a", "0", "8/255", "1e999", "nan", "exp1", "exp1/pgd-at", "a\0b", "\ud800",
                     "x" * 5000, "..", "rob", b"", b"a", object(), int, len, abs, Path("missing"),
                     1j, range(3), set(), {}, nn.Linear, nn.Linear(2, 2), PGD(), SPLIT, REPORT,
                     SPREAD, AX.figure]),
    st.builds(lambda shape, kind, top: (np.ones(shape) * top).astype(kind), SHAPES,
              st.sampled_from("?bBHiQqefdFU"), st.sampled_from([0.5, 1, 255, 300])),
    st.builds(lambda shape, kind, value, device: torch.full(shape, value, device=device).to(kind),
              SHAPES, st.sampled_from([*KINDS, torch.uint8, torch.bfloat16, torch.complex64]),
              st.sampled_from([0.0, 1.0, -1.0, 300.0, np.nan]), st.sampled_from(["cpu", "meta"])))
PAIRS = st.tuples(ATOMS, ATOMS)
ODD = st.one_of(ATOMS, ATOMS, PAIRS, st.lists(PAIRS, max_size=3),
                st.dictionaries(st.text(max_size=3), ATOMS, max_size=2))
SLOW = {"epochs", "n", "steps", "columns", "width", "height", "per_class", "autoattack", "classes"}
HOME = SimpleNamespace(
    split=SPLIT, report=REPORT, tiny=tiny_dataset(), attack=PGD(steps=1), run=run, Recipe=Recipe,
    Averaging=Averaging, method=SimpleNamespace(**METHODS),
    **{n: getattr(course_lib, n) for n in course_lib.__all__},
    path=lambda model, x, y: [*PGD(steps=1).path(model, x, y)],
    open=lambda identity, environment: HOME.Store(tempfile.mkdtemp(dir=".")).open(
        identity, environment),
    save=lambda step, state: HOME.Store("runs/b").save(step, state),
    shape=lambda classes, channels, size: HOME.build(
        "small_cnn", classes=classes, channels=channels, size=size))
DOORS = {  # what each one takes
    "load": ["tiny"], "Split": [SPLIT.x, SPLIT.y, THREE], "halves": [SPLIT, 10, 0],
    "Dataset": ["a", THREE, SPLIT, lambda: (SPLIT, SPLIT)], "Report": [*vars(REPORT).values()],
    "build": ["lenet5"], "shape": [3, 1, 32], "load_model": ["exp1/natural"],
    "load_report": ["exp1/natural"], "list_models": ["exp1/natural"], "results": ["exp1/natural"],
    "compare": [["exp1/natural", "exp1/pgd-at"]], "score_results": ["scores/cifar10-standard"],
    "save_model": [NETWORK, "mine"], "explore": ["exp1/natural"], "Store": ["runs/a"],
    "open": [{"a": 1}, {"b": 1}], "save": [1, {"model": {}}],
    "fit": {"model": NETWORK, "method": METHODS["natural"](), "data": SPLIT, "epochs": 1,
            "optim": Optim(batch=8), "seed": 0, "progress": False},
    "evaluate": {"model": NETWORK, "split": SPLIT, "attack": PGD(steps=1), "progress": False},
    "benchmark": {"model": NETWORK, "data": SPLIT, "progress": False},
    **dict.fromkeys(("PGD", "AutoAttack", "Optim", "Averaging"), ()),
    **{f"method.{name}": () for name, method in METHODS.items() if vars(method())},
    "method.frl.preset": ["authors_2022"], "method.bat.preset": ["paper"],
    "Recipe": ["a", METHODS["natural"](), Optim(), 1], "Split.of": [(SPLIT.x, SPLIT.y)],
    "run": {"name": "tiny/first", "seed": 0, "out": "runs", "limit": 8, "epochs": 1},
    "split.take": [[0, 1]], "split.images": [[0]], "split.joined": [SPLIT], "split.masked": [1],
    "split.per_class": [2], "tiny.without": [["cat"]], "attack.at": [0.1], "AutoAttack.at": [
        HOME.AutoAttack(), 0.1], "attack.walk": [NETWORK, SPLIT.x, SPLIT.y],
    "path": [NETWORK, SPLIT.x, SPLIT.y],
    "Report.from_json": [REPORT.to_json()], "lesson.check": ["00.crossing", [1, 2]],
    "lesson.hint": ["00.crossing"], "plots.axes": [AX], "plots.panels": [2],
    "plots.png": [AX.figure], "plots.show": [AX], "plots.describe": [AX.figure],
    "plots.side_by_side": [{"a": REPORT}],
    **{f"plots.{name}": [*given, AX] for name, given in DRAWN.items()}}
OURS = {"names", "changes"}  # given by the library, or a wrong keyword


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """Relative paths, ".." too, stay in a folder of the test's own."""
    (folder := tmp_path_factory.mktemp("doors") / "a" / "b").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with_tiny_recipes(patch)
        yield
    plt.close("all")


@pytest.mark.parametrize("name", DOORS)
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=share(200))
@given(data=st.data())
def test_a_result_or_a_sentence(elsewhere, name, data):
    """Every public door, with one or two arguments of another kind, or odd parts in them."""
    door, good = operator.attrgetter(name)(HOME), DOORS[name]
    takes = inspect.signature(door).parameters
    words = dict(good if isinstance(good, dict) else inspect.signature(door).bind(*good).arguments)
    free = [n for n in takes if n not in OURS or "plots" in name or name == "compare"]
    for word in data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=2)):
        value = data.draw(ODD)
        if word in SLOW and isinstance(value, int | float) and not -9 < value < 9:
            value = 3
        old = words.get(word, takes[word].default)
        way = data.draw(st.sampled_from(sorted(places(old), key=repr)))
        words["xlabel" if takes[word].kind is inspect.Parameter.VAR_KEYWORD else word] = changed(
            old, way, value)
    many = [n for n, p in takes.items() if p.kind is p.VAR_POSITIONAL and n in words]
    AX.clear()
    try:
        found = door(*several(words.pop(many[0]) if many else ()), **words)
    except CourseError as e:
        assert str(e)
        return
    if isinstance(found, Split):
        x = found.images()
        assert len(found.y) == len(x) and (not x.numel() or 0 <= x.min() <= x.max() <= 1)
