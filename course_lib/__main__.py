"""The course from a shell: python -m course_lib
{list,train,evaluate,sweep,examine,score,luf,results,doctor} [--json]"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn


def number(text: str) -> float:
    """8/255 or 0.03"""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 8/255 or 0.0314") from None


def parser() -> argparse.ArgumentParser:
    about = "Robust fairness: train, evaluate and compare the course's models."
    p = argparse.ArgumentParser(prog="python -m course_lib", description=about)
    sub = p.add_subparsers(dest="command", required=True)
    commands = {name: sub.add_parser(name, help=about, description=about) for name,
                about in COMMANDS.items()}
    for c in commands.values():
        c.add_argument("--json", action="store_true",
                       help="machine-readable output on standard output")
    _training_words(commands)
    _examining_words(commands)
    for name in ("sweep", "examine", "score", "luf", "evaluate", "results"):
        commands[name].add_argument("--models", type=Path, help="weights, records and manifest are "
                                    "here (default: serialized_models)")
    for name in ("sweep", "examine", "score", "luf"):
        c = commands[name]
        c.add_argument("patterns", nargs="+", help="recipes, such as exp1 or exp1/pgd-*")
        c.add_argument("--jobs", type=int, default=2,
                       help="processes, one thread each (default: 2)")
        if name != "luf":
            c.add_argument("--seeds", type=int,
                           help="the first so many seeds (default: all of them)")
    for name in ("train", "sweep", "examine", "score", "luf"):
        commands[name].add_argument("--out", type=Path, default=Path("runs"),
                                    help="what is unfinished is kept here (default: runs)")
    commands["results"].add_argument("--markdown", action="store_true",
                                     help="the table as Markdown")
    return p


def _training_words(commands: dict[str, argparse.ArgumentParser]) -> None:
    for name in ("train", "sweep", "luf"):
        c = commands[name]
        c.add_argument("--limit", type=int, help="use only so many training examples; never stored "
                       "under the recipe's own name")
        c.add_argument("--epochs", type=int,
                       help="another number of epochs; never stored under the recipe's own name")
        c.add_argument("--data", type=Path, help="a folder that holds the data set")
        if name != "luf":
            c.add_argument("--mirror", type=Path,
                           help="a second, slower place for checkpoints, such as a mounted Drive")
    for name in ("train", "evaluate"):
        commands[name].add_argument("recipe")
        commands[name].add_argument("--seed", type=int, default=0)
    for name in ("sweep", "luf"):
        commands[name].add_argument("--scheduler", help="the address of a dask scheduler, whose "
                                    "workers then do the work instead")


def _examining_words(commands: dict[str, argparse.ArgumentParser]) -> None:
    commands["evaluate"].add_argument("--attack", default="pgd20")
    commands["score"].add_argument("--per-class", type=int,
                                   help="search least budgets on so many test examples of each "
                                   "class")
    commands["score"].add_argument("--data", type=Path, help="a folder that holds the data set")
    commands["luf"].add_argument("--left-out", type=int, default=100,
                                 help="how many examples, one after the other (default: 100)")
    commands["luf"].add_argument("--designs", nargs="+", default=["paired", "seeds", "unpaired"],
                                 help="default: paired seeds unpaired")
    commands["examine"].add_argument("--attack", nargs="+", default=["pgd20", "cw20", "autoattack"],
                                     help="one or more (default: pgd20 cw20 autoattack)")
    commands["examine"].add_argument("--eps", type=number, default=8 / 255,
                                     help="the budget (default: 8/255)")
    commands["evaluate"].add_argument("--eps", type=number,
                                      help="the budget, such as 8/255 (default: the attack's own)")
    for name in ("evaluate", "examine"):
        commands[name].add_argument("--per-class", type=int,
                                    help="only the first so many test images of each class")


def do_list(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib import RECIPES, CourseError
    from course_lib.zoo import manifest

    try:
        stored = manifest()
    except CourseError:
        stored = {}
    rows: list[dict[str, Any]] = [
        {"recipe": n, "about": r.about, "epochs": r.epochs, "seeds": r.seeds,
         "stored": sorted(int(s) for s in stored.get(n, {})),
         "weights": sorted(int(s) for s, what in stored.get(n, {}).items() if "weights" in what)}
        for n, r in RECIPES.items()
    ]
    return rows, "\n".join(f"{r['recipe']:24} {len(r['stored'])} of {r['seeds']} seeds stored, "
                           f"{len(r['weights'])} with weights   "
                           f"{r['about']}" for r in rows)


def do_train(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib.lab.publish import publish
    from course_lib.lab.torchrun import joined
    from course_lib.recipes import finished, run, stored_name

    label = stored_name(args.recipe, args.limit, args.epochs)
    words = {"limit": args.limit, "epochs": args.epochs, "mirror": args.mirror, "root": args.data}
    with joined() as group:  # of one process without torchrun
        record = group.from_first(finished(label, args.seed, args.out))
        if record is None:
            trained, record = run(args.recipe, args.seed, args.out, progress=group.first, **words)
            if group.first:
                publish(label, args.seed, trained.model, record, args.out)
    if not group.first:
        return None, ""
    errors = ", ".join(f"{kind} {max(record['validation'][kind]):.1%}" for kind in ("nat", "rob"))
    return (record, f"finished: {label}, seed {args.seed}, in {args.out}; worst-class errors on "
            f"validation data: {errors}")


def do_sweep(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib.lab.sweep import sweep
    from course_lib.zoo import models_dir

    where = {} if args.scheduler is None else {"backend": "dask", "scheduler": args.scheduler}
    records = sweep(args.patterns, out=args.out, models=args.models or models_dir(),
                    seeds=args.seeds, jobs=args.jobs, **where,
                    limit=args.limit, epochs=args.epochs, mirror=args.mirror, root=args.data)
    return [{"recipe": r["recipe"], "seed": r["seed"], "seconds": r["seconds"]}
            for r in records], f"{len(records)} models are there"


def do_evaluate(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib import load, load_model
    from course_lib.errors import pick, whole
    from course_lib.evaluation import evaluate, named, reaches
    from course_lib.experiments import RECIPES
    from course_lib.machine import device
    from course_lib.recipes import TRANSFORMS
    from course_lib.zoo import budget

    attack = named(args.attack, args.eps)
    model = load_model(args.recipe, seed=whole(args.seed, "seed", 0), root=args.models).to(device())
    recipe = pick(RECIPES, args.recipe.partition("@")[0], "recipe")
    test = TRANSFORMS[recipe.transform](load(recipe.dataset)).test
    test = test if args.per_class is None else test.per_class(whole(args.per_class, "per-class", 1))
    report = evaluate(model, test, attack, name=args.attack)
    errors = zip(report.classes, report.nat.by_class, report.rob.by_class, strict=True)
    lines = [f"errors on {len(test):,} test images; {args.attack} with a budget of "
             f"{budget(attack.eps)}{reaches(attack)}",
             *(f"{c:14} standard {n:6.1%}   robust {r:6.1%}" for c, n, r in errors)]
    return {"recipe": args.recipe, "seed": args.seed, **report.to_json()}, "\n".join(lines)


def do_examine(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib.lab.examine import examine_stored
    from course_lib.zoo import models_dir

    rows = examine_stored(args.patterns, attacks=args.attack, eps=args.eps,
                          per_class=args.per_class, seeds=args.seeds,
                          jobs=args.jobs, out=args.out, models=args.models or models_dir())
    return rows, f"{len(rows)} reports are there; python -m course_lib results shows them"


def do_score(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib.lab.score import score_stored
    from course_lib.zoo import models_dir

    rows = score_stored(args.patterns, seeds=args.seeds, per_class=args.per_class, jobs=args.jobs,
                        out=args.out, data=args.data,
                        models=args.models or models_dir())
    models = {(r["recipe"], r["seed"]) for r in rows}
    return rows, f"{len(rows)} scores of {len(models)} models are in their records"


def do_luf(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib.lab.leave_out import leave_out
    from course_lib.zoo import models_dir

    where = {} if args.scheduler is None else {"backend": "dask", "scheduler": args.scheduler}
    records = leave_out(args.patterns, left_out=args.left_out, designs=args.designs, out=args.out,
                        models=args.models or models_dir(),
                        jobs=args.jobs, limit=args.limit, epochs=args.epochs, root=args.data,
                        **where)
    lines = [f"{r['recipe']:28} {r['design']:9} LUF {r['luf']:.4f}  LUF_t {r['luf_t']:.3f}  LUF_l "
             f"{r['luf_l']:.1f}" for r in records]
    return records, "\n".join(lines)


def do_results(args: argparse.Namespace) -> tuple[Any, str]:
    from course_lib import zoo

    frames = [frame.drop(columns=["data", "classes"]).dropna(axis=1, how="all").fillna("")
              for _, frame in zoo.results(root=args.models).groupby(["data", "classes"],
                                                                    sort=False, dropna=False)]
    texts = [zoo.markdown([f.columns, *f.values], "model", "seeds") if args.markdown
             else f.set_index("model").rename_axis(None).to_string() for f in frames]
    return zoo.stored_reports(args.models), "\n\n".join(texts)


def do_doctor(args: argparse.Namespace) -> tuple[Any, str]:
    from dataclasses import asdict

    from course_lib.lab.doctor import examine, table

    found = examine()
    return [asdict(f) for f in found], table(found)


COMMANDS = {
    "list": "the recipes, and which of their seeds are stored",
    "train":
    "train one recipe; the same command again resumes it; under torchrun on several processors",
    "evaluate": "put a stored model through an attack on the test set",
    "sweep": "train many recipes at once; what is stored and verifies is skipped",
    "examine": "put many stored models through attacks and add the reports to their records; the "
    "same command again goes on",
    "score": "put the unfairness scores of stored models into their records; the same command "
    "again goes on",
    "luf": "train with one example left out, again and again, beside trainings with another seed; "
    "the same command again goes on",
    "results": "every stored report, or the table of means and spreads",
    "doctor": "look at files, hashes, versions, kernel and disk, and say what to do; fails when "
    "something is bad",
}


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    from course_lib.errors import CourseError
    from course_lib.machine import keep_memory

    keep_memory()
    try:
        data, text = globals()[f"do_{args.command}"](args)
    except CourseError as e:
        sys.stderr.write(f"{e}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. What was saved last is kept; the same command goes on from "
                         "there.\n")
        return 130
    if data is not None:  # of several processes the first one speaks
        sys.stdout.write((json.dumps(data) if args.json else text) + "\n")
    return int(args.command == "doctor" and any(row["state"] == "bad" for row in data))


def leave(code: int) -> NoReturn:
    """End the process; one of several at once, since threads of a group that hold a tensor may
    abort Python's own, slower end."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
