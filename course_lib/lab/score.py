"""Put the unfairness scores of stored models into their records: python -m course_lib score.

CAU and CRU_s come from a model's stored reports, which are made where they are missing. CRU_eps
comes from least budgets, found by bisection and by the paper's increments, batch by batch. EOU
comes from each group's confidences. The weights stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib import scores
from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.datasets.adult import GROUPS, UNITS
from course_lib.errors import pick
from course_lib.evaluation import evaluate, named, per_image
from course_lib.experiments import RECIPES
from course_lib.inference import frozen, logits_of
from course_lib.judge import examination
from course_lib.lab.examine import Case, Row, examine_all, models_with_weights
from course_lib.lab.publish import add_rows
from course_lib.machine import device
from course_lib.zoo import entry, load_model, load_record, load_report


@dataclass(frozen=True)
class Search:
    """How least budgets are searched: `step` is a bisection's first budget, or the increment."""

    estimator: str  # "bisection" or "increments"
    attack: PGD
    step: float
    cap: float
    tolerance: float
    batch: int = 250


@dataclass(frozen=True)
class Plan:
    """How the models of one data set are scored."""

    searches: tuple[Search, ...]  # CRU_eps
    per_class: int | None = None  # CRU_eps on this many test examples of each class, or all
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # EOU


FINE, ADULT = PGD(steps=20), PGD(steps=20, scale=UNITS)
PLANS: dict[str, Plan] = {
    # the paper has no Fashion-MNIST, so no increments either
    "fashion-mnist": Plan((Search("bisection", FINE, 1 / 255, 64 / 255, 1 / 2550),)),
    "cifar10": Plan((Search("bisection", FINE, 0.001, 0.064, 0.0002),
                     Search("increments", FINE, 0.001, 0.064, 0.0002)), 100),
    "adult": Plan((Search("bisection", ADULT, 1, 128, 0.05),
                   Search("increments", ADULT, 1, 128, 0.05)), 500, GROUPS),
}


def plan_of(name: str) -> Plan:
    return pick(PLANS, pick(RECIPES, name.partition("@")[0], "recipe").dataset,
                "data set that scores are planned for")


def score_stored(patterns: Sequence[str], *, seeds: int | None = None, out: Path | str = "runs",
                 models: Path | str, root: Path | None = None, **running: Any) -> list[Row]:
    """Score each stored model that matches; their scores as rows. `running` is as in `sweep`."""
    models, cases = Path(models).absolute(), list[Case]()
    stored = models_with_weights(patterns, seeds, models)
    for model in stored:
        plan = plan_of(model[0])
        cases += [Case(*model, attack, named(attack, eps), None, models, root)
                  for attack, eps in examination(model[0])]
        cases += [LeastCase(*model, search.estimator, search, plan.per_class, models, root)
                  for search in plan.searches]
    examine_all(cases, out, **running)
    for model in stored:
        case = LeastCase(*model, "", None, None, models, root)  # on all examples, of no search
        add_rows(case.name, case.seed, case.key, [*of_reports(case), *of_copies(case)],
                 case.weights, case.models)
    return [{"recipe": name, "seed": seed, **row} for name, seed, _ in stored
            for row in load_record(name, seed=seed, root=models).get("scores", [])]


class LeastCase(Case):
    """Least budgets of one stored model: the examiner is a Search."""

    key = "scores"

    def judge(self, images: slice, number: int) -> Tensor:
        """[4, B]: labels, least budgets, whether they are censored, and the mean steps of all."""
        part, s = self.split.take(images), self.examiner
        find = (partial(scores.grid_eps, increment=s.step) if s.estimator == "increments" else
                partial(scores.least_eps, first=s.step, tolerance=s.tolerance))
        least = find(self.model, part.images().to(device()), part.y.to(device()), attack=s.attack,
                     cap=s.cap, generator=torch.Generator().manual_seed(number))
        cost = torch.full((len(part),), least.steps / len(part))
        return torch.stack([part.y.float(), least.eps.float().cpu(), least.censored.float().cpu(),
                            cost])

    @property
    def facts(self) -> Row:
        return {"told": repr(self.examiner), "counts": torch.bincount(self.split.y).tolist()}

    def row(self, results: Tensor) -> Row:
        """CRU_eps from the least budgets on all batches."""
        y, censored, search = results[0].long(), results[2].bool(), self.examiner
        n = len(self.split.classes)
        least = scores.LeastEps(results[1], censored, round(float(results[3].sum())))
        by_class = least.by_class(y, n)
        return {"score": "CRU_eps", "estimator": search.estimator, "told": repr(search),
                "cap": search.cap, "tolerance": search.tolerance, "increment": search.step,
                "steps": least.steps, "classes": list(self.split.classes),
                "counts": torch.bincount(y, minlength=n).tolist(), "by_class": by_class.tolist(),
                "value": float(np.ptp(by_class)),
                "censored": scores.class_means(censored, y, n).tolist()}


def of_reports(case: Case) -> Iterator[Row]:
    """CAU and CRU_s from the reports on the most images, and EOU of a data set whose examples
    belong to groups: the ranges of each group's mean confidence under each label."""
    plan, split = plan_of(case.name), case.split
    for i, (attack, eps) in enumerate(examination(case.name)):
        report = load_report(case.name, seed=case.seed, attack=attack, eps=eps, root=case.models)
        counts = list(report.nat.counts)
        if not i:
            yield {"score": "CAU", "counts": counts, "value": scores.cau(report)}
        yield {"score": "CRU_s", "attack": attack, "eps": eps, "classes": list(report.classes),
               "counts": counts, "by_class": scores.success(report).tolist(),
               "value": scores.cru_s(report)}
    confidence = confidences(case.model, split) if plan.groups else Tensor()
    for group, names in plan.groups.items():
        mine = split.groups[group]
        means = scores.group_means(confidence, split.y, mine, names)
        yield {"score": "EOU", "group": group, "groups": list(names), "left_out": [],
               "counts": [torch.bincount(mine[split.y == label]).tolist() for label in (0, 1)],
               "means": means.tolist(), "value": np.ptp(means, axis=1).tolist()}


def of_copies(case: Case) -> Iterator[Row]:
    """How a model of static copies does on static copies of the test set.

    They are made to fool another model, so they are no attack on this one. Its accuracy on them may
    exceed the clean one, as in the paper: the copies carry a mark of their labels.
    """
    if (copies := RECIPES[case.name.partition("@")[0]].copies) is None:
        return
    source = entry(copies.of, case.seed, case.models)["weights"]["sha256"]
    fooled = load_model(copies.of, seed=case.seed, root=case.models).to(device())
    stored = load_record(case.name, seed=case.seed, root=case.models).get("scores", [])

    def transferred(eps: float, _: nn.Module, x: Tensor, y: Tensor, *,
                    generator: torch.Generator) -> Tensor:
        return copies.attack.at(eps)(fooled, x, y, generator=generator)

    for _, eps in examination(case.name):
        key = {"score": "static", "attack": copies.of, "eps": eps, "source": source}
        if same := [row for row in stored if key.items() <= row.items()]:
            yield same[0]
            continue
        report = evaluate(case.model, case.split, partial(transferred, eps), count_clean=False,
                          progress=False)
        yield {**key, "counts": list(report.nat.counts), "accuracy": 1 - report.rob.mean,
               "clean_accuracy": 1 - report.nat.mean, "by_class": report.rob.by_class.tolist(),
               "value": scores.cru_s(report)}


def confidences(model: nn.Module, split: Split) -> Tensor:
    """F(x)_1, the probability of class 1, of every example."""
    with torch.no_grad(), frozen(model):
        return per_image(model, split, lambda x, _: logits_of(model, x).softmax(1)[:, 1])
