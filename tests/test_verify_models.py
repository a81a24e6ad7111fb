"""Stored models are what their reports say, and one small recipe gives its weights again."""

import copy
import dataclasses

import pytest

from course_lib import PGD, CourseError, build, evaluate
from course_lib.fairness import Errors, Report
from course_lib.lab.publish import publish
from course_lib.zoo import load_model, load_record
from tests import helpers
from tests.helpers import network, tiny_dataset
from tools import model_cards, verify_models
from tools.verify_models import differences, mismatch, retrained, sample, tasks, verify

EPS = 8 / 255


def test_the_small_recipe_gives_what_is_stored(tmp_path):
    """Under the same circumstances each bit counts, elsewhere the intervals do."""
    model, record = retrained()
    assert mismatch(model, record) == ""
    stored = verify_models.reference() / f"{verify_models.RECIPE}@limit=3000@epochs=2"
    assert stored.is_dir(), "which is no result"
    assert all("@" not in name for name, *_ in tasks())
    publish(record["recipe"], verify_models.SEED, model, record, tmp_path)
    other, elsewhere, renamed = build("lenet5", classes=10), *(copy.deepcopy(record) for _ in "12")
    assert "though all else is the same" in mismatch(other, record, tmp_path)
    elsewhere["made_from"]["versions"]["cpu"] = "another"
    assert mismatch(other, elsewhere, tmp_path) == ""
    elsewhere["reports"][0]["rob"][3] += 0.05
    assert mismatch(other, elsewhere, tmp_path).count("is outside") == 1
    kernel = str(record["made_from"]["versions"]["kernel"]).rpartition("-")[2]
    renamed["made_from"]["versions"]["kernel"] = f"lenet-0123-{kernel}"
    # the same machine code under another key
    assert "all else is the same" in mismatch(other, renamed, tmp_path)


def test_a_tenth_of_the_stored_models():
    """On the images that come with the course: a ResNet on all of CIFAR-10 takes minutes."""
    chosen = sample(tasks(fetched=False))
    assert chosen and [line for task in chosen for line in differences(task)] == []


def test_the_sample_is_a_tenth_the_same_twice_and_another_when_anything_changed():
    row = {"attack": "pgd20", "nat": [0.1], "rob": [0.2]}
    todo = [(f"r{n}", 0, {**row, "eps": e}, "d") for n in range(100) for e in (1.0, 2.0)]
    chosen, changed = sample(todo), [*todo[:-1], ("r99", 0, {**row, "eps": 3.0}, "d")]
    assert len({n for n, *_ in chosen}) == len(chosen) == 10 and chosen == sample(todo[::-1])
    assert sample(changed) != chosen and {r["eps"] for _, _, r, _ in chosen} == {1.0, 2.0}


@pytest.mark.parametrize(("nat", "rob", "lines"), [
    ((52, 60), (203, 303), []),
    ((53, 60), (200, 300), ["standard errors of a are 53 images, stored are 50"]),
    ((50, 60), (200, 304), ["robust error of b is 30.40%, stored is 30.00%"]),
    ((50, 60), (196, 300), ["robust error of a is 19.60%, stored is 20.00%"])])
def test_rounding_points_and_intervals(nat, rob, lines):
    stored, found = (Report(Errors(n, (1000, 1000)), Errors(r, (1000, 1000)), ("a", "b"), "pgd20",
                            EPS) for n, r in (((50, 60), (200, 300)), (nat, rob)))
    assert [*verify_models._standard(stored, found), *verify_models._robust(stored, found)] == lines
    errors = Errors((100, 200), (1000, 1000))  # in the last, each class is within, the average not
    assert [len([*verify_models.outside(errors, Errors(e, errors.counts))]) for e in (
        (110, 195), (130, 195), (118, 222))] == [0, 1, 1]


def test_what_is_stored_truly_passes_and_what_is_not_is_found(tiny, tmp_path, capsys):
    """Of a tiny model with a true report and an AutoAttack row, and a recipe without weights."""
    model, root = network().eval(), tmp_path
    found = evaluate(model, tiny_dataset().test, PGD(EPS, steps=20), progress=False)
    reports = [dataclasses.replace(found, attack=attack) for attack in ("pgd20", "autoattack")]
    record = helpers.record("tiny/first", 0, *reports)
    publish("tiny/first", 0, model, record, root)
    publish("tiny/second", 0, None, record, root)
    todo = tasks(root=root)
    assert [(t[0], t[1], t[2]["attack"], t[3]) for t in todo] == [
        ("tiny/first", 0, "pgd20", "tiny")]
    assert verify(todo, root) == [] and tasks(["exp1"], root) == []
    assert tasks(["tiny"], root) == todo and "tiny/first seed 0" in capsys.readouterr().out
    with pytest.raises(CourseError, match="counts 12 images, the embedded test set has 4"):
        differences(todo[0], root, tiny_dataset().test.take(slice(0, 4)))
    record = load_record("tiny/first", root=root)
    row = record["reports"][0]
    row["rob"] = [e + 0.5 if e <= 0.5 else max(e - 0.5, least)
                  for e, least in zip(row["rob"], row["nat"], strict=True)]
    publish("tiny/first", 0, load_model("tiny/first", root=root), record, root)
    found = verify(tasks(root=root), root)
    assert found and all(line.startswith("tiny/first, seed 0, pgd20 at 8/255: ") for line in found)
    # reports on the first images of each class are made on them; those on fetched images are left
    # out where only bundled ones count: say that eight of the tiny test set's twelve came with it
    few = evaluate(load_model("tiny/first", root=root), tiny_dataset().test.per_class(2), "pgd20",
                   progress=False).to_json()
    assert differences(("tiny/first", 0, few, "tiny"), root) == []
    tiny.setattr(verify_models, "images_here", lambda data: tiny_dataset().test)
    for embedded in (8, 12):
        tiny.setattr(verify_models, "EMBEDDED", {"tiny": embedded})
        assert len(tasks(root=root, fetched=False)) == (embedded == 12)
    (root / "tiny/first/seed0.safetensors").unlink()
    assert tasks(root=root) == [], "a model that is not bundled is left out"


def test_the_cards_are_up_to_date():
    """`make cards` writes them again."""
    page = (verify_models.models_dir() / "README.md").read_text(encoding="utf-8")
    assert page.split("\n## ") == model_cards.cards().split("\n## "), "run `make cards`"
