"""Recipes and their stored results are what the papers say, and each recipe can take a step."""

import dataclasses
import functools
import json

import pytest
import torch

from course_lib import LOADERS, METHODS, MODELS, RECIPES, Split, build, fit, list_models, load
from course_lib.evaluation import named
from course_lib.experiments import TRANSFORMS
from course_lib.experiments.exp4 import CHOSEN
from course_lib.fairness import Errors, Report
from course_lib.lab import sweep
from course_lib.zoo import load_record, manifest
from tests.helpers import images, labels
from tests.methods.test_methods import at


def test_recipes_name_only_what_there_is_and_are_data():
    for name, r in RECIPES.items():
        assert r.dataset in LOADERS and r.transform in TRANSFORMS and r.model in MODELS, name
        assert min(r.epochs, r.seeds) >= 1 and r.about
        assert isinstance(r.method, METHODS[r.method.name])
        assert all(0 < eps < (100 if named(a).scale else 1) for a, eps in r.examination), name
        for first in (RECIPES[n] for n in r.needs):
            assert first.weights and first.seeds >= r.seeds and not first.needs, name
        data = json.loads(json.dumps(r.as_data()))
        assert (data["method"]["name"], data["epochs"]) == (r.method.name, r.epochs)


def test_experiment_4_is_on_equal_terms():
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


def test_experiment_4_takes_what_the_trials_found():
    """The lowest mean of the worst class's standard and robust error on validation data, where a
    method's trials are all stored."""
    for name in CHOSEN:
        tried = [n for n in RECIPES if n.startswith(f"tune/{name}-")]
        if set(tried) <= set(manifest()):
            found = {n: Report.from_json(load_record(n)["validation"]) for n in tried}
            best = min(tried, key=lambda n: found[n].nat.worst + found[n].rob.worst)
            assert RECIPES[f"exp4/{name}"].method == RECIPES[best].method, best


@pytest.mark.parametrize(("transform", "left"), [
    ("without-hardest", "TrouserDressSandalSneakerBagAnkle boot"),
    ("without-easiest", "T-shirt/topPulloverDressCoatShirtSneaker")])
def test_classes_left_out(transform, left):
    data = TRANSFORMS[transform](load("fashion-mnist", limit=100))
    assert "".join(data.classes) == left and len(data.test) == 6000


def test_what_steers_frl_in_the_contest():
    """Training images in place of validation images, or each class told the next one's errors."""
    data = load("fashion-mnist", limit=1000)
    seen = TRANSFORMS["validated-on-training"](data)
    assert torch.equal(seen.val.x, data.train.x[:len(data.val)]) and len(seen.val) == len(data.val)
    frl, shifted = (RECIPES[n].method for n in ("exp2/reweight-05", "contest/frl-by-shifted"))
    assert vars(frl) == vars(shifted)
    nat, rob = (Errors((n, *[1] * 9), (10,) * 10) for n in (7, 9))
    report = Report(nat, rob, data.classes)
    own, other = (method.update(method.init_state(10), report, at())["w0"]
                  for method in (frl, shifted))
    assert own.argmax() == 0 and torch.equal(other, own.roll(-1))


# fields of FRL that no recipe ever changed
ONCE = {"weights": "lagrangian", "accumulate": True, "boundary": "difference",
        "boundary_loss": "kl", "centred": True}


def contained(told, now):
    """Is all that was told still so? Fields may have been added since."""
    if isinstance(told, dict):
        return isinstance(now, dict) and all(k in now and contained(v, now[k])
                                             for k, v in told.items())
    return bool(told == now)


@pytest.mark.filterwarnings("ignore:.*changed, and is kept")  # the source has changed since
def test_stored_records_are_made_from_the_recipes_as_they_stand(monkeypatch):
    monkeypatch.setattr(sweep, "sources", functools.cache(sweep.sources))  # seeds share a method
    records = [(name, int(seed), load_record(name, seed=int(seed)))
               for name, seeds in manifest().items() for seed in seeds]
    assert records and [f"{n}, seed {s}" for n, s, r in records
                        if not (sweep.up_to_date(r) and r["recipe"] == n and r["seed"] == s)] == []
    hashes = {}
    for name, seed, record in records:
        the_examination_is_the_recipes(record, name, seed)
        made, recipe = record["made_from"], RECIPES[name]
        now, told = json.loads(json.dumps(recipe.as_data())), dict(made["recipe"])
        # an old one is recorded as FRL, with constants beside its fields
        if recipe.method.name == "frl_report" != told["method"]["name"]:
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


def the_examination_is_the_recipes(record, name, seed):
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


def test_what_is_stored_is_small():
    assert list_models()["bytes"].sum() <= 25_000_000


GPU = {name: recipe for name, recipe in RECIPES.items() if name.startswith("gpu/")}
OURS = {name: recipe for name, recipe in RECIPES.items() if name.startswith("cifar10/")}
# a network of each kind on each data set, and each method; the largest are tested by their size
LIGHT = [name for name, r in GPU.items() if not r.model.startswith("wide_resnet")
         and ((r.dataset == "cifar10" and "preact" in r.model) or name.endswith("/pgd-at"))]


def takes_a_step(recipe, classes, pixels):
    """One step of the attack, one of the optimiser, on a batch of two; all weights change."""
    model = build(recipe.model, classes=classes)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    method = recipe.method
    if method.name != "natural":
        method = dataclasses.replace(method, attack=dataclasses.replace(method.attack, steps=1))
    names = tuple(map(str, range(classes)))
    nat, rob = (Errors((n, *[1] * (classes - 1)), (10,) * classes) for n in (7, 9))
    history = fit(model, method, Split(images(2, (3, pixels, pixels)), labels(2, classes), names),
                  epochs=1, optim=recipe.optim, seed=0, progress=False,
                  validate=lambda m, at: Report(nat, rob, names, "pgd20", 8 / 255)).history
    assert history[0]["loss"] > 0 and len(history[0]["validation"]) == 1
    for key, now in model.named_parameters():
        assert torch.isfinite(now).all() and not torch.equal(now, before[key]), key


@pytest.mark.parametrize("name", LIGHT)
def test_each_takes_a_step(name):
    data = GPU[name].dataset
    takes_a_step(GPU[name], 100 if data == "cifar100" else 10, 32 if data == "imagenette" else 8)


@pytest.mark.parametrize("name", OURS)
def test_ours_attack_as_the_papers_in_bfloat16_and_take_a_step(name):
    assert OURS[name].method.name == "natural" or OURS[name].method.attack.bf16
    assert all(attack in ("pgd20", "cw20") for attack, _ in OURS[name].examination), (
        "what is published is computed in float32")
    takes_a_step(OURS[name], 10, 8)
