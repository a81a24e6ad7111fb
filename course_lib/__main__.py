"""The course from a shell: python -m course_lib
{list,train,evaluate,sweep,examine,score,luf,results,doctor} [--json]

Each command is a function of its options, which gives rows for --json and the text to show. It
imports its room itself, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

Shown = tuple[Any, str]


def number(text: str) -> float:
    """8/255 or 0.03"""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 8/255 or 0.0314") from None


# what several commands share, and behind "command --option" what one has for itself
OPTIONS: dict[str, dict[str, Any]] = {
    "recipe": {},
    "patterns": {"nargs": "+", "help": "recipes, such as exp1 or exp1/pgd-*"},
    "--json": {"action": "store_true", "help": "machine-readable output on standard output"},
    "--limit": {"type": int, "help": "use only so many training examples; never stored under the "
                "recipe's own name"},
    "--epochs": {"type": int, "help": "another number of epochs; never stored under the recipe's "
                 "own name"},
    "--data": {"type": Path, "dest": "root", "metavar": "DATA",
               "help": "a folder that holds the data set"},
    "--mirror": {"type": Path, "help": "a second, slower place for checkpoints, such as a mounted "
                 "Drive"},
    "--scheduler": {"help": "the address of a dask scheduler, whose workers then do the work "
                    "instead"},
    "--models": {"type": Path, "help": "weights, records and manifest are here (default: "
                 "serialized_models)"},
    "--jobs": {"type": int, "default": 2, "help": "processes, one thread each (default: 2)"},
    "--seed": {"type": int, "default": 0},
    "--seeds": {"type": int, "help": "the first so many seeds (default: all of them)"},
    "--out": {"type": Path, "default": Path("runs"),
              "help": "what is unfinished is kept here (default: runs)"},
    "--per-class": {"type": int, "help": "only the first so many test images of each class"},
    "--markdown": {"action": "store_true", "help": "the table as Markdown"},
    "--left-out": {"type": int, "default": 100,
                   "help": "how many examples, one after the other (default: 100)"},
    "--designs": {"nargs": "+", "default": ["paired", "seeds", "unpaired"],
                  "help": "default: paired seeds unpaired"},
    "evaluate --attack": {"default": "pgd20"},
    "evaluate --eps": {"type": number,
                       "help": "the budget, such as 8/255 (default: the attack's own)"},
    "examine --attack": {"nargs": "+", "default": ["pgd20", "cw20", "autoattack"],
                         "dest": "attacks", "metavar": "ATTACK",
                         "help": "one or more (default: pgd20 cw20 autoattack)"},
    "examine --eps": {"type": number, "default": 8 / 255, "help": "the budget (default: 8/255)"},
    "score --per-class": {"type": int, "help": "search least budgets on so many test examples of "
                          "each class"},
}


COMMANDS = {  # what each does, and its options
    "list": ("the recipes, and which of their seeds are stored", ""),
    "train": ("train one recipe; the same command again resumes it; under torchrun on several "
              "processors", "--limit --epochs --data --mirror recipe --seed --out"),
    "evaluate": ("put a stored model through an attack on the test set",
                 "recipe --seed --attack --eps --per-class --models"),
    "sweep": ("train many recipes at once; what is stored and verifies is skipped", "--limit "
              "--epochs --data --mirror --scheduler --models patterns --jobs --seeds --out"),
    "examine": ("put many stored models through attacks and add the reports to their records; the "
                "same command again goes on",
                "--attack --eps --per-class --models patterns --jobs --seeds --out"),
    "score": ("put the unfairness scores of stored models into their records; the same command "
              "again goes on", "--per-class --data --models patterns --jobs --seeds --out"),
    "luf": ("train with one example left out, again and again, beside trainings with another seed; "
            "the same command again goes on", "--limit --epochs --data --scheduler --left-out "
            "--designs --models patterns --jobs --out"),
    "results": ("every stored report, or the table of means and spreads", "--models --markdown"),
    "doctor": ("look at files, hashes, versions, kernel and disk, and say what to do; fails when "
               "something is bad", ""),
}


def parser() -> argparse.ArgumentParser:
    about = "Robust fairness: train, evaluate and compare the course's models."
    p = argparse.ArgumentParser(prog="python -m course_lib", description=about)
    commands = p.add_subparsers(dest="command", required=True)
    for name, (about, options) in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        for option in ["--json", *options.split()]:
            command.add_argument(option, **OPTIONS.get(f"{name} {option}", OPTIONS.get(option, {})))
    return p


def do_list() -> Shown:
    from course_lib.lab.sweep import list_recipes

    rows = list_recipes()
    return rows, "\n".join(f"{r['recipe']:24} {len(r['stored'])} of {r['seeds']} seeds stored, "
                           f"{len(r['weights'])} with weights   {r['about']}" for r in rows)


def do_train(out: Path, **options: Any) -> Shown:
    from course_lib.lab.sweep import train

    if (record := train(out=out, **options)) is None:
        return None, ""
    errors = ", ".join(f"{kind} {max(record['validation'][kind]):.1%}" for kind in ("nat", "rob"))
    return record, (f"finished: {record['recipe']}, seed {record['seed']}, in {out}; worst-class "
                    f"errors on validation data: {errors}")


def do_evaluate(**options: Any) -> Shown:
    from course_lib.lab.examine import evaluate_stored

    row, conditions = evaluate_stored(**options)
    errors = zip(row["classes"], row["nat"], row["rob"], strict=True)
    return row, "\n".join([f"errors on {conditions}", *(
        f"{c:14} standard {n:6.1%}   robust {r:6.1%}" for c, n, r in errors)])


def do_sweep(**options: Any) -> Shown:
    from course_lib.lab.sweep import sweep

    rows = [{k: record[k] for k in ("recipe", "seed", "seconds")} for record in sweep(**options)]
    return rows, f"{len(rows)} models are there"


def do_examine(**options: Any) -> Shown:
    from course_lib.lab.examine import examine_stored

    rows = examine_stored(**options)
    return rows, f"{len(rows)} reports are there; python -m course_lib results shows them"


def do_score(**options: Any) -> Shown:
    from course_lib.lab.score import score_stored

    rows = score_stored(**options)
    models = {(r["recipe"], r["seed"]) for r in rows}
    return rows, f"{len(rows)} scores of {len(models)} models are in their records"


def do_luf(**options: Any) -> Shown:
    from course_lib.lab.leave_out import leave_out

    records = leave_out(**options)
    return records, "\n".join(f"{r['recipe']:28} {r['design']:9} LUF {r['luf']:.4f}  LUF_t "
                              f"{r['luf_t']:.3f}  LUF_l {r['luf_l']:.1f}" for r in records)


def do_results(models: Path, markdown: bool) -> Shown:
    from course_lib import zoo

    frames = [frame.drop(columns=["data", "classes"]).dropna(axis=1, how="all").fillna("")
              for _, frame in zoo.results(root=models).groupby(["data", "classes"], sort=False,
                                                               dropna=False)]
    texts = [zoo.markdown([f.columns, *f.values], "model", "seeds") if markdown
             else f.set_index("model").rename_axis(None).to_string() for f in frames]
    return zoo.stored_reports(models), "\n\n".join(texts)


def do_doctor() -> Shown:
    from course_lib.lab.doctor import checkup, text

    findings = checkup()
    return [vars(finding) for finding in findings], text(findings)


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(parser().parse_args(argv))
    command, as_json = options.pop("command"), options.pop("json")
    from course_lib.errors import CourseError
    from course_lib.machine import keep_memory
    from course_lib.zoo import models_dir

    keep_memory()
    if "models" in options:
        options["models"] = options["models"] or models_dir()
    if "scheduler" in options:
        options["backend"] = "dask" if options["scheduler"] else "loky"
    try:
        rows, text = globals()[f"do_{command}"](**options)
    except CourseError as e:
        sys.stderr.write(f"{e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. What was saved last is kept; the same command goes on from "
                         "there.\n")
        return 130
    if rows is not None:  # of several processes the first one speaks
        sys.stdout.write((json.dumps(rows) if as_json else text) + "\n")
    return int(command == "doctor" and any(row["state"] == "bad" for row in rows))


def leave(code: int) -> NoReturn:
    """End the process. Under torchrun Python's own, slower end may abort: threads of the group hold
    tensors."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
