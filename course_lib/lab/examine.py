"""Attack stored models, batch by batch: python -m course_lib examine, and evaluate for one model.

When the last batch of a model is done, its report joins its record; the weights stay as they are.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data import Split, load
from course_lib.errors import CourseError, CourseWarning, integer, matching, pick
from course_lib.evaluation import counted, evaluate, named, predictions
from course_lib.experiments import RECIPES
from course_lib.fairness import Report
from course_lib.files import check_writable
from course_lib.judge import examination, judged
from course_lib.lab.jobs import piece, run_all
from course_lib.lab.publish import add_reports
from course_lib.machine import device
from course_lib.recipes import TRANSFORMS
from course_lib.zoo import budget, by_images, load_model, load_record, manifest, stored_models

FORMAT = 2  # of the tensors that tasks store; counts up when their meaning changes
IMAGES = ("pgd20", "cw20", "autoattack")  # the attacks on models of images
BATCH = 500  # images, unless the attack has a batch size of its own
Row = dict[str, Any]


def examine_stored(patterns: Sequence[str], *,
                   attacks: Sequence[str] | None = None, eps: float | None = None,
                   per_class: int | None = None, seeds: int | None = None,
                   out: Path | str = "runs", models: Path | str, root: Path | None = None,
                   **running: Any) -> list[Row]:
    """Attack each stored model that has no such report yet; the reports of all of them as rows.

    `patterns` are names such as exp1/* or exp1, `seeds` asks for the first so many seeds, and
    `per_class` for the first so many test images of each class. `running` is as in `sweep`. The
    default is PGD-20, CW-20 and AutoAttack, or the recipe's own attacks if it has no PGD-20.
    """
    stored = models_with_weights(patterns, seeds, models)

    def attacks_on(name: str) -> list[tuple[str, float | None]]:
        own = examination(name)
        if attacks is None and own[0][0] not in IMAGES:
            return [*dict.fromkeys((attack, eps or budget) for attack, budget in own)]
        return [(attack, eps) for attack in (IMAGES if attacks is None else attacks)]

    planned = [(i, model, *pair) for model in stored
               for i, pair in enumerate(attacks_on(model[0]))]
    cases = [Case(*model, attack, named(attack, budget), per_class, Path(models).absolute(), root)
             for _, model, attack, budget in sorted(planned, key=lambda case: case[0])]
    examine_all(cases, out, desc=", ".join(dict.fromkeys(c.attack for c in cases)), **running)
    return [{"recipe": c.name, "seed": c.seed, **(c.stored() or {})} for c in cases]


def models_with_weights(patterns: Sequence[str], seeds: int | None,
                        models: Path | str) -> list[tuple[str, int, str]]:
    """(recipe, seed, sha256 of its weights) of the stored models that match, seed by seed."""
    stored = manifest(models)
    limit = float("inf") if seeds is None else integer(seeds, "seeds", 1)
    names = matching(stored, patterns)
    matches = [(m.name, m.seed, str(m.files["weights"]["sha256"]))
               for m in (stored_models(models, *names) if names else ())
               if "weights" in m.files and m.seed < limit]
    if not matches:
        raise CourseError(f"No model whose weights are stored matches {', '.join(patterns)}.")
    return sorted(matches, key=lambda model: model[1])


@dataclass(frozen=True)
class Case:
    """One stored model and one examiner, on the first images of each class or on all."""

    name: str
    seed: int
    weights: str  # sha256
    attack: str  # the examiner's name
    examiner: Any
    per_class: int | None
    models: Path
    root: Path | None = None

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}, {self.attack} at {budget(self.examiner.eps)}"

    @property
    def split(self) -> Split:
        return examined_images(self.name, self.per_class, self.root)

    @property
    def model(self) -> nn.Module:
        return stored_model(self.name, self.seed, self.weights, self.models)

    @property
    def batches(self) -> tuple[Tensor, ...]:
        return torch.arange(len(self.split)).split(getattr(self.examiner, "batch", BATCH))

    def judge(self, number: int) -> Tensor:
        """The predictions on one batch."""
        images = self.split.take(self.batches[number])
        return predictions(self.model, images, self.examiner, batch=BATCH, seed=number)

    def stored(self) -> Row | None:
        """Its report as it is stored, or None."""
        record = load_record(self.name, seed=self.seed, root=self.models)
        stored = by_images([*map(Report.from_json, record.get("reports", []))], self.attack,
                           self.examiner.eps)
        report = stored.get(tuple(torch.bincount(self.split.y).tolist()))
        return None if report is None else report.to_json()

    def publish(self, results: Tensor) -> None:
        """Put the report, counted from the predictions on all images, into the record."""

        def evaluated(attack: Any) -> Report:
            answers = (results if attack is self.examiner
                       else predictions(self.model, self.split, attack))
            return counted(answers, self.split.classes, self.attack, attack.eps)

        report = judged(evaluated, self.model, self.split, self.examiner)
        add_reports(self.name, self.seed, [report], self.weights, self.models)


def examine_all(cases: Sequence[Case], out: Path | str, **running: Any) -> None:
    """Judge every batch that is not judged yet; publish each case after its last batch."""
    groups = {}
    for case in (c for c in cases if c.stored() is None):
        made_from = [case.weights, repr(case.examiner), case.split.digest(), len(case.batches[0]),
                     FORMAT]
        groups[case] = [piece(f"{case.label}, batch {i}", made_from,
                              functools.partial(case.judge, i), Path(out).absolute())
                        for i in range(len(case.batches))]
    if groups:
        check_writable(cases[0].models, 1 << 20)
    run_all(groups, lambda case, results: case.publish(torch.cat(results, 1)), unit="batch",
            **running)


def examined_images(name: str, per_class: int | None, root: Path | None = None) -> Split:
    """The test images of a recipe: all, or the first so many of each class."""
    recipe = pick(RECIPES, name.partition("@")[0], "recipe")
    with warnings.catch_warnings():  # a report on the embedded images alone is never stored
        warnings.simplefilter("error", CourseWarning)
        return _images(recipe.dataset, recipe.transform, per_class, root)


@functools.lru_cache(maxsize=4)
def _images(dataset: str, transform: str, per_class: int | None, root: Path | None) -> Split:
    """The same object for all recipes that share it."""
    test = TRANSFORMS[transform](load(dataset, root=root)).test
    return test if per_class is None else test.per_class(integer(per_class, "per-class", 1))


@functools.lru_cache(maxsize=2)
def stored_model(name: str, seed: int, weights: str, models: Path) -> nn.Module:
    """The model with these weights (sha256), on the device where attacks run."""
    return load_model(name, seed=seed, root=models).to(device())


def evaluate_stored(recipe: str, seed: int, attack: str | None, eps: float | None,
                    per_class: int | None, models: Path, root: Path | None = None) -> Row:
    """One stored model's report under an attack or its recipe's own; it is not stored."""
    attack, own = examination(recipe)[0] if attack is None else (attack, None)
    examiner = named(attack, own if eps is None else eps)
    model = load_model(recipe, seed=integer(seed, "seed", 0), root=models).to(device())
    made = pick(RECIPES, recipe.partition("@")[0], "recipe")
    images = _images.__wrapped__(made.dataset, made.transform, per_class, root)  # not kept
    report = evaluate(model, images, examiner, name=attack)
    return {"recipe": recipe, "seed": seed, **report.to_json()}
