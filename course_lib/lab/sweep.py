"""Train many recipes and several seeds of each: python -m course_lib sweep.

A training that is interrupted resumes at its last checkpoint, on any machine that sees `out`.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from course_lib.checkpoints import sources
from course_lib.errors import CourseError, integer
from course_lib.experiments import RECIPES
from course_lib.files import check_writable
from course_lib.lab.jobs import Task, run_all
from course_lib.lab.publish import publish
from course_lib.lab.torchrun import joined
from course_lib.recipes import digest, run, stored_name
from course_lib.zoo import entry, load_record, manifest, matching, model_files, models_dir

Record = dict[str, Any]


def sweep(patterns: Sequence[str], *, seeds: int | None = None, out: Path | str = "runs",
          models: Path | str, limit: int | None = None, epochs: int | None = None,
          mirror: Path | None = None, root: Path | None = None, **running: Any) -> list[Record]:
    """Train every recipe that matches and is not stored yet; recipe, seed and seconds of each.

    `patterns` are names such as exp1/* or exp1, and `seeds` is the number of seeds, from 0.
    `running` is for `run_all`: jobs, scheduler and progress.
    """
    # absolute, since workers may run in another folder
    out, models = Path(out).absolute(), Path(models).absolute()
    check_writable(models, 1 << 20)
    counts = {name: RECIPES[name].seeds if seeds is None else integer(seeds, "seeds", 1)
              for name in matching(RECIPES, patterns)}
    trainings = {}
    for seed, name in sorted(((s, n) for n in counts for s in range(counts[n])), key=itemgetter(0)):
        work = partial(train, name, seed, out, models=models, progress=False, limit=limit,
                       epochs=epochs, mirror=mirror, root=root)
        stored = partial(finished, stored_name(name, limit, epochs), seed, models)
        needs = frozenset(f"{need}, seed {seed}" for need in RECIPES[name].needs)
        trainings[name, seed] = [Task(f"{name}, seed {seed}", work, stored, needs)]
    shown = ("recipe", "seed", "seconds")
    return run_all(trainings, lambda _, records: {key: records[0][key] for key in shown},
                   **running)


def train(recipe: str, seed: int, out: Path, *, models: Path | None = None, progress: bool = True,
          **words: Any) -> Record | None:
    """One training in this process, or in those that torchrun started; its record, in the first of
    them. It is stored in `models` (in `out`, with its weights, where none is given), and is not
    trained again if it is finished there, unless `fresh`."""
    label, place = stored_name(recipe, words["limit"], words["epochs"]), models or out
    with joined() as group:  # of one process, without torchrun
        record = group.from_first(None if words.get("fresh") else finished(label, seed, place))
        if record is None:
            trained, record = run(recipe, seed, out, models=models,
                                  progress=progress and group.first, **words)
            if group.first:
                weights = models is None or RECIPES[recipe].weights
                publish(label, seed, trained.model if weights else None, record, place)
    return record if group.first else None


def finished(label: str, seed: int, models: Path) -> Record | None:
    """The stored record, if it is up to date and its files (and weights, if any) are intact."""
    try:
        record = load_record(label, seed=seed, root=models)
        if weights := entry(label, seed, models).get("weights"):
            model_files(models).read(weights)
    except CourseError:
        return None
    return record if up_to_date(record, models, models_dir()) else None


def up_to_date(record: Record, *places: Path) -> bool:
    """Was this record made from the recipe and the earlier models, in these places, as they are
    now? A warning where the source of the method has changed: the stored model stays valid."""
    name, *cuts = record.get("recipe", "").split("@")
    recipe, made = RECIPES.get(name), record.get("made_from", {})
    if recipe is None or made.get("digest") != digest(recipe) or str(made.get("epochs")) != dict(
            cut.split("=") for cut in cuts).get("epochs", str(recipe.epochs)):
        return False
    for earlier in filter(None, (made.get("start"), made.get("copies"))):  # new records have both
        labels = "@".join([earlier["of"], *cuts]), earlier["of"]
        rows = [model_files(place).entries().get(label, {}).get(str(record["seed"]), {})
                for label in labels for place in places]
        now = next((row["weights"]["sha256"] for row in rows if "weights" in row), "")
        if now[:8] not in ("", earlier["weights"]):
            return False
    then = made.get("identity", {})
    changed = [word for word, now in sources(recipe.method).items() if then.get(word, now) != now]
    if changed:
        warnings.warn(f"{name}, seed {record['seed']}, was trained before {' and '.join(changed)} "
                      f"changed, and is kept. To train it again: train {name} --fresh.",
                      stacklevel=2)
    return True


def list_recipes(names: Sequence[str] = (), models: Path | None = None) -> list[Record]:
    """Each recipe, or those that match, and which of its seeds are stored."""
    stored, rows = manifest(models), list[Record]()
    for name in matching(RECIPES, names or "*"):
        recipe, seeds = RECIPES[name], stored.get(name, {})
        rows.append({"recipe": name, "about": recipe.about, "epochs": recipe.epochs,
                     "seeds": recipe.seeds, "stored": sorted(map(int, seeds)),
                     "weights": sorted(int(s) for s in seeds if "weights" in seeds[s])})
    return rows
