"""The unfairness scores of stored models, batch by batch: killed and called again it goes on, and
nothing is done twice.
 CAU and CRU_s come from a model's stored reports (which are made where they are missing), CRU_eps
from least budgets found by bisection and by the paper's increments, EOU from the confidences of
each group. All join the model's record, whose weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.datasets.adult import GROUPS, UNITS
from course_lib.errors import CourseError, pick, whole
from course_lib.evaluation import evaluate
from course_lib.experiments import RECIPES
from course_lib.experiments.scores import SCORE_BUDGETS
from course_lib.fairness import Report
from course_lib.inference import frozen, logits_of
from course_lib.lab.examine import Case, _model, examine_stored, in_batches, models_that, together
from course_lib.lab.publish import add_scores
from course_lib.scores import LeastEps, cau, cru_eps, cru_s, grid_eps, group_means, least_eps, success
from course_lib.zoo import entry, load_report, load_scores

LEAST = "least-eps"
ESTIMATORS = ("bisection", "increments")


@dataclass(frozen=True)
class Search:
    """One way to find least budgets, told completely: `step` is the first budget of a bisection, or
    the paper's increment."""

    estimator: str
    attack: PGD
    step: float
    cap: float
    tolerance: float
    batch: int = 250

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor,
                 generator: torch.Generator) -> LeastEps:
        words: dict[str, Any] = {"attack": self.attack, "cap": self.cap, "generator": generator}
        if self.estimator == "increments":
            return grid_eps(model, x, y, increment=self.step, **words)
        return least_eps(model, x, y, first=self.step, tolerance=self.tolerance, **words)


@dataclass(frozen=True)
class Plan:
    """What is asked of the models of one data set: attacks and budgets of CRU_s, and how least
    budgets are searched."""

    budgets: tuple[tuple[str, float], ...]
    searches: Mapping[str, Search]
    # least budgets on the first so many test examples of each class; None is all of them
    per_class: int | None = None
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _searches(attack: PGD, step: float, cap: float, tolerance: float,
              kinds: Sequence[str] = ESTIMATORS) -> dict[str, Search]:
    return {kind: Search(kind, attack, step, cap, tolerance) for kind in kinds}


PLANS: dict[str, Plan] = {
    # which the paper does not have: no increments of theirs
    "fashion-mnist": Plan((("pgd20", 8 / 255), ("pgd20", 16 / 255)),
                          _searches(PGD(steps=20), 1 / 255, 64 / 255, 1 / 2550, ("bisection",))),
    "cifar10": Plan(tuple(("pgd20-fine", e) for e in SCORE_BUDGETS["cifar10"]), _searches(PGD(steps=20), 0.001, 0.064, 0.0002), 100),
    "adult": Plan(tuple(("pgd20-adult", e) for e in SCORE_BUDGETS["adult"]), _searches(PGD(steps=20, scale=UNITS), 1, 128, 0.05),
                  500, GROUPS),
}


@dataclass(frozen=True)
class LeastCase(Case):
    """Least budgets of one stored model; `attack` is least-eps, `eps` the cap."""

    estimator: str = ESTIMATORS[0]

    @property
    def examiner(self) -> Search:
        return plan_of(self.name).searches[self.estimator]

    def verdicts(self, model: nn.Module, i: int) -> Tensor:
        """[4, B]: labels, least budgets, whether they are censored, and (the same for all) the
        steps an example cost."""
        part = self.split.take(self.parts()[i])
        found = self.examiner(model, part.images(), part.y, torch.Generator().manual_seed(i))
        cost = torch.full((len(part),), found.steps / len(part), dtype=torch.float64)
        return torch.stack([part.y.double(), found.eps.double(), found.censored.double(), cost])

    def stored(self) -> bool:
        rows = load_scores(self.name, seed=self.seed, root=self.models)
        counts = torch.bincount(self.split.y).tolist()
        return any(r.get("told") == repr(self.examiner) and r.get("counts") == counts for r in rows)


def plan_of(name: str) -> Plan:
    return pick(PLANS, pick(RECIPES, name.partition("@")[0], "recipe").dataset,
                "data set that scores are planned for")


def score_stored(patterns: Sequence[str], *, seeds: int | None = None, per_class: int | None = None,
                 jobs: int = 2,
                 out: Path | str = "runs", models: Path | str, data: Path | None = None,
                 progress: bool = True) -> list[dict[str, Any]]:
    """Fill the records of stored models with their scores, `jobs` processes of one thread each; all
    rows of all of them.

    `per_class` asks for another number of examples to search least budgets on than the plan's.
    """
    out, models = Path(out).absolute(), Path(models).absolute()
    found = sorted(models_that(patterns, seeds, models), key=lambda t: t[1])
    words: dict[str, Any] = {"jobs": whole(jobs, "jobs", 1), "out": out, "models": models,
                             "data": data, "progress": progress}
    for attack, eps in dict.fromkeys(b for name, _ in found for b in plan_of(name).budgets):
        examine_stored([n for n, _ in found if (attack, eps) in plan_of(n).budgets],
                       attacks=[attack], eps=eps, seeds=seeds, **words)
    for kind in ESTIMATORS:
        cases = [_least_case(n, s, kind, per_class, models, data) for n, s in found
                 if kind in plan_of(n).searches]
        in_batches([c for c in cases if not c.stored()], f"{LEAST}, {kind}", out, jobs, progress,
                   publish=_publish)
    for name, seed in found:
        case = _least_case(name, seed, ESTIMATORS[0], per_class, models, data)
        add_scores(name, seed, [*_from_reports(case), *_from_groups(case), *_from_copies(case)],
                   case.weights, models)
    return [{"recipe": n, "seed": s, **row} for n, s in found
            for row in load_scores(n, seed=s, root=models)]


def _least_case(name: str, seed: int, estimator: str, per_class: int | None, models: Path,
                data: Path | None) -> LeastCase:
    plan = plan_of(name)
    each = plan.per_class if per_class is None else whole(per_class, "per_class", 1)
    sha256 = entry(name, seed, models)["weights"]["sha256"]
    return LeastCase(name, seed, f"{LEAST}-{estimator}", plan.searches[estimator].cap, each, sha256,
                     models, data, estimator)


def _publish(case: Case, out: Path) -> None:
    # for the type checker: these are the cases that score_stored passes on
    assert isinstance(case, LeastCase)
    add_scores(case.name, case.seed, [least_row(together(case, out), case.examiner,
                                                case.split.classes)], case.weights, case.models)


def least_row(found: Tensor, search: Search, classes: tuple[str, ...]) -> dict[str, Any]:
    """A record's row of CRU_eps, from the verdicts of all batches."""
    y, eps, censored, cost = found[0].long(), found[1], found[2].bool(), found[3]
    least, n = LeastEps(eps, censored, round(float(cost.sum()))), len(classes)
    shares = [float(censored[y == c].double().mean()) for c in range(n)]
    return {"score": "CRU_eps", "estimator": search.estimator, "told": repr(search),
            "cap": search.cap, "tolerance": search.tolerance,
            "increment": search.step, "steps": least.steps, "classes": list(classes),
            "counts": torch.bincount(y, minlength=n).tolist(),
            "by_class": least.by_class(y, n).tolist(), "value": cru_eps(least, y, n),
            "censored": shares,
            **_or_words("right_only", lambda: [least.by_class(y, n, right_only=True).tolist(),
                                               cru_eps(least, y, n, right_only=True)])}


def _or_words(what: str, make: Callable[[], list[Any]]) -> dict[str, Any]:
    """by_class_<what> and value_<what>; where they are undefined, why."""
    try:
        by_class, value = make()
    except CourseError as e:
        return {f"value_{what}": None, f"why_{what}": str(e)}
    return {f"by_class_{what}": by_class, f"value_{what}": value}


def _from_reports(case: Case) -> list[dict[str, Any]]:
    """CAU and CRU_s, from the reports on the most images."""
    rows: list[dict[str, Any]] = []
    for attack, eps in plan_of(case.name).budgets:
        report = load_report(case.name, seed=case.seed, attack=attack, eps=eps, root=case.models)
        if not rows:
            rows.append({"score": "CAU", "counts": list(report.nat.counts), "value": cau(report)})
        rows.append({"score": "CRU_s", "attack": attack, "eps": eps, **cru_s_row(report)})
    return rows


def cru_s_row(report: Report) -> dict[str, Any]:
    """Both denominators: all examples, and those that are right when clean."""
    only = _or_words("correct_only", lambda:
                     [success(report, correct_only=True).tolist(),
                      cru_s(report, correct_only=True)])
    return {"classes": list(report.classes), "counts": list(report.nat.counts),
            "by_class": success(report).tolist(),
            "value": cru_s(report), **only}


def _from_groups(case: Case) -> list[dict[str, Any]]:
    plan = plan_of(case.name)
    if not plan.groups:
        return []
    test = case.whole_split
    confidence = confidences(_model(case.name, case.seed, case.weights, case.models), test)
    return [eou_row(confidence, test, group, names) for group, names in plan.groups.items()]


@dataclass(frozen=True)
class Transferred:
    """Examples that fool another model than the one that is evaluated."""

    attack: PGD
    source: nn.Module

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator) -> Tensor:
        return self.attack(self.source, x, y, generator=generator)


def _from_copies(case: Case) -> list[dict[str, Any]]:
    """Of a model trained on static copies: how it fares on static copies of the test set, which are
    no attack on it at all.

    Its accuracy there may well exceed the clean one, as it does in the paper: the copies carry
    their labels' mark.
    """
    copies = RECIPES[case.name.partition("@")[0]].copies
    if copies is None:
        return []
    rows = load_scores(case.name, seed=case.seed, root=case.models)
    stored = {(r.get("attack"), r.get("eps")): r for r in rows if r["score"] == "static"}
    source = entry(copies.of, case.seed, case.models)["weights"]["sha256"]
    found = []
    for _, eps in plan_of(case.name).budgets:
        row = stored.get((copies.of, eps), {})
        if row.get("source") != source:
            attack = Transferred(copies.attack.at(eps),
                                 _model(copies.of, case.seed, source, case.models))
            row = _static_row(case, copies.of, attack, source)
        found.append(row)
    return found


def _static_row(case: Case, of: str, attack: Transferred, source: str) -> dict[str, Any]:
    model = _model(case.name, case.seed, case.weights, case.models)
    report = evaluate(model, case.whole_split, attack, early=False, count_clean=False,
                      progress=False)
    return {"score": "static", "attack": of, "eps": attack.attack.eps, "source": source,
            "counts": list(report.nat.counts),
            "accuracy": 1 - report.rob.mean, "clean_accuracy": 1 - report.nat.mean,
            "by_class": report.rob.by_class.tolist(),
            "value": cru_s(report)}


def confidences(model: nn.Module, split: Split) -> Tensor:
    """F(x)_1, the probability of class 1."""
    with torch.no_grad(), frozen(model):
        return torch.cat([logits_of(model, split.images(part)).softmax(1)[:, 1]
                          for part in torch.arange(len(split)).split(1000)])


def eou_row(confidence: Tensor, split: Split, group: str, names: Sequence[str]) -> dict[str, Any]:
    """Mean confidence of every group under each label, and the ranges. Groups without a member of
    either label are named, not counted."""
    mine = split.groups[group]
    there = [g for g in range(len(names)) if all(bool(((mine == g) & (split.y == label)).any())
                                                 for label in (0, 1))]
    left_out = [names[g] for g in range(len(names)) if g not in there]
    if len(there) < 2:
        raise CourseError(f"Of {group} only {', '.join(names[g] for g in there) or 'nobody'} has "
                          "examples of both labels; EOU compares two "
                          f"groups at least. Take more rows (there are {len(split)}).")
    kept = torch.isin(mine, torch.tensor(there))
    number = torch.full((len(names),), -1)
    number[there] = torch.arange(len(there))
    means = group_means(confidence[kept], split.y[kept], number[mine[kept]],
                        [names[g] for g in there])
    counts = [[int(((mine == g) & (split.y == label)).sum()) for g in there] for label in (0, 1)]
    return {"score": "EOU", "group": group, "groups": [names[g] for g in there],
            "left_out": left_out, "counts": counts,
            "means": means.tolist(), "value": [float(row.max() - row.min()) for row in means]}
