"""All benchmarks: tables to the screen, JSON to build/bench/, and with --readme the tables into README.md here."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import slow_path
from benchmarks.harness import OUT, markdown

SCRIPTS = ("evaluation", "epoch", "growth", "peak", "experiment_1", "boundary", "resnet")
# run by name: they take their time
ALONE = ("experiments_2_and_3", "store_overhead", "autoattack", "explorer", "parallel", "scaling", "least_eps", "left_out", "bfloat16")
README = Path(__file__).with_name("README.md")
MARK = "<!-- tables: make bench ARGS=--readme -->"


def report() -> str:
    there = [OUT / f"{script}.json" for script in (*SCRIPTS, *ALONE)]
    results = [json.loads(path.read_text()) for path in there if path.exists()]
    setting = ", ".join(f"{k} {v}" for k, v in results[0]["machine"].items())
    tables = [f"## {r['title']}\n\n{markdown(r['head'], r['rows'])}" for r in results]
    slow = f"## Experiment 1 by PyTorch alone (`python -m benchmarks.slow_path`)\n\n{slow_path.table()}"
    return "\n\n".join([f"Machine: {setting}.", *tables, slow]) + "\n"


def main() -> None:
    missing = [name for name in ("torchattacks", "foolbox", "art") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not installed: pip install --no-deps -r requirements-bench.txt")
    start = time.time()
    for script in SCRIPTS:
        if subprocess.run([sys.executable, "-m", f"benchmarks.{script}"]).returncode:
            raise SystemExit(f"benchmarks.{script} failed")
    if "--readme" in sys.argv:
        README.write_text(README.read_text().split(MARK)[0] + MARK + "\n\n" + report())
    print(f"{time.time() - start:.0f} s; JSON in {OUT}/")


if __name__ == "__main__":
    main()
