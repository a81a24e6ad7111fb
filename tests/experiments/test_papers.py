"""The papers' recipes say what the papers' code says, and each of them can take a step."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from course_lib.experiments.resnets import DATA, EPOCHS, HOT_EPOCHS, HOT_START, NETWORKS
from torch import nn

from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.experiments import RECIPES
from course_lib.fairness import Errors, Report
from course_lib.methods import METHODS
from course_lib.models import build
from course_lib.recipes import Recipe, run
from course_lib.training import Optim, fit
from course_lib.zoo import publish
from tests.helpers import images, labels

GPU = {name: recipe for name, recipe in RECIPES.items() if name.startswith("gpu/")}
OURS = {name: recipe for name, recipe in RECIPES.items() if name.startswith("cifar10/")}
KINDS = ("pgd-at", "trades-1", "trades-6", "frl-05", "frl-07", "bat", "fat", "gairat")
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenette": 10}


def is_heavy(name: str) -> bool:
    return GPU[name].model == "wide_resnet28x10_imagenet"


@functools.lru_cache(maxsize=1)  # the recipes come network by network
def weights(model: str, classes: int) -> dict[str, torch.Tensor]:
    return build(model, classes=classes).state_dict()


@functools.lru_cache(maxsize=1)
def bare(model: str, classes: int) -> nn.Module:
    """One network of each kind for the whole file: made once, since drawing 36 million weights
    takes longer than a step."""
    return build(model, classes=classes)


def network(model: str, classes: int) -> nn.Module:
    bare(model, classes).load_state_dict(weights(model, classes))
    return bare(model, classes)


def unfair(classes: int) -> Report:
    """The first class is worse than the others."""
    nat, rob = ((n, *[1] * (classes - 1)) for n in (7, 9))
    return Report(Errors(nat, (10,) * classes), Errors(rob, (10,) * classes),
                  tuple(map(str, range(classes))), "pgd20", 8 / 255)


def one_step(recipe: Recipe, model: nn.Module, classes: int, pixels: int) -> None:
    """One step of the attack, one of the optimiser, on a batch of two."""
    method = recipe.method if recipe.method.name == "natural" else dataclasses.replace(
        recipe.method, attack=dataclasses.replace(recipe.method.attack, steps=1))
    batch = Split(images(2, (3, pixels, pixels)), labels(2, classes),
                  tuple(map(str, range(classes))))
    run = fit(model, method, batch, epochs=1, optim=recipe.optim, seed=0, validate=lambda m,
              at: unfair(classes), progress=False)
    assert run.history[0]["loss"] > 0 and len(run.history[0]["validation"]) == (recipe.method.name
        == "frl")


# ------------------------------------------------------------------------------------------ at the papers' size


def test_every_method_network_and_data_set() -> None:
    assert set(GPU) == {f"gpu/{d}/{n}/{k}" for d in CLASSES
                        for n in ("resnet18", "preact_resnet18", "wide_resnet28x10") for k in KINDS}
    assert set(DATA) == set(CLASSES) and len(NETWORKS) == 3
    for name, recipe in GPU.items():
        _, data, net, _ = name.split("/")
        assert (recipe.dataset, recipe.model) == (data,
                                                  net + "_imagenet" * (data
                                                      == "imagenette")) and recipe.transform == ""


# Epochs, rate, weight decay, and (epoch counted from one, factor) of the drops: algorithms.md's
# figures, written out.
TOLD: dict[str, tuple[int, float, float, dict[int, float]]] = {
    "pgd-at": (110, 0.1, 5e-4, {1: 1, 99: 1, 100: 0.1, 104: 0.1, 105: 0.01, 110: 0.01}),
    "trades-1": (76, 0.1, 2e-4, {1: 1, 74: 1, 75: 0.1, 76: 0.1}),
    "trades-6": (76, 0.1, 2e-4, {74: 1, 75: 0.1}),
    "frl-05": (40, 1e-3, 5e-4, {1: 1, 40: 1}),
    "frl-07": (40, 1e-3, 5e-4, {1: 1, 40: 1}),
    "bat": (200, 0.1, 2e-4, {74: 1, 75: 0.1, 89: 0.1, 90: 0.01, 99: 0.01, 100: 0.001, 200: 0.001}),
    "fat": (120, 0.1, 2e-4, {59: 1, 60: 0.1, 90: 0.01, 109: 0.01, 110: 0.005}),
    "gairat": (100, 0.1, 2e-4, {29: 1, 30: 0.1, 59: 0.1, 60: 0.01, 100: 0.01}),
}
WIDE_GAIRAT = (120, 0.1, 2e-4, {59: 1, 60: 0.1, 89: 0.1, 90: 0.01, 109: 0.01, 110: 0.005})


@pytest.mark.parametrize("name", GPU)
def test_the_authors_schedules(name: str) -> None:
    recipe, kind = GPU[name], name.rsplit("/", 1)[1]
    epochs, rate, decay, factors = WIDE_GAIRAT if kind == "gairat" and "wide" in name else TOLD[
        kind]
    o = recipe.optim
    assert (recipe.epochs, o.name, o.lr, o.batch, o.momentum, o.weight_decay) == (epochs, "sgd",
        rate, 128, 0.9, decay)
    assert o.augment == "crop-flip"
    assert {e: o.rate(e - 1) for e in factors} == pytest.approx({e: rate * f for e,
        f in factors.items()})


@pytest.mark.parametrize("name", GPU)
def test_the_papers_attack_and_the_methods_own_settings(name: str) -> None:
    recipe, kind = GPU[name], name.rsplit("/", 1)[1]
    m: Any = recipe.method
    objective = "ce" if kind in ("pgd-at", "fat", "gairat") else "kl"
    start = "uniform" if objective == "ce" else "gaussian"
    assert m.attack == PGD(8 / 255, 2 / 255, 10, objective, start, 0.001 if kind == "fat"
                           else 0.0) and type(m.attack) is PGD
    same = METHODS[m.name](**{"trades-1": {"beta": 1.0}, "trades-6": {"beta": 6.0},
                              "frl-05": {"tau": (0.05, 0.05)},
                              "frl-07": {"tau": (0.07, 0.07)},
                              "gairat": {"begin": 59 / 120 if "wide" in name
                                         else 29 / 100}}.get(kind, {}))
    assert m == same
    first = 60 if kind == "gairat" and "wide" in name else 30
    # the authors weight from this epoch on, counted from one as their drops are
    if kind == "gairat":
        assert first == min(epoch + 1 for epoch in range(recipe.epochs)
                            if not epoch < m.begin * recipe.epochs)
    if kind.startswith("frl"):
        assert m.variant == "rmrw" and recipe.start == name.replace(kind,
            "trades-1") and recipe.validation == PGD(steps=20)
        assert recipe.validation_images == (3000 if recipe.dataset == "cifar10" else None)
    else:
        assert not recipe.start


@pytest.mark.parametrize("name", [n for n in GPU if not is_heavy(n)])
def test_each_takes_a_step(name: str) -> None:
    recipe, classes = GPU[name], CLASSES[GPU[name].dataset]
    model = network(recipe.model, classes)
    one_step(recipe, model, classes, 32 if recipe.dataset == "imagenette" else 8)
    before = weights(recipe.model, classes)
    for key, now in model.named_parameters():
        assert torch.isfinite(now).all() and not torch.equal(now, before[key]), key


def test_the_heaviest_by_its_size() -> None:
    heavy = {GPU[n].model for n in GPU if is_heavy(n)}
    assert len([n for n in GPU if is_heavy(n)]) == 8 and [sum(p.numel()
        for p in build(m).parameters()) for m in heavy] == [36_481_114]


# ------------------------------------------------------------------------------------------ at the size of two cores


def test_ours_are_on_equal_terms() -> None:
    """The same network, data, batches and number of epochs for all, FRL's hot start counted, and
    one rate that falls throughout."""
    assert set(OURS) == {f"cifar10/{n}" for n in ("natural", "pgd-at", "trades-6", "hot-start",
                                                  "frl-05", "bat")}
    assert {(r.dataset, r.model, r.transform, r.optim.batch, r.optim.augment)
            for r in OURS.values()} == {
        ("cifar10", "preact_resnet_s", "", 128, "crop-flip")}
    whole = [0.1 * (EPOCHS - e) / EPOCHS for e in range(EPOCHS)]
    hot, frl = OURS[HOT_START], OURS["cifar10/frl-05"]
    for name, recipe in OURS.items():
        if recipe not in (hot, frl):
            assert recipe.epochs == EPOCHS == 8 and not recipe.start, name
            assert [recipe.optim.rate(e) for e in range(EPOCHS)] == pytest.approx(whole), name
    assert frl.start == HOT_START and hot.epochs == HOT_EPOCHS and hot.epochs + frl.epochs == EPOCHS
    assert [r.optim.rate(e) for r in (hot, frl) for e in range(r.epochs)] == pytest.approx(whole)
    assert [OURS[f"cifar10/{n}"].seeds for n in ("pgd-at", "bat", "natural")] == [3, 3, 1]


@pytest.mark.parametrize("name", OURS)
def test_ours_attack_as_the_papers_in_bfloat16(name: str) -> None:
    m: Any = OURS[name].method
    if m.name != "natural":
        paper = METHODS[m.name]().attack
        assert m.attack == dataclasses.replace(paper, bf16=True)
    assert all(attack in ("pgd20", "cw20") for attack,
               _ in OURS[name].examination), "what is published is computed in float32"


@pytest.mark.parametrize("name", OURS)
def test_ours_take_a_step(name: str) -> None:
    model = build("preact_resnet_s")
    before = [p.clone() for p in model.parameters()]
    one_step(OURS[name], model, 10, 8)
    assert all(torch.isfinite(b).all() and not torch.equal(a, b) for a,
               b in zip(before, model.parameters(), strict=True))


def test_frl_from_its_hot_start_to_a_record(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves as `train` runs them, on 50 embedded images; a record says that the attack was
    computed in bfloat16."""
    for name in (HOT_START, "cifar10/frl-05"):
        monkeypatch.setitem(RECIPES, name, dataclasses.replace(OURS[name], examination=(),
            validation=PGD(steps=1, bf16=True)))
    trained, record = run(HOT_START, 0, tmp_path / "runs", limit=50, epochs=1, models=tmp_path,
                          progress=False)
    publish(record["recipe"], 0, trained.model, record, tmp_path)
    _, record = run("cifar10/frl-05", 0, tmp_path / "runs", limit=50, epochs=1, models=tmp_path,
                    progress=False)
    told = record["made_from"]["recipe"]
    assert told["method"]["attack"]["bf16"] is True and told["optim"][
        "augment"] == "crop-flip" and told["start"] == HOT_START
    assert len(record["history"]) == 1 and record["history"][0]["state"]["w0"] and record[
        "made_from"]["training_examples"] == 40


def test_the_digest_tells_augmentation_and_bfloat16_apart() -> None:
    from course_lib.recipes import digest

    recipe: Any = OURS["cifar10/pgd-at"]
    plain = dataclasses.replace(recipe, optim=dataclasses.replace(recipe.optim, augment=""))
    exact = dataclasses.replace(recipe, method=dataclasses.replace(recipe.method,
        attack=PGD(steps=10)))
    assert len({digest(r) for r in (recipe, plain, exact)}) == 3
    assert digest(dataclasses.replace(recipe, optim=Optim())) == digest(dataclasses.replace(recipe,
        optim=Optim(augment="")))
