"""Change the last layer of every stored LeNet-5 and ResNet without training, and store the errors:
python -m tools.heads [recipes, such as exp4 or exp1/pgd-*] [--data DIR]
 Its rows get one length, or keep their own, times the scale out of five with the lowest worst error
under CW-20 on validation images; the reports are those on test images. (PGD is no judge here: with
small logits its cross-entropy finds fewer errors.) About 15 CPU-seconds for a LeNet-5, minutes for
a ResNet, which needs the whole of CIFAR-10. PGD-AT is judged by AutoAttack, too, in four minutes a
seed. Interrupt it as often as you like: what is stored of the same weights is not done again.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from typing import Any

import torch
from tqdm import tqdm

from course_lib.data import Split, load
from course_lib.evaluation import evaluate
from course_lib.fairness import Report
from course_lib.files import json_bytes, parse_json, read_bytes, write_together
from course_lib.lessons.contest import HEADS, with_rows
from course_lib.machine import keep_memory
from course_lib.zoo import load_model, manifest, matching, models_dir
from tools.common import every_model

SCALES = (0.125, 0.25, 0.5, 1.0, 2.0)
JUDGED = ("exp4/pgd-at",)  # with their own rows scaled, on 200 images of each class
# network: validation and test images of each class
IMAGES: dict[str, tuple[int, int]] = {"lenet5": (200, 1000), "preact_resnet_s": (100, 200)}


def changed(model: torch.nn.Module, validation: Split, test: Split) -> dict[str, Any]:
    """As trained, and with both changes: the scale with the lowest worst error on the validation
    images, of two the one nearer to 1, and the report on the test images with it."""
    def report(on: Split, scale: float = 1.0, equal: bool = False) -> Report:
        return evaluate(with_rows(model, scale, equal), on, "cw20", progress=False)

    rows = {"as trained": {"scale": 1.0, "report": report(test).to_json()}}
    for kind, equal in (("equal rows", True), ("own rows", False)):
        tried = {s: report(validation, s, equal).rob.worst for s in SCALES}
        best = min(tried, key=lambda s: (tried[s], abs(math.log(s))))
        rows[kind] = {"scale": best, "report": report(test, best, equal).to_json()}
    return rows


def stored() -> dict[str, dict[str, Any]]:
    """recipe -> seed (as text) -> sha256 of the weights; kind -> scale and report"""
    path = models_dir() / HEADS
    return parse_json(read_bytes(path), path) if path.is_file() else {}


def todo(pattern: str = "*") -> list[tuple[Any, dict[str, Any]]]:
    """The stored models whose figures are missing, or are those of other weights; and what is there
    already of theirs."""
    done, found, names = stored(), [], matching(manifest(), pattern)
    for m in every_model():
        if m.name in names and "weights" in m.files and "@" not in m.name and (
                m.record["made_from"]["model"] in IMAGES):
            row = done.get(m.name, {}).get(str(m.seed), {})
            row = row if row.get("weights") == m.files["weights"]["sha256"] else {}
            if not row or (m.name in JUDGED and "autoattack" not in row):
                found.append((m, row))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("pattern", nargs="?", default="*", help="all recipes without it")
    parser.add_argument("--data", help="a folder with the whole data sets")
    words = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    data: Any = functools.cache(lambda name: load(name, root=words.data))
    for m, row in (bar := tqdm(todo(words.pattern), unit="model", file=sys.stdout)):
        bar.set_description(f"{m.name} seed {m.seed}")
        model, images = load_model(m.name, seed=m.seed), data(m.data)
        val, test = IMAGES[m.record["made_from"]["model"]]
        row = row or {"weights": m.files["weights"]["sha256"],
                      **changed(model, images.val.per_class(val), images.test.per_class(test))}
        if m.name in JUDGED:
            own = with_rows(model, row["own rows"]["scale"], equal=False)
            row["autoattack"] = evaluate(own, images.test.per_class(200), "autoattack",
                                         progress=False).to_json()
        rows = stored()
        rows.setdefault(m.name, {})[str(m.seed)] = row
        write_together({models_dir() / HEADS: json_bytes(dict(sorted(rows.items())))})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
