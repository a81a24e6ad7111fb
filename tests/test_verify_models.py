"""The stored models are what their reports say, and one small recipe gives its stored weights
again."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from course_lib.attacks import PGD
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from course_lib.fairness import Errors, Report
from course_lib.lab.publish import publish
from course_lib.models import build
from course_lib.zoo import load_model
from tests.helpers import network_of, tiny_dataset, with_tiny_recipes
from tools import model_cards, verify_models
from tools.verify_models import (
    RECIPE,
    SEED,
    differences,
    mismatch,
    outside,
    reference,
    retrained,
    sample,
    tasks,
    verify,
)

EPS = 8 / 255


def test_the_small_recipe_gives_what_is_stored(tmp_path: Path) -> None:
    """Under the same circumstances each bit counts, elsewhere the intervals do."""
    model, record = retrained()
    assert mismatch(model, record) == ""
    assert (reference() / f"{RECIPE}@limit=3000@epochs=2").is_dir(), "which is no result"
    assert all("@" not in name for name, *_ in tasks())
    publish(record["recipe"], SEED, model, record, tmp_path)
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


def test_outside() -> None:
    stored = Errors((100, 200), (1000, 1000))
    assert list(outside(stored, Errors((110, 195), (1000, 1000)))) == []
    assert list(outside(stored, Errors((130, 195), (1000, 1000)))) == [
        "an error of 13.00% is outside 8.29% to 12.02%"]
    # each class within its own, the average not
    assert len(list(outside(stored, Errors((118, 222), (1000, 1000))))) == 1


def test_a_tenth_of_the_stored_models() -> None:
    """On the images that come with the course: a ResNet on all of CIFAR-10 takes minutes."""
    chosen = sample(tasks(fetched=False))
    assert chosen and [line for task in chosen for line in differences(task)] == []


def test_the_sample_is_a_tenth_the_same_twice_and_another_when_anything_changed() -> None:
    row = {"attack": "pgd20", "nat": [0.1], "rob": [0.2]}
    todo = [(f"r{n}", s, {**row, "eps": e}, "d") for n in range(20) for s in range(5)
            for e in (1.0, 2.0)]
    chosen = sample(todo)
    assert len({(n, s) for n, s, *_ in chosen}) == len(chosen) == 10
    assert chosen == sample(todo[::-1])
    changed = [*todo[:-1], ("r19", 4, {**row, "eps": 2.0, "rob": [0.3]}, "d")]
    assert sample(changed) != chosen and {r["eps"] for _, _, r, _ in chosen} == {1.0, 2.0}
    assert sample(todo[:1]) == todo[:1] and sample([]) == []


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One tiny model with a true report, an AutoAttack row that is not run again, and one recipe
    without weights."""
    with_tiny_recipes(monkeypatch)
    from course_lib.experiments import RECIPES

    model, data = network_of(RECIPES["tiny/first"]).eval(), tiny_dataset()
    found = evaluate(model, data.test, PGD(EPS, steps=20), progress=False)
    rows = [{**found.to_json(), "attack": attack} for attack in ("pgd20", "autoattack")]
    made = {"model": "lenet5", "classes": list(data.classes), "recipe": {"dataset": "tiny"}}
    record = {"recipe": "tiny/first", "seed": 0, "made_from": made, "reports": rows}
    publish("tiny/first", 0, model, record, tmp_path)
    publish("tiny/second", 0, None, record, tmp_path)
    return tmp_path


def stored_record(root: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((root / "tiny/first/seed0.json").read_text())
    return record


def test_what_is_stored_truly_passes_and_what_is_not_is_found(
        root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    todo = tasks(root=root)
    assert [(t[0], t[1], t[2]["attack"], t[3]) for t in todo] == [
        ("tiny/first", 0, "pgd20", "tiny")]
    assert verify(todo, root) == [] and tasks(["exp1"], root) == []
    assert tasks(["tiny"], root) == todo and "tiny/first seed 0" in capsys.readouterr().out
    with pytest.raises(CourseError, match="counts 12 images, the embedded test set has 4"):
        differences(todo[0], root, tiny_dataset().test.take(slice(0, 4)))
    record = stored_record(root)
    row = record["reports"][0]
    row["rob"] = [e + 0.5 if e <= 0.5 else max(e - 0.5, least)
                  for e, least in zip(row["rob"], row["nat"], strict=True)]
    publish("tiny/first", 0, load_model("tiny/first", root=root), record, root)
    found = verify(tasks(root=root), root)
    assert found and all(line.startswith("tiny/first, seed 0, pgd20 at 8/255: ") for line in found)
    (root / "tiny/first/seed0.safetensors").unlink()
    assert tasks(root=root) == [], "a model that is not bundled is left out"


@pytest.mark.parametrize(("nat", "rob", "lines"), [
    ((52, 60), (203, 303), []),
    ((53, 60), (200, 300), ["standard errors of a are 53 images, stored are 50"]),
    ((50, 57), (200, 300), ["standard errors of b are 57 images, stored are 60"]),
    ((50, 60), (200, 304), ["robust error of b is 30.40%, stored is 30.00%"]),
    ((50, 60), (196, 300), ["robust error of a is 19.60%, stored is 20.00%"])])
def test_rounding_and_points(nat: tuple[int, ...], rob: tuple[int, ...], lines: list[str]) -> None:
    stored, found = (Report(Errors(n, (1000, 1000)), Errors(r, (1000, 1000)), ("a", "b"), "pgd20",
                            EPS) for n, r in (((50, 60), (200, 300)), (nat, rob)))
    assert [*verify_models._standard(stored, found), *verify_models._robust(stored, found)] == lines


def test_reports_on_other_images(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the first images of each class are made on them; those on fetched images are left
    out where only bundled ones count: say that eight of the tiny test set's twelve came with it."""
    name, seed, _, data = tasks(root=root)[0]
    few = evaluate(load_model(name, root=root), tiny_dataset().test.per_class(2), "pgd20",
                   progress=False).to_json()
    assert few["counts"] == [2, 2, 2] and differences((name, seed, few, data), root) == []
    monkeypatch.setattr(verify_models, "EMBEDDED", {"tiny": 8})
    monkeypatch.setattr(verify_models, "images_here", lambda data: tiny_dataset().test)
    assert len(tasks(root=root)) == 1 and tasks(root=root, fetched=False) == []
    monkeypatch.setattr(verify_models, "EMBEDDED", {"tiny": 12})
    assert len(tasks(root=root, fetched=False)) == 1


def test_the_cards_are_up_to_date() -> None:
    """`make cards` writes them again: schedules, limits and circumstances in words, too."""
    page = (verify_models.models_dir() / "README.md").read_text(encoding="utf-8")
    assert page.split("\n## ") == model_cards.cards().split("\n## "), "run `make cards`"
    for words in ("rate 0.1, which falls at every epoch", "images changed by crop-flip", "Limits:",
                  "the C++ kernel", "AVX512, PyTorch"):
        assert words in page


def test_what_has_no_weights_gets_a_row_and_not_a_section(root: Path) -> None:
    record = stored_record(root)
    optim = {"name": "adam", "lr": 0.001, "batch": 8, "drops": [[1, 0.5]]}
    recipe = {"about": "Told", "dataset": "tiny", "optim": optim, "method": {"name": "natural"}}
    record["made_from"] |= {"training_examples": 24, "epochs": 2, "recipe": recipe}
    record["validation"] = {"counts": [10, 30], "nat": [0.1, 0.3], "rob": [0.5, 0.5]}
    publish("tiny/first", 0, build("lenet5", classes=3), record, root)
    for seed in (3, 0):
        publish("tiny/second", seed, None, record, root)
    page = model_cards.cards(root)
    assert "\n## tiny/first\n" in page and "\n## tiny/second\n" not in page
    assert "rate 0.001, 0.0005 from epoch 2" in page
    assert ("| tiny/second | Told | 0, 3 | 25.00 ± 0.00 | 30.00 ± 0.00 | 50.00 ± 0.00 | 50.00 ± "
            "0.00 |" in page)
    shutil.rmtree(root / "tiny/second")
    with pytest.raises(CourseError, match="missing"):
        model_cards.cards(root)
