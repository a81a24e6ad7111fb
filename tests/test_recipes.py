import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from course_lib import recipes
from course_lib.attacks import ATTACKS, NAMED, PGD, predict
from course_lib.data import LOADERS, load
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from course_lib.fairness import Report, Spread
from course_lib.methods import METHODS
from course_lib.models import MODELS
from course_lib.recipes import CHOSEN, RECIPES, TRANSFORMS, Copies, digest, finished, run, stored_name, up_to_date
from course_lib.training import Optim
from course_lib.zoo import entry, list_models, load_model, load_record, load_reports, manifest, models_dir, publish
from tests.helpers import network_of, same_weights, tiny_dataset, with_tiny_recipes

stored = pytest.mark.skipif(
    not (models_dir() / "manifest.json").exists(),
    reason="serialized_models/manifest.json is not there yet; `make models` makes it"
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tiny_recipes(monkeypatch)


# ------------------------------------------------------------------------------------------ every recipe


@pytest.mark.parametrize("name", RECIPES)
def test_names_only_what_there_is(name: str) -> None:
    r = RECIPES[name]
    assert (r.dataset in LOADERS and r.transform in TRANSFORMS and r.model in MODELS
            and r.epochs >= 1 and r.seeds >= 1 and r.about)
    assert type(r.method) is METHODS[r.method.name] and all(0 < eps < (100 if NAMED[a].scale else 1)
                                                            for a, eps in r.examination)
    for first in r.needs:
        assert RECIPES[first].weights and RECIPES[first].seeds >= r.seeds and not RECIPES[
            first].needs


@pytest.mark.parametrize("name", RECIPES)
def test_is_data(name: str) -> None:
    data = json.loads(json.dumps(RECIPES[name].as_data()))
    assert data["method"]["name"] == RECIPES[name].method.name and data["epochs"] == RECIPES[
        name].epochs


def test_experiment_1_is_the_reports() -> None:
    """Adam 1e-3, batches of 100, divided by 3 every 4 of 15 epochs, on all 60,000; half of each
    batch attacked by PGD-20 at 8/255."""
    thirds = Optim("adam", 1e-3, 100, ((4, 1 / 3), (8, 1 / 9), (12, 1 / 27)))
    natural, mixed, ours = (RECIPES[f"exp1/{n}"] for n in ("natural", "pgd-at-mixed", "pgd-at"))
    for r in (natural, mixed):
        assert (r.optim, r.epochs, r.transform, r.model, r.dataset, r.seeds) == (thirds, 15,
            "whole", "lenet5", "fashion-mnist", 5)
    assert natural.method == METHODS[
        "natural"]() and mixed.method.mix == 0.5 and ours.method.mix == 0
    assert mixed.method.attack == ATTACKS["pgd20"] and ours.method.attack == ATTACKS["pgd10"]
    assert (ours.optim, ours.transform) == (dataclasses.replace(thirds, batch=128), "")
    assert natural.examination == (("pgd20", 8 / 255), ("pgd20", 16 / 255))


def test_experiment_4_is_on_equal_terms() -> None:
    """The same data, schedule and number of epochs for all; FRL's hot start counts; the same number
    of trials a method."""
    mine = {n.removeprefix("exp4/"): r for n, r in RECIPES.items() if n.startswith("exp4/")}
    assert {(r.optim, r.epochs, r.dataset, r.start)
            for r in mine.values()} == {(mine["pgd-at"].optim, 35, "fashion-mnist", "")}
    frl = RECIPES["exp3/reweight-remargin-05"]
    assert frl.epochs + RECIPES[frl.start].epochs == 35
    assert {r.transform for n, r in mine.items() if not n.startswith("without")} == {""}
    assert all(mine[n].seeds == 5 and mine[n].weights for n in CHOSEN)
    assert all(r.seeds == 3 and not r.weights for n, r in mine.items() if n not in CHOSEN)
    for name in CHOSEN:
        tried = [n for n in RECIPES if n.startswith(f"tune/{name}-")]
        assert len(tried) == 4 and {RECIPES[n].epochs
                                    for n in tried} == {15} and not any(RECIPES[n].examination
                                        for n in tried)
        assert mine[name].method in [RECIPES[n].method for n in tried]


def test_experiment_4_takes_what_the_trials_found() -> None:
    """The lowest mean of the worst class's standard and robust error on validation data, where a
    method's trials are all stored."""
    for name in CHOSEN:
        tried = [n for n in RECIPES if n.startswith(f"tune/{name}-")]
        if set(tried) <= set(manifest()):
            found = {n: Report.from_json(load_record(n)["validation"]) for n in tried}
            best = min(tried, key=lambda n: found[n].nat.worst + found[n].rob.worst)
            assert RECIPES[f"exp4/{name}"].method == RECIPES[best].method, best


@pytest.mark.parametrize(("transform", "left"),
                         [("without-hardest", "TrouserDressSandalSneakerBagAnkle boot"),
                                                 ("without-easiest",
                                                  "T-shirt/topPulloverDressCoatShirtSneaker")])
def test_classes_left_out(transform: str, left: str) -> None:
    data = TRANSFORMS[transform](load("fashion-mnist", limit=100))
    assert "".join(data.classes) == left and len(
        data.test) == 6000 and data.train.y.unique().tolist() == list(range(6))


# ------------------------------------------------------------------------------------------ running one


@pytest.mark.usefixtures("tiny")
def test_run_trains_examines_and_records(tmp_path: Path) -> None:
    trained, record = run("tiny/first", 1, tmp_path, progress=False)
    data = tiny_dataset()
    report = Report.from_json(record["reports"][0])
    assert report == evaluate(trained.model, data.test, ATTACKS["pgd10"].at(2 / 255), name="pgd10",
                              progress=False)
    assert Report.from_json(record["validation"]).nat.counts == (3, 3,
        3) and len(record["history"]) == 2
    made = record["made_from"]
    assert (record["recipe"], record["seed"], made["epochs"],
            made["training_examples"]) == ("tiny/first", 1, 2, 24)
    assert (
        made["data_sha256"] == data.train.digest()
        and made["classes"] == list(data.classes)
        and made["versions"]["threads"] == torch.get_num_threads()
    )
    assert up_to_date(json.loads(json.dumps(record)))


@pytest.mark.usefixtures("tiny")
def test_the_same_command_goes_on(tmp_path: Path) -> None:
    """A second run finds the first one's checkpoints, a fresh folder none: and both find the same
    model."""
    first, _ = run("tiny/first", 0, tmp_path / "a", progress=False)
    again, record = run("tiny/first", 0, tmp_path / "a", progress=False)
    fresh, other = run("tiny/first", 0, tmp_path / "b", progress=False)
    assert same_weights(first.model, again.model) and same_weights(first.model, fresh.model)
    assert {k: v for k, v in record.items() if k != "seconds"} == {k: v for k, v in other.items()
        if k != "seconds"}


@pytest.mark.usefixtures("tiny")
def test_an_edited_recipe_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, record = run("tiny/first", 0, tmp_path, progress=False)
    monkeypatch.setitem(RECIPES, "tiny/first",
                        dataclasses.replace(RECIPES["tiny/first"], optim=Optim(lr=0.1, batch=8)))
    assert not up_to_date(record)
    _, other = run("tiny/first", 0, tmp_path, progress=False)
    assert up_to_date(other) and other["history"] != record["history"]


@pytest.mark.usefixtures("tiny")
def test_a_hot_start_takes_the_weights_of_its_seed(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="starts from tiny/first, seed 1, which is not in .*runs "
                       "and .*Train that first, with"):
        run("tiny/second", 1, tmp_path / "runs", models=tmp_path, progress=False)
    for seed in (0, 1):
        trained, record = run("tiny/first", seed, tmp_path / "runs", progress=False)
        publish("tiny/first", seed, trained.model, record, tmp_path)
    warm, _ = run("tiny/second", 1, tmp_path / "runs", models=tmp_path, epochs=0, progress=False)
    assert same_weights(warm.model, load_model("tiny/first", seed=1, root=tmp_path))


@pytest.mark.usefixtures("tiny")
def test_a_hot_start_that_was_trained_into_the_same_folder_comes_before_a_stored_one(tmp_path:
        Path) -> None:
    """`train` publishes into --out; what it leaves there is what the next training is to start
    from."""
    runs, mine = tmp_path / "runs", run("tiny/first", 1, tmp_path / "a", progress=False)
    stored = run("tiny/first", 0, tmp_path / "b", progress=False)[0].model
    publish("tiny/first", 1, stored, mine[1], tmp_path / "models")
    publish("tiny/first", 1, mine[0].model, mine[1], runs)
    warm, _ = run("tiny/second", 1, runs, models=tmp_path / "models", epochs=0, progress=False)
    assert same_weights(warm.model, mine[0].model) and not same_weights(warm.model, stored)
    path = runs / str(entry("tiny/first", 1, runs)["weights"]["file"])
    # damaged: nobody wants another one's weights instead, and nobody is told nothing
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CourseError, match="damaged"):
        run("tiny/second", 1, runs, models=tmp_path / "models", epochs=0, progress=False)


@pytest.mark.usefixtures("tiny")
def test_static_copies_are_made_once_from_another_recipes_model_and_join_the_clean_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = PGD(0.3, 0.1, 4)
    static = dataclasses.replace(RECIPES["tiny/first"], copies=Copies("tiny/first", attack),
                                 seeds=1)
    monkeypatch.setitem(RECIPES, "tiny/static", static)
    assert digest(static) != digest(RECIPES["tiny/first"]) and static.needs == {"tiny/first"}
    with pytest.raises(CourseError, match="makes copies that fool tiny/first, seed 0, which is not "
                       "in .*Train that first"):
        run("tiny/static", 0, tmp_path / "runs", models=tmp_path, progress=False)
    trained, record = run("tiny/first", 0, tmp_path / "runs", progress=False)
    publish("tiny/first", 0, trained.model, record, tmp_path)
    seen: list[Any] = []
    real = recipes.fit
    monkeypatch.setattr(recipes, "fit", lambda *a, **k: (seen.append(a[2]), real(*a, **k))[1])
    other, record = run("tiny/static", 0, tmp_path / "runs", models=tmp_path, progress=False)
    clean, (both,) = tiny_dataset().train, seen
    copies = both.x[24:]
    assert torch.equal(both.x[:24], clean.x) and torch.equal(both.y,
        torch.cat([clean.y, clean.y])) and len(both) == 48
    assert 0.2 < (copies
                  - clean.x).abs().max() <= 0.3 + 1e-6 and copies.min() >= 0 and copies.max() <= 1
    wrong = [int((predict(trained.model, x, clean.y) != clean.y).sum()) for x in (clean.x, copies)]
    assert wrong[1] > wrong[0], "they fool the model they were made for"
    made = record["made_from"]
    told = {"of": "tiny/first", "weights": entry("tiny/first", 0,
                                                 tmp_path)["weights"]["sha256"][:8],
            "data_sha256": both.digest()}
    assert made["training_examples"] == 48 and made["data_sha256"] == clean.digest() and made[
        "copies"] == told
    fresh, again = run("tiny/static", 0, tmp_path / "fresh", models=tmp_path, progress=False)
    assert same_weights(other.model, fresh.model) and again["made_from"] == made and up_to_date(
        record)


def test_the_scores_recipes_are_the_papers() -> None:
    """Adam, batches of 250, 20 epochs, three seeds; eps .01 and 10; the budgets of Tables I and II;
    Adult balanced, in its own units."""
    for data, model, first in (("cifar10", "small_cnn", 0.01), ("adult", "table_mlp", 10)):
        three = [RECIPES[f"scores/{data}-{kind}"] for kind in ("standard", "robust", "static")]
        assert {(r.optim.name, r.optim.batch, r.epochs, r.seeds, r.dataset, r.model)
                for r in three} == {("adam", 250, 20, 3, data, model)}
        assert len({(r.optim, r.transform, r.examination)
                    for r in three}) == 1 and three[0].examination[0][1] == first
        standard, robust, static = three
        copied: Any = static.copies
        anew = dataclasses.replace(copied.attack, bf16=data == "cifar10")
        assert robust.method.attack == anew and anew.eps == first  # type: ignore[attr-defined]
        assert standard.method == static.method and copied.of == f"scores/{data}-standard"
        assert bool(robust.method.attack.scale) == (data == "adult")  # type: ignore[attr-defined]
    train = TRANSFORMS["balanced"](load("adult", limit=1000)).train
    assert train.y.bincount().tolist() == [int((load("adult", limit=1000).train.y == 0).sum())] * 2
    assert len(TRANSFORMS["balanced"](load("adult", limit=1000)).val) == 200


@pytest.mark.parametrize(
    ("words", "label", "count", "epochs"),
    [
        ({"limit": 12}, "tiny/first@limit=12", 12, 2),
        ({"epochs": 1}, "tiny/first@epochs=1", 24, 1),
        ({"limit": 12, "epochs": 1}, "tiny/first@limit=12@epochs=1", 12, 1),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_a_shortened_run_never_bears_the_recipes_name(words: dict[str, int], label: str, count: int,
                                                      epochs: int, tmp_path: Path) -> None:
    _, record = run("tiny/first", 0, tmp_path, progress=False, **words)
    made = record["made_from"]
    assert (record["recipe"], made["training_examples"], made["epochs"]) == (label, count, epochs)
    assert stored_name("tiny/first", None, None) == "tiny/first"
    assert not up_to_date({**record, "recipe": "tiny/first"}) or epochs == 2


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another training": lambda r: r["made_from"].update(digest="0" * 12),
    "a training that is not told": lambda r: r["made_from"].pop("digest"),
    "other epochs": lambda r: r["made_from"].update(epochs=1),
    "another recipe": lambda r: r.update(recipe="tiny/second"),
    "an unknown recipe": lambda r: r.update(recipe="tiny/third"),
    "no circumstances": lambda r: r.pop("made_from"),
    "no name": lambda r: r.pop("recipe"),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.usefixtures("tiny")
def test_a_record_of_something_else_is_not_up_to_date(kind: str, tmp_path: Path) -> None:
    _, record = run("tiny/first", 0, tmp_path, progress=False)
    publish("tiny/first", 0, network_of(RECIPES["tiny/first"]), record, tmp_path)
    assert finished("tiny/first", 0, tmp_path) == json.loads(json.dumps(record))
    CHANGES[kind](record)
    assert not up_to_date(record)
    publish("tiny/first", 0, network_of(RECIPES["tiny/first"]), record, tmp_path)
    assert finished("tiny/first", 0, tmp_path) is None


SAME = [{"about": "in other words"}, {"seeds": 1}, {"examination": ()}, {"weights": False}]
OTHER = [
    {"epochs": 3},
    {"transform": "whole"},
    {"start": "exp1/natural"},
    {"validation": PGD(steps=3)},
    {"dataset": "fashion-mnist"},
    {"optim": Optim(batch=9)},
    {"optim": Optim(batch=8, drops=((1, 0.5),))},
    {"method": METHODS["pgd_at"]()},
    {"method": METHODS["pgd_at"](mix=0.5)},
    {"method": METHODS["pgd_at"](PGD(steps=10, eps=0.02))},
]


@pytest.mark.usefixtures("tiny")
def test_the_digest_changes_with_what_the_training_depends_on() -> None:
    recipe = RECIPES["tiny/first"]
    assert {digest(dataclasses.replace(recipe, **words)) for words in SAME} == {digest(recipe)}
    assert len({digest(recipe), *(digest(dataclasses.replace(recipe, **words))
                                  for words in OTHER)}) == 1 + len(OTHER)


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"name": "exp1/naturel"}, "Did you mean 'exp1/natural'"),
        ({"name": "tiny/first", "seed": -1}, "seed is -1"),
        ({"name": "tiny/first", "epochs": -1}, "epochs is -1"),
        ({"name": "exp1/natural", "limit": 0}, "limit is 0"),
        ({"name": "exp1/natural", "root": "/nowhere"}, "does not hold Fashion-MNIST"),
    ],
)
@pytest.mark.usefixtures("tiny")
def test_bad_input(words: dict[str, Any], say: str, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match=say):
        run(**{"seed": 0, "out": tmp_path, "progress": False, **words})
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.usefixtures("tiny")
def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CourseError, match="Choose a folder that you may write to"):
        run("tiny/first", 0, tmp_path / "file", progress=False)
    assert (tmp_path / "file").read_text() == "mine"


def test_without_the_full_data_a_recipe_trains_on_it_or_not_at_all(tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("course_lib.data.torchvision_datasets", fail)
    with pytest.raises(CourseError, match="60,000 training images are not on this machine"):
        run("exp1/natural", 0, tmp_path, progress=False)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


# ------------------------------------------------------------------------------------------ what is stored


def everything() -> list[tuple[str, int, dict[str, Any]]]:
    return [(name, int(seed), load_record(name, seed=int(seed))) for name,
            seeds in manifest().items() for seed in seeds]


def contained(told: Any, now: Any) -> bool:
    """Is all that was told still so? Fields may have been added since."""
    if isinstance(told, dict):
        return isinstance(now, dict) and all(k in now and contained(v, now[k]) for k,
                                             v in told.items())
    return told == now


@stored
def test_stored_records_are_made_from_the_recipes_as_they_stand() -> None:
    records = everything()
    assert records and [f"{n}, seed {s}" for n, s, r in records
                        if not (up_to_date(r) and r["recipe"] == n and r["seed"] == s)] == []
    hashes: dict[tuple[str, str], set[str]] = {}
    for name, _, record in records:
        made, recipe = record["made_from"], RECIPES[name]
        told = {k: v for k, v in made["recipe"].items()
                if k not in ("about", "seeds", "examination", "weights")}
        assert contained(told, json.loads(json.dumps(
            recipe.as_data()))), f"{name}: the recipe changed, its defaults included"
        if recipe.dataset == "fashion-mnist":
            assert len(made["classes"]) == (6 if recipe.transform.startswith("without-")
                                            else 10), name
            assert made["training_examples"] == (60_000 if recipe.transform == "whole"
                                                 else 4_800 * len(made["classes"])), name
        assert len(record["history"]) == recipe.epochs and made["versions"]["threads"] >= 1
        hashes.setdefault((recipe.dataset, recipe.transform), set()).add(made["data_sha256"])
    assert all(len(found) == 1
               for found in hashes.values()), "the same data set must be the same data"


@stored
def test_stored_reports_are_the_recipes_examination_of_the_whole_test_set() -> None:
    for name, seed, record in everything():
        reports = [Report.from_json(row) for row in record["reports"]]
        adult = RECIPES[name].dataset == "adult"  # its classes are not of one size
        n_test = 15_060 if adult else 1_000 * len(record["made_from"]["classes"])
        # the others are on the first images of each class
        whole = [r for r in reports if sum(r.nat.counts) == n_test]
        assert {(r.attack, r.eps) for r in whole} >= set(RECIPES[name].examination), (name, seed)
        assert all(list(r.classes) == record["made_from"]["classes"] and min(r.bnd.wrong) >= 0
                   for r in reports)
        assert adult or all(len(set(r.nat.counts)) == 1 for r in reports)
        assert all(r.nat == next(o.nat for o in reports if o.nat.counts == r.nat.counts)
                   for r in reports)
        assert len({(r.attack, r.eps, r.nat.counts)
                    for r in reports}) == len(reports) and reports == sorted(
            reports, key=lambda r: -sum(r.nat.counts))


@stored
def test_experiment_1_is_stored_whole_and_small() -> None:
    rows = list_models()
    for name in ("exp1/natural", "exp1/pgd-at-mixed", "exp1/pgd-at"):
        assert {r["seed"] for r in rows if r["recipe"] == name
                and r["bytes"]} >= set(range(5)), name
    assert sum(r["bytes"] for r in rows) <= 25_000_000


@stored
@pytest.mark.parametrize("name", [n for n in RECIPES if n.startswith("exp1/")])
def test_stored_weights_make_the_errors_that_are_reported(name: str) -> None:
    model, test = load_model(name), load("fashion-mnist").test
    wrong = torch.cat([predict(model, test.images(part), test.y[part]) != test.y[part]
                       for part in torch.arange(len(test)).split(2000)])
    found, told = torch.bincount(test.y[wrong],
                                 minlength=10), torch.tensor(load_reports(name)[0].nat.wrong)
    # another processor may round a borderline image otherwise
    assert (found - told).abs().max() <= 2


@stored
@pytest.mark.parametrize(
    ("name", "nat", "rob"), [("exp1/natural", (0.115, 0.32), (0.54, 0.96)),
                             ("exp1/pgd-at-mixed", (0.13, 0.47), (0.24, 0.68))]
)
def test_experiment_1_finds_what_the_report_found(name: str, nat: tuple[float, float],
                                                  rob: tuple[float, float]) -> None:
    """Average within 3 points, worst class within 8."""
    reports = load_reports(name)
    for errors, (average, worst) in (([r.nat for r in reports], nat),
                                     ([r.rob for r in reports], rob)):
        assert Spread.of(e.mean for e in errors).mean == pytest.approx(average, abs=0.03)
        assert Spread.of(e.worst for e in errors).mean == pytest.approx(worst, abs=0.08)
