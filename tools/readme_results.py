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

from course_lib import RECIPES, plots
from course_lib.fairness import class_spreads
from course_lib.tables import overview
from course_lib.zoo import load_reports, manifest, markdown
from tools.addresses import badges
from tools.common import ROOT, ToolError, address, sources, write

FIGURE = ROOT / "docs" / "who-pays.png"
SHOWN = {  # label -> stored recipe
    "natural training": "exp1/natural",
    "adversarial training (half attacked)": "exp1/pgd-at-mixed",
    "with class weights (FRL, Reweight)": "exp2/reweight-05",
}
# question; a heading of benchmarks/README.md; the row under it; its columns for an equal allocator
# and for the default one
SPEED = (
    ("PGD-20 evaluation beside torchattacks, batch 500",
     "PGD-20 evaluation of LeNet-5", "500 | this course |", (3, 4)),
    ("an epoch of adversarial training beside the usual loop "
     "(DataLoader, transforms an image, torchattacks)",
     "One epoch of adversarial training", "this course |", (2, 3)),
    ("all of Experiment 1, one seed, from nothing, beside the usual loop",
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
    return (f"```bash\ngit clone {address()}\ncd {address().rsplit('/', 1)[-1]}\nmake run\nmake "
            "test\n```")


def headline(prefix: str) -> list[list[Any]]:
    """The results of the recipes that keep their weights; grids and trials are in the notebooks
    only."""
    names = [n for n in manifest() if re.match(prefix, n) and n in RECIPES and RECIPES[n].weights]
    if not names:
        return []
    found = overview(*names).drop(columns=["data", "classes"]).fillna("")
    found = found.loc[:, [" images" not in title for title in found]]  # they are in the cards
    return [list(found.columns), *found.values.tolist()]


def fashion_mnist() -> str:
    """On Fashion-MNIST, each recipe with a link to the notebook that makes its figures."""
    pages = {int(source.stem[:2]): source.stem for source in sources()}
    lines = []
    for line in markdown(headline(r"exp\d/"), "model", "seeds").splitlines():
        found = re.match(r"\| (exp(\d)/\S+) \|", line)
        page = pages.get(int(found[2])) if found else None
        lines.append(line.replace(f"| {found[1]} |", f"| [{found[1]}](notebooks/{page}.ipynb) |", 1)
                     if found and page else line)
    return "\n".join(lines)


def on_cifar10() -> str:
    """The same methods on photographs."""
    found = headline("cifar10/")
    return (markdown(found, "model", "seeds") if found
            else "*These models are not trained yet: `make models WHICH=cifar10`.*")


def speed() -> str:
    """Ratios from the tables of benchmarks/README.md."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    lines = ["| question | times as fast, same allocator settings | default allocator |",
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
    before, after, weighted = (f"{100 * worst[name].mean:.0f}" for name in SHOWN.values())
    return (
        "Standard error by class, easiest first, for three ways to train LeNet-5 on Fashion-MNIST. "
        "Most classes differ little; Shirt, "
        f"the hardest, is wrong in {before} % of its images after natural training, {after} % "
        "after adversarial training (half of each "
        f"batch attacked), and {weighted} % with class weights."
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
    parts = {"badges": badges("notebooks/00_start_here.ipynb"), "figure": figure, "clone": clone(),
             "results": fashion_mnist(),
             "cifar10": on_cifar10(), "speed": speed()}
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
