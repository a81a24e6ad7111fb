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

from course_lib.attacks import PGD
from course_lib.data import Split, load
from course_lib.errors import CourseError, CourseWarning, integer, matching, pick
from course_lib.evaluation import counted, evaluate, named, predictions
from course_lib.experiments import RECIPES
from course_lib.fairness import Report
from course_lib.files import check_writable
from course_lib.lab.jobs import piece, run_all
from course_lib.lab.publish import add_reports
from course_lib.machine import device
from course_lib.recipes import TRANSFORMS
from course_lib.zoo import budget, by_images, load_model, load_record, manifest, stored_models

FORMAT = 2  # of the tensors that tasks store; counts up when their meaning changes
BATCH = 500  # images, unless the attack has a batch size of its own
Row = dict[str, Any]


def examine_stored(patterns: Sequence[str], *,
                   attacks: Sequence[str] = ("pgd20", "cw20", "autoattack"), eps: float = 8 / 255,
                   per_class: int | None = None, seeds: int | None = None,
                   out: Path | str = "runs", models: Path | str, root: Path | None = None,
                   **running: Any) -> list[Row]:
    """Attack each stored model that has no such report yet; the reports of all of them as rows.

    `patterns` are names such as exp1/* or exp1, `seeds` asks for the first so many seeds, and
    `per_class` for the first so many test images of each class. `running` is as in `sweep`.
    """
    stored = models_with_weights(patterns, seeds, models)
    cases = [Case(*model, attack, named(attack, eps), per_class, Path(models).absolute(), root)
             for attack in attacks for model in stored]
    examine_all(cases, out, desc=", ".join(attacks), **running)
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
        report = counted(results, self.split.classes, self.attack, self.examiner.eps)
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


def reaches(attack: Any) -> str:
    """A remark on a PGD whose steps are too few or too short for its budget; else nothing.

    >>> reaches(named("pgd20", 8 / 255)), reaches(named("pgd20", 0.5))
    ('', ' (weak: its 20 steps of 0.00784 reach 0.157 at most)')
    """
    if not isinstance(attack, PGD) or not 0 < attack.steps * attack.step_size < attack.eps:
        return ""
    return (f" (weak: its {attack.steps} steps of {attack.step_size:.3g} reach "
            f"{attack.steps * attack.step_size:.3g} at most)")


def evaluate_stored(recipe: str, seed: int, attack: str, eps: float | None, per_class: int | None,
                    models: Path, root: Path | None = None) -> Row:
    """One stored model's report under an attack; it is not stored."""
    examiner = named(attack, eps)
    model = load_model(recipe, seed=integer(seed, "seed", 0), root=models).to(device())
    made = pick(RECIPES, recipe.partition("@")[0], "recipe")
    images = _images.__wrapped__(made.dataset, made.transform, per_class, root)  # not kept
    report = evaluate(model, images, examiner, name=attack)
    return {"recipe": recipe, "seed": seed, **report.to_json()}
