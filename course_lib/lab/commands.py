"""What the shell offers: each command with its function and options, and its rows as text.

Nothing here imports torch, so that --help answers at once.
"""

import argparse
import re
from fractions import Fraction
from pathlib import Path
from typing import Any


def number(text: str) -> float:
    """8/255 or 0.03"""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 8/255 or 0.0314") from None


# what several commands share, and behind "command --option" what one has for itself
OPTIONS: dict[str, dict[str, Any]] = {
    "recipe": {"help": "a recipe's name, such as exp1/pgd-at; the command list has all"},
    "patterns": {"nargs": "+", "help": "recipes, such as exp1 or exp1/pgd-*"},
    "--json": {"action": "store_true", "help": "machine-readable output on standard output"},
    "names": {"nargs": "*", "help": "only these recipes, such as exp1 or exp1/pgd-*"},
    "--limit": {"type": int, "help": "use only so many training examples, four fifths to train on, "
                "the rest to validate on; never stored under the recipe's own name"},
    "--epochs": {"type": int, "help": "another number of epochs; never stored under the recipe's "
                 "own name"},
    "--fresh": {"action": "store_true", "help": "begin anew, beside what was saved before"},
    "--data": {"type": Path, "dest": "root", "metavar": "DATA",
               "help": "a folder that holds the data set"},
    "--mirror": {"type": Path, "help": "a second, slower place for checkpoints, such as a mounted "
                 "Drive"},
    "--scheduler": {"help": "the address of a dask scheduler, whose workers then do the work "
                    "instead"},
    "--models": {"type": Path, "help": "weights, records and manifest are here (default: "
                 "serialized_models)"},
    "--jobs": {"type": int, "default": 2, "help": "processes, one thread each (default: 2)"},
    "--seed": {"type": int, "default": 0, "help": "of the training (default: 0)"},
    "--seeds": {"type": int, "help": "the first so many seeds (default: all of them)"},
    "--out": {"type": Path, "default": Path("runs"),
              "help": "what is unfinished is kept here (default: runs)"},
    "--per-class": {"type": int, "help": "only the first so many test images of each class"},
    "--left-out": {"type": int, "default": 100,
                   "help": "how many examples, one after the other (default: 100)"},
    "--designs": {"nargs": "+", "default": ["paired", "seeds", "unpaired"],
                  "help": "default: paired seeds unpaired"},
    "evaluate --attack": {"help": "pgd10, pgd20, cw20, pgd20-fine, pgd20-adult or autoattack "
                          "(default: the recipe's own)"},
    "evaluate --eps": {"type": number,
                       "help": "the budget, such as 8/255 (default: the attack's own)"},
    "examine --attack": {"nargs": "+", "dest": "attacks", "metavar": "ATTACK",
                         "help": "one or more (default: pgd20 cw20 autoattack, or for a table the "
                         "recipe's own)"},
    "examine --eps": {"type": number, "help": "the budget (default: each attack's own)"},
}


COMMANDS = {  # what each does, its function, and its options
    "list": ("the recipes, and which of their seeds are stored", "lab.sweep:list_recipes",
             "names --models"),
    "train": ("train one recipe; the same command again resumes it; under torchrun on several "
              "processors", "lab.sweep:train",
              "--limit --epochs --data --mirror --fresh recipe --seed --out"),
    "evaluate": ("put a stored model through an attack on the test set",
                 "lab.examine:evaluate_stored",
                 "recipe --seed --attack --eps --per-class --data --models"),
    "sweep": ("train many recipes at once; what is stored and verifies is skipped",
              "lab.sweep:sweep", "--limit --epochs --data --mirror --scheduler --models patterns "
              "--jobs --seeds --out"),
    "examine": ("put many stored models through attacks and add the reports to their records; the "
                "same command again goes on", "lab.examine:examine_stored",
                "--attack --eps --per-class --data --models patterns --jobs --seeds --out"),
    "score": ("put the unfairness scores of stored models into their records; the same command "
              "again goes on", "lab.score:score_stored",
              "--data --models patterns --jobs --seeds --out"),
    "luf": ("train with one example left out, again and again, beside trainings with another seed; "
            "the same command again goes on", "lab.leave_out:leave_out",
            "--limit --data --scheduler --left-out --designs --models patterns --jobs "
            "--out"),
    "results": ("every stored report, or the table of means and spreads", "tables:stored_reports",
                "names --models"),
    "doctor": ("look at files, hashes, versions, kernel and disk, and say what to do; fails when "
               "something is bad", "lab.doctor:checkup", ""),
    "completion": ("print a line that makes bash complete commands, options and recipes; once: "
                   "course-lib completion >> ~/.bashrc", "lab.commands:completion", ""),
}


def completion() -> str:
    """A line for bash, which completes commands, options and recipes."""
    from course_lib.experiments import RECIPES

    options = sorted({o for o in OPTIONS if o.startswith("--")})
    return f"complete -o default -W '{' '.join([*COMMANDS, *options, *RECIPES])}' course-lib"


def in_shell_words(text: str, command: str) -> str:
    """A message in which Python's name=value is the command's own option: --data for root=."""
    options = COMMANDS[command][2].replace("--data", "--root").split()
    for option in (o for o in options if o.startswith("--")):
        python = option[2:].replace("-", "_")
        text = re.sub(rf"(?<![\w@]){python}=(?=\S)", option.replace("root", "data") + " ", text)
    return text


def shown(command: str, rows: Any, options: dict[str, Any]) -> str:
    """The rows of a command as text; a report as Python shows it."""
    from course_lib.fairness import Report

    match command:
        case "list":
            return "\n".join(f"{r['recipe']:24} {len(r['stored'])} of {r['seeds']} seeds stored, "
                             f"{len(r['weights'])} with weights   {r['about']}" for r in rows)
        case "train":
            return (f"finished: {rows['recipe']}, seed {rows['seed']}, in {options['out']}; trained"
                    f" on {rows['made_from']['training_examples']:,} examples. On validation data:"
                    f"\n{Report.from_json(rows['validation'])}")
        case "evaluate":
            return str(Report.from_json(rows))
        case "sweep" | "examine" | "score":
            kind = {"sweep": "models", "examine": "reports", "score": "scores"}[command]
            return f"{len(rows)} {kind} are stored"
        case "luf":
            return "\n".join(f"{r['recipe']:28} {r['design']:9} LUF {r['luf']:.4f}  LUF_t "
                             f"{r['luf_t']:.3f}  LUF_l {r['luf_l']:.1f}" for r in rows)
        case "results":
            from course_lib.tables import LEGEND, overview

            every = overview(*options["names"], root=options["models"]).set_index("model")
            alike = every.groupby(["data", "classes"], sort=False, dropna=False)
            texts = [part.drop(columns=["data", "classes"]).dropna(axis=1, how="all").fillna("")
                     .rename_axis(None).to_string() for _, part in alike]
            return "\n\n".join([*texts, LEGEND])
        case "doctor":
            bad, warn = (sum(r["state"] == state for r in rows) for state in ("bad", "warn"))
            verdict = f"{bad} bad, {warn} to note" if bad + warn else "All is well."
            lines = [f"{r['what']:24} {r['state']:5} {r['found']}" for r in rows]
            return "\n".join([*lines, verdict])
    return str(rows)
