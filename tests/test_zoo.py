import hashlib
import json
import math
import os
import shutil
from unittest.mock import DEFAULT, Mock

import pandas as pd
import pytest
import safetensors.torch
import torch

from course_lib import CourseError, compare, list_models, load_model, load_report, results
from course_lib.fairness import Spread
from course_lib.lab.publish import publish
from course_lib.tables import overview, score_results, spread, stored_reports
from course_lib.zoo import load_record, load_reports
from tests import helpers
from tests.helpers import THREE, contents, drop_weights, network, report, same_weights

NAME = "exp1/natural"


def record(seed, name=NAME, **changes):
    return helpers.record(name, seed, report(nat=(seed, 5, 3)),
                          report(rob=(6, 9, 9), eps=16 / 255), **changes)


def store(root, name, seed, *rows, **words):
    """A record with these reports."""
    publish(name, seed, None, record(seed, name, reports=list(rows), **words), root)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1, 10):
        publish(NAME, seed, network(seed), record(seed % 9), root)
    publish("exp9/grid", 0, None, record(0, "exp9/grid"), root)
    return root


@pytest.fixture
def root(made, tmp_path):
    return shutil.copytree(made, tmp_path / "models")


def weights(root, seed=0):
    return root / NAME / f"seed{seed}.safetensors"


def test_a_model_comes_back_to_the_bit_and_each_seed_is_stored_alone(root, monkeypatch):
    monkeypatch.setenv("COURSE_MODELS", str(root))
    for seed in (0, 1, 10):
        for model in (load_model(NAME, seed=seed), load_model(NAME, seed=seed, root=str(root))):
            assert same_weights(model, network(seed)) and not model.training
        assert load_record(NAME, seed=seed, root=root) == record(seed % 9)
    before = contents(root)
    publish(NAME, 0, network(0), record(0), root)  # the same again changes no byte
    assert before == contents(root)
    publish(NAME, 0, network(7), record(3), root)
    assert same_weights(load_model(NAME, root=root), network(7))
    assert {p for p, raw in before.items() if p.read_bytes() != raw} == {
        root / "manifest.json", weights(root), root / NAME / "seed0.json"}
    publish(NAME, 2**64 - 1, None, record(0), root)
    assert load_record(NAME, seed=2**64 - 1, root=root) == record(0)
    for bad in (-1, 10**20):
        with pytest.raises(CourseError, match=f"The seed {bad} cannot be stored"):
            publish(NAME, bad, None, record(0), root)
    for _ in range(2):  # there is nothing left to do the second time
        drop_weights(NAME, 1, root)
        assert load_record(NAME, seed=1, root=root) == record(1)
        assert [weights(root, seed).exists() for seed in (0, 1, 10)] == [True, False, True]
    for words, say in (({"seed": 1}, r"Only the record of exp1/natural \(seed 1\) is stored; its "
                                     "weights are not. Train it: .* train exp1/natural --seed 1"),
                       ({"seed": 7}, "stored for seeds 0, 1, 10, .*, not for 7. Train it")):
        with pytest.raises(CourseError, match=say):
            load_model(NAME, root=root, **words)


def strong(rob, counts=(10, 10, 20)):
    return report(nat=(1, 1, 1), rob=rob, counts=counts, attack="autoattack").to_json()


def test_reports_by_seed_are_on_the_same_images(root):
    """Two seeds have AutoAttack on few images, one of them on more; most seeds share the few."""
    few, more, weak = strong((4, 5, 5), (5, 5, 5)), strong((4, 5, 5)), report().to_json()
    for seed, rows in enumerate(([few], [more, few], [])):
        store(root, "c/examined", seed, weak, *rows)
    found = load_reports("c/examined", attack="autoattack", root=root)
    assert [r.rob.counts for r in found] == [(5, 5, 5), (5, 5, 5)]
    assert len(load_reports("c/examined", root=root)) == 3
    assert load_report("c/examined", seed=1, attack="autoattack", root=root).rob.counts[2] == 20
    assert load_report(NAME, eps=16 / 255, root=root).rob.wrong == (6, 9, 9)
    for call, say in ((lambda: load_reports("c/examined", eps=0.1, root=root), "No report of c/ex"),
                      (lambda: load_reports("c/no", root=root), "Unknown model"),
                      (lambda: load_report(NAME, attack="cw20", root=root), "cw20 at 8/255 is st"
                       "ored. Stored: pgd20 at 8/255 on 40 images, pgd20 at 16/255")):
        with pytest.raises(CourseError, match=say):
            call()
    for seed in (0, 2):
        store(root, "c/examined", seed, more)
    found = load_reports("c/examined", attack="autoattack", root=root)
    assert found[1].rob.counts == (10, 10, 20)


@pytest.mark.parametrize("change", [  # more of them in tests/faults/test_generated.py
    {"eps": -1}, {"eps": float("nan")}, {"eps": 10**400}, {"counts": [[1], [2], [3]]},
    {"classes": 5}, {"rob": [0.1, 0.4, 0.3]}, None])
def test_a_damaged_report_is_left_out_and_named_once(root, change):
    """Findings H4 and H29: one bad record hides no other; the model itself is refused."""
    if change is None:
        (root / RECORD).write_text("{")
    else:
        store(root, NAME, 0, {**report().to_json(), **change})
    with pytest.raises(CourseError, match="exp1/natural: its record is|seed0.json is damaged"):
        load_report(NAME, root=root)
    with pytest.warns(UserWarning), pytest.raises(CourseError, match="share no seed"):
        compare(NAME, "exp9/grid", root=root)
    rest = [(NAME, 1), (NAME, 10), ("exp9/grid", 0)]
    for call in (lambda: list_models(root=root), lambda: results(root=root, level="seed"),
                 lambda: pd.DataFrame(stored_reports(root))):
        with pytest.warns(UserWarning, match=r"Left out.*: exp1/natural, seed 0 \(") as said:
            table = call()
        assert len(said) == 1
        assert sorted({*zip(table["recipe"], table["seed"], strict=True)}) == rest
    with pytest.warns(UserWarning, match="seed 0"):
        assert spread(NAME, root=root).n == 2


def test_list_models(root):
    publish(NAME, 0, network(0), record(0, reports=[report(nat=(0, 5, 3)).to_json(),
                                                    strong((8, 9, 9))]), root)
    rows = list_models(root=root).to_dict("records")
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
    drop_weights(NAME, 0, root)
    publish(NAME, 0, network(0), record(0), root)
    assert not [c for c in list_models(root=root) if "AutoAttack" in c]


@pytest.fixture
def many(root):
    """AutoAttack's figures are on images that the seeds share; one seed of three is flagged."""
    for seed in range(3):
        weak = report(nat=((1, 2, 6)[seed], 5, 3), rob=(6, 8, 7)).to_json()
        more = [strong((15, 27, 27), (30, 30, 60))] * (seed == 0)
        store(root, "a/many", seed, *more, weak, strong((6, 8 + (seed == 2), 8)))
    store(root, "a/other", 0, report(attack="pgd20-adult", eps=10.0).to_json(), data="people")
    store(root, "a/trial", 0)
    return root


def test_overview_has_means_over_seeds(many):
    frame = overview("a", root=many)
    assert list(frame["model"]) == ["a/many", "a/other"]
    first, other = (row for _, row in frame.iterrows())
    assert [first[c] for c in ("data", "classes", "seeds", "n")] == ["tiny", 3, 3, "13 × 3 !"]
    assert [first[c] for c in ("standard avg", "standard worst", "robust 8/255 avg")] == [
        "27.50 ± 6.61", "53.33 ± 5.77", "52.50 ± 0.00"]
    assert first["AutoAttack 8/255 avg"] == "55.83 ± 1.44"  # 22, 22 and 23 of 40
    assert other["robust 10 units worst"] == "90.00" and pd.isna(other["n"])
    assert len(overview(root=many)) == 4 and len(overview("exp*", root=many)) == 2
    with pytest.raises(CourseError, match="make models"):
        overview(root=many / "nowhere")


def test_results_by_recipe_seed_and_class(many):
    table = results("a/many", root=many)
    rows = {(r.figure, r.attack, r.images): r for r in table.itertuples()}
    assert len(rows) == len(table) == 8
    row, want = rows["standard average", "", 40], Spread.of([22.5, 25, 35])
    assert [row.mean, row.sd, row.low, row.high, row.n] == pytest.approx([*vars(want).values()])
    assert rows["robust worst class", "autoattack", 40].mean == pytest.approx(250 / 3)
    alone = rows["robust worst class", "autoattack", 120]
    assert (alone.mean, alone.n) == (90, 1)
    assert all(bool(r.warnings) == (r.attack == "pgd20") for r in table.itertuples())
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


def test_compare(root):
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
    # one recipe has AutoAttack on more images, where it looks stronger; the few decide (H1)
    few, more = strong((1, 1, 1), (5, 5, 5)), strong((9, 9, 19))
    store(root, "a/one", 0, report().to_json(), more, few)
    store(root, "a/two", 0, report().to_json(), few)
    (row,) = compare("a/one", "a/two", attack="autoattack", root=root)[3:].to_dict("records")
    assert (row["images"], row["difference"], row["verdict"]) == (15, 0, "one seed")
    store(root, "a/shoes", 0, report().to_json(), data="shoes")
    store(root, "a/fewer", 0, {**report().to_json(), "classes": ["x", "y", "z"]})
    store(root, "a/later", 7, report().to_json())
    for names, say in (((), "was given nothing; give it two"), (([NAME],), "two names"),
                       ((NAME, "a/shoes"), "different data sets .*a/shoes: shoes, cat.*: tiny"),
                       ((NAME, "a/fewer"), "or classes.*a/fewer: tiny, x, y"),
                       ((NAME, "a/later"), "share no seed")):
        with pytest.raises(CourseError, match=say):
            compare(*names, root=root)
    with pytest.raises(CourseError, match="different data sets"):
        spread(NAME, minus="a/shoes", root=root)


WEIGHTS, RECORD, MANIFEST = f"{NAME}/seed0.safetensors", f"{NAME}/seed0.json", "manifest.json"


@pytest.mark.parametrize(("file", "edit", "say"), [
    (WEIGHTS, lambda raw: raw[:50_000] + b"!" + raw[50_001:], "is damaged: its sha256"),
    (RECORD, lambda raw: raw.replace(b"0", b"1"), "seed0.json is damaged"),
    (MANIFEST, lambda raw: b"[" * 200_000, "manifest.json is damaged.*Restore it"),
    (MANIFEST, lambda raw: b"[]", "not a mapping"),
    (MANIFEST, lambda raw: raw.replace(b'"format": 1', b'"format": 2'), "has format 2. Update"),
    (WEIGHTS, None, "missing.*no address is known. Train it: .* exp1/natural --seed 0"),
    (RECORD, None, "seed0.json is missing"), (MANIFEST, None, "is not there. Clone the whole rep")])
def test_damage_is_noticed_and_what_is_gone_is_named(root, file, edit, say):
    if edit:
        (root / file).write_bytes(edit((root / file).read_bytes()))
    else:
        (root / file).unlink()
    calls = {lambda: load_model(NAME, root=root): True,  # the weights are needed here only
             lambda: load_record(NAME, root=root): file != WEIGHTS,
             lambda: list_models(root=root): file == MANIFEST and edit}
    for call in (call for call, needed in calls.items() if needed):
        with pytest.raises(CourseError, match=say):
            call()
    if not edit:  # nor is a folder a file
        (root / file).mkdir()
        with pytest.raises(CourseError, match=say):
            load_model(NAME, root=root)


def saved(values, kind=torch.float32):
    """The weights with another fc2.bias."""
    return safetensors.torch.save({**network(0).state_dict(),
                                   "fc2.bias": torch.tensor(values, dtype=kind)})


@pytest.mark.parametrize(("file", "edit", "say"), [  # more in tests/faults/test_generated.py
    (WEIGHTS, lambda raw: saved([0, math.nan, 0]), "fc2.bias .* hold NaN"),
    (WEIGHTS, lambda raw: saved([0, 0, math.inf]), "fc2.bias .* infinity"),
    (WEIGHTS, lambda raw: saved([0] * 3, torch.float64), "do not fit LeNet5: fc2.bias"),
    (WEIGHTS, lambda raw: safetensors.torch.save({}), "do not fit LeNet5: conv1"),
    (WEIGHTS, lambda raw: b"PK\3\4" + bytes(100), "the weights cannot be read"),
    (RECORD, lambda raw: raw.replace(b"lenet5", b"lenet6"), "Unknown model 'lenet6'"),
    (RECORD, lambda raw: raw.replace(b'"dog",', b'"dog","cow",', 1), "do not fit LeNet5: fc2"),
    (RECORD, lambda raw: raw.replace(b"made_from", b"made_of"), "names no network")])
def test_what_is_behind_a_good_hash_is_checked_too(root, file, edit, say):
    raw = edit((root / file).read_bytes())
    (root / file).write_bytes(raw)
    content = json.loads((root / MANIFEST).read_text())
    row = content["models"][NAME]["0"]["record" if file == RECORD else "weights"]
    row["sha256"] = hashlib.sha256(raw).hexdigest()
    (root / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(CourseError, match=say):
        load_model(NAME, root=root)


@pytest.mark.parametrize("call", ["fsync", "write"])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_full_disk_leaves_all_or_nothing(root, seed, call, monkeypatch):
    """Whichever of the three files cannot be written: all old files stay, without a scrap."""
    before, full = contents(root), OSError(28, "No space left on device")
    for good in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, Mock(side_effect=[*[DEFAULT] * good, full],
                                         wraps=getattr(os, call)))
            with pytest.raises(CourseError, match="No space left on device"):
                publish(NAME, seed, network(7), record(3), root)
        assert contents(root) == before and same_weights(load_model(NAME, root=root), network(0))


def test_tables_show_at_most_seven_columns():
    pair = compare("exp2/control", "exp2/reweight-05")
    for table in (results("exp1"), results("exp1", level="class"), pair, score_results("exp1")):
        assert len(table.shown().columns) <= 7
    assert [*results("exp1/natural")] == ["recipe", "figure", "attack", "eps", "images", "data",
                                          "mean", "sd", "low", "high", "n", "warnings"]
    assert {"recipe", "seed", "data", "method", "bytes", "where"} <= {*list_models("exp1")}
