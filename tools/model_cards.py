"""Write serialized_models/README.md, a card for each stored recipe, from the manifest and its
records: python -m tools.model_cards"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.fairness import Spread
from course_lib.tables import results
from course_lib.zoo import (
    budget,
    manifest,
    model_files,
    models_dir,
)
from tools.common import every_model, markdown, write

Records = dict[str, dict[int, dict[str, Any]]]  # recipe -> seed -> record without its history

INTRODUCTION = """# The stored models

Made by `make cards` from [manifest.json](manifest.json) and the records it names; do not edit.
`manifest.json` gives the sha256 of every file; a file is loaded only if its bytes match. A record
(`seedN.json`) holds the recipe, the versions and the processor it was made with, the history of the
training and every report, class by class.

```python
from course_lib import list_models, load_model, load_report, compare
list_models()  # everything, as a table
load_model("{first}", seed=0)  # verified, ready to use
```

Figures are errors in percent on the test set: the average over its examples and the worst class.
Robust means correct on the clean example and under attack. A budget in units uses the units of the
table's own files (years, dollars, places in a list). An interval is the 95 % t-interval of the mean
over seeds; with one seed there is none."""

LICENCE = """## Licence

Weights and records are under the project's MIT licence ([LICENSE](../LICENSE)). The data they were
trained on keep their makers' licences: see
[course_lib/datasets/embedded](../course_lib/datasets/embedded)."""


def collected(root: Path | None = None) -> Records:
    records: Records = {}
    for model in every_model(root):
        records.setdefault(model.name, {})[model.seed] = model.record
    return records


def cards(root: Path | None = None) -> str:
    """The whole page."""
    records, stored = collected(root), manifest(root)
    whole = {n: r for n, r in records.items()
             if any("weights" in what for what in stored[n].values())}
    small = {n: r for n, r in records.items() if n not in whole}
    parts = [INTRODUCTION.replace("{first}", next(iter(whole), "exp1/natural")),
             *(card(n, r, stored[n], root) for n, r in whole.items())]
    return "\n\n".join([*parts, *([reports_only(small)] if small else []), LICENCE]) + "\n"


def card(name: str, records: Mapping[int, dict[str, Any]], files: Mapping[str, Any],
         root: Path | None = None) -> str:
    """One recipe: what it is, how to make it again, what it was trained on, its reports, its
    limits."""
    recipe = made(records).get("recipe", {})
    return "\n\n".join([
        f"## {name}", str(recipe.get("about", "")) + ".",
        f"Made by `{command(name, recipe)}`{kept(files, root)}",
        terms(records), reports(name, root), limits(records),
    ])


def made(records: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    return dict(next(iter(records.values())).get("made_from", {}))


def command(name: str, recipe: Mapping[str, Any]) -> str:
    """The one command; a recipe that starts from another model has that made first."""
    first = recipe.get("start") or (recipe.get("copies") or {}).get("of")
    return f'make models WHICH="{first} {name}"' if first else f"make models WHICH={name}"


def kept(files: Mapping[str, Any], root: Path | None) -> str:
    """Which seeds' weights are not bundled."""
    away = model_files(root).release()
    gone = [s for s, what in sorted(files.items(), key=lambda kv: int(kv[0]))
            if what.get("weights", {}).get("sha256") in {None, *away}]
    return f" (weights not bundled: seed {', '.join(gone)})." if gone else "."


def terms(records: Mapping[int, dict[str, Any]]) -> str:
    """What was trained, with what, on what; where the seeds differ all are named."""
    facts = made(records)
    recipe = facts.get("recipe", {})
    optim, method = recipe.get("optim", {}), recipe.get("method", {})
    lines = [
        f"- {facts.get('model')}, {len(facts.get('classes', []))} classes of "
        f"{recipe.get('dataset')}, "
        f"{facts.get('training_examples'):,} training images, {facts.get('epochs')} epochs"
        + (f", from {recipe['start']} of the same seed" if recipe.get("start") else "")
        + (f", half of them adversarial copies made against {recipe['copies']['of']} of the same "
           "seed" if recipe.get("copies") else ""),
        f"- {optim.get('name')}, {schedule(optim)}; batches of {optim.get('batch')}{also(optim)}",
        f"- method `{method.get('name')}`: "
        f"{told({k: v for k, v in method.items() if k != 'name'}) or 'nothing to choose'}",
        f"- made with {' or '.join(sorted({environment(r) for r in records.values()}))}",
    ]
    return "\n".join(lines)


def schedule(optim: Mapping[str, Any]) -> str:
    """The rate and its changes; of many, how far it falls."""
    first, drops = optim["lr"], [(epoch + 1, factor * optim["lr"]) for epoch,
                                 factor in optim.get("drops", [])]
    if len(drops) > 5:
        return (f"rate {first:.2g}, which falls at every epoch, to {drops[-1][1]:.2g} from epoch "
                f"{drops[-1][0]}")
    return ", ".join([f"rate {first:g}", *(f"{rate:.2g} from epoch {epoch}" for epoch,
                                           rate in drops)])


def also(optim: Mapping[str, Any]) -> str:
    """What else there is to an optimiser."""
    words = {"momentum": "momentum {:g}", "weight_decay": "weight decay {:g}",
             "augment": "images changed by {}",
             "averaging": "average of the weights (decay {0[decay]:g}, after {0[first]} epochs)"}
    return "".join(f", {text.format(optim[word])}" for word, text in words.items()
                   if optim.get(word))


def environment(record: Mapping[str, Any]) -> str:
    made_from = record.get("made_from", {})
    versions = made_from.get("versions", {})
    # the kernel computes LeNet-5 alone
    plain = made_from.get("model") != "lenet5" or versions.get("kernel", "PyTorch") == "PyTorch"
    kernel = "PyTorch" if plain else "the C++ kernel"
    return (f"torch {versions.get('torch')}, {versions.get('threads')} thread(s), "
            f"{versions.get('cpu')}, {kernel}")


def told(what: Any) -> str:
    """A method's settings; a budget or a step as so many 255ths."""
    if isinstance(what, dict):
        own = bool(what.get("scale"))  # a table's units, which are too many to name
        return ", ".join(f"{k} {f'{v:g} units' if own else budget(v)}" if k in ("eps", "step_size")
                         else f"{k} {told(v)}"
                         for k, v in what.items() if k != "scale")
    if isinstance(what, list):
        return "(" + ", ".join(map(told, what)) + ")"
    return f"{what:g}" if isinstance(what, float) else str(what)


def reports(name: str, root: Path | None) -> str:
    """Mean, standard deviation and interval over seeds of every figure."""
    table = results(name, root=root)
    lines = [["error", "mean", "standard deviation", "95 % interval", "seeds", "examples"]]
    for row in table[table["recipe"] == name].itertuples():
        under = f"{row.figure}, {row.attack} {budget(row.eps)}" if row.attack else row.figure
        spread = ["", ""] if row.n == 1 else [f"{row.sd:.2f}", f"{row.low:.2f} to {row.high:.2f}"]
        lines.append([under, f"{row.mean:.2f}", *spread, row.n, f"{row.images:,}"])
    return (markdown(lines, "error") if len(lines) > 1
            else "It was measured on validation data only.")


def ranges(seeds: list[int]) -> str:
    """0, 1, 2, 3 as 0 to 3."""
    return f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 and seeds == list(range(seeds[0],
        seeds[-1] + 1)) else ", ".join(map(str, seeds))


def limits(records: Mapping[int, dict[str, Any]]) -> str:
    """What the figures do not say."""
    attacks = {str(row.get("attack")) for r in records.values() for row in r.get("reports", [])}
    weak = ("" if any(a.startswith("autoattack") for a in attacks)
            else " A stronger attack (AutoAttack) finds more errors and was not run.")
    few = " So few seeds say little about others." if len(records) < 3 else ""
    by = ", ".join(sorted(attacks)) or "nothing"
    return ("Limits: a small network for teaching, not for use; attacked within l-infinity balls "
            f"by {by}.{weak}{few}")


def reports_only(records: Records) -> str:
    """Grids and trials: what they found on validation data, under the attack they were trained
    for."""
    lines = [["recipe", "what it is", "seeds", "standard avg", "standard worst", "robust avg",
              "robust worst"]]
    for name, seeds in records.items():
        found = [r["validation"] for r in seeds.values() if isinstance(r.get("validation"), dict)]
        cells = [str(Spread.of(value(row[kind], row["counts"]) for row in found))
                 for kind in ("nat", "rob") for value in (average, worst)]
        lines.append([name, str(made(seeds).get("recipe", {}).get("about", "")),
                      ranges(list(seeds)), *(cells if found else [""] * 4)])
    text = ("Only records of these are stored. `python -m course_lib train <recipe>` "
            "trains one again, in runs/. Errors\n"
            "on validation data, robust ones under the attack named in the record, mean ± standard "
            "deviation over seeds.")
    return f"## Records only\n\n{text}\n\n" + markdown(lines, *lines[0][:3])


def average(errors: list[float], counts: list[int]) -> float:
    return sum(e * n for e, n in zip(errors, counts, strict=True)) / sum(counts)


def worst(errors: list[float], counts: list[int]) -> float:
    return max(errors)


def main() -> None:
    path = models_dir() / "README.md"
    write(path, cards())
    print(f"{path} has {len(manifest())} recipes")


if __name__ == "__main__":
    try:
        main()
    except CourseError as error:
        sys.exit(str(error))
