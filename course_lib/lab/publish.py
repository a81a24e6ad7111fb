"""Writing to serialized_models/: a reader sees all files of a change, or none."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from course_lib.checkpoints import layers
from course_lib.errors import CourseError, pick, resolve
from course_lib.files import StoredFiles, json_bytes, sha256_of
from course_lib.models import build
from course_lib.zoo import Root, model_files

Row = Mapping[str, Any]


# by their key in a record: what is equal in rows of which one replaces the other
SAME: dict[str, Callable[[Row], list[Any]]] = {
    "reports": lambda row: [row["attack"], round(255 * row["eps"], 3), row["counts"]],
    "scores": lambda row: [str(row.get(k)) for k in ("score", "attack", "eps", "estimator",
                                                     "group")]}


def publish(name: str, seed: int, model: nn.Module | None, record: Row, root: Root = None) -> None:
    """Store a record, and weights if a model is given, under a recipe's name and seed."""
    if not 0 <= seed < 10**20:
        raise CourseError(f"The seed {seed} cannot be stored; it must have 1 to 20 digits.")
    files = {"record": (f"{name}/seed{seed}.json", json_bytes(record))}
    if model is not None and (state := model.state_dict()):
        tensors = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
        files["weights"] = (f"{name}/seed{seed}.safetensors", safetensors.torch.save(tensors))
    with model_files(root).change() as (entries, new):
        entries.setdefault(name, {})[str(seed)] = {kind: {"file": file, "sha256": sha256_of(raw)}
                                                   for kind, (file, raw) in files.items()}
        new.update(files.values())


def save_model(model: nn.Module, path: str | os.PathLike[str], *, recipe: Any = "",
               classes: Sequence[str] = ()) -> Path:
    """Store a network of yours in a folder of its own, which load_model(path) reads.

    The folder can also be opened in the explorer. A `recipe` (or the name of one) and the names of
    the `classes`, by which the explorer finds images, are kept beside the weights.

    >>> save_model(build("lenet5"), "runs/mine", classes=data.classes)  # doctest: +SKIP
    """
    try:
        folder, state = Path(path).expanduser().resolve(), model.state_dict()
        if isinstance(recipe, str) and recipe:
            recipe = pick(resolve("course_lib.experiments:RECIPES"), recipe, "recipe")
        made = {"network": type(model).__name__, "classes": [*map(str, classes)]}
        with contextlib.suppress(CourseError, TypeError, ValueError):
            name, shape = vars(model).get("_built", ("", {}))  # the words that `build` was given
            shape = json.loads(json.dumps(shape))
            if layers(build(name, **shape)) == layers(model):
                made |= {"model": name, "arguments": shape}
        made["recipe"] = recipe.as_data() if recipe else {}
        bad = [k for k, v in state.items() if not v.isfinite().all()] if state else ["the network"]
    except (TypeError, AttributeError, ValueError, RuntimeError) as e:
        raise CourseError(f"Nothing was saved ({e}). Give a torch.nn.Module of tensors, the path "
                          "of a folder, a Recipe, and a list of classes.") from None
    if bad:
        raise CourseError(f"Nothing was saved: {', '.join(bad[:5])} of {type(model).__name__} "
                          "holds NaN, infinity or no weights. Train it anew.")
    if others := model_files(folder).entries().keys() - {folder.name}:
        raise CourseError(f"{folder} holds other models, such as {min(others)}; give a new folder.")
    publish(folder.name, 0, model, {"recipe": folder.name, "seed": 0, "made_from": made}, folder)
    return folder


def add_file(stored: StoredFiles, name: str, key: str, file: str, raw: bytes, **facts: Any) -> None:
    """Store one file of the curves or of LUF, with facts about it, in place of an older one."""
    with stored.change() as (entries, new):
        entries.setdefault(name, {})[key] = {"file": file, "sha256": sha256_of(raw), **facts}
        new[file] = raw


def add_rows(name: str, seed: int, key: str, rows: Sequence[Row], weights: str,
             root: Root = None) -> None:
    """Put "reports" or "scores" into the record of the model with these weights (sha256); older
    ones of the SAME go."""
    stored, rows, same = model_files(root), json.loads(json.dumps(rows)), SAME[key]
    with stored.change() as (entries, new):
        files = entries.get(name, {}).get(str(seed), {})
        if files.get("weights", {}).get("sha256") != weights:
            raise CourseError(f"{name}, seed {seed}, was stored anew while it was examined. "
                              "Examine it again.")
        record, replaced = stored.read_json(files["record"]), [same(row) for row in rows]
        old = [row for row in record.get(key, []) if same(row) not in replaced]
        # reports on the most images come first
        order = same if key == "scores" else lambda row: -sum(row["counts"])
        record[key] = sorted([*old, *rows], key=order)
        raw = json_bytes(dict(sorted(record.items(), key=lambda part: part[0] == "history")))
        files["record"] = {**files["record"], "sha256": sha256_of(raw)}
        new[str(files["record"]["file"])] = raw
