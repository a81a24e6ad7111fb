"""Each of the papers' recipes can take a step."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.experiments import RECIPES
from course_lib.experiments.cifar10 import EPOCHS, HOT_START
from course_lib.fairness import Errors, Report
from course_lib.lab.publish import publish
from course_lib.models import build
from course_lib.recipes import Recipe, run
from course_lib.training import fit
from tests.helpers import images, labels

GPU = {name: recipe for name, recipe in RECIPES.items() if name.startswith("gpu/")}
OURS = {name: recipe for name, recipe in RECIPES.items() if name.startswith("cifar10/")}
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenette": 10}
HEAVY = [name for name, r in GPU.items() if r.model == "wide_resnet28x10_imagenet"]
@functools.lru_cache(maxsize=1)  # the recipes come network by network
def network(model: str, classes: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A network and its first weights, since drawing 36 million takes longer than a step."""
    made = build(model, classes=classes)
    return made, {k: v.clone() for k, v in made.state_dict().items()}


def takes_a_step(recipe: Recipe, classes: int, pixels: int) -> None:
    """One step of the attack, one of the optimiser, on a batch of two; all weights change."""
    model, before = network(recipe.model, classes)
    model.load_state_dict(before)
    method: Any = recipe.method
    if method.name != "natural":
        method = dataclasses.replace(method, attack=dataclasses.replace(method.attack, steps=1))
    names = tuple(map(str, range(classes)))
    nat, rob = (Errors((n, *[1] * (classes - 1)), (10,) * classes) for n in (7, 9))
    history = fit(model, method, Split(images(2, (3, pixels, pixels)), labels(2, classes), names),
                  epochs=1, optim=recipe.optim, seed=0, progress=False,
                  validate=lambda m, at: Report(nat, rob, names, "pgd20", 8 / 255)).history
    assert history[0]["loss"] > 0
    assert len(history[0]["validation"]) == 1
    for key, now in model.named_parameters():
        assert torch.isfinite(now).all() and not torch.equal(now, before[key]), key


def test_frl_starts_from_trades_and_is_validated_with_the_papers_images() -> None:
    """All else in a recipe of stored models is frozen by its digest (tests/frozen)."""
    assert len(GPU) == 3 * 3 * 8
    for name, r in GPU.items():
        frl = name.rpartition("/")[2].startswith("frl")
        assert r.start == (name[:-6] + "trades-1" if frl else "")
        assert not frl or r.validation_images == (3000 if r.dataset == "cifar10" else None)
        assert r.examination == (("pgd20", 8 / 255), ("cw20", 8 / 255))


@pytest.mark.parametrize("name", [n for n in GPU if n not in HEAVY])
def test_each_takes_a_step(name: str) -> None:
    data = GPU[name].dataset
    takes_a_step(GPU[name], CLASSES[data], 32 if data == "imagenette" else 8)


def test_the_heaviest_by_its_size() -> None:
    heavy = build("wide_resnet28x10_imagenet")
    assert len(HEAVY) == 8 and sum(p.numel() for p in heavy.parameters()) == 36_481_114


# ------------------------------------------------------------------------- at the size of two cores


def test_ours_are_on_equal_terms() -> None:
    """The same number of epochs for all, FRL's hot start counted, and one rate that falls."""
    falling = [0.1 * (EPOCHS - e) / EPOCHS for e in range(EPOCHS)]
    hot, frl = OURS[HOT_START], OURS["cifar10/frl-05"]
    for recipes in ((hot, frl), *((r,) for r in OURS.values() if r not in (hot, frl))):
        assert sum(r.epochs for r in recipes) == EPOCHS == 8
        assert [r.optim.rate(e) for r in recipes for e in range(r.epochs)] == pytest.approx(falling)
        assert [r.start for r in recipes] == ["", HOT_START][:len(recipes)]
    assert [OURS[f"cifar10/{n}"].seeds for n in ("pgd-at", "bat", "natural")] == [3, 3, 1]


@pytest.mark.parametrize("name", OURS)
def test_ours_attack_as_the_papers_in_bfloat16_and_take_a_step(name: str) -> None:
    assert OURS[name].method.name == "natural" or OURS[name].method.attack.bf16
    assert all(attack in ("pgd20", "cw20") for attack, _ in OURS[name].examination), (
        "what is published is computed in float32")
    takes_a_step(OURS[name], 10, 8)


@pytest.mark.filterwarnings("ignore::course_lib.errors.CourseWarning")
def test_frl_from_its_hot_start_to_a_record(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves as `train` runs them, on 50 embedded images; a record says that the attack was
    computed in bfloat16."""
    for name in (HOT_START, "cifar10/frl-05"):
        monkeypatch.setitem(RECIPES, name, dataclasses.replace(
            OURS[name], examination=(), validation=PGD(steps=1, bf16=True)))
        trained, record = run(name, 0, tmp_path / "runs", limit=50, epochs=1, models=tmp_path,
                              progress=False)
        publish(record["recipe"], 0, trained.model, record, tmp_path)
    made, (epoch,) = record["made_from"], record["history"]
    assert made["recipe"]["method"]["attack"]["bf16"] is True
    assert (made["recipe"]["start"], made["recipe"]["optim"]["augment"]) == (HOT_START, "crop-flip")
    assert epoch["state"]["w0"] and made["training_examples"] == 40
