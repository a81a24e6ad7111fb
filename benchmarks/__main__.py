"""All benchmarks: tables to the screen, JSON to build/bench/, and with --readme the tables into
README.md here."""

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
ALONE = ("waits", "experiments_2_and_3", "store_overhead", "autoattack", "explorer", "parallel",
         "scaling", "least_eps", "left_out", "bfloat16")
README = Path(__file__).with_name("README.md")
MARK = "<!-- tables: make bench ARGS=--readme -->"


def report(old: str) -> str:
    """The tables as they stand, those of which there are new figures replaced; a table says so if
    another machine made it."""
    first, *sections = old.split("\n## ")
    tables = {title: text.strip() for title, _,
              text in (section.partition("\n") for section in sections)}
    there = [OUT / f"{script}.json" for script in (*SCRIPTS, *ALONE)]
    results = [json.loads(path.read_text()) for path in there if path.exists()]
    machines = ["Machine: " + ", ".join(f"{k} {v}" for k, v in r["machine"].items()) + "."
                for r in results]
    first = first.strip() or machines[0]
    for r, machine in zip(results, machines, strict=True):
        other = "" if machine == first else machine.replace("Machine", "On another machine",
                                                            1) + "\n\n"
        tables[r["title"]] = other + markdown(r["head"], r["rows"])
    tables["Experiment 1 by PyTorch alone (`python -m benchmarks.slow_path`)"] = slow_path.table()
    return "\n\n".join([first, *(f"## {title}\n\n{table}" for title,
                                 table in tables.items())]) + "\n"


def main() -> None:
    missing = [name for name in ("torchattacks", "foolbox", "art")
               if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"{', '.join(missing)} not installed: pip install --no-deps -r "
                         "requirements-bench.txt")
    start = time.time()
    for script in SCRIPTS:
        if subprocess.run([sys.executable, "-m", f"benchmarks.{script}"]).returncode:
            raise SystemExit(f"benchmarks.{script} failed")
    if "--readme" in sys.argv:
        words, mark, tables = README.read_text().partition(MARK)
        README.write_text(f"{words}{mark}\n\n{report(tables)}")
    print(f"{time.time() - start:.0f} s; JSON in {OUT}/")


if __name__ == "__main__":
    main()
