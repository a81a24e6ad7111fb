"""A recipe describes one training completely; `run` trains it, evaluates it and makes its record.

The recipes of the course are data in course_lib/experiments/.
"""

import dataclasses
import hashlib
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

from course_lib import training
from course_lib.attacks import PGD
from course_lib.data import Dataset, Split, load
from course_lib.errors import CourseError, integer, pick, resolve
from course_lib.evaluation import NAMED, counted, evaluate, named
from course_lib.fairness import Report
from course_lib.methods import Method, Step
from course_lib.models import build
from course_lib.training import Optim, Run, fit

# the tables of experiments/, which imports this file
RECIPES, TRANSFORMS = "course_lib.experiments:RECIPES", "course_lib.experiments:TRANSFORMS"
EXAMINATION = (("pgd20", 8 / 255), ("pgd20", 16 / 255))  # attacks on Fashion-MNIST's test set


@dataclass(frozen=True)
class Recipe:
    """One training: RECIPES["mine/x"] = Recipe("About x", METHODS["fat"](), Optim(), epochs=15)."""

    about: str
    method: Method
    optim: Optim
    epochs: int
    dataset: str = "fashion-mnist"
    transform: str = ""  # a name in TRANSFORMS
    model: str = "lenet5"
    start: str = ""  # the recipe whose weights (same seed) it starts from
    seeds: int = 5
    validation: PGD = PGD(steps=20)  # the attack on validation data
    validation_images: int | None = None  # this many in training, stratified; None is all
    examination: tuple[tuple[str, float], ...] = EXAMINATION
    weights: bool = True  # are the weights stored? Grids and ablations store records only
    copies: Any = None  # attacked copies, which join the training set (experiments/scores.py)

    def __post_init__(self) -> None:
        resolve("course_lib.judge.kinds:check_kinds")(vars(self), Recipe)

    @property
    def needs(self) -> set[str]:
        """The recipes that must be trained before."""
        return {self.start, self.copies.of if self.copies else ""} - {""}

    def as_data(self) -> dict[str, Any]:
        """Plain data for records: the method's name beside its fields."""
        return {**dataclasses.asdict(self), "method":
                {"name": self.method.name, **dataclasses.asdict(self.method)}}


def run(name: str, seed: int, out: Path | str, *, limit: int | None = None,
        epochs: int | None = None, mirror: Path | str | None = None,
        root: Path | str | None = None, models: Path | None = None, fresh: bool = False,
        progress: bool = True) -> tuple[Run, dict[str, Any]]:
    """Train a recipe with checkpoints under `out`, evaluate it, and return it with its record. A
    stopped run is resumed; `fresh` starts another. `limit` (images) and `epochs` shorten it,
    `mirror` is a second folder for checkpoints, `root` and `models` are folders of data and models.
    """
    resolve("course_lib.judge.kinds:check_kinds")(locals(), run)
    from course_lib.checkpoints import Store
    from course_lib.files import check_writable
    from course_lib.machine import device

    recipe, label = pick(resolve(RECIPES), name, "recipe"), stored_name(name, limit, epochs)
    change = pick(resolve(TRANSFORMS), recipe.transform, "transform")
    data = change(load(recipe.dataset, root=root, limit=limit))
    epochs = recipe.epochs if epochs is None else integer(epochs, "epochs", 0)
    earlier = {need: _trained_before(need, seed, Path(out), models, label.removeprefix(name))
               for need in recipe.needs}
    train, place = data.train, f"{label}/seed{seed}/{digest(recipe)}"
    about = made_from(recipe, data, epochs)
    about["validation_trained_on"] = recipe.transform in ("whole", "validated-on-training")
    if recipe.start:
        model, sha256 = earlier[recipe.start]
        place += f"-{sha256}"
        about["start"] = {"of": recipe.start, "weights": sha256}
    else:
        model = build(recipe.model, seed=seed, classes=len(data.classes))
    if recipe.copies:
        train, copies = recipe.copies.join(train, *earlier[recipe.copies.of], seed)
        place, about = f"{place}-copies-{copies['copies']['weights']}", about | copies
    _ = [counted(part.y.expand(3, -1), part.classes, "", 0.0) for part in (data.val, data.test)]
    # three checkpoints and a fourth that is being written, each of weights and two moments
    check_writable(Path(out), 12 * sum(tensor.nbytes for tensor in model.state_dict().values()))
    trained = fit(model.to(device()), recipe.method, train, epochs=epochs, optim=recipe.optim,
                  seed=seed, validate=_validation(recipe, data.val), fresh=fresh, progress=progress,
                  store=Store(Path(out) / place, mirror and Path(mirror) / place))
    return trained, {"recipe": label, "seed": seed, "seconds": round(trained.seconds, 1),
                     "made_from": about | {"identity": trained.identity},
                     **_reports(recipe, trained.model, data, progress), "history": trained.history}


def _validation(recipe: Recipe, val: Split) -> Callable[[nn.Module, Step], Report] | None:
    """How the model is validated in training; None where nobody asks."""
    wants, averaging = recipe.method.wants_report, recipe.optim.averaging
    if not ((wants and recipe.method.update_every is not None) or (averaging and averaging.accept)):
        return None
    part, attack = val.take(slice(0, recipe.validation_images)), recipe.validation
    return lambda model, at: evaluate(model, part, attack, name="validation",
                                      progress=False, flips=wants == "flips")


def _trained_before(name: str, seed: int, out: Path, models: Path | None,
                    cuts: str) -> tuple[nn.Module, str]:
    """The model of an earlier recipe, shortened alike if there is one, and its hash's start."""
    from course_lib.zoo import load_model, model_files

    places = (models, out) if models else (out, None)
    for label, place in product((name + cuts, name), places):
        files = model_files(place).entries().get(label, {}).get(str(seed), {})
        if "weights" in files:
            return load_model(label, seed=seed, root=place), files["weights"]["sha256"][:8]
    where = " and ".join(str(model_files(place).folder) for place in places)
    raise CourseError(f"This recipe needs {name}, seed {seed}, whose weights are not in {where}. "
                      "Train that first, with the same --out.")


def _reports(recipe: Recipe, model: nn.Module, data: Dataset, progress: bool) -> dict[str, Any]:
    """Of the test set and all validation data; under torchrun the first process makes them."""
    own, group = recipe.validation, training.processes
    label = next((name for name, attack in NAMED.items()  # a named one, at whatever budget
                  if vars(resolve(attack)) | {"eps": own.eps} == vars(own)),
                 f"pgd{own.steps}, step {255 * own.step_size:.3g}/255")
    cases = [*((data.test, name, named(name, eps)) for name, eps in recipe.examination),
             (data.val, label, own)]
    reports = [evaluate(model, split, attack, name=name, progress=progress).to_json()
               for split, name, attack in cases if group.first]
    *tests, validation = group.from_first(reports)
    return {"reports": tests, "validation": validation}


def stored_name(name: str, limit: int | None, epochs: int | None) -> str:
    """The recipe's name, with what shortens the run: exp1/natural@limit=100."""
    cuts = {"limit": limit, "epochs": epochs}
    return name + "".join(f"@{k}={v}" for k, v in cuts.items() if v is not None)


def digest(recipe: Recipe) -> str:
    """A hash of all that the training depends on; a new field at its default changes nothing."""
    settings = replace(recipe, about="", seeds=0, examination=(), weights=True)
    data = json.dumps(_differences(settings), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()[:12]


def _differences(thing: Any) -> Any:
    """A dataclass as the name of its kind and the fields that differ from their defaults."""
    if dataclasses.is_dataclass(thing):
        other = getattr(thing, "RECORDED_AS", {})  # another kind, which has other defaults
        data = {f.name: _differences(value) for f in dataclasses.fields(thing)
                if (value := getattr(thing, f.name)) != f.default or other}
        return {"kind": type(thing).__name__, **data, **other}
    return [_differences(v) for v in thing] if isinstance(thing, list | tuple) else thing


def made_from(recipe: Recipe, data: Dataset, epochs: int) -> dict[str, Any]:
    """The circumstances of a training, for its record."""
    from course_lib.machine import environment

    versions = {"course_lib": resolve("course_lib:__version__"), "numpy": version("numpy"),
                "torchvision": version("torchvision"), "python": platform.python_version(),
                **environment(), **training.processes.identity()}
    return {"model": recipe.model, "classes": list(data.classes), "recipe": recipe.as_data(),
            "digest": digest(recipe), "epochs": epochs, "training_examples": len(data.train),
            "data_sha256": data.train.digest(), "versions": versions}
