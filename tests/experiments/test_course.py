"""The recipes of the course are what the papers and the report say, and so are their results."""

import json
from typing import Any

import pytest
import torch

from course_lib.data import LOADERS, load
from course_lib.evaluation import named
from course_lib.experiments import RECIPES, TRANSFORMS
from course_lib.experiments.exp4 import CHOSEN
from course_lib.fairness import Report, Spread
from course_lib.inference import predict
from course_lib.lab.sweep import up_to_date
from course_lib.methods import METHODS
from course_lib.models import MODELS
from course_lib.tables import list_models
from course_lib.zoo import load_model, load_record, load_reports, manifest, models_dir

stored = pytest.mark.skipif(not (models_dir() / "manifest.json").exists(),
                            reason="no serialized_models/manifest.json; `make models` makes it")


@pytest.mark.parametrize("name", RECIPES)
def test_names_only_what_there_is_and_is_data(name: str) -> None:
    r = RECIPES[name]
    assert r.dataset in LOADERS and r.transform in TRANSFORMS and r.model in MODELS
    assert r.epochs >= 1 and r.seeds >= 1 and r.about and type(r.method) is METHODS[r.method.name]
    assert all(0 < eps < (100 if named(a).scale else 1) for a, eps in r.examination)
    for first in r.needs:
        assert RECIPES[first].weights and RECIPES[first].seeds >= r.seeds
        assert not RECIPES[first].needs
    data = json.loads(json.dumps(r.as_data()))
    assert (data["method"]["name"], data["epochs"]) == (r.method.name, r.epochs)


def test_experiment_4_is_on_equal_terms() -> None:
    """The same data, schedule and number of epochs for all; FRL's hot start counts; the same number
    of trials a method."""
    mine = {n.removeprefix("exp4/"): r for n, r in RECIPES.items() if n.startswith("exp4/")}
    assert len({(r.optim, r.epochs, r.dataset, r.start) for r in mine.values()}) == 1
    for name, r in mine.items():
        assert r.transform == (name if name.startswith("without") else "")
        assert (r.seeds, r.weights) == ((5, True) if name in CHOSEN else (3, False))
    for name in CHOSEN:
        tried = [r for n, r in RECIPES.items() if n.startswith(f"tune/{name}-")]
        assert [(r.epochs, r.examination) for r in tried] == [(15, ())] * 4
        assert mine[name].method in [r.method for r in tried]


@pytest.mark.parametrize("name", CHOSEN)
def test_experiment_4_takes_what_the_trials_found(name: str) -> None:
    """The lowest mean of the worst class's standard and robust error on validation data, where a
    method's trials are all stored."""
    tried = [n for n in RECIPES if n.startswith(f"tune/{name}-")]
    if set(tried) <= set(manifest()):
        found = {n: Report.from_json(load_record(n)["validation"]) for n in tried}
        best = min(tried, key=lambda n: found[n].nat.worst + found[n].rob.worst)
        assert RECIPES[f"exp4/{name}"].method == RECIPES[best].method, best


@pytest.mark.parametrize(("transform", "left"), [
    ("without-hardest", "TrouserDressSandalSneakerBagAnkle boot"),
    ("without-easiest", "T-shirt/topPulloverDressCoatShirtSneaker")])
def test_classes_left_out(transform: str, left: str) -> None:
    data = TRANSFORMS[transform](load("fashion-mnist", limit=100))
    assert "".join(data.classes) == left and len(data.test) == 6000
    assert data.train.y.unique().tolist() == list(range(6))


# ----------------------------------------------------------------------------------- what is stored


# fields of FRL that no recipe ever changed
ONCE = {"weights": "lagrangian", "accumulate": True, "boundary": "difference",
        "boundary_loss": "kl", "centred": True}


def contained(told: Any, now: Any) -> bool:
    """Is all that was told still so? Fields may have been added since."""
    if isinstance(told, dict):
        return isinstance(now, dict) and all(k in now and contained(v, now[k])
                                             for k, v in told.items())
    return bool(told == now)


@stored
@pytest.mark.filterwarnings("ignore:.*is not trained again")  # the source has changed since
def test_stored_records_are_made_from_the_recipes_as_they_stand() -> None:
    records = [(name, int(seed), load_record(name, seed=int(seed)))
               for name, seeds in manifest().items() for seed in seeds]
    assert records and [f"{n}, seed {s}" for n, s, r in records
                        if not (up_to_date(r) and r["recipe"] == n and r["seed"] == s)] == []
    hashes: dict[tuple[str, str], set[str]] = {}
    for name, seed, record in records:
        the_examination_is_the_recipes(record, name, seed)
        made, recipe = record["made_from"], RECIPES[name]
        now, told = json.loads(json.dumps(recipe.as_data())), dict(made["recipe"])
        if recipe.method.name == "frl_report":  # recorded as FRL, with constants beside its fields
            constants = json.loads(json.dumps(dict(recipe.method.RECORDED_AS, kind="frl")))
            now["method"] |= constants | {"name": constants.pop("kind")}
            told["method"] = {k: told["method"][k] for k in now["method"] if k != "kind"}
        elif recipe.method.name == "frl":  # its records name the constants that differ there
            told["method"] = {k: v for k, v in told["method"].items() if k not in ONCE} | {
                k: v for k, v in told["method"].items() if v != ONCE.get(k, v)}
        told = {k: v for k, v in told.items()
                if k not in ("about", "seeds", "examination", "weights")}
        assert contained(told, now), f"{name}: the recipe changed, its defaults included"
        if recipe.dataset == "fashion-mnist":
            without = recipe.transform.startswith("without-")
            assert len(made["classes"]) == (6 if without else 10), name
            assert made["training_examples"] == (60_000 if recipe.transform == "whole"
                                                 else 4_800 * len(made["classes"])), name
        assert len(record["history"]) == recipe.epochs and made["versions"]["threads"] >= 1
        hashes.setdefault((recipe.dataset, recipe.transform), set()).add(made["data_sha256"])
    assert all(len(found) == 1 for found in hashes.values()), "a data set must be the same data"


def the_examination_is_the_recipes(record: dict[str, Any], name: str, seed: int) -> None:
    reports = [Report.from_json(row) for row in record["reports"]]
    adult = RECIPES[name].dataset == "adult"  # its classes are not of one size
    n_test = 15_060 if adult else 1_000 * len(record["made_from"]["classes"])
    # the others are on the first images of each class
    full = {(r.attack, r.eps) for r in reports if sum(r.nat.counts) == n_test}
    assert full >= set(RECIPES[name].examination), (name, seed)
    for r in reports:
        assert list(r.classes) == record["made_from"]["classes"] and min(r.bnd.wrong) >= 0
        assert adult or len(set(r.nat.counts)) == 1
        assert r.nat == next(o.nat for o in reports if o.nat.counts == r.nat.counts)
    assert len({(r.attack, r.eps, r.nat.counts) for r in reports}) == len(reports)
    assert reports == sorted(reports, key=lambda r: -sum(r.nat.counts))


@stored
def test_experiment_1_is_stored_whole_and_small() -> None:
    rows = list_models().to_dict("records")
    for name in ("exp1/natural", "exp1/pgd-at-mixed", "exp1/pgd-at"):
        assert {r["seed"] for r in rows if r["recipe"] == name and r["bytes"]} >= set(range(5))
    assert sum(r["bytes"] for r in rows) <= 25_000_000


@stored
@pytest.mark.parametrize("name", [n for n in RECIPES if n.startswith("exp1/")])
def test_stored_weights_make_the_errors_that_are_reported(name: str) -> None:
    model, test = load_model(name), load("fashion-mnist").test
    wrong = torch.cat([predict(model, test.images(part), test.y[part]) != test.y[part]
                       for part in torch.arange(len(test)).split(2000)])
    now = torch.bincount(test.y[wrong], minlength=10)
    # another processor may round a borderline image otherwise
    assert (now - torch.tensor(load_reports(name)[0].nat.wrong)).abs().max() <= 2


@stored
@pytest.mark.parametrize(("name", "kind", "average", "worst"), [
    ("exp1/natural", "nat", 0.115, 0.32), ("exp1/natural", "rob", 0.54, 0.96),
    ("exp1/pgd-at-mixed", "nat", 0.13, 0.47), ("exp1/pgd-at-mixed", "rob", 0.24, 0.68)])
def test_experiment_1_finds_what_the_report_found(name: str, kind: str, average: float,
                                                  worst: float) -> None:
    """Average within 3 points, worst class within 8."""
    errors = [getattr(r, kind) for r in load_reports(name)]
    assert Spread.of(e.mean for e in errors).mean == pytest.approx(average, abs=0.03)
    assert Spread.of(e.worst for e in errors).mean == pytest.approx(worst, abs=0.08)
