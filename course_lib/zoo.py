"""Names to verified models and their reports.
 serialized_models/manifest.json names, for every recipe and seed, a weights file and a record with
their sha256. Bytes are read, hashed, and only then parsed; names, shapes, dtypes and finiteness are
checked against the network.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from course_lib import fetch
from course_lib.errors import CourseError, pick
from course_lib.fairness import Report, Spread
from course_lib.files import inside, locked, write_together
from course_lib.models import build
from course_lib.shelf import FORMAT, entry, manifest, models_dir, parse_json, released, verified
from course_lib.tables import Show, Table, budget, percent


def load_record(name: str, *, seed: int = 0, root: Path | None = None) -> dict[str, Any]:
    """Everything stored of one training: recipe, circumstances, history and reports."""
    what = entry(name, seed, root).get("record", {})
    return parse_json(verified(what, root), Path(str(what["file"])))


def short_record(what: Mapping[str, Any], root: Path | None = None) -> dict[str, Any]:
    """A record without its history, which is nine tenths of it and stands last in what `publish`
    writes."""
    raw = verified(what, root)
    head, cut, _ = raw.partition(b'\n "history":')
    try:
        short = json.loads(head.rstrip(b",") + b"}") if cut else None
    except (ValueError, RecursionError):
        short = None
    return short if isinstance(short, dict) and {"made_from",
                                                 "reports"} <= short.keys() else parse_json(raw,
                                                     Path(str(what["file"])))


def load_model(name: str, *, seed: int = 0, root: Path | None = None) -> nn.Module:
    """A trained model by its recipe's name, verified, in eval mode.

    >>> load_model("exp1/natural").training
    False
    """
    what = entry(name, seed, root)
    if "weights" not in what:
        raise CourseError(f"Of {name}, seed {seed}, the record is stored and no weights. Train it: "
                          f"python -m course_lib train {name} --seed {seed}; it is then in runs "
                          "(--models runs, COURSE_MODELS=runs).")
    made, raw = _made_from(short_record(what.get("record", {}), root),
                           name), verified(what["weights"], root)
    model = build(str(made.get("model")), classes=len(made["classes"]))
    load_weights(model, raw, name)
    return model.eval()


def _made_from(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    made = record.get("made_from", {})
    classes = made.get("classes") if isinstance(made, dict) else None
    if not isinstance(classes, list) or not 2 <= len(classes) <= 1000 or not all(isinstance(c, str)
            for c in classes):
        raise CourseError(f"{name}: its record does not say which 2 to 1000 classes it knows. "
                          "Restore the record or make it again.")
    return dict(made)


def load_weights(model: nn.Module, raw: bytes, name: str) -> None:
    """Parse safetensors bytes into a model, refusing what does not fit it."""
    try:
        tensors = safetensors.torch.load(raw)
    except Exception as e:  # the parser's errors have no common family
        raise CourseError(
            f"{name}: the weights cannot be read ({type(e).__name__}: {str(e)[:100]}). "
            "Restore the file or make it again."
        ) from None
    wanted = model.state_dict()
    odd = sorted(set(tensors) ^ set(wanted)) or [k for k, v in wanted.items()
                                                 if (v.shape, v.dtype) != (tensors[k].shape,
                                                     tensors[k].dtype)]
    if odd:
        raise CourseError(f"{name}: the weights do not fit {type(model).__name__}: "
                          f"{', '.join(odd[:5])} differ in name, shape or type.")
    if bad := [k for k, v in tensors.items() if v.is_floating_point()
               and not torch.isfinite(v).all()]:
        raise CourseError(f"{name}: {', '.join(bad[:5])} holds NaN or infinity. Restore the file "
                          "or make it again.")
    model.load_state_dict(tensors)


def load_report(name: str, *, seed: int = 0, attack: str = "pgd20", eps: float = 8 / 255,
                per_class: int | None = None,
                root: Path | None = None) -> Report:
    """One stored report of one model: on the test set, or on the first `per_class` of its images of
    each class."""
    rows = report_rows(short_record(entry(name, seed, root).get("record", {}), root), name)
    if mine := chosen(rows, attack, eps, per_class):
        return Report.from_json(mine)
    many, each = ("", "") if per_class is None else (f" on {per_class} images a class",
                                                     " on {:,} images")
    there = ", ".join(f"{r.get('attack')} at {budget(r.get('eps', 0))}{each.format(images(r))}"
                      for r in rows)
    raise CourseError(f"No report of {name} under {attack} at {budget(eps)}{many} is stored. There "
                      f"is: {there}.")


def chosen(rows: Iterable[dict[str, Any]], attack: str, eps: float,
           per_class: int | None = None) -> dict[str, Any] | None:
    """The row of this attack ("" is any) and budget on the most images, or on just so many a
    class."""
    mine = [r for r in rows if not attack or (r.get("attack") == attack
                                              and abs(r.get("eps", -1) - eps) < 1e-6)]
    return max((r for r in mine if per_class is None or _each(r) == per_class), key=images,
               default=None)


def _each(row: Mapping[str, Any]) -> Any:
    """How many images of every class, where it is the same of all."""
    counts = row.get("counts")
    return counts[0] if isinstance(counts, list) and counts and counts == counts[:1] * len(
        counts) else None


def images(row: Mapping[str, Any]) -> int:
    """On how many images a stored report stands."""
    counts = row.get("counts")
    return sum(n for n in counts if isinstance(n, int)) if isinstance(counts, list) else 0


def report_rows(record: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A record's reports as they are stored."""
    rows = record.get("reports", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict)
                                             and isinstance(r.get("eps", 0), int | float)
                                             for r in rows):
        raise CourseError(f"{name}: its record's reports are damaged. Restore the record or make "
                          "it again.")
    return rows


def load_reports(name: str, *, attack: str = "pgd20", eps: float = 8 / 255,
                 per_class: int | None = None,
                 root: Path | None = None) -> list[Report]:
    """The reports of every seed of a recipe."""
    words: dict[str, Any] = {"attack": attack, "eps": eps, "per_class": per_class, "root": root}
    return [load_report(name, seed=int(s), **words)
            for s in sorted(pick(manifest(root), name, "model"), key=int)]


# What is shown of a model: title, kind of error, attack ("" is any: standard errors are the same in
# all) and budget of 255.
FIGURES = (("standard", "nat", "", 0), ("robust 8/255", "rob", "pgd20", 8),
           ("robust 16/255", "rob", "pgd20", 16),
           ("AutoAttack 8/255", "rob", "autoattack", 8), ("robust 0.01", "rob", "pgd20-fine", 2.55),
           ("robust 10 units", "rob", "pgd20-adult", 2550))
TITLES = tuple(f"{title} {what}" for title, *_ in FIGURES for what in ("avg", "worst"))
CAPTION = "Errors in percent on the test set, average and worst class"


def figures(record: Mapping[str, Any], name: str) -> dict[str, float]:
    """The errors in a record's reports, by title."""
    rows = report_rows(record, name)
    found: dict[str, float] = {}
    for title, kind, attack, eps in FIGURES:
        if mine := chosen(rows, attack, eps / 255):
            errors = getattr(Report.from_json(mine), kind)
            found |= {f"{title} avg": errors.mean, f"{title} worst": errors.worst,
                      f"{title} images": images(mine)}
    return found


def list_models(root: Path | None = None) -> Table:
    """One row a stored model: recipe, seed, data, method, errors on the test set, bytes of its
    weights and where they are."""
    away = released(root)
    rows = [
        _row(name, int(seed), what, away, root)
        for name, seeds in sorted(manifest(root).items())
        for seed, what in sorted(seeds.items(), key=lambda kv: int(kv[0]))
    ]
    shown = [t for t in TITLES if not t.startswith("robust 16") and any(t in row for row in rows)]
    columns: dict[str, Show] = dict.fromkeys(("recipe", "seed", "data", "method"), str)
    columns |= {**dict.fromkeys(shown, percent), "bytes": "{:,}".format, "where": str}
    return Table(rows, columns, f"{CAPTION}; robust: PGD-20{_fewer(rows)}.")


def _fewer(rows: Iterable[Mapping[str, Any]]) -> str:
    """A word about AutoAttack where it was not run on as many images as the rest."""
    strong = next(title for title, _, attack, _ in FIGURES if attack == "autoattack")
    pairs = [(r.get(f"{strong} images"), r.get(f"{FIGURES[0][0]} images")) for r in rows]
    fewer = {few for few, all_of_them in pairs if few is not None and few != all_of_them}
    return f"; AutoAttack on {' or '.join(f'{n:,}' for n in sorted(fewer))} images" if fewer else ""


def _row(name: str, seed: int, what: Mapping[str, Any], away: Mapping[str, Any],
         root: Path | None) -> dict[str, Any]:
    record, weights = short_record(what.get("record", {}), root), what.get("weights", {})
    recipe = _recipe(record)
    method = recipe.get("method")
    file, sha256 = weights.get("file"), weights.get("sha256")
    size, where = _whereabouts(file, sha256, away, root or models_dir())
    return {"recipe": name, "seed": seed, "data": recipe.get("dataset"),
            "method": method.get("name") if isinstance(method, dict) else None,
            **figures(record, name), "file": file, "bytes": size, "where": where}


def _recipe(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of its recipe, if it does."""
    made = record.get("made_from")
    recipe = made.get("recipe") if isinstance(made, dict) else None
    return recipe if isinstance(recipe, dict) else {}


def _whereabouts(file: Any, sha256: Any, away: Mapping[str, Any], root: Path) -> tuple[int, str]:
    """How many bytes there are, and where."""
    if file is None:
        return 0, "report only"
    if (path := inside(root, file)) is not None and os.path.isfile(path):
        return path.stat().st_size, "bundled"
    if isinstance(sha256, str) and fetch.place(sha256).is_file():
        return fetch.place(sha256).stat().st_size, "cache"
    row = away.get(str(sha256), {})
    return 0, "to download" if {"url", "drive"} & row.keys() else "to make"


def compare(names: Sequence[str], *, root: Path | None = None) -> Table:
    """Recipes of one data set side by side, a figure a row: mean ± standard deviation over seeds,
    and how each differs from the first.

    The difference is taken seed by seed (a seed gives both the same first weights and order of
    images) and has the 95 % t-interval of its mean; seeds that only one of the two has do not count
    in it.
    """
    if isinstance(names, str) or len(names) < 2:
        raise CourseError(f"compare was given {names!r}; give it a list of two names at least, "
                          "such as those in list_models().")
    stored = manifest(root)
    records = {n: {s: short_record(w.get("record", {}), root) for s,
                   w in pick(stored, n, "model").items()} for n in names}
    _on_one_data_set(records)
    found = {n: {s: figures(r, n) for s, r in seeds.items()} for n, seeds in records.items()}
    first, rows = names[0], []
    for title in (t for t in TITLES if any(t in f for seeds in found.values()
                                           for f in seeds.values())):
        row: dict[str, Any] = {"figure": title,
                               **{n: _spread(f[title] for f in found[n].values() if title in f)
                                  for n in names}}
        for n in names[1:]:
            pairs = [(f, found[first].get(s, {})) for s, f in found[n].items()]
            row[f"{n} - {first}"] = _spread(f[title] - g[title] for f, g in pairs if title in f
                                            and title in g)
        rows.append(row)
    columns: dict[str, Show] = {"figure": str, **dict.fromkeys(names, str)}
    columns |= dict.fromkeys((f"{n} - {first}" for n in names[1:]), difference)
    return Table(rows, columns, f"{CAPTION}: mean ± standard deviation over seeds; difference with "
                 "its 95 % interval, paired by seed.")


def _on_one_data_set(records: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Errors on different data do not compare."""
    told = {n: _recipe(r).get("dataset") for n, seeds in records.items() for r in seeds.values()}
    if len(set(filter(None, told.values()))) > 1:
        listed = ", ".join(f"{n} ({data})" for n, data in told.items())
        raise CourseError(f"compare was given models of different data sets: {listed}. Give it "
                          "models of one.")


def _spread(values: Iterable[float]) -> Spread | None:
    return Spread.of(found) if (found := list(values)) else None


def difference(s: Spread) -> str:
    """In points: mean [95 % interval]."""
    return f"{100 * s.mean:+.2f}" + ("" if s.n == 1
                                     else f" [{100 * s.low:+.2f}, {100 * s.high:+.2f}]")


def publish(name: str, seed: int, model: nn.Module | None, record: Mapping[str, Any],
            root: Path | None = None) -> None:
    """Store weights (if any) and record, then name them in the manifest: a reader sees all of it or
    none."""
    root = root or models_dir()
    tensors: dict[str, Tensor] = {k: v.detach().cpu().contiguous() for k,
                                  v in model.state_dict().items()} if model else {}
    files = {"record": (f"{name}/seed{seed}.json", (json.dumps(record, indent=1) + "\n").encode())}
    if tensors:
        files["weights"] = (f"{name}/seed{seed}.safetensors", safetensors.torch.save(tensors))
    what = {kind: {"file": file, "sha256": hashlib.sha256(raw).hexdigest()} for kind,
            (file, raw) in files.items()}
    with locked(root):
        known = manifest(root) if (root / "manifest.json").exists() else {}
        known.setdefault(name, {})[str(seed)] = what
        write_together({root / file: raw for file,
                        raw in [*files.values(), ("manifest.json", _manifest_bytes(known))]})


def drop_weights(name: str, seed: int, root: Path | None = None) -> None:
    """Keep the record alone, with the reports and scores in it."""
    root = root or models_dir()
    with locked(root):
        known = manifest(root)
        what = known.get(name, {}).get(str(seed), {}).pop("weights", None)
        if what is not None:
            write_together({root / "manifest.json": _manifest_bytes(known)})
            (root / what["file"]).unlink(missing_ok=True)


def _manifest_bytes(known: Mapping[str, Mapping[str, Any]]) -> bytes:
    content = {"format": FORMAT, "models": {n: dict(sorted(s.items())) for n,
                                            s in sorted(known.items())}}
    return (json.dumps(content, indent=1) + "\n").encode()


def add_reports(name: str, seed: int, reports: Sequence[Report], weights: str,
                root: Path | None = None) -> None:
    """Put further reports of the model with these weights (sha256) into its record, in place of
    those of the same attack, budget and images. The weights' file is not touched; reports on the
    most images stand first."""
    fresh = [json.loads(json.dumps(r.to_json())) for r in reports]

    def change(record: dict[str, Any]) -> None:
        kept = [r for r in report_rows(record, name) if not any(_same_kind(r, f) for f in fresh)]
        record["reports"] = sorted([*kept, *fresh], key=images, reverse=True)

    _amend(name, seed, weights, root or models_dir(), change)


# by which one score of a record is told from the others
SCORE_KEYS = ("score", "attack", "eps", "estimator", "group")


def add_scores(name: str, seed: int, scores: Sequence[Mapping[str, Any]], weights: str,
               root: Path | None = None) -> None:
    """Put unfairness scores of the model with these weights (sha256) into its record, in place of
    those of the same kind."""
    fresh = [json.loads(json.dumps(row)) for row in scores]

    def kind(row: Mapping[str, Any]) -> list[Any]:
        return [row.get(k) for k in SCORE_KEYS]

    def change(record: dict[str, Any]) -> None:
        history = {k: record.pop(k) for k in ("history",) if k in record}  # it stands last
        kept = [r for r in record.get("scores", []) if kind(r) not in [kind(f) for f in fresh]]
        record |= {"scores": sorted([*kept, *fresh], key=lambda r: [str(v) for v in kind(r)]),
                   **history}

    _amend(name, seed, weights, root or models_dir(), change)


def load_scores(name: str, *, seed: int = 0, root: Path | None = None) -> list[dict[str, Any]]:
    """The unfairness scores in one model's record, or none."""
    rows = short_record(entry(name, seed, root).get("record", {}), root).get("scores", [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) and "score" in r for r in rows):
        raise CourseError(f"{name}: its record's scores are damaged. Restore the record, or make "
                          f"them again: course_lib score {name}")
    return rows


def _amend(name: str, seed: int, weights: str, root: Path,
           change: Callable[[dict[str, Any]], None]) -> None:
    """Change a record; its weights' file is not touched."""
    with locked(root):
        known, what = manifest(root), entry(name, seed, root)
        if what.get("weights", {}).get("sha256") != weights:
            raise CourseError(f"{name}, seed {seed}, was stored anew while it was examined. "
                              "Examine it again.")
        record = load_record(name, seed=seed, root=root)
        change(record)
        raw, file = (json.dumps(record, indent=1) + "\n").encode(), what["record"]["file"]
        known[name][str(seed)] = {**what, "record":
                                  {**what["record"], "sha256": hashlib.sha256(raw).hexdigest()}}
        write_together({root / file: raw, root / "manifest.json": _manifest_bytes(known)})


def _same_kind(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a.get("attack") == b["attack"] and abs(a.get("eps",
                                                        -1) - b["eps"]) < 1e-6 and a.get(
                                                            "counts") == b["counts"]
