"""Does the kernel change what is learned? Experiment 1 trained by PyTorch alone, beside the stored
models.
 `slow_path.json` holds the reports of trainings without the kernel (COURSE_NATIVE=0), of the
recipes as they stand. `python -m benchmarks.slow_path` prints them beside the stored models'
figures: the same seed, and mean ± standard deviation over the seeds. `python -m
benchmarks.slow_path --make` trains again what it compares, on PyTorch alone: half an hour a seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import markdown
from course_lib.fairness import Report, Spread
from course_lib.tables import stored_reports
from course_lib.zoo import load_report, load_reports

STORED = Path(__file__).with_suffix(".json")
QUANTITIES = (("standard", "nat", 8), ("robust 8/255", "rob", 8), ("robust 16/255", "rob", 16))


def make(seeds: int = 1) -> None:
    """Train Experiment 1 without the kernel and keep its reports."""
    with tempfile.TemporaryDirectory() as folder:
        where = ["--out", f"{folder}/runs", "--models", folder]
        command = [sys.executable, "-m", "course_lib", "sweep", "exp1", "--seeds", str(seeds),
                   *where]
        subprocess.run(command, env={**os.environ, "COURSE_NATIVE": "0"}, check=True)
        STORED.write_text(json.dumps(stored_reports(folder), indent=1) + "\n")


def comparison(slow: list[dict[str, Any]]) -> list[list[str]]:
    """One line a model and quantity: PyTorch alone, the kernel with the same seed, the kernel over
    its seeds."""
    lines = []
    for row in slow:
        for title, kind, eps in QUANTITIES:
            if abs(row["eps"] - eps / 255) > 1e-6:
                continue
            name, seed = row["recipe"], row["seed"]
            alone, fast = (getattr(r, kind) for r in (Report.from_json(row),
                                                      load_report(name, seed=seed, eps=eps / 255)))
            every = [getattr(r, kind) for r in load_reports(name, eps=eps / 255)]
            for word, of in (("average", "mean"), ("worst class", "worst")):
                figures = [f"{100 * getattr(e, of):.2f}" for e in (alone, fast)]
                lines.append([f"{name}, seed {seed}", f"{title}, {word}", *figures,
                              str(Spread.of(getattr(e, of) for e in every))])
    return lines


def table() -> str:
    head = ["model", "errors in %", "PyTorch alone", "kernel, same seed", "kernel, all seeds"]
    return markdown(head, comparison(json.loads(STORED.read_text())))


def main() -> None:
    if "--make" in sys.argv:
        make()
    print(table())


if __name__ == "__main__":
    main()
