import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pandas as pd
import pytest
import safetensors.torch
import torch
from torch import nn

from course_lib.errors import CourseError
from course_lib.fairness import Spread
from course_lib.lab.publish import add_reports, publish
from course_lib.models import build
from course_lib.tables import (
    compare,
    list_models,
    overview,
    results,
    spread,
    stored_reports,
)
from course_lib.zoo import (
    alike,
    load_model,
    load_record,
    load_report,
    load_reports,
    manifest,
)
from tests.helpers import THREE, drop_weights, report, same_weights

NAME = "exp1/natural"


def record(seed: int, name: str = NAME, data: str = "tiny", **changes: Any) -> dict[str, Any]:
    rows = [report(nat=(seed, 5, 3)).to_json(), report(rob=(6, 9, 9), eps=16 / 255).to_json()]
    made = {"model": "lenet5", "classes": list(THREE),
            "recipe": {"dataset": data, "method": {"name": "pgd_at", "mix": 0.5}}}
    return {"recipe": name, "seed": seed, "made_from": made, "reports": rows, **changes}


def store(root: Path, name: str, seed: int, *rows: dict[str, Any], **words: Any) -> None:
    """A record with these reports."""
    publish(name, seed, None, record(seed, name, reports=list(rows), **words), root)


def network(seed: int) -> nn.Module:
    return build("lenet5", seed=seed, classes=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1, 10):
        publish(NAME, seed, network(seed), record(seed % 9), root)
    publish("exp9/grid", 0, None, record(0, "exp9/grid"), root)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "models")


def weights(root: Path, seed: int = 0) -> Path:
    return root / NAME / f"seed{seed}.safetensors"


def point(root: Path, kind: str, **what: Any) -> None:
    content = json.loads((root / "manifest.json").read_text())
    content["models"][NAME]["0"][kind].update(what)
    (root / "manifest.json").write_text(json.dumps(content))


# ------------------------------------------------------------------------- models and their reports


@pytest.mark.parametrize("seed", [0, 1, 10])
def test_a_model_comes_back_to_the_bit(root: Path, seed: int,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_MODELS", str(root))
    for model in (load_model(NAME, seed=seed), load_model(NAME, seed=seed, root=str(root))):
        assert same_weights(model, network(seed)) and not model.training
    assert load_record(NAME, seed=seed, root=root) == record(seed % 9)


def test_reports_come_back(root: Path) -> None:
    assert load_report(NAME, root=root) == report(nat=(0, 5, 3))
    assert load_report(NAME, eps=16 / 255, root=root).rob.wrong == (6, 9, 9)
    assert [r.nat.wrong[0] for r in load_reports(NAME, root=root)] == [0, 1, 1]
    with pytest.raises(CourseError, match=r"cw20 at 8/255 is stored. There is: pgd20 at 8/255 on "
                                          "40 images, pgd20 at 16/255"):
        load_report(NAME, attack="cw20", root=root)


def strong(rob: tuple[int, int, int], counts: tuple[int, int, int] = (10, 10, 20)) -> dict:
    return report(nat=(1, 1, 1), rob=rob, counts=counts, attack="autoattack").to_json()


def test_reports_by_seed_are_on_the_same_images(root: Path) -> None:
    """Two seeds have AutoAttack on few images, one of them on more; most seeds share the few."""
    few, more, weak = strong((4, 5, 5), (5, 5, 5)), strong((4, 5, 5)), report().to_json()
    for seed, rows in enumerate(([few], [more, few], [])):
        store(root, "c/examined", seed, weak, *rows)
    found = load_reports("c/examined", attack="autoattack", root=root)
    assert [r.rob.counts for r in found] == [(5, 5, 5), (5, 5, 5)]
    assert len(load_reports("c/examined", root=root)) == 3
    assert load_report("c/examined", seed=1, attack="autoattack", root=root).rob.counts[2] == 20
    words = {"attack": "autoattack", "per_class": 5, "root": root}
    assert load_report("c/examined", seed=1, **words).rob.counts == (5, 5, 5)
    for name, say in (("c/examined", "No report of c/examined"), ("c/no", "Unknown model")):
        with pytest.raises(CourseError, match=say):
            load_reports(name, eps=1 / 255, root=root)
    for seed in (0, 2):
        store(root, "c/examined", seed, more)
    found = load_reports("c/examined", attack="autoattack", root=root)
    assert found[1].rob.counts == (10, 10, 20)
    assert alike({}, "pgd20", 8 / 255) == {}


@pytest.mark.parametrize("change", [
    {"eps": -1}, {"eps": float("nan")}, {"eps": "8/255"}, {"eps": 10**400}, {"counts": [0, 0, 0]},
    {"counts": [[1], [2], [3]]}, {"nat": [0.5]}, {"classes": 5}, {"rob": None},
    {"nat": [-0.1, 0, 0]}, {"rob": [0.1, 0.4, 0.3]}, {"eps": float("inf")},
])
def test_a_damaged_report_is_left_out_and_named_once(root: Path, change: dict[str, Any]) -> None:
    """Findings H4 and H29: one bad record hides no other; the model itself is refused."""
    store(root, NAME, 0, {**report().to_json(), **change})
    with pytest.raises(CourseError, match="exp1/natural: its record is damaged"):
        load_report(NAME, root=root)
    rest = [(NAME, 1), (NAME, 10), ("exp9/grid", 0)]
    for call in (lambda: list_models(root=root), lambda: results(root=root, level="seed"),
                 lambda: pd.DataFrame(stored_reports(root=root))):
        with pytest.warns(UserWarning, match=r"Left out.*: exp1/natural, seed 0 \(") as said:
            table = call()
        assert len(said) == 1
        assert sorted({*zip(table["recipe"], table["seed"], strict=True)}) == rest
    with pytest.warns(UserWarning, match="seed 0"):
        assert spread(NAME, root=root).n == 2


# ------------------------------------------------------------------------------------------- tables


def test_list_models(root: Path) -> None:
    publish(NAME, 0, network(0), record(0, reports=[report(nat=(0, 5, 3)).to_json(),
                                                    strong((8, 9, 9))]), root)
    frame = list_models(root=root)
    rows = frame.to_dict("records")
    assert [(r["recipe"], r["seed"]) for r in rows] == [(NAME, 0), (NAME, 1), (NAME, 10),
                                                        ("exp9/grid", 0)]
    first, second, grid = rows[0], rows[1], rows[3]
    assert (first["data"], first["method"], first["where"]) == ("tiny", "pgd_at", "bundled")
    assert (grid["where"], grid["bytes"]) == ("report only", 0)
    assert first["bytes"] == weights(root).stat().st_size > 200_000
    assert (first["standard avg"], first["standard worst"]) == (20, 50)
    assert (first["AutoAttack 8/255 avg"], first["AutoAttack 8/255 worst"]) == (65, 90)
    assert first["AutoAttack images"] == 40 and pd.isna(second["AutoAttack images"])
    assert second["robust 8/255 avg"] == 47.5 and pd.isna(second["AutoAttack 8/255 avg"])
    assert list(frame.columns) == [
        "recipe", "seed", "data", "method", "standard avg", "standard worst", "robust 8/255 avg",
        "robust 8/255 worst", "AutoAttack 8/255 avg", "AutoAttack 8/255 worst",
        "AutoAttack images", "bytes", "where"]
    drop_weights(NAME, 0, root)
    publish(NAME, 0, network(0), record(0), root)
    assert not [c for c in list_models(root=root) if "AutoAttack" in c]


@pytest.fixture
def many(root: Path) -> Path:
    """AutoAttack's figures are on images that the seeds share; one seed of three is flagged."""
    for seed in range(3):
        weak = report(nat=((1, 2, 6)[seed], 5, 3), rob=(6, 8, 7)).to_json()
        more = [strong((15, 27, 27), (30, 30, 60))] * (seed == 0)
        store(root, "a/many", seed, *more, weak, strong((6, 8 + (seed == 2), 8)))
    store(root, "a/other", 0, report(attack="pgd20-adult", eps=10.0).to_json(), data="people")
    store(root, "a/trial", 0)
    return root


def test_overview_has_means_over_seeds(many: Path) -> None:
    frame = overview("a", root=many)
    assert list(frame["model"]) == ["a/many", "a/other"]
    assert list(frame.columns) == [
        "model", "data", "classes", "seeds", "standard avg", "standard worst", "robust 8/255 avg",
        "robust 8/255 worst", "AutoAttack 8/255 avg", "AutoAttack 8/255 worst",
        "robust 10 units avg", "robust 10 units worst", "n"]
    first, other = (row for _, row in frame.iterrows())
    assert (first["data"], first["classes"], first["seeds"], first["n"]) == ("tiny", 3, 3,
                                                                            "13 × 3 !")
    assert [first[c] for c in ("standard avg", "standard worst", "robust 8/255 avg")] == [
        "27.50 ± 6.61", "53.33 ± 5.77", "52.50 ± 0.00"]
    assert first["AutoAttack 8/255 avg"] == "55.83 ± 1.44"  # 22, 22 and 23 of 40
    assert other["robust 10 units worst"] == "90.00" and pd.isna(other["n"])
    assert len(overview(root=many)) == 4 and len(overview("exp*", root=many)) == 2
    with pytest.raises(CourseError, match="make models"):
        overview(root=many / "nowhere")
    with pytest.raises(CourseError, match="Nothing is called expl"):
        overview("expl", root=many)


def test_results_by_recipe_seed_and_class(many: Path) -> None:
    table = results("a/many", root=many)
    assert list(table.columns) == ["recipe", "figure", "attack", "eps", "images", "data", "mean",
                                   "sd", "low", "high", "n", "warnings"]
    rows = {(r.figure, r.attack, r.images): r for r in table.itertuples()}
    assert len(rows) == len(table) == 8
    row, want = rows["standard average", "", 40], Spread.of([22.5, 25, 35])
    assert [row.mean, row.sd, row.low, row.high, row.n] == pytest.approx([*vars(want).values()])
    assert rows["robust worst class", "autoattack", 40].mean == pytest.approx(250 / 3)
    alone = rows["robust worst class", "autoattack", 120]
    assert (alone.mean, alone.n) == (90, 1)
    assert [bool(r.warnings) for r in table.itertuples()] == [r.attack == "pgd20" for r in
                                                              table.itertuples()]
    seeds = results("a/many", attack="pgd20", eps="8/255", level="seed", root=many)
    assert list(seeds["error"][:6]) == pytest.approx([22.5, 50, 25, 50, 35, 60])
    assert len(seeds) == 12 and {*seeds["attack"]} == {"", "pgd20"}
    classes = results("a/many", attack="autoattack", level="class", images=120, root=many)
    assert list(zip(classes["class"], classes["error"], classes["images"], strict=True)) == [
        *((c, pytest.approx(100 / n), n) for c, n in zip(THREE, (30, 30, 60), strict=True)),
        ("cat", 50, 30), ("dog", 90, 30), ("frog", 45, 60)]
    for words, says in (({"eps": "eight"}, "eps is 'eight'"), ({"level": "all"}, "Unknown level"),
                        ({"attack": "PGD"}, "No report under attack='PGD'")):
        with pytest.raises(CourseError, match=says):
            results("a/many", root=many, **words)


def test_tables_show_percent_in_at_most_seven_columns(many: Path) -> None:
    for table in (results(root=many), results("a", level="class", root=many), report().frame(),
                  results("a/many", level="seed", root=many), compare(NAME, "exp9/grid", root=many),
                  results(root=many)[["recipe", "mean"]], results("a/trial", root=many)):
        assert len(table.shown().columns) <= 7
        assert table.note() in repr(table) and table.note().split()[0] in {"Percent.", "Points,"}
        assert table._repr_html_().count("<th>") == len(table.shown().columns)
    text = repr(results("a/many", root=many))
    assert "robust average, pgd20 8/255 52.5 0.0  52.5 to 52.5" in text and "3 × 40" in text
    assert "data: tiny. ! pgd20 misses more than 5 points" in text


def test_compare(root: Path) -> None:
    store(root, NAME, 2, report(nat=(1, 5, 3)).to_json())
    for seed, wrong in ((0, 3), (1, 4), (2, 8), (3, 9)):
        store(root, "a/new", seed, report(nat=(wrong, 5, 3), rob=(9, 9, 9)).to_json())
    table = compare(NAME, "a/new", root=root)
    assert table.equals(compare([NAME, "a/new"], root=root))
    assert {*table["recipe"]} == {"a/new"} and {*table["minus"]} == {NAME}
    row = table.iloc[0]
    assert (row["figure"], row["attack"], row["images"]) == ("standard average", "", 40)
    shared = Spread.of([7.5, 7.5, 17.5])  # seeds 0, 1 and 2: the others have no partner
    assert (row["difference"], row["low"], row["high"], row["n"]) == pytest.approx(
        (shared.mean, shared.low, shared.high, 3))
    assert list(table["verdict"]) == ["inconclusive", "inconclusive", "higher", "no difference"]
    got = spread("a/new", "nat", "cat", minus=NAME, root=root)
    assert (got.mean, got.n) == (pytest.approx(1.3 / 3), 3)


def test_compare_takes_the_same_images(root: Path) -> None:
    """One recipe has AutoAttack on more images, where it looks stronger; the few decide (H1)."""
    few, more = strong((1, 1, 1), (5, 5, 5)), strong((9, 9, 19))
    store(root, "a/one", 0, report().to_json(), more, few)
    store(root, "a/two", 0, report().to_json(), few)
    (row,) = compare("a/one", "a/two", attack="autoattack", root=root)[3:].to_dict("records")
    assert (row["images"], row["difference"], row["verdict"]) == (15, 0, "one seed")


@pytest.mark.parametrize(("names", "say"), [
    ((), "was given nothing; give it two"), ((NAME,), "two names"), (([NAME],), "two names"),
    ((NAME, "x"), "Unknown model 'x'"),
    ((NAME, "a/shoes"), "different data sets .*a/shoes: shoes, cat.*exp1/natural: tiny, cat"),
    ((NAME, "a/fewer"), "or classes.*a/fewer: tiny, x, y"),
    ((NAME, "a/later"), "share no seed"),
])
def test_compare_what_cannot_be(root: Path, names: Any, say: str) -> None:
    store(root, "a/shoes", 0, report().to_json(), data="shoes")
    store(root, "a/fewer", 0, {**report().to_json(), "classes": ["x", "y", "z"]})
    store(root, "a/later", 7, report().to_json())
    with pytest.raises(CourseError, match=say):
        compare(*names, root=root)


# --------------------------------------------------------------------------------------- publishing


def test_weights_go_and_the_record_stays(root: Path) -> None:
    for _ in range(2):  # there is nothing left to do the second time
        drop_weights(NAME, 1, root)
        assert load_record(NAME, seed=1, root=root) == record(1)
        assert same_weights(load_model(NAME, seed=0, root=root), network(0))
        assert weights(root, 10).exists() and weights(root).exists()
        assert not weights(root, 1).exists()
    with pytest.raises(CourseError, match=rf"Only the record of {NAME} \(seed 1\) is stored; its "
                                          f"weights are not. Train it: .* train {NAME} --seed 1"):
        load_model(NAME, seed=1, root=root)


def test_publishing_again_replaces_one_seed_and_leaves_the_others(root: Path) -> None:
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    publish(NAME, 0, network(0), record(0), root)  # the same again changes no byte
    assert before == {p: p.read_bytes() for p in before}
    publish(NAME, 0, network(7), record(3), root)
    assert same_weights(load_model(NAME, root=root), network(7))
    assert {p for p, raw in before.items() if p.read_bytes() != raw} == {
        root / "manifest.json", weights(root), root / NAME / "seed0.json"}


@pytest.mark.parametrize("seed", [1_234_567_890, 2**64 - 1])
def test_a_large_seed_leaves_the_others_readable(root: Path, seed: int) -> None:
    publish(NAME, seed, None, record(0), root)
    assert load_model(NAME, root=root) and load_record(NAME, seed=seed, root=root) == record(0)
    for bad in (-1, 10**20):
        with pytest.raises(CourseError, match=f"The seed {bad} cannot be stored"):
            publish(NAME, bad, None, record(0), root)
    assert load_model(NAME, root=root)


def test_reports_join_a_record(root: Path) -> None:
    sha256 = manifest(root)[NAME]["0"]["weights"]["sha256"]
    new = [report(nat=(9, 9, 9)), report(attack="cw20", counts=(20, 20, 20))]
    add_reports(NAME, 0, new, sha256, root)
    rows = load_record(NAME, root=root)["reports"]
    assert rows == [new[1].to_json(), record(0)["reports"][1], new[0].to_json()]
    before = (root / "manifest.json").read_bytes()
    with pytest.raises(CourseError, match="was stored anew"):
        add_reports(NAME, 0, new, "0" * 64, root)
    assert (root / "manifest.json").read_bytes() == before


# ------------------------------------------------------------------------------------------- damage

WEIGHTS, RECORD, MANIFEST = f"{NAME}/seed0.safetensors", f"{NAME}/seed0.json", "manifest.json"
CHANGED = "is damaged: its sha256"
Edit = Callable[[bytes], bytes]


def change(path: Path, edit: Edit) -> None:
    path.write_bytes(edit(path.read_bytes()))


def flipped(at: int) -> Edit:
    return lambda raw: raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


@pytest.mark.parametrize(("file", "edit", "say"), [
    (WEIGHTS, lambda raw: raw[:1000], CHANGED), (WEIGHTS, lambda raw: b"", CHANGED),
    (WEIGHTS, lambda raw: raw + b"\0", CHANGED), (WEIGHTS, lambda raw: b"<html>", CHANGED),
    (WEIGHTS, flipped(50_001), CHANGED), (WEIGHTS, flipped(20), CHANGED),
    (WEIGHTS, lambda raw: safetensors.torch.save(network(1).state_dict()), CHANGED),
    (RECORD, flipped(30), "seed0.json is damaged"),
    (MANIFEST, lambda raw: raw[:-30], "manifest.json is damaged.*Restore it"),
    (MANIFEST, lambda raw: b"", "manifest.json is damaged"),
    (MANIFEST, lambda raw: b"\xff\xfe\0", "manifest.json is damaged"),
    (MANIFEST, lambda raw: b"[" * 200_000, "manifest.json is damaged"),
    (MANIFEST, lambda raw: b"[]", "not a mapping"),
    (MANIFEST, lambda raw: raw.replace(b'"format": 1', b'"format": 2'), "has format 2; this"),
])
def test_damage_is_noticed(root: Path, file: str, edit: Edit, say: str) -> None:
    change(root / file, edit)
    calls = {lambda: load_model(NAME, root=root): True,  # the weights are needed here only
             lambda: load_record(NAME, root=root): file != WEIGHTS,
             lambda: list_models(root=root): file == MANIFEST}
    for call in (call for call, needed in calls.items() if needed):
        with pytest.raises(CourseError, match=say):
            call()


@pytest.mark.parametrize(("file", "say"), [
    (WEIGHTS, "missing.*no address is known. Train it: .* exp1/natural --seed 0"),
    (RECORD, "seed0.json is missing"),
    (MANIFEST, "is not there. Clone the whole repository"),
])
def test_what_is_gone_is_named(root: Path, file: str, say: str) -> None:
    (root / file).unlink()
    for again in (lambda: (root / file).mkdir(), lambda: None):  # nor is a folder a file
        with pytest.raises(CourseError, match=say):
            load_model(NAME, root=root)
        again()


def saved(**tensors: torch.Tensor) -> bytes:
    """The weights with some tensors changed; an empty one is left out."""
    state = {**network(0).state_dict(), **{k.replace("_", "."): v for k, v in tensors.items()}}
    return safetensors.torch.save({k: v for k, v in state.items() if v.numel()})


@pytest.mark.parametrize(("file", "edit", "say"), [
    (WEIGHTS, lambda raw: saved(fc2_bias=torch.tensor([0, torch.nan, 0])), "fc2.bias .* hold NaN"),
    (WEIGHTS, lambda raw: saved(conv1_bias=torch.full((6,), torch.inf)), "conv1.bias .* infinity"),
    (WEIGHTS, lambda raw: saved(fc2_bias=torch.zeros(4)), "do not fit LeNet5: fc2.bias"),
    (WEIGHTS, lambda raw: saved(fc2_bias=torch.zeros(3).double()), "do not fit LeNet5: fc2.bias"),
    (WEIGHTS, lambda raw: saved(fc1_weight=torch.zeros(0)), "do not fit LeNet5: fc1.weight"),
    (WEIGHTS, lambda raw: saved(other=torch.zeros(1)), "do not fit LeNet5: other"),
    (WEIGHTS, lambda raw: b"PK\3\4" + bytes(100), "the weights cannot be read"),
    (WEIGHTS, lambda raw: b"\xff" * 7 + b"\0" + bytes(100), "the weights cannot be read"),
    (RECORD, lambda raw: raw.replace(b"lenet5", b"lenet6"), "Unknown model 'lenet6'"),
    (RECORD, lambda raw: raw.replace(b'"dog",', b'"dog","cow",', 1), "do not fit LeNet5: fc2"),
    (RECORD, lambda raw: raw.replace(b"made_from", b"made_of"), "names no network"),
])
def test_what_is_behind_a_good_hash_is_checked_too(root: Path, file: str, edit: Edit,
                                                   say: str) -> None:
    change(root / file, edit)
    point(root, "record" if file == RECORD else "weights",
          sha256=hashlib.sha256((root / file).read_bytes()).hexdigest())
    with pytest.raises(CourseError, match=say):
        load_model(NAME, root=root)


@pytest.mark.parametrize(("kind", "row", "say"), [
    *[("weights", {"file": file}, "must be a file inside")
      for file in ("../../../etc/passwd", "/etc/passwd", "a\0b", None, "link")],
    ("record", {"sha256": 5}, "with sha256 5"),
])
def test_the_manifest_names_files_inside_with_their_hash(root: Path, kind: str,
                                                         row: dict[str, Any], say: str) -> None:
    (root / "link").symlink_to(os.devnull)
    point(root, kind, **row)
    with pytest.raises(CourseError, match=say):
        load_model(NAME, root=root)


@pytest.mark.parametrize(("words", "say"), [
    ({"name": "exp1/naturel"}, "Unknown model 'exp1/naturel'.*Did you mean 'exp1/natural'"),
    ({"name": NAME, "seed": 7}, "stored for seeds 0, 1, 10, not for 7. Train it"),
    ({"name": NAME, "seed": "0/../1"}, "not for"),
    ({"name": "exp9/grid"}, "Only the record of exp9/grid"),
])
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
        with pytest.raises(CourseError, match="Cannot write .*folder you may write to"):
            publish(NAME, 0, network(0), record(0), target)
    assert files(tmp_path) == {tmp_path / "models": b"mine"}


@pytest.mark.parametrize("call", ["fsync", "write"])
@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_leaves_all_or_nothing(root: Path, failing: int, first: bool, call: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the three files cannot be written: all old files stay, without a scrap."""
    before, real = files(root), getattr(os, call)
    full = OSError(28, "No space left on device")
    answers = Mock(side_effect=[*[DEFAULT] * (failing - 1), full], wraps=real)
    monkeypatch.setattr(os, call, answers)
    with pytest.raises(CourseError, match="No space left on device"):
        publish(NAME, 5 if first else 0, network(7), record(3), root)
    monkeypatch.undo()
    assert files(root) == before and same_weights(load_model(NAME, root=root), network(0))
