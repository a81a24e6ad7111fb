"""Put the unfairness scores of stored models into their records: python -m course_lib score.

CAU and CRU_s come from a model's stored reports, which are made where they are missing. CRU_eps
comes from least budgets, found by bisection and by the paper's increments, batch by batch. EOU
comes from each group's confidences. The weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib import scores
from course_lib.attacks import PGD
from course_lib.data import Split, batches
from course_lib.datasets.adult import GROUPS, UNITS
from course_lib.errors import CourseError, integer, pick
from course_lib.evaluation import evaluate, named
from course_lib.experiments import RECIPES
from course_lib.experiments.scores import SCORE_BUDGETS
from course_lib.inference import frozen, logits_of
from course_lib.lab.examine import Case, Row, examine_all, models_with_weights, stored_model
from course_lib.lab.publish import add_scores
from course_lib.machine import device
from course_lib.zoo import entry, load_report, load_scores


@dataclass(frozen=True)
class Search:
    """How least budgets are searched: `step` is the first budget of a bisection, or the paper's
    increment."""

    estimator: str  # "bisection" or "increments"
    attack: PGD
    step: float
    cap: float
    tolerance: float
    batch: int = 250

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor,
                 generator: torch.Generator) -> scores.LeastEps:
        words: dict[str, Any] = {"attack": self.attack, "cap": self.cap, "generator": generator}
        if self.estimator == "increments":
            return scores.grid_eps(model, x, y, increment=self.step, **words)
        return scores.least_eps(model, x, y, first=self.step, tolerance=self.tolerance, **words)


@dataclass(frozen=True)
class Plan:
    """How the models of one data set are scored."""

    budgets: tuple[tuple[str, float], ...]  # CRU_s: attacks and their budgets
    searches: tuple[Search, ...]  # CRU_eps
    per_class: int | None = None  # CRU_eps on the first so many test examples of each class, or all
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # EOU


FINE, ADULT = PGD(steps=20), PGD(steps=20, scale=UNITS)
PLANS: dict[str, Plan] = {
    # the paper has no Fashion-MNIST, so no increments either
    "fashion-mnist": Plan((("pgd20", 8 / 255), ("pgd20", 16 / 255)),
                          (Search("bisection", FINE, 1 / 255, 64 / 255, 1 / 2550),)),
    "cifar10": Plan(tuple(("pgd20-fine", e) for e in SCORE_BUDGETS["cifar10"]),
                    (Search("bisection", FINE, 0.001, 0.064, 0.0002),
                     Search("increments", FINE, 0.001, 0.064, 0.0002)), 100),
    "adult": Plan(tuple(("pgd20-adult", e) for e in SCORE_BUDGETS["adult"]),
                  (Search("bisection", ADULT, 1, 128, 0.05),
                   Search("increments", ADULT, 1, 128, 0.05)), 500, GROUPS),
}


def plan_of(name: str) -> Plan:
    return pick(PLANS, pick(RECIPES, name.partition("@")[0], "recipe").dataset,
                "data set that scores are planned for")


def score_stored(patterns: Sequence[str], *, seeds: int | None = None, per_class: int | None = None,
                 out: Path | str = "runs", models: Path | str, root: Path | None = None,
                 **running: Any) -> list[Row]:
    """Score every stored model that matches; the scores of all of them as rows.

    `per_class` searches least budgets on so many examples of each class, instead of the plan's.
    `running` is as in `sweep`.
    """
    models, cases = Path(models).absolute(), list[Case]()
    stored = models_with_weights(patterns, seeds, models)
    for model in stored:
        plan = plan_of(model[0])
        count = plan.per_class if per_class is None else integer(per_class, "per_class", 1)
        cases += [Case(*model, attack, named(attack, eps), None, models, root)
                  for attack, eps in plan.budgets]
        cases += [LeastCase(*model, search.estimator, search, count, models, root)
                  for search in plan.searches]
    examine_all(cases, out, desc="scores", **running)
    for model in stored:
        case = Case(*model, "", None, None, models, root)
        rows = [row for of_kind in (of_reports, of_copies, of_groups) for row in of_kind(case)]
        add_scores(case.name, case.seed, rows, case.weights, models)
    return [{"recipe": name, "seed": seed, **row} for name, seed, _ in stored
            for row in load_scores(name, seed=seed, root=models)]


class LeastCase(Case):
    """Least budgets of one stored model: the examiner is a Search."""

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}, least eps by {self.attack}"

    def judge(self, number: int) -> Tensor:
        """[4, B]: labels, least budgets, whether they are censored, and (the same for all) the
        steps an example cost."""
        part, where = self.split.take(self.batches[number]), device()
        least = self.examiner(self.model, part.images().to(where), part.y.to(where),
                              torch.Generator().manual_seed(number))
        cost = torch.full((len(part),), least.steps / len(part))
        return torch.stack([part.y.float(), least.eps.float().cpu(), least.censored.float().cpu(),
                            cost])

    def stored(self) -> Row | None:
        rows = load_scores(self.name, seed=self.seed, root=self.models)
        wanted = (repr(self.examiner), torch.bincount(self.split.y).tolist())
        return next((r for r in rows if (r.get("told"), r.get("counts")) == wanted), None)

    def publish(self, results: Tensor) -> None:
        row = least_row(results, self.examiner, self.split.classes)
        add_scores(self.name, self.seed, [row], self.weights, self.models)


def least_row(results: Tensor, search: Search, classes: tuple[str, ...]) -> Row:
    """CRU_eps, from what LeastCase found on all batches."""
    y, eps, censored, cost = results[0].long(), results[1], results[2].bool(), results[3]
    least, n = scores.LeastEps(eps, censored, round(float(cost.sum()))), len(classes)
    by_class = least.by_class(y, n)
    return {"score": "CRU_eps", "estimator": search.estimator, "told": repr(search),
            "cap": search.cap, "tolerance": search.tolerance, "increment": search.step,
            "steps": least.steps, "classes": list(classes),
            "counts": torch.bincount(y, minlength=n).tolist(), "by_class": by_class.tolist(),
            "value": float(np.ptp(by_class)),
            "censored": scores.class_means(censored, y, n).tolist()}


def of_reports(case: Case) -> list[Row]:
    """CAU and CRU_s, from the reports on the most images."""
    reports = {budget: load_report(case.name, seed=case.seed, attack=budget[0], eps=budget[1],
                                   root=case.models) for budget in plan_of(case.name).budgets}
    first, *_ = reports.values()
    return [{"score": "CAU", "counts": list(first.nat.counts), "value": scores.cau(first)},
            *({"score": "CRU_s", "attack": attack, "eps": eps, "classes": list(r.classes),
               "counts": list(r.nat.counts), "by_class": scores.success(r).tolist(),
               "value": scores.cru_s(r)} for (attack, eps), r in reports.items())]


def of_copies(case: Case) -> list[Row]:
    """How a model of static copies does on static copies of the test set.

    They are made to fool another model, so they are no attack on this one. Its accuracy on them may
    exceed the clean one, as in the paper: the copies carry a mark of their labels.
    """
    copies = RECIPES[case.name.partition("@")[0]].copies
    if copies is None:
        return []
    source = entry(copies.of, case.seed, case.models)["weights"]["sha256"]
    stored, rows = load_scores(case.name, seed=case.seed, root=case.models), list[Row]()
    for _, eps in plan_of(case.name).budgets:
        key = {"score": "static", "attack": copies.of, "eps": eps, "source": source}
        if same := [row for row in stored if key.items() <= row.items()]:
            rows += same
            continue
        fooled = stored_model(copies.of, case.seed, source, case.models)
        report = evaluate(case.model, case.split, transferred(copies.attack.at(eps), fooled),
                          early=False, count_clean=False, progress=False)
        rows.append({**key, "counts": list(report.nat.counts), "accuracy": 1 - report.rob.mean,
                     "clean_accuracy": 1 - report.nat.mean,
                     "by_class": report.rob.by_class.tolist(), "value": scores.cru_s(report)})
    return rows


def transferred(attack: PGD, fooled: nn.Module) -> Any:
    """The attack, on another model than the one that is evaluated."""
    return lambda model, x, y, *, generator: attack(fooled, x, y, generator=generator)


def of_groups(case: Case) -> list[Row]:
    """EOU, of a data set whose examples belong to groups."""
    groups = plan_of(case.name).groups
    confidence = confidences(case.model, case.split) if groups else Tensor()
    return [eou_row(confidence, case.split, group, names) for group, names in groups.items()]


def confidences(model: nn.Module, split: Split) -> Tensor:
    """F(x)_1, the probability of class 1, of every example."""
    where = next(model.parameters()).device
    with torch.no_grad(), frozen(model):
        return torch.cat([logits_of(model, x.to(where)).softmax(1)[:, 1].cpu()
                          for x, _ in batches(split, 1000)])


def eou_row(confidence: Tensor, split: Split, group: str, names: Sequence[str]) -> Row:
    """Mean confidence of every group under each label, and the ranges. Groups without a member of
    either label are named, not counted."""
    mine = split.groups[group]
    counts = torch.stack([torch.bincount(mine[split.y == label], minlength=len(names))
                          for label in (0, 1)])
    complete = torch.nonzero(counts.all(0)).flatten()
    counted, members = [names[g] for g in complete], torch.isin(mine, complete)
    if len(counted) < 2:
        raise CourseError(f"Of {group} only {', '.join(counted) or 'nobody'} has examples of both "
                          "labels; EOU compares two groups at least. Take more rows (there are "
                          f"{len(split)}).")
    means = scores.group_means(confidence[members], split.y[members],
                               torch.searchsorted(complete, mine[members]), counted)
    return {"score": "EOU", "group": group, "groups": counted,
            "left_out": [name for name in names if name not in counted],
            "counts": counts[:, complete].tolist(), "means": means.tolist(),
            "value": np.ptp(means, axis=1).tolist()}
