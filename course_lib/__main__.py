"""The course from a shell: course-lib, or python -m course_lib

Each command of lab/commands.toml calls one function with its options, and gets rows: --json prints
them, `shown` makes them readable. Functions are imported when called, so --help is quick.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from course_lib import __version__


def parser() -> argparse.ArgumentParser:
    from course_lib.lab.commands import COMMANDS, OPTIONS

    about = "Robust fairness: train, evaluate and compare the course's models."
    called = Path(sys.argv[0]).stem
    p = argparse.ArgumentParser(prog=called if called == "course-lib" else "python -m course_lib",
                                description=about)
    p.add_argument("--version", action="version", version=__version__)
    commands = p.add_subparsers(dest="command", required=True)
    for name, row in COMMANDS.items():
        command = commands.add_parser(name, help=row["about"], description=row["about"])
        for option in ["--json", *row["options"].split()]:
            command.add_argument(option, **OPTIONS.get(f"{name} {option}", OPTIONS.get(option, {})))
    return p


def main(argv: Sequence[str] | None = None) -> int:
    options = vars(parser().parse_args(argv))
    command, as_json = options.pop("command"), options.pop("json")
    for stream in (sys.stdout, sys.stderr):  # a terminal may lack ± and ×
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    from course_lib.errors import CourseError, CourseWarning, resolve
    from course_lib.lab.commands import COMMANDS, in_shell_words, shown
    from course_lib.machine import keep_memory
    from course_lib.zoo import models_dir

    keep_memory()
    if "models" in options:
        options["models"] = options["models"] or models_dir()
    try:
        with warnings.catch_warnings():  # as plain sentences
            warnings.showwarning = lambda words, *_: print(
                in_shell_words(f"Warning: {words}", command), file=sys.stderr)
            rows = resolve(f"course_lib.{COMMANDS[command]['calls']}")(**options)
        if rows is None:
            return 0  # of several processes the first one speaks
        text = json.dumps(rows) if as_json else shown(command, rows, options)
    except (CourseError, CourseWarning) as e:
        sys.stderr.write(in_shell_words(f"{e}\n", command))
        return 1
    except KeyboardInterrupt:
        again = " without --fresh" * bool(options.get("fresh"))
        sys.stderr.write("Interrupted." + f" The last save is kept. Run the same command{again} to "
                         "resume." * ("out" in options) + "\n")
        return 130
    sys.stdout.write(text + "\n")
    return int(command == "doctor" and any(row["state"] == "bad" for row in rows))


def program() -> NoReturn:
    """The script course-lib, and python -m course_lib."""
    code = main()
    # under torchrun Python's own, slower end may abort: threads of the group hold tensors
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    program()
