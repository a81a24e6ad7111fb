"""What the shell offers, by commands.toml, and the rows of each command as text.

Nothing here imports torch, so that --help answers at once.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

TYPES = {"int": int, "path": lambda path: Path(path).expanduser()}
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COMMANDS = TABLE["commands"]  # about, calls and options of each
OPTIONS = {name: {**words, **({"type": TYPES[words["type"]]} if "type" in words else {})}
           for name, words in TABLE["options"].items()}


def in_shell_words(text: str, command: str) -> str:
    """A message in which Python's name=value is the command's own option.

    >>> in_shell_words("Give limit=100 or root=FOLDER.", "train")
    'Give --limit 100 or --data FOLDER.'
    """
    options = COMMANDS[command]["options"].replace("--data", "--root").split()
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

            if (every := overview(*options["names"], root=options["models"])).empty:
                return "No report on test images is stored of these."
            alike = every.set_index("model").groupby(["data", "classes"], sort=False, dropna=False)
            texts = [part.drop(columns=["data", "classes"]).dropna(axis=1, how="all").fillna("")
                     .rename_axis(None).to_string() for _, part in alike]
            return "\n\n".join([*texts, LEGEND])
        case "doctor":
            bad, warn = (sum(r["state"] == state for r in rows) for state in ("bad", "warn"))
            verdict = f"{bad} bad, {warn} to note" if bad + warn else "All is well."
            lines = [f"{r['what']:24} {r['state']:5} {r['found']}" for r in rows]
            return "\n".join([*lines, verdict])
    return str(rows)
