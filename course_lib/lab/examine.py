"""Stored models through further attacks, batch by batch: killed and called again it goes on, and
nothing is done twice.
 Every finished batch's verdicts lie under `out`, named by weights, attack, budget, images and
number. When a model's last batch is done its report joins its record; the weights stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.data import Split, load
from course_lib.errors import CourseError, matching, pick, whole
from course_lib.evaluation import named, tally, verdicts
from course_lib.experiments import RECIPES
from course_lib.files import write_together
from course_lib.lab.publish import add_reports
from course_lib.machine import device, keep_memory, one_thread
from course_lib.recipes import TRANSFORMS
from course_lib.zoo import chosen, entry, load_model, load_record, manifest, report_rows

BATCH = 500  # images, for an attack that does not say


@dataclass(frozen=True)
class Case:
    """One stored model under one attack, on the first images of each class or on all."""

    name: str
    seed: int
    attack: str
    eps: float
    per_class: int | None
    weights: str  # sha256
    models: Path
    data: Path | None = None

    @property
    def split(self) -> Split:
        recipe = pick(RECIPES, self.name.partition("@")[0], "recipe")
        return _split(recipe.dataset, recipe.transform, self.per_class, self.data)

    @property
    def whole_split(self) -> Split:
        return dataclasses.replace(self, per_class=None).split

    @property
    def examiner(self) -> Any:
        """What is run; its text names the folder of its verdicts."""
        return named(self.attack, self.eps)

    def parts(self) -> list[Tensor]:
        return list(torch.arange(len(self.split)).split(getattr(self.examiner, "batch", BATCH)))

    def verdicts(self, model: nn.Module, i: int) -> Tensor:
        """What a batch comes to."""
        return verdicts(model, self.split.take(self.parts()[i]), self.examiner, batch=BATCH, seed=i,
                        progress=False)

    def place(self, out: Path) -> Path:
        """A folder of its own for whatever would give other verdicts."""
        what = [self.weights, repr(self.examiner), self.split.digest()]
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        return out / "examined" / self.name / f"seed{self.seed}" / f"{self.attack}-{key}"

    def stored(self) -> bool:
        rows = report_rows(load_record(self.name, seed=self.seed, root=self.models), self.name)
        counts = torch.bincount(self.split.y).tolist()
        return chosen([r for r in rows if r.get("counts") == counts], self.attack,
                      self.eps) is not None


@functools.lru_cache(maxsize=4)
def _split(dataset: str, transform: str, per_class: int | None, data: Path | None) -> Split:
    """The test images that models are examined on, the same object for all that share them."""
    test = pick(TRANSFORMS, transform, "transform")(load(dataset, root=data)).test
    return test if per_class is None else test.per_class(per_class)


@functools.lru_cache(maxsize=2)
def _model(name: str, seed: int, weights: str, models: Path) -> nn.Module:
    return load_model(name, seed=seed, root=models).to(device())


def examine_stored(patterns: Sequence[str], *,
                   attacks: Sequence[str] = ("pgd20", "cw20", "autoattack"), eps: float = 8 / 255,
                   per_class: int | None = None, seeds: int | None = None, jobs: int = 2,
                   out: Path | str = "runs",
                   models: Path | str, data: Path | None = None,
                   progress: bool = True) -> list[dict[str, Any]]:
    """Put stored models through attacks, `jobs` processes of one thread each; the rows asked for,
    of every model.

    `patterns` are names such as exp1/* or exp1, `seeds` the first so many. What is stored already
    is skipped.
    """
    out, models = Path(out).absolute(), Path(models).absolute()
    found = models_that(patterns, seeds, models)
    rows = []
    for attack in attacks:
        cases = [Case(n, s, attack, named(attack, eps).eps, per_class,
                      entry(n, s, models)["weights"]["sha256"], models, data)
                 for n, s in sorted(found, key=lambda t: t[1])]
        in_batches([c for c in cases if not c.stored()], attack, out, whole(jobs, "jobs", 1),
                   progress)
        rows += [_row(c) for c in cases]
    return rows


def models_that(patterns: Sequence[str], seeds: int | None, models: Path) -> list[tuple[str, int]]:
    """The stored models with weights whose names match, and which seeds."""
    stored = manifest(models)
    if seeds is not None:
        whole(seeds, "seeds", 1)
    names = matching(stored, patterns)
    found = [(n, int(s)) for n in names for s in stored[n] if "weights" in stored[n][s]
             and (seeds is None or int(s) < seeds)]
    if not found:
        raise CourseError(f"No model whose weights are stored matches {', '.join(patterns)}. There "
                          f"is: {', '.join(stored)}.")
    return found


def _row(case: Case) -> dict[str, Any]:
    rows, counts = load_record(case.name, seed=case.seed,
                               root=case.models)["reports"], torch.bincount(case.split.y).tolist()
    return {"recipe": case.name, "seed": case.seed,
            **(chosen([r for r in rows if r["counts"] == counts], case.attack, case.eps) or {})}


def in_batches(cases: Sequence[Case], title: str, out: Path, jobs: int, progress: bool, *,
               publish: Callable[[Case, Path], None] | None = None) -> None:
    """Whatever batch has no verdicts yet, then a report a model (or what `publish` makes) as soon
    as its last batch is there."""
    publish = _publish if publish is None else publish
    todo = {c: [i for i in range(len(c.parts())) if read(c, i, out) is None] for c in cases}
    total, left = (sum(len(part) for c in cases for i, part in enumerate(c.parts()) if full
                       or i in todo[c]) for full in (True, False))
    calls = [joblib.delayed(examine_batch)(c, i, out) for c, missing in todo.items()
             for i in missing]
    for c in [c for c, missing in todo.items() if not missing]:
        publish(c, out)
    with tqdm(total=total, initial=total - left, unit="image", desc=title,
              disable=not progress) as bar:
        for case, i in joblib.Parallel(n_jobs=jobs, return_as="generator_unordered",
                                       batch_size=1)(calls):
            bar.update(len(case.parts()[i]))
            todo[case].remove(i)
            if not todo[case]:
                publish(case, out)


def examine_batch(case: Case, i: int, out: Path) -> tuple[Case, int]:
    """One batch, on one thread; its verdicts are written whole or not at all."""
    keep_memory()
    with one_thread():
        found = case.verdicts(_model(case.name, case.seed, case.weights, case.models), i)
    body = json.dumps(found.tolist())
    sealed = {"sha256": _seal(case, i, out, body), "verdicts": body}
    write_together({_file(case, i, out): json.dumps(sealed).encode()})
    return case, i


def read(case: Case, i: int, out: Path) -> Tensor | None:
    """A batch's verdicts, or None where there are none, or damaged ones."""
    try:
        sealed = json.loads(_file(case, i, out).read_bytes())
        if sealed["sha256"] != _seal(case, i, out, sealed["verdicts"]):
            return None
        return torch.tensor(json.loads(sealed["verdicts"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _file(case: Case, i: int, out: Path) -> Path:
    return case.place(out) / f"{i:04}.json"


def _seal(case: Case, i: int, out: Path, body: str) -> str:
    return hashlib.sha256(f"{case.place(out).name} {i} {body}".encode()).hexdigest()


def together(case: Case, out: Path) -> Tensor:
    """The verdicts of all its batches."""
    parts = [read(case, i, out) for i in range(len(case.parts()))]
    return torch.cat([p for p in parts if p is not None], 1)


def _publish(case: Case, out: Path) -> None:
    found = together(case, out)
    report = tally(found, case.split.classes, case.attack, case.eps)
    add_reports(case.name, case.seed, [report], case.weights, case.models)
