import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import safetensors.torch
import torch
from torch import nn

from course_lib import shelf
from course_lib.errors import CourseError
from course_lib.fairness import Spread
from course_lib.models import build
from course_lib.zoo import (
    compare,
    drop_weights,
    list_models,
    load_model,
    load_record,
    load_report,
    load_reports,
    manifest,
    publish,
    write_together,
)
from tests.helpers import THREE, report, same_weights

NAME = "exp1/natural"


def record(seed: int, **changes: Any) -> dict[str, Any]:
    reports = [report(nat=(seed, 5, 3)).to_json(), report(rob=(6, 9, 9), eps=16 / 255).to_json()]
    return {"recipe": NAME, "seed": seed, "made_from": {"model": "lenet5", "classes": list(THREE)},
            "reports": reports, **changes}


def network(seed: int) -> nn.Module:
    return build("lenet5", seed=seed, classes=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1, 10):
        publish(NAME, seed, network(seed), record(seed % 9), root)
    publish("exp9/grid", 0, None, record(0), root)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "models")


def weights(root: Path, seed: int = 0) -> Path:
    return root / NAME / f"seed{seed}.safetensors"


def rename_hash(root: Path, kind: str = "weights", seed: int = 0) -> None:
    """Make the manifest believe a file that was changed: what lies behind the hash must be looked
    at as well."""
    content = json.loads((root / "manifest.json").read_text())
    what = content["models"][NAME][str(seed)][kind]
    what["sha256"] = hashlib.sha256((root / what["file"]).read_bytes()).hexdigest()
    (root / "manifest.json").write_text(json.dumps(content))


def point(root: Path, kind: str, **what: Any) -> None:
    content = json.loads((root / "manifest.json").read_text())
    content["models"][NAME]["0"][kind].update(what)
    (root / "manifest.json").write_text(json.dumps(content))


# ------------------------------------------------------------------------------------------ there and back


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_model_comes_back_to_the_bit(root: Path, seed: int) -> None:
    model = load_model(NAME, seed=seed, root=root)
    assert same_weights(model, network(seed)) and not model.training and load_record(NAME,
        seed=seed, root=root) == record(seed % 9)


def test_reports_come_back(root: Path) -> None:
    assert load_report(NAME, root=root) == report(nat=(0, 5, 3)) and load_report(NAME, eps=16 / 255,
        root=root).rob.wrong == (6, 9, 9)
    assert [r.nat.wrong[0] for r in load_reports(NAME, root=root)] == [0, 1, 1]
    with pytest.raises(CourseError,
                       match=r"cw20 at 8/255 is stored. There is: pgd20 at 8/255, pgd20 at 16/255"):
        load_report(NAME, attack="cw20", root=root)


def test_weights_go_and_the_record_stays(root: Path) -> None:
    before = load_record(NAME, seed=1, root=root)
    for _ in range(2):  # there is nothing left to do the second time
        drop_weights(NAME, 1, root)
        assert load_record(NAME, seed=1, root=root) == before and same_weights(load_model(NAME,
            seed=0, root=root), network(0))
        assert {r["seed"]: r["where"] for r in list_models(root)
                if r["recipe"] == NAME} == {0: "bundled", 1: "report only", 10: "bundled"}
        assert sorted(f.name for f in (root / NAME).glob("*.safetensors")) == ["seed0.safetensors",
            "seed10.safetensors"]
    with pytest.raises(CourseError,
                       match=f"the record is stored and no weights. Train it: .* train {NAME} "
                       "--seed 1"):
        load_model(NAME, seed=1, root=root)


def test_list_models(root: Path) -> None:
    rows = list_models(root)
    assert [(r["recipe"], r["seed"]) for r in rows] == [(NAME, 0), (NAME, 1), (NAME, 10),
                                                        ("exp9/grid", 0)]
    assert rows[0]["bytes"] == weights(root).stat().st_size > 200_000 and (rows[3]["file"],
        rows[3]["bytes"]) == (None, 0)


def told(root: Path, seed: int = 0, name: str = NAME, **words: Any) -> None:
    """A record as a training leaves it: with its recipe and a history."""
    rows = [report(nat=(seed, 5, 3)).to_json(),
            report(rob=(8, 9, 9 + seed), attack="autoattack").to_json()]
    made = {"model": "lenet5", "classes": list(THREE),
            "recipe": {"dataset": "tiny", "method": {"name": "pgd_at", "mix": 0.5}}}
    content = {"recipe": name, "seed": seed, "made_from": made, "reports": rows,
               "history": [{"epoch": 1, "reports": []}], **words}
    publish(name, seed, network(seed), content, root)


def test_a_row_tells_data_method_and_errors(root: Path) -> None:
    told(root)
    rows = list_models(root)
    first, second, grid = rows[0], rows[1], rows[3]
    assert (first["data"], first["method"], first["where"], grid["where"]) == ("tiny", "pgd_at",
        "bundled", "report only")
    assert first["standard avg"] == pytest.approx(8 / 40) and first["standard worst"] == 0.5
    assert first["AutoAttack 8/255 avg"] == pytest.approx(26
                                                          / 40) and first[
                                                              "AutoAttack 8/255 worst"] == 0.9
    assert (second["robust 8/255 avg"] == pytest.approx(19 / 40)
            and "AutoAttack 8/255 avg" not in second and second["data"] is None)
    lines = str(rows).splitlines()
    assert len(lines) == 6 and lines[0].split()[:6] == ["recipe", "seed", "data", "method",
                                                        "standard", "avg"] and "65.00" in lines[1]
    assert lines[1].split()[:5] == [NAME, "0", "tiny", "pgd_at",
                                    "20.00"] and "Errors in percent" in lines[5]


def test_autoattack_on_fewer_images_is_said(root: Path) -> None:
    told(root)
    assert "images" not in str(list_models(root)).splitlines()[-1] and list_models(root)[0][
        "AutoAttack 8/255 images"] == 40
    few = report(nat=(1, 1, 1), rob=(1, 1, 2), counts=(2, 2, 2), attack="autoattack").to_json()
    told(root, 1, reports=[report().to_json(), few])
    assert str(list_models(root)).endswith("PGD-20; AutoAttack on 6 images.")


def test_a_list_without_autoattack_has_no_empty_columns(root: Path) -> None:
    assert "AutoAttack" not in str(list_models(root)) and "standard avg" in str(list_models(root))


def test_a_notebook_draws_the_list_as_a_table(root: Path) -> None:
    told(root, name="a<b>&c")
    page = list_models(root)._repr_html_()
    tree = ElementTree.fromstring(page.replace("<br>", ""))
    assert [len(r) for r in tree.findall(".//tr")] == [len(list_models(root).columns)] * 6
    assert "a&lt;b&gt;&amp;c" in page and tree.find("caption") is not None
    assert list_models(root).markdown().splitlines()[1].startswith("| --- | ---: | --- |")


@pytest.mark.parametrize("how", ["history last", "history first", "reports last", "no history",
                                 "other spaces", "a history inside"])
def test_a_row_is_right_wherever_the_history_stands(root: Path, how: str) -> None:
    """Only the part before the history is parsed, where that is enough."""
    told(root)
    record = json.loads((root / NAME / "seed0.json").read_text())
    if how == "history first":
        record = {"history": record.pop("history"), **record}
    elif how == "reports last":
        record["reports"] = record.pop("reports")
    elif how == "no history":
        record.pop("history")
    elif how == "a history inside":
        record["made_from"] = {"history": [1], **record["made_from"]}
    text = json.dumps(record, indent={"other spaces": 4, "a history inside": 0}.get(how, 1))
    (root / NAME / "seed0.json").write_text(text)
    rename_hash(root, "record")
    assert list_models(root)[0]["standard avg"] == pytest.approx(8 / 40) and load_report(NAME,
        root=root).nat.wrong == (0, 5, 3)
    assert load_record(NAME, root=root) == record and same_weights(load_model(NAME, root=root),
        network(0))


def test_listing_does_not_parse_histories(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told(root, history=[{"epoch": n, "loss": 0.5} for n in range(20_000)])
    sizes: list[int] = []
    real = json.loads
    monkeypatch.setattr("course_lib.zoo.json.loads", lambda raw: sizes.append(len(raw))
                        or real(raw))
    list_models(root)
    assert max(sizes) < 10_000 and sizes


def test_a_damaged_record_is_named_in_the_list(root: Path) -> None:
    change(root / NAME / "seed1.json", flipped(30))
    with pytest.raises(CourseError, match="seed1.json is damaged"):
        list_models(root)


def test_compare(root: Path) -> None:
    for seed, wrong in ((0, 3), (1, 4), (2, 8), (3, 9)):
        told(root, seed, name="a/new", reports=[report(nat=(wrong, 5, 3)).to_json()])
    told(root, 2, name=NAME, reports=[report(nat=(1, 5, 3)).to_json()])
    rows = {r["figure"]: r for r in compare([NAME, "a/new"], root=root)}
    assert list(rows) == [f"{t} {w}" for t in ("standard", "robust 8/255", "robust 16/255")
                          for w in ("avg", "worst")]
    row = rows["standard avg"]
    base, new = [n / 40 for n in (8, 9, 9, 9)], [n / 40 for n in (11, 12, 16, 17)]
    assert (row[NAME].mean, row[NAME].n, row["a/new"].mean,
            row["a/new"].n) == pytest.approx((sum(base) / 4, 4, sum(new) / 4, 4))
    shared = Spread.of([3 / 40, 3 / 40, 7 / 40])  # seeds 0, 1 and 2: the others have no partner
    assert dataclasses.astuple(row["a/new - "
                                   + NAME]) == pytest.approx(dataclasses.astuple(
                                       shared)) and shared.low < 0 < shared.high
    assert rows["robust 16/255 avg"]["a/new"] is None and rows["robust 16/255 avg"]["a/new - "
        + NAME] is None
    lines = str(compare([NAME, "a/new"], root=root)).splitlines()
    assert "+10.83 [-3.51, +25.18]" in lines[1] and "paired by seed" in lines[-1]


def test_compare_one_seed_has_no_interval(root: Path) -> None:
    told(root, 0, name="a/new")
    row = compare([NAME, "a/new"], root=root)[0]
    assert row["a/new - " + NAME].n == 1 and " 0.00" not in str(row) and "[" not in str(
        compare([NAME, "a/new"], root=root))


@pytest.mark.parametrize(("names", "say"),
                         [(NAME, "list of two names"), ([NAME], "list of two names"),
                          ([NAME, "x"], "Unknown model 'x'")])
def test_compare_what_cannot_be(root: Path, names: Any, say: str) -> None:
    with pytest.raises(CourseError, match=say):
        compare(names, root=root)


def test_models_of_two_data_sets_do_not_compare(root: Path) -> None:
    made = {"model": "lenet5", "classes": list(THREE)}
    for name, data in (("a/shoes", "shoes"), ("a/more-shoes", "shoes"), ("a/people", "people")):
        told(root, 0, name=name, made_from={**made, "recipe": {"dataset": data}})
    # of one it is not known
    assert compare(["a/shoes", "a/more-shoes"], root=root) and compare(["a/shoes", NAME], root=root)
    with pytest.raises(CourseError, match=r"different data sets: a/shoes \(shoes\), a/people \(people\)\. Give it models of one\."):
        compare(["a/shoes", "a/people"], root=root)


def test_the_folder_can_be_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_MODELS", str(root))
    assert same_weights(load_model(NAME), network(0))


def test_publishing_again_replaces_one_seed_and_leaves_the_others(root: Path) -> None:
    others = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and "seed0" not in p.name
              and p.parent.name == "natural"}
    publish(NAME, 0, network(7), record(3), root)
    assert same_weights(load_model(NAME, root=root), network(7)) and others == {p: p.read_bytes()
        for p in others}
    assert [r["seed"] for r in list_models(root)] == [0, 1, 10, 0]


def test_publishing_the_same_changes_no_byte(root: Path) -> None:
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    publish(NAME, 0, network(0), record(0), root)
    assert before == {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}


# ------------------------------------------------------------------------------------------ damage


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda r: change(weights(r), lambda raw: raw[:1000]), "is damaged: its sha256"),
    "empty": (lambda r: change(weights(r), lambda raw: b""), "is damaged: its sha256"),
    "longer": (lambda r: change(weights(r), lambda raw: raw + b"\0"), "is damaged: its sha256"),
    "a bit in a weight": (lambda r: change(weights(r), flipped(50_001)), "is damaged: its sha256"),
    "a bit in the header": (lambda r: change(weights(r), flipped(20)), "is damaged: its sha256"),
    "a page of HTML": (lambda r: change(weights(r), lambda raw: b"<html>quota exceeded</html>"),
                       "is damaged: its sha256"),
    "gone": (lambda r: weights(r).unlink(), "missing.*git checkout.*make models"),
    "a folder": (lambda r: (weights(r).unlink(), weights(r).mkdir()), "missing"),
    "another model's": (lambda r: shutil.copy(weights(r, 1), weights(r)), "is damaged: its sha256"),
    "the record": (lambda r: change(r / NAME / "seed0.json", flipped(30)), "seed0.json is damaged"),
    "no record": (lambda r: (r / NAME / "seed0.json").unlink(), "seed0.json is missing"),
    "the manifest cut": (lambda r: change(r / "manifest.json", lambda raw: raw[:-30]),
                         "manifest.json is damaged.*Restore it"),
    "the manifest empty": (lambda r: change(r / "manifest.json", lambda raw: b""),
                           "manifest.json is damaged"),
    "the manifest no text": (lambda r: change(r / "manifest.json", lambda raw: b"\xff\xfe\0"),
                             "manifest.json is damaged"),
    "the manifest deep": (lambda r: change(r / "manifest.json", lambda raw: b"[" * 200_000),
                          "manifest.json is damaged"),
    "the manifest a list": (lambda r: change(r / "manifest.json", lambda raw: b"[]"),
                            "holds a list"),
    "the manifest of the future": (
        lambda r: change(r / "manifest.json",
                         lambda raw: raw.replace(b'"format": 1', b'"format": 2')),
        "has format 2; this library reads 1",
    ),
    "no manifest": (lambda r: (r / "manifest.json").unlink(),
                    "is not there. Clone the repository whole"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed(root: Path, kind: str) -> None:
    damage, say = DAMAGE[kind]
    damage(root)
    with pytest.raises(CourseError, match=say):
        load_model(NAME, root=root)


def tampered(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def tamper(root: Path) -> None:
        tensors = dict(network(0).state_dict())
        change(tensors)
        weights(root).write_bytes(safetensors.torch.save(tensors))
        rename_hash(root)

    return tamper


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "NaN": (tampered(lambda t: t.update({"fc2.bias": torch.tensor([0, torch.nan, 0])})),
            "fc2.bias holds NaN or infinity"),
    "infinity": (tampered(lambda t: t["conv1.weight"].__setitem__((0, 0, 0, 0), torch.inf)),
                 "conv1.weight holds NaN or infinity"),
    "a wrong shape": (tampered(lambda t: t.update({"fc2.bias": torch.zeros(4)})),
                      "do not fit LeNet5: fc2.bias"),
    "a wrong type": (tampered(lambda t: t.update({"fc2.bias":
                                                  torch.zeros(3, dtype=torch.float64)})),
                     "do not fit LeNet5: fc2.bias"),
    "a missing tensor": (tampered(lambda t: t.pop("fc1.weight")), "do not fit LeNet5: fc1.weight"),
    "a tensor too many": (tampered(lambda t: t.update({"../../etc/passwd": torch.zeros(1)})),
                          "do not fit LeNet5: ../../etc/passwd"),
    "no safetensors": (lambda r: (weights(r).write_bytes(b"PK\3\4" + bytes(100)), rename_hash(r)),
                       "the weights cannot be read"),
    "a header that claims too much": (
        lambda r: (weights(r).write_bytes(b"\xff" * 7 + b"\0" + bytes(100)), rename_hash(r)),
        "the weights cannot be read",
    ),
    "another architecture": (
        lambda r: (change(r / NAME / "seed0.json", lambda raw: raw.replace(b"lenet5", b"lenet6")),
                   rename_hash(r, "record")),
        "Unknown model 'lenet6'",
    ),
    "another number of classes": (
        lambda r: (change(r / NAME / "seed0.json",
                          lambda raw: raw.replace(b'"dog",', b'"dog","cow",', 1)),
                   rename_hash(r, "record")),
        "do not fit LeNet5: fc2",
    ),
    "a path out of the folder": (lambda r: point(r, "weights", file="../../../etc/passwd"),
                                 "must be a file inside"),
    "an absolute path": (lambda r: point(r, "weights", file="/etc/passwd"),
                         "must be a file inside"),
    "a path with a zero": (lambda r: point(r, "weights", file="a\0b"),
                           "must be a file inside|missing"),
    "a path that is none": (lambda r: point(r, "weights", file=None), "must be a file inside"),
    "a hash that is none": (lambda r: point(r, "record", sha256=5), "with sha256 5"),
    "a link out of the folder": (lambda r: (weights(r).unlink(), weights(r).symlink_to(os.devnull)),
                                 "must be a file inside"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_lies_behind_a_good_hash_is_checked_too(root: Path, kind: str) -> None:
    tamper, say = TAMPERED[kind]
    tamper(root)
    with pytest.raises(CourseError, match=say):
        load_model(NAME, root=root)


@pytest.mark.parametrize(
    "models",
    [
        {NAME: 5},
        {NAME: []},
        {NAME: {"0": 5}},
        {NAME: {"0": {"record": 5, "weights": 5}}},
        {NAME: {"0": {"record": {}}}},
        {NAME: {"zero": {}}},
        [],
    ],
)
def test_a_manifest_of_another_shape(root: Path, models: Any) -> None:
    (root / "manifest.json").write_text(json.dumps({"format": 1, "models": models}))
    for call in (load_model, load_reports, lambda name, root: list_models(root)
                 and load_model(name, root=root)):
        with pytest.raises(CourseError):
            call(NAME, root=root)


def test_no_single_bit_of_the_manifest_passes_unnoticed(root: Path) -> None:
    """Whatever bit flips: the right model, or a CourseError."""
    raw = (root / "manifest.json").read_bytes()
    end = raw.index(b'"1"')  # the part that is about seed 0
    noticed = 0
    for i in range(0, end, 3):
        (root / "manifest.json").write_bytes(raw[:i] + bytes([raw[i] ^ (1 << i % 8)]) + raw[i
            + 1 :])
        try:
            list_models(root)
            model = load_model(NAME, root=root)
        except CourseError:
            noticed += 1
        else:
            assert same_weights(model, network(0))
    assert noticed > 0.6 * end / 3


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"name": "exp1/naturel"}, "Unknown model 'exp1/naturel'.*Did you mean 'exp1/natural'"),
        ({"name": NAME, "seed": 7}, "stored for seeds 0, 1, 10, not for 7. Train it"),
        ({"name": NAME, "seed": "0/../1"}, "not for"),
        ({"name": "exp9/grid"}, "must be a file inside|weights"),
    ],
)
def test_what_is_not_stored(root: Path, words: dict[str, Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        load_model(root=root, **words)


# ------------------------------------------------------------------------------------------ writing


def files(root: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != ".lock"}


def test_no_write_permission(tmp_path: Path) -> None:
    """A file stands where the folder should be: that stops root, too."""
    (tmp_path / "models").write_text("mine")
    for target in (tmp_path / "models", tmp_path / "models" / "below"):
        with pytest.raises(CourseError, match="Cannot write .*choose a folder you may write to"):
            publish(NAME, 0, network(0), record(0), target)
    assert files(tmp_path) == {tmp_path / "models": b"mine"}


@pytest.mark.parametrize("call", ["fsync", "chmod"])
@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_leaves_all_or_nothing(root: Path, failing: int, first: bool, call: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the three files cannot be written: what was there is still there, whole, and no
    scrap beside it."""
    seed, before, count, real = (5 if first else 0), files(root), iter(range(1, 100)), getattr(os,
        call)

    def full(*args: Any) -> None:
        if next(count) == failing:
            raise OSError(28, "No space left on device")
        real(*args)

    monkeypatch.setattr(shelf.os, call, full)
    with pytest.raises(CourseError, match="No space left on device"):
        publish(NAME, seed, network(7), record(3), root)
    monkeypatch.undo()
    assert not list(root.rglob(".part-*")) and str(5) not in manifest(root)[NAME]
    assert {p: raw for p, raw in files(root).items() if p in before} == before
    assert same_weights(load_model(NAME, root=root), network(0))


def test_write_together_replaces(tmp_path: Path) -> None:
    one, two = tmp_path / "a" / "1.txt", tmp_path / "b" / "2.txt"
    write_together({one: b"old"})
    write_together({one: b"new", two: b"two"})
    assert files(tmp_path) == {one: b"new", two: b"two"} and one.stat().st_mode & 0o777 == 0o644


def test_an_interrupted_write_leaves_no_scrap(tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shelf.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_together({tmp_path / "1.txt": b"one"})
    assert files(tmp_path) == {}
