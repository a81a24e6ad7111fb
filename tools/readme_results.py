"""Write what README.md shows from elsewhere, its badges, figure and tables: python -m
tools.readme_results"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from course_lib import plots
from course_lib.fairness import class_spreads
from course_lib.tables import overview
from course_lib.zoo import load_reports
from tools.addresses import badges
from tools.common import ROOT, ToolError, address, markdown, sources, write

FIGURE = ROOT / "docs" / "who-pays.png"
SHOWN = {  # label -> stored recipe
    "natural training": "exp1/natural",
    "PGD-AT, half attacked": "exp1/pgd-at-mixed",
    "control": "exp2/control",
    "FRL Reweight": "exp2/reweight-05",
}
# question; a heading of benchmarks/README.md; the row under it; its columns for an equal allocator
# and for the default one
SPEED = (
    ("PGD-20 evaluation vs. torchattacks, batch 500",
     "PGD-20 evaluation of LeNet-5", "500 | this course |", (3, 4)),
    ("an epoch of adversarial training vs. the usual loop "
     "(DataLoader, transforms per image, torchattacks)",
     "One epoch of adversarial training", "this course |", (2, 3)),
    ("all of Experiment 1, one seed, from nothing, vs. the usual loop",
     "Experiment 1 from nothing", "all of Experiment 1 |", (4, 5)),
)


def replaced(text: str, name: str, new: str) -> str:
    """The text with what stands between <!-- name --> and <!-- /name --> replaced."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(end) != 1:
        raise ToolError(f"README.md needs one line {start} and one line {end} around what `make "
                        "readme` writes.")
    return re.sub(f"{re.escape(start)}.*{re.escape(end)}",
                  lambda _: f"{start}\n{new.strip()}\n{end}", text, flags=re.S)


def clone() -> str:
    """The two commands; before them how to get the course, once it has a public address."""
    get = "" if "example.org" in address() else (
        f"git clone {address()}\ncd {address().rsplit('/', 1)[-1]}\n")
    return f"```bash\n{get}make run\nmake test\n```"


ROWS = {  # stored recipe -> what it is called in the table
    "exp1/natural": "natural training", "exp4/pgd-at": "PGD-AT", "exp4/trades-6": "TRADES (6)",
    "exp2/control": "control of FRL", "exp2/reweight-05": "FRL Reweight",
    "exp3/reweight-remargin-05": "FRL, both", "exp4/bat-code": "BAT (code)",
    "contest/cfol": "CFOL", "contest/ours": "CFOL from a hot start (ours)",
    "exp4/gairat": "GAIRAT"}
PAIRS = {"standard": "standard", "PGD-20": "robust 8/255", "AutoAttack": "AutoAttack 8/255"}


def results_table() -> str:
    """On Fashion-MNIST: mean over seeds and worst class, each row with a link to its notebook."""
    pages = {int(source.stem[:2]): source.stem for source in sources()}
    lines: list[list[Any]] = [["model", "seeds", *PAIRS, "AutoAttack's images"]]
    found = overview(*ROWS).fillna("").set_index("model")
    for name, label in ROWS.items():
        row = found.loc[name]
        pairs = [" / ".join(f"{float(row[f'{title} {which}'].split()[0]):.1f}"
                            for which in ("avg", "worst") if row[f"{title} {which}"])
                 for title in PAIRS.values()]
        stem = pages.get(8 if name.startswith("contest") else int(name[3]))
        link = f"[{label}](notebooks/{stem}.ipynb)"
        lines.append([link if stem else label, row["seeds"], *pairs, row["n"]])
    return markdown(lines, "model")


def speed() -> str:
    """Ratios from the tables of benchmarks/README.md."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    lines = ["| task | times as fast, same allocator settings | default allocator |",
             "|---|---:|---:|"]
    for question, heading, start, columns in SPEED:
        part = text.partition(f"## {heading}")[2].partition("\n## ")[0]
        row = next((line for line in part.splitlines() if line.startswith(f"| {start}")), "")
        if not row:
            raise ToolError(f"benchmarks/README.md has no row {start!r} under {heading!r}: make "
                            "bench ARGS=--readme")
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        lines.append(f"| {question} | {cells[columns[0]]} | {cells[columns[1]]} |")
    return "\n".join(lines)


def source_of_figure() -> str:
    """What the figure is drawn from, as one hash: the picture carries it, so that a test can tell
    whether it is of today's reports."""
    counts = {name: [(r.nat.wrong, r.nat.counts) for r in load_reports(name, eps=8 / 255)]
              for name in SHOWN.values()}
    return hashlib.sha256(json.dumps([SHOWN, counts], default=list).encode()).hexdigest()


def alt() -> str:
    """The figure in words, with its figures."""
    reports = {name: load_reports(name, eps=8 / 255) for name in SHOWN.values()}
    classes = reports["exp1/natural"][0].classes
    worst = {name: class_spreads([r.nat for r in found])[classes.index("Shirt")] for name,
             found in reports.items()}
    before, after, control, weighted = (f"{100 * worst[n].mean:.0f}" for n in SHOWN.values())
    return (
        "Standard error by class, easiest first, for four ways to train LeNet-5 on Fashion-MNIST. "
        "Most classes differ little; Shirt, "
        f"the hardest, is wrong in {before} % of its images after natural training, {after} % "
        "after adversarial training (half of each "
        f"batch attacked), {control} % in the control of FRL, and {weighted} % with FRL's class "
        "weights."
    )


def draw(path: Path) -> None:
    """Means over seeds with 95 % intervals, from the stored reports."""
    ax = plots.class_bars({label: load_reports(name, eps=8 / 255) for label, name in SHOWN.items()},
                          plots.axes(None, 9, 3.6), kind="nat")
    drawn, note = io.BytesIO(), PngInfo()
    note.add_text("Source", source_of_figure())
    with plt.rc_context(plots.STYLE):
        cast(Figure, ax.figure).savefig(drawn, format="png", dpi=130)
    plt.close("all")
    path.parent.mkdir(exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path,
        format="png", optimize=True, pnginfo=note)


def written(text: str) -> str:
    """README.md with everything that a command writes, written afresh."""
    figure = f"![{alt()}]({FIGURE.relative_to(ROOT).as_posix()})"
    opened = badges("notebooks/00_start_here.ipynb").replace("this notebook", "a notebook")
    parts = {"badges": opened, "figure": figure, "clone": clone(), "results": results_table(),
             "speed": speed()}
    for name, new in parts.items():
        text = replaced(text, name, new)
    return text


def main() -> None:
    path = ROOT / "README.md"
    write(path, written(path.read_text(encoding="utf-8")))
    draw(FIGURE)


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(str(error))
