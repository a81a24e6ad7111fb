"""Attack stored models, batch by batch: python -m course_lib examine, and evaluate for one model.

When the last batch of a model is done, its report joins its record; the weights stay as they are.
"""

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from course_lib.data import Split, load
from course_lib.errors import CourseError, CourseWarning, integer, pick
from course_lib.evaluation import counted, evaluate, named, predictions
from course_lib.experiments import RECIPES, TRANSFORMS
from course_lib.fairness import Report
from course_lib.judge import examination, judged
from course_lib.lab.jobs import Task, piece, run_all
from course_lib.lab.publish import add_rows
from course_lib.machine import device
from course_lib.zoo import budget, entry, load_model, load_record, stored_models

FORMAT = 2  # of the tensors that tasks store; counts up when their meaning changes
IMAGES = ("pgd20", "cw20", "autoattack")  # the attacks on models of images
BATCH = 500  # images, unless the attack has a batch size of its own
Row = dict[str, Any]


def examine_stored(patterns: Sequence[str], *, attacks: Sequence[str] | None = None,
                   eps: float | None = None, per_class: int | None = None,
                   seeds: int | None = None, out: Path | str = "runs", models: Path | str,
                   root: Path | None = None, **running: Any) -> list[Row]:
    """Attack each stored model that has no such report yet; the reports of all of them as rows.

    `patterns` are names such as exp1/* or exp1, `seeds` is the number of seeds, from 0, and
    `per_class` that of test images per class. `running` is as in `sweep`. The
    default is PGD-20, CW-20 and AutoAttack; for scores/* the recipe's own attacks.
    """
    models, cases = Path(models).absolute(), []
    for model in models_with_weights(patterns, seeds, models):
        pairs, own = dict.fromkeys((a, eps) for a in attacks or IMAGES), examination(model[0])
        if not attacks and own[0][0] not in IMAGES:
            pairs = dict.fromkeys((attack, eps or budget) for attack, budget in own)
        cases += [Case(*model, a, named(a, e), per_class, models, root) for a, e in pairs]
    examine_all(cases, out, **running)
    return [{"recipe": c.name, "seed": c.seed, **(c.stored() or {})} for c in cases]


def models_with_weights(patterns: Sequence[str], seeds: int | None,
                        models: Path | str) -> list[tuple[str, int, str]]:
    """(recipe, seed, sha256 of its weights) of the stored models that match, seed by seed."""
    most = math.inf if seeds is None else integer(seeds, "seeds", 1)
    found = [(m.name, m.seed, str(m.files["weights"]["sha256"]))
             for m in stored_models(models, *patterns) if "weights" in m.files and m.seed < most]
    if not found:
        raise CourseError(f"No model whose weights are stored matches {', '.join(patterns)}.")
    return sorted(found, key=itemgetter(1))


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
    key: ClassVar[str] = "reports"  # of the record, where the result is stored

    @property
    def split(self) -> Split:
        with warnings.catch_warnings():  # a report on the embedded images alone is never stored
            warnings.simplefilter("error", CourseWarning)
            return examined_images(self.name, self.per_class, self.root)

    @property
    def model(self) -> nn.Module:
        if entry(self.name, self.seed, self.models)["weights"]["sha256"] != self.weights:
            raise CourseError(f"{self.name}, seed {self.seed}, was stored anew while it was "
                              "examined. Examine it again.")
        return load_model(self.name, seed=self.seed, root=self.models).to(device())

    def judge(self, images: slice, number: int) -> Tensor:
        """The predictions on one batch, whose number is its seed."""
        return predictions(self.model, self.split.take(images), self.examiner, batch=BATCH,
                           seed=number)

    @property
    def facts(self) -> Row:
        """By these its report is known among those that are stored."""
        return {"attack": self.attack, "eps": self.examiner.eps,
                "counts": torch.bincount(self.split.y).tolist()}

    def stored(self) -> Row | None:
        rows = load_record(self.name, seed=self.seed, root=self.models).get(self.key, [])
        return next((row for row in rows if self.facts.items() <= row.items()), None)

    def row(self, results: Tensor) -> Row:
        """The report for the record, counted from the predictions on all images."""

        def evaluated(attack: Any) -> Report:
            answers = (results if attack is self.examiner
                       else predictions(self.model, self.split, attack))
            return counted(answers, self.split.classes, self.attack, attack.eps)

        return judged(evaluated, self.model, self.split, self.examiner).to_json()


def examine_all(cases: Sequence[Case], out: Path | str, **running: Any) -> None:
    """Judge every batch that is not judged yet; publish each case after its last batch."""
    groups = dict[Case, list[Task]]()
    for case in (c for c in cases if c.stored() is None):
        n, size = len(case.split), getattr(case.examiner, "batch", BATCH)
        made_from = [case.weights, repr(case.examiner), case.split.digest(), min(n, size), FORMAT]
        eps = f" at {budget(case.examiner.eps)}" if hasattr(case.examiner, "eps") else ""
        label = f"{case.name}, seed {case.seed}, {case.attack}{eps}"
        groups[case] = [piece(f"{label}, batch {i}", made_from,
                              functools.partial(case.judge, slice(first, first + size), i),
                              Path(out).absolute()) for i, first in enumerate(range(0, n, size))]
    run_all(groups, lambda c, results: add_rows(
        c.name, c.seed, c.key, [c.row(torch.cat(results, 1))], c.weights, c.models), **running)


@functools.lru_cache(maxsize=4)
def examined_images(name: str, per_class: int | None, root: Path | None = None) -> Split:
    """The test images of a recipe: all, or the first `per_class` of each class."""
    recipe = pick(RECIPES, name.partition("@")[0], "recipe")
    test = TRANSFORMS[recipe.transform](load(recipe.dataset, root=root)).test
    return test if per_class is None else test.per_class(integer(per_class, "per-class", 1))


def evaluate_stored(recipe: str, seed: int, attack: str | None, eps: float | None,
                    per_class: int | None, models: Path, root: Path | None = None) -> Row:
    """One stored model's report under an attack or its recipe's own; it is not stored."""
    attack, own = examination(recipe)[0] if attack is None else (attack, None)
    examiner = named(attack, own if eps is None else eps)
    model = load_model(recipe, seed=integer(seed, "seed", 0), root=models).to(device())
    images = examined_images.__wrapped__(recipe, per_class, root)  # with a warning, so not kept
    return {"recipe": recipe, "seed": seed,
            **evaluate(model, images, examiner, name=attack).to_json()}
