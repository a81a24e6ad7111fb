"""Every experiment as data, and the one way to run it: train, evaluate, record."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import course_lib
from course_lib.attacks import ATTACKS, NAMED, PGD
from course_lib.checkpoints import Store
from course_lib.data import Dataset, Split, batches, load
from course_lib.datasets.adult import UNITS, balanced
from course_lib.errors import CourseError, pick, whole
from course_lib.evaluation import evaluate
from course_lib.fairness import Report
from course_lib.machine import device
from course_lib.methods import METHODS, Method, Step
from course_lib.models import build
from course_lib.training import Optim, Run, divided, environment, fit, group
from course_lib.zoo import entry, load_model, load_record, models_dir, verified

Places = Sequence[Path | None]  # folders of stored models; None is the one of the course

# what every finished Fashion-MNIST model is put through
EXAMINATION = (("pgd20", 8 / 255), ("pgd20", 16 / 255))
# exp1/pgd-at, validation
HARDEST, EASIEST = ("Shirt", "Pullover", "Coat", "T-shirt/top"), ("Trouser", "Bag", "Sandal",
    "Ankle boot")
TRANSFORMS: dict[str, Callable[[Dataset], Dataset]] = {
    "": lambda d: d,
    "whole": Dataset.whole,
    "without-hardest": lambda d: d.without(HARDEST),
    "without-easiest": lambda d: d.without(EASIEST),
    "balanced": lambda d: Dataset(d.name, d.classes, d.test, lambda: (balanced(d.train), d.val)),
}


@dataclass(frozen=True)
class Copies:
    """Static adversarial data (Sooksatra and Rivas): a copy of each training example that fools
    another recipe's model, made once."""

    of: str  # the recipe whose weights (same seed) are fooled
    attack: PGD


@dataclass(frozen=True)
class Recipe:
    """One training, told completely."""

    about: str
    method: Method
    optim: Optim
    epochs: int
    dataset: str = "fashion-mnist"
    transform: str = ""  # a name in TRANSFORMS
    model: str = "lenet5"
    start: str = ""  # the recipe whose weights (same seed) it starts from
    seeds: int = 5
    validation: PGD = PGD(steps=20)  # what fairness is measured with, on validation data
    # the first so many of them, stratified; None is all 12,000
    validation_images: int | None = None
    examination: tuple[tuple[str, float], ...] = EXAMINATION
    weights: bool = True  # are they kept? Grids and ablations leave records only
    copies: Copies | None = None  # which join the clean training set

    @property
    def needs(self) -> set[str]:
        """The recipes that must be trained before."""
        return {name for name in (self.start, self.copies.of if self.copies else "") if name}

    def as_data(self) -> dict[str, Any]:
        """Plain data for records: the method's name beside its fields."""
        return {**dataclasses.asdict(self), "method":
                {"name": self.method.name, **dataclasses.asdict(self.method)}}


def _experiment_1() -> dict[str, Recipe]:
    schedule = divided(3, every=4, epochs=15)
    report, ours = Optim("adam", 1e-3, 100, schedule), Optim("adam", 1e-3, 128, schedule)
    natural, pgd_at = METHODS["natural"], METHODS["pgd_at"]
    return {
        "exp1/natural": Recipe("Natural training, as in the report", natural(), report, 15,
                               transform="whole"),
        "exp1/pgd-at-mixed": Recipe("The report's adversarial training: half of each batch "
                                    "attacked by PGD-20",
                                    pgd_at(PGD(steps=20), mix=0.5), report, 15, transform="whole"),
        "exp1/pgd-at": Recipe("Adversarial training on adversarial images only, PGD-10", pgd_at(),
                              ours, 15),
    }


# Budget (of 255) and TRADES' beta of Experiments 2 and 3, chosen on validation data (seed 0) before
# any test report was made; the trials are the tune/ recipes. All else is the authors' (code of
# 2022), but for Adam and a schedule for LeNet-5.
EPS, BETA = 12, 1.5
HOT_EPOCHS, FRL_EPOCHS = 15, 20  # the report's own 35
HOT_START = "exp2/hot-start"
VARIANTS = {"exp2/reweight": "rw", "exp3/remargin": "rm", "exp3/reweight-remargin": "rmrw"}
ALPHAS = (1, 2, 5, 10)


def _inner(eps: float) -> PGD:
    """TRADES' attack under another budget: ten steps of a quarter of it."""
    return PGD(eps=eps / 255, step_size=eps / 4 / 255, steps=10, objective="kl", start="gaussian")


def _frl(about: str, method: Method, **changes: Any) -> Recipe:
    """FRL from the hot start, with fairness measured on validation data under the attack it trains
    for."""
    optim = Optim("adam", 1e-3, 128, divided(3, every=7, epochs=FRL_EPOCHS))
    recipe = Recipe(about, method, optim, FRL_EPOCHS, start=HOT_START,
                    validation=PGD(eps=EPS / 255, step_size=EPS / 4 / 255))
    return dataclasses.replace(recipe, **changes)


def _experiments_2_and_3() -> dict[str, Recipe]:
    frl = METHODS["frl"]
    hot = Optim("adam", 2e-3, 128, divided(3, every=4, epochs=HOT_EPOCHS))
    found = {HOT_START: Recipe("TRADES, from which every FRL model starts",
                               METHODS["trades"](BETA, _inner(EPS)), hot, HOT_EPOCHS)}
    control = frl(variant="rw", tau=(1.0, 1.0), beta=BETA, attack=_inner(EPS))
    found["exp2/control"] = _frl("As long as FRL from the same hot start, but with even weights: "
                                 "what more training alone does", control)
    for name, variant in VARIANTS.items():
        for tau in (0.05, 0.07):
            method = frl(variant=variant, tau=(tau, tau), beta=BETA, attack=_inner(EPS))
            found[f"{name}-{100 * tau:02.0f}"] = _frl(f"FRL ({variant}), tolerance {tau}", method)
    return {**found, **_trials(frl), **_alpha_grids(frl)}


def _trials(frl: Any) -> dict[str, Recipe]:
    """What else was tried on validation data, from the same hot start; these models never see the
    test set."""
    found = {}
    for variant in ("rw", "rmrw"):
        for eps, beta in ((8, 1.5), (16, 1.5), (12, 3.0)):
            method = frl(variant=variant, tau=(0.05, 0.05), beta=beta, attack=_inner(eps))
            words = {"validation": PGD(eps=eps / 255, step_size=eps / 4 / 255), "examination": (),
                     "weights": False, "seeds": 1}
            found[f"tune/{variant}-{eps}-{beta:g}"] = _frl(f"FRL ({variant}), trained at {eps}/255 "
                                                           f"with beta {beta:g}", method, **words)
    return found


def _alpha_grids(frl: Any) -> dict[str, Recipe]:
    """The report's alpha grid, natural : boundary, for its own scheme (a check every 20 batches)
    and for the authors'."""
    found = {}
    optim = Optim("adam", 1e-4, 100, divided(3, every=4, epochs=FRL_EPOCHS))
    theirs = {"optim": optim, "start": "exp2/report-hot-start", "validation": PGD(eps=16 / 255),
              "validation_images": 2100, "seeds": 1}
    found["exp2/report-hot-start"] = dataclasses.replace(
        _experiment_1()["exp1/pgd-at-mixed"],
        about="The report's hot start, without the leak: trained on the 48,000", transform="",
        seeds=1
    )
    for a in ALPHAS:
        for b in ALPHAS:
            method = frl.preset("report", rates=(float(a), float(b), 0.0), update_every=20)
            about = f"The report's scheme, alpha {a}:{b}, 10 rounds, a check every 20 batches"
            found[f"exp2/grid-report/{a}-{b}"] = _frl(about, method, weights=False, epochs=10,
                                                      **theirs)
            method = frl(variant="rw", tau=(0.05, 0.05), beta=BETA, attack=_inner(EPS),
                         rates=(0.05 * a, 0.05 * b, 0.0))
            about = f"The authors' scheme, rates .05 x {a}:{b}, 10 rounds"
            found[f"exp2/grid-authors/{a}-{b}"] = _frl(about, method, weights=False, seeds=1,
                                                       epochs=10)
    found["exp2/report-5-1"] = _frl("The report's Reweight 5:1, a check every batch",
                                    frl.preset("report"), **theirs)
    margins = frl.preset("report", variant="rm", rates=(1.0, 0.0, 10.0),
                         attack=PGD(eps=8 / 255, step_size=1 / 255, steps=20))
    found["exp3/report-remargin"] = _frl("The report's Remargin 1:10 as it described it", margins,
                                         epochs=10, **theirs)
    return found


# Experiment 4: every method on equal terms. All see the same 48,000 images for EPOCHS epochs in
# all, FRL's hot start counted, in the same order; each had its trials on validation data (seed 0,
# tune/ recipes of TRIAL_EPOCHS), before any test report was made.
EPOCHS, TRIAL_EPOCHS = HOT_EPOCHS + FRL_EPOCHS, 15
BUDGETS = (8, 10, 12, 16)  # of 255: what was tried
# BAT's, each with the budgets 8 and 12
ALPHAS_TRIED = {"bat-code": (1.0, 0.3), "bat-paper": (0.3, 0.1)}
# The budget (and alpha) of each: the lowest mean of the worst class's standard and robust error
# among its trials; a test compares.
CHOSEN: dict[str, tuple[float, ...]] = {
    "pgd-at": (8,), "trades-1": (12,), "trades-6": (8,), "fat": (8,), "gairat": (10,),
    "bat-code": (8, 1.0), "bat-paper": (8, 0.3),
}


def _rivals(eps: float) -> dict[str, Method]:
    """The methods without a weight to choose, trained under a budget of eps/255 in steps of a
    quarter of it."""
    ce = PGD(eps=eps / 255, step_size=eps / 4 / 255, steps=10)
    trades, noisy = METHODS["trades"], dataclasses.replace(ce, noise=0.001)
    found = {"pgd-at": METHODS["pgd_at"](ce), "trades-1": trades(1.0, _inner(eps)),
             "trades-6": trades(6.0, _inner(eps))}
    return {**found, "fat": METHODS["fat"](noisy), "gairat": METHODS["gairat"](ce)}


def _bat(preset: str, eps: float, alpha: float) -> Method:
    return METHODS["bat"].preset(preset, alpha=alpha, attack=_inner(eps))  # type: ignore[attr-defined]


def _equal(about: str, method: Method, epochs: int = EPOCHS, **changes: Any) -> Recipe:
    optim = Optim("adam", 2e-3, 128, divided(3, every=4 if epochs == TRIAL_EPOCHS else 9,
                                             epochs=epochs))
    return dataclasses.replace(Recipe(about, method, optim, epochs), **changes)


def _experiment_4_trials() -> dict[str, Recipe]:
    words: dict[str, Any] = {"epochs": TRIAL_EPOCHS, "examination": (), "weights": False,
                             "seeds": 1}
    tried = {f"tune/{name}-{eps}": method for eps in BUDGETS for name,
             method in _rivals(eps).items()}
    for name, alphas in ALPHAS_TRIED.items():
        tried |= {f"tune/{name}-{eps}-{a:g}": _bat(name.removeprefix("bat-"), eps, a)
                  for eps in (8, 12) for a in alphas}
    return {name: _equal(f"Trial on validation data: {name.removeprefix('tune/')}", method, **words)
            for name, method in tried.items()}


def _experiment_4() -> dict[str, Recipe]:
    """BAT, its rivals (FRL's are those of Experiment 3), its ablations, and PGD-AT with classes
    left out."""
    found = {}
    for name, (eps, *alpha) in CHOSEN.items():
        method = _bat(name.removeprefix("bat-"), eps, *alpha) if alpha else _rivals(eps)[name]
        found[f"exp4/{name}"] = _equal(f"{name}, trained at {eps:g}/255"
                                       + "".join(f" with alpha {a:g}" for a in alpha), method)
    few: dict[str, Any] = {"weights": False, "seeds": 3}
    for k in (1, 2, 3, 4, 6):  # number 5 is BAT itself
        found[f"exp4/ablation-{k}"] = _equal(f"Ablation {k} of BAT's Table 2",
                                             _bat(f"ablation-{k}", *CHOSEN["bat-code"]), **few)
    for transform in ("without-hardest", "without-easiest"):
        found[f"exp4/{transform}"] = _equal(
            f"PGD-AT {transform.replace('-', ' the ')} four classes",
            _rivals(*CHOSEN["pgd-at"])["pgd-at"],
                                            transform=transform, **few)
    return found


# The scores' experiments (Sooksatra and Rivas): Adam, batches of 250, 20 epochs, as in the paper.
# The rate of each is the one tried (tune/ recipes, seed 0) whose standard accuracy on validation
# data comes nearest to the paper's, 71.96 and 79.53 %.
RATES = (3e-4, 1e-3, 3e-3)
RATE = {"cifar10": 1e-3, "adult": 1e-3}
SCORE_BUDGETS = {"cifar10": (0.01, 0.012, 0.014), "adult": (10.0, 15.0, 20.0)}  # Tables I and II
LEFT_OUT_EPOCHS = 5


def _scores() -> dict[str, Recipe]:
    """Standard, robust as Madry et al. (each batch attacked anew), robust as the paper (copies made
    once, merged)."""
    found = {}
    for data, attack, scale in (("cifar10", "pgd20-fine", ()), ("adult", "pgd20-adult", UNITS)):
        eps, *_ = budgets = SCORE_BUDGETS[data]
        inner, standard = PGD(eps, eps / 4, 10, scale=scale), f"scores/{data}-standard"
        words: dict[str, Any] = {"dataset": data, "transform": "balanced" if data == "adult"
                                 else "", "seeds": 3,
                                 "model": {"cifar10": "small_cnn", "adult": "table_mlp"}[data],
                                 "validation": NAMED[attack]}
        for rate in RATES:
            trial: dict[str, Any] = {**words, "seeds": 1, "examination": (), "weights": False}
            found[f"tune/scores-{data}-{rate:g}"] = Recipe(f"Natural training at the rate {rate:g}",
                                                           METHODS["natural"](),
                                                           Optim("adam", rate, 250), 20, **trial)
        words |= {"optim": Optim("adam", RATE[data], 250), "epochs": 20,
                  "examination": tuple((attack, e) for e in budgets)}
        found[standard] = Recipe("Natural training, as in the scores' paper", METHODS["natural"](),
                                 **words)
        # 2.5 times as fast on this network, and as strong
        anew = dataclasses.replace(inner, bf16=data == "cifar10")
        found[f"scores/{data}-robust"] = Recipe("Adversarial training, attacked anew in each batch",
                                                METHODS["pgd_at"](anew), **words)
        found[f"scores/{data}-static"] = Recipe("The paper's adversarial training: copies that "
                                                "fool the standard model, made once, merged",
                                                METHODS["natural"](),
                                                copies=Copies(standard, inner), **words)
    return found


def _left_out() -> dict[str, Recipe]:
    """What is trained again and again with one example left out (`course_lib.lab.leave_out`); no
    weights are kept."""
    found = {}
    for data, model, attack in (("fashion-mnist", "lenet5", ATTACKS["pgd10"]),
                                ("cifar10", "small_cnn", PGD(0.01, 0.0025, 10, bf16=True))):
        optim = Optim("adam", 1e-3, 128) if model == "lenet5" else Optim("adam", RATE[data], 250)
        # from a clean start: where one example of a batch is gone, the draws of all the others
        # would change
        for kind, method in (("standard", METHODS["natural"]()),
                             ("robust", METHODS["pgd_at"](dataclasses.replace(attack,
                                 start="clean")))):
            found[f"luf/{data}-{kind}"] = Recipe(f"To leave examples out of: {kind} training",
                                                 method, optim, LEFT_OUT_EPOCHS, data,
                                                 model=model, seeds=1, examination=(),
                                                 weights=False)
    return found


RECIPES: dict[str, Recipe] = {
    **_experiment_1(), **_experiments_2_and_3(), **_experiment_4_trials(), **_experiment_4(),
    **_scores(), **_left_out(),
}


def run(name: str, seed: int, out: Path | str, *, limit: int | None = None,
        epochs: int | None = None, mirror: Path | str | None = None,
        root: Path | str | None = None, models: Path | None = None,
        progress: bool = True) -> tuple[Run, dict[str, Any]]:
    """Train a recipe with checkpoints under `out`, examine it on the test set, and return it with
    its record."""
    recipe = pick(RECIPES, name, "recipe")
    data = pick(TRANSFORMS, recipe.transform,
                "transform")(load(recipe.dataset, root=root, limit=limit))
    label = stored_name(name, limit, epochs)
    # where a model that this one needs may be: trained here, or stored
    before, cuts = (Path(out), models), label.removeprefix(name)
    model, origin = _starting_model(recipe, data, seed, before, cuts)
    model.to(device())  # under torchrun each process's own
    trained_on, copied = _with_copies(recipe, data, seed, before, cuts)
    epochs = recipe.epochs if epochs is None else whole(epochs, "epochs", 0)
    # an edited recipe or hot start begins beside the old checkpoints
    place = f"{label}/seed{seed}/{digest(recipe)}{origin}{copied}"
    store = Store(Path(out) / place, mirror=None if mirror is None else Path(mirror) / place)

    def validate(model: nn.Module, at: Step) -> Report:
        flips = getattr(recipe.method, "boundary", "") == "flips"
        held_out = data.val.take(slice(0, recipe.validation_images))
        return evaluate(model, held_out, recipe.validation, name="validation", flips=flips,
                        progress=False)

    trained = fit(model, recipe.method, trained_on, epochs=epochs, optim=recipe.optim, seed=seed,
                  validate=validate, store=store, progress=progress)
    *reports, final = _examined(recipe, trained.model, data, progress)
    made = made_from(recipe, data, epochs) | _told_copies(recipe, trained_on, copied)
    record = {"recipe": label, "seed": seed, "made_from": made,
              "seconds": round(trained.seconds, 1),
              "reports": [r.to_json() for r in reports], "validation": final.to_json(),
              "history": trained.history}
    return trained, record


def _examined(recipe: Recipe, model: nn.Module, data: Dataset, progress: bool) -> list[Report]:
    """The reports on the test set and, last, the one on all validation data: found by the first
    process alone, as in training."""
    here, found = group(), list[Report]()
    with here.together():
        if here.first:
            found = [examine(model, data, attack, eps, progress) for attack,
                     eps in recipe.examination]
            found.append(evaluate(model, data.val, recipe.validation, name="pgd20",
                                  progress=progress))
    return here.from_first(found)


def _starting_model(recipe: Recipe, data: Dataset, seed: int, places: Places,
                    cuts: str) -> tuple[nn.Module, str]:
    """A new model, or the hot start and its hash. A shortened run takes a hot start shortened
    alike, where there is one."""
    if not recipe.start:
        return build(recipe.model, seed=seed, classes=len(data.classes)), ""
    return _trained_before(f"starts from {recipe.start}", seed, places, cuts)


def _trained_before(need: str, seed: int, places: Places, cuts: str) -> tuple[nn.Module, str]:
    """The model of the recipe that `need` ends with, shortened alike where there is one, and its
    hash; `places` in turn."""
    name = need.rpartition(" ")[2]
    for start, place in product(dict.fromkeys((name + cuts, name)), places):
        try:
            what = entry(start, seed, place)
        except CourseError as e:
            reason = str(e)
            continue
        if "weights" in what:
            return load_model(start, seed=seed, root=place), "-" + what["weights"]["sha256"][:8]
        reason = f"Of {start}, seed {seed}, the record is stored and no weights."
    where = " and ".join(str(place or models_dir()) for place in places)
    raise CourseError(f"This recipe {need}, seed {seed}, which is not in {where}. Train that "
                      f"first, with the same --out. ({reason})")


def _with_copies(recipe: Recipe, data: Dataset, seed: int, places: Places,
                 cuts: str) -> tuple[Split, str]:
    """The training set; with the recipe's copies behind it, and the hash of the model that they
    fool."""
    if recipe.copies is None:
        return data.train, ""
    model, origin = _trained_before(f"makes copies that fool {recipe.copies.of}", seed, places,
                                    cuts)
    generator = torch.Generator().manual_seed(seed)
    clean = data.train
    copies = torch.cat([recipe.copies.attack(model, x, y, generator=generator) for x,
                        y in batches(clean, 500)])
    groups = {k: torch.cat([g, g]) for k, g in clean.groups.items()}
    return Split(torch.cat([clean.images(), copies]), torch.cat([clean.y, clean.y]), clean.classes,
                 groups), f"-copies{origin}"


def _told_copies(recipe: Recipe, trained_on: Split, copied: str) -> dict[str, Any]:
    if recipe.copies is None:
        return {}
    told = {"of": recipe.copies.of, "weights": copied.rpartition("-")[2],
            "data_sha256": trained_on.digest()}
    return {"training_examples": len(trained_on), "copies": told}


def stored_name(name: str, limit: int | None, epochs: int | None) -> str:
    """A shortened run never bears the recipe's own name."""
    cuts = [f"{k}={v}" for k, v in (("limit", limit), ("epochs", epochs)) if v is not None]
    return name + "".join(f"@{c}" for c in cuts)


def examine(model: nn.Module, data: Dataset, attack: str, eps: float,
            progress: bool = True) -> Report:
    """A report on the whole test set under a named attack."""
    return evaluate(model, data.test, pick(NAMED, attack, "attack").at(eps), name=attack,
                    progress=progress)


def digest(recipe: Recipe) -> str:
    """Twelve digits that change with whatever the training depends on, and not when a field with a
    default is added."""
    told = _told(dataclasses.replace(recipe, about="", seeds=0, examination=(), weights=True))
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def _told(thing: Any) -> Any:
    """A dataclass as the fields that differ from their defaults, with the name of its kind."""
    if dataclasses.is_dataclass(thing):
        told = {f.name: _told(getattr(thing, f.name)) for f in dataclasses.fields(thing)
                if getattr(thing, f.name) != f.default}
        return {"kind": type(thing).__name__, **told}
    return [_told(v) for v in thing] if isinstance(thing, list | tuple) else thing


def made_from(recipe: Recipe, data: Dataset, epochs: int) -> dict[str, Any]:
    """What a record must say of its training, so that a test can compare it with the recipe."""
    packages = {p: version(p) for p in ("numpy", "torchvision")}
    versions = {"course_lib": course_lib.__version__, "python": platform.python_version(),
                **packages}
    return {"model": recipe.model, "classes": list(data.classes), "recipe": recipe.as_data(),
            "digest": digest(recipe), "epochs": epochs,
            "training_examples": len(data.train), "data_sha256": data.train.digest(),
            "versions": {**versions, **environment()}}


def up_to_date(record: dict[str, Any]) -> bool:
    """Does a stored record come from the recipe as it stands?"""
    name, _, cuts = record.get("recipe", "").partition("@")
    made = record.get("made_from", {})
    epochs = [int(c.removeprefix("epochs=")) for c in cuts.split("@") if c.startswith("epochs=")]
    return name in RECIPES and made.get("digest") == digest(RECIPES[name]) and made.get(
        "epochs") == (epochs or [RECIPES[name].epochs])[0]


def finished(label: str, seed: int, models: Path | str) -> dict[str, Any] | None:
    """The record of a training that is stored, verifies as do its weights (if they are kept), and
    was made from the recipe as it stands."""
    try:
        record = load_record(label, seed=seed, root=Path(models))
        if weights := entry(label, seed, Path(models)).get("weights"):
            verified(weights, Path(models))
    except CourseError:
        return None
    return record if up_to_date(record) else None
