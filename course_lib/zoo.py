"""Names to verified models and their results.

serialized_models/manifest.json names a weights file and a record for every recipe and seed, with
their sha256. Bytes are read, hashed, and only then parsed; tensors must fit their network. Reports
are combined only on the same images, under the same attack and budget, and by the classes' names.
"""

import os
import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from course_lib.errors import CourseError, instead, pick, resolve, several
from course_lib.fairness import Errors, Report
from course_lib.models import build

Root = Path | str | None  # a folder of stored models; None is `models_dir()`
K = TypeVar("K", bound=Hashable)
TRAIN = ("Train it: python -m course_lib train {name} --seed {seed}. Then give --models runs "
         "or set COURSE_MODELS=runs.")


def models_dir() -> Path:
    """$COURSE_MODELS, or serialized_models/: in an installed package, beside it in a clone."""
    here = Path(__file__).parent
    installed, cloned = here / "serialized_models", here.parent / "serialized_models"
    return Path(os.environ.get("COURSE_MODELS") or (installed if installed.is_dir() else cloned))


def model_files(root: Root = None, kind: str = "models") -> Any:
    """The folder of stored models, or of the "curves" or "luf" in it, as StoredFiles."""
    return resolve("course_lib.files:StoredFiles")(
        Path(root or models_dir()).expanduser() / ("" if kind == "models" else kind), kind,
        f"Restore it (git checkout) or run `make {kind}`.")


def manifest(root: Root = None) -> dict[str, dict[str, dict[str, Any]]]:
    """recipe -> seed (as text) -> {"weights": {file, sha256}, "record": {file, sha256}}"""
    files = model_files(root)
    if not os.path.isfile(path := files.folder / "manifest.json"):
        raise CourseError(f"{path} is not there. Clone the whole repository, set COURSE_MODELS to "
                          "a folder of models, or run `make models`.")
    return dict(files.entries())


def entry(name: str, seed: int, root: Root = None) -> dict[str, Any]:
    """The manifest's rows for one model: "record" and, where they are kept, "weights"."""
    seeds = pick(manifest(root), name, "model")
    if str(seed) not in seeds:
        raise CourseError(f"{name} is stored for seeds {', '.join(sorted(seeds))}, not for "
                          f"{seed!r}. {TRAIN.format(name=name, seed=seed)}")
    return seeds[str(seed)]


@dataclass(frozen=True)
class StoredModel:
    """One model of the manifest: the rows of its files, its record, and its reports."""

    name: str
    seed: int
    files: dict[str, Any]
    record: dict[str, Any]
    data: str  # the data set that it was trained on
    method: str
    reports: list[Report]


def matching(names: Collection[str], patterns: Any) -> list[str]:
    """The names that fit a pattern such as exp1/pgd-*, or are in a group such as exp1. A pattern
    that no name fits is an error.

    >>> matching(["exp1/natural", "exp10/natural"], "EXP1")
    ['exp1/natural']
    """
    fits: set[str] = set()
    for pattern in several(patterns) or [None]:
        low = f"{pattern}".lower().rstrip("/")
        mine = {n for n in names if fnmatchcase(n.lower(), low) or n.lower().startswith(low + "/")}
        if not mine:
            raise CourseError(f"Nothing is called {f'{pattern}':.100}, so nothing was done."
                              f"{instead(names, pattern)}")
        fits |= mine
    return [n for n in names if n in fits]


def stored_models(root: Root = None, *patterns: str) -> list[StoredModel]:
    """All stored models, or those whose names match a pattern such as "exp1" or "exp2/rew*". Those
    whose record is damaged are left out; one warning names them."""
    stored = manifest(root)
    names = sorted(matching(stored, patterns) if patterns else stored)
    models, bad = [], list[str]()
    for name, seed in ((n, seed) for n in names for seed in sorted(stored[n], key=int)):
        try:
            models.append(_stored_model(name, int(seed), stored[name][seed], root))
        except CourseError as e:
            bad.append(f"{name}, seed {seed} ({e})")
    if bad:
        warnings.warn(f"Left out, {len(bad)} that cannot be read: {'; '.join(bad[:3])}",
                      stacklevel=2)
    return models


def seeds_of(*names: str, root: Root = None) -> list[StoredModel]:
    """The stored models of these recipes, all seeds."""
    stored = {name: seeds for name, seeds in manifest(root).items() if seeds}
    for name in names:
        pick(stored, name, "model")
    return [m for m in stored_models(root, *names) if m.name in names]


def _stored_model(name: str, seed: int, files: dict[str, Any], root: Root) -> StoredModel:
    record = model_files(root).read_json(files.get("record", {}))
    try:
        recipe = record.get("made_from", {}).get("recipe", {})
        reports = [Report.from_json(row) for row in record.get("reports", [])]
        method = recipe.get("method", {}).get("name", "")
        if any(min(r.bnd.wrong) < 0 for r in reports):
            raise CourseError("a class is wrong less often under attack than without")
    except (CourseError, AttributeError, TypeError) as e:
        raise CourseError(f"{name}: its record is damaged ({e}). Restore it or make it "
                          "again.") from None
    return StoredModel(name, seed, files, record, str(recipe.get("dataset", "")), str(method),
                       reports)


def load_record(name: str, *, seed: int = 0, root: Root = None) -> dict[str, Any]:
    """Everything stored about one training: recipe, versions, history and reports."""
    return model_files(root).read_json(entry(name, seed, root).get("record", {}))


def load_model(name: str | os.PathLike[str], *, seed: int = 0, root: Root = None,
               model: nn.Module | None = None) -> nn.Module:
    """A trained model, verified, in eval mode: by its recipe's name, or from the folder that
    `save_model` wrote. A network that `build` does not make is given as `model`.

    >>> load_model("exp1/natural").training
    False
    """
    name, root, again = _saved(name) if root is None else (str(name), root, TRAIN)
    again = again.format(name=name, seed=seed)
    files, folder = entry(name, seed, root), replace(model_files(root), remake=again)
    if "weights" not in files:
        raise CourseError(f"Only the record of {name} (seed {seed}) is stored; its weights are "
                          f"not. {again}")
    try:
        made = folder.read_json(files.get("record", {}))["made_from"]
        shape = made.get("arguments", {"classes": len(made["classes"])})
        model = build(made["model"], **shape) if model is None else model
    except (KeyError, TypeError, AttributeError):
        raise CourseError(f"{name}: its record names no network that `build` makes. Give yours, "
                          "load_model(..., model=my_network), or restore the record.") from None
    resolve("course_lib.checkpoints:load_weights")(model, folder.read(files["weights"]), name)
    return model.eval()


def _saved(name: Any) -> tuple[str, Path | None, str]:
    """A model's name, the folder that holds it (None for the course's), and how to make it again.
    The folder that `save_model` wrote is recognised by its manifest."""
    name = os.path.expanduser(name) if isinstance(name, str) else name
    if not isinstance(name, os.PathLike) and (name in model_files().entries() or not (
            isinstance(name, str) and os.path.isfile(os.path.join(name, "manifest.json")))):
        return name, None, TRAIN
    folder = Path(name).expanduser()
    names = [*model_files(folder).entries()]
    if len(names) != 1:
        raise CourseError(f"{name} is a folder with {len(names)} models. Give the folder that "
                          "save_model wrote, or load_model(one of them, root=folder).")
    return names[0], folder, "Save it again with save_model."


def combine(reports: Iterable[Report], ignore: str = "") -> list[Report]:
    """The reports with their classes in the first one's order, so that they can be compared. They
    share the images of each class (by its name), attack and budget; an unnamed attack fits
    any. `ignore` names facts that may differ, such as "attack budget"."""
    if not (reports := list(reports)):
        raise CourseError("There is no report; give one or more, such as load_report(name).")
    facts = [{"images": ", ".join(f"{n} {c}" for c, n in images_of(r)), "attack": r.attack,
              "budget": budget(r.eps)} for r in reports]
    for what, given in ((w, dict.fromkeys(f[w] for f in facts if f[w])) for w in [*facts[0]]):
        if len(given) > 1 and what not in ignore:
            raise CourseError(f"The reports differ in their {what}: {' / '.join(given)}. Give "
                              "reports of the same classes, images, attack and budget.")
    classes = reports[0].classes
    for i, r in enumerate(reports):
        if r.classes != classes:
            at = [r.classes.index(c) for c in classes]
            nat, rob, flips = (Errors(tuple(e.wrong[k] for k in at), tuple(e.counts[k] for k in at))
                               for e in (r.nat, r.rob, r.flips or r.nat))
            reports[i] = replace(r, nat=nat, rob=rob, flips=r.flips and flips, classes=classes)
    return reports


def images_of(report: Report) -> tuple[tuple[str, int], ...]:
    """The key of a report's images: how many of each class, sorted by name. If two classes
    share a name, by place."""
    of_class = tuple(zip(report.classes, report.nat.counts, strict=True))
    return of_class if len({*report.classes}) < len(of_class) else tuple(sorted(of_class))


def under(reports: Sequence[Report], attack: str | None, eps: float | None) -> list[Report]:
    """The reports of an attack with this budget; None is any."""
    return [r for r in reports if attack in (None, r.attack)
            and (eps is None or abs(r.eps - eps) < 1e-6)]


def columns(models: Mapping[K, Sequence[Report]], attack: str | None = None,
            eps: float | None = None, size: int | None = None) -> list[dict[K, Report]]:
    """The models' reports under an attack, grouped by images: first the images that most models
    share, then the largest set. With `size`, only reports on this many images."""
    found: dict[Any, dict[K, Report]] = {}
    for key, mine in models.items():
        for report in under(mine, attack, eps):
            if size in (None, sum(report.nat.counts)):
                found.setdefault(images_of(report), {}).setdefault(key, report)
    order = sorted(found, key=lambda n: (len(found[n]), sum(k for _, k in n)), reverse=True)
    return [dict(zip(found[n], combine(found[n].values(), "attack budget"), strict=True))
            for n in order]


def load_reports(name: str, *, attack: str = "pgd20", eps: float = 8 / 255,
                 root: Root = None) -> list[Report]:
    """The reports of every seed of a recipe, all on the same images."""
    seeds = {m.seed: m.reports for m in seeds_of(name, root=root)}
    if found := columns(seeds, attack, eps):
        return list(found[0].values())
    return [load_report(name, attack=attack, eps=eps, root=root)]  # which says what is stored


def load_report(name: str, *, seed: int = 0, attack: str = "pgd20", eps: float = 8 / 255,
                root: Root = None) -> Report:
    """A stored report of one model, the one on the most images."""
    stored = _stored_model(name, seed, entry(name, seed, root), root).reports
    if mine := under(stored, attack, eps):
        return max(mine, key=lambda r: sum(r.nat.counts))
    listed = ", ".join(f"{r.attack} at {budget(r.eps)} on {sum(r.nat.counts):,} images"
                       for r in stored)
    raise CourseError(f"No report of {name} under {attack} at {budget(eps)} is stored. Stored: "
                      f"{listed}.")


def flagged(reports: Sequence[Report], eps: float = 8 / 255) -> bool:
    """Does PGD-20 miss more than 5 points of this model's errors that AutoAttack finds, on average
    or in the worst class? Only reports on the same images are compared."""
    strong, weak = (under(reports, attack, eps) for attack in ("autoattack", "pgd20"))
    pairs = [(s.rob, w.rob) for s in strong for w in weak if s.nat.counts == w.nat.counts]
    return any(max(s.mean - w.mean, s.worst - w.worst) > 0.05 + 1e-9 for s, w in pairs)


def budget(eps: float) -> str:
    """An attack's eps: in 255ths where that is a short number; above 1 in a table's own units.

    >>> budget(8 / 255), budget(0.01), budget(0.5), budget(10)
    ('8/255', '0.01', '0.5', '10 units')
    """
    if eps > 1:
        return f"{eps:g} units"
    levels, tenths = f"{255 * eps:.3g}", round(255 * eps, 1)
    short = abs(255 * eps - tenths) < 1e-4 and float(levels) == tenths
    return f"{levels}/255" if short else f"{eps:.3g}"
