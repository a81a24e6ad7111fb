# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Explore
#
# **What you see first.** An attack turns a sneaker into a sandal for the naturally trained network, within a few small steps. More than half of all
# sneakers are taken for sandals in this way. The adversarially trained network predicts *Sneaker* to the end.
#
# Below you can explore every model of the course: which classes an attack succeeds on, what it turns them into, and how soon. **You need**
# notebook 00. **Time:** a figure within fifteen seconds, then as long as you like.

# %% [markdown] tags=["badges"]
# *To run this notebook on your computer, open it in a copy of the course. In Colab or Kaggle, upload it together with `course.zip`, which `make bundle` writes.*

# %% cellView="form" jupyter={"source_hidden": true} tags=["setup", "nbval-ignore-output"]
# @title Set up: run me first
# COURSE: empty if the course is installed or around this notebook; otherwise a git address, or
# the name of course.zip or of a wheel, uploaded to this session or to your Drive.
COURSE = ""  # @param {type: "string"}
SAVE_TO_DRIVE = False  # @param {type: "boolean"}

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

work, drive = Path.cwd(), Path("/content/drive/MyDrive")
around = [f for f in (work / "course", work, *work.parents) if (f / "course_lib").is_dir()]
if not around and not importlib.util.find_spec("course_lib"):
    name, address, part = COURSE or "course.zip", COURSE or "", work / "course.part"
    if SAVE_TO_DRIVE and "://" not in address and not (work / name).exists():
        importlib.import_module("google.colab.drive").mount(str(drive.parent))
    files = [f for f in (work / name, drive / name) if zipfile.is_zipfile(f)]
    shutil.rmtree(part, ignore_errors=True)
    if files:
        zipfile.ZipFile(files[0]).extractall(part)
    elif "://" in address:
        subprocess.run(["git", "clone", "--quiet", "--depth=1", address, part])
    if not (part / "course_lib").is_dir():
        raise FileNotFoundError(
            f"{address or name} was not found. Upload course.zip to this session (in Colab: the "
            "folder on the left), wait until the upload has ended, and run this cell again. From "
            "your Drive: tick SAVE_TO_DRIVE. `make bundle` in a copy of the course writes it.")
    around = [part.rename(work / "course")]
sys.path[:0] = map(str, around[:1])
from course_lib import colab

session = colab.setup(drive=SAVE_TO_DRIVE)
print(session.line())

# %% tags=["panel", "nbval-ignore-output"]
from course_lib import plots
from course_lib.explorer import explore

panel = explore()
panel.show("image")  # the view to begin with
panel

# %% [markdown]
# ## 1 · What the panel can do
#
# - **Models:** choose one, or two side by side. *Tab* and the arrow keys reach every control.
# - **Attack:** the predictions under PGD-20 at ε = 0, 2, 4, ..., 32 of 255 are stored for all 10,000 test images (seed 0), so the slider answers at
#   once. An attack that says *attack now* runs here, on as many images per class as you choose.
# - **Confusion matrix:** click a cell on the right, or choose a class and a prediction, then *Images of a cell*, then *One image*.
# - **Scores:** the unfairness scores of notebook 05, split into their classes or groups.
# - **Your own runs:** type a folder of finished models, such as the `runs` of `python -m course_lib train`, or one that `save_model` wrote. A model that
#   you have in hand comes with `explore({"mine": model})`.
#
# ## 2 · The same without widgets
#
# Choose, and run the cell. This works where widgets do not.

# %% cellView="form"
# @title Choose, and run
# errors, budgets, confusion, cell, image, fairness or scores:
VIEW = "errors"  # @param {type:"string"}
MODEL = "exp1/natural"  # @param {type:"string"}
BESIDE = "exp1/pgd-at"  # @param {type:"string"}
EPS = 8  # @param {type:"slider", min:0, max:32, step:2}
ATTACK = "stored"  # @param ["stored", "pgd10", "pgd20", "cw20"]
CLASS = ""  # @param {type:"string"}
TAKEN_FOR = ""  # @param {type:"string"}
IMAGE = 1  # @param {type:"integer"}
SCORE = ""  # @param {type:"string"}

explorer = panel.explorer
view = explorer.look(VIEW, MODEL, BESIDE, attack=ATTACK, eps=EPS, row=CLASS,
                     column=TAKEN_FOR, number=IMAGE, score=SCORE)
plots.show(view)

# %% [markdown]
# The names are those that the panel offers. They mean seed 0; add another seed as in `exp1/pgd-at · seed 1`, and choose a live attack for it.
#
# ## 3 · Six things to try
#
# Answer first, then look, in the panel or with the cell below each question.
#
# ### The budget
#
# Adversarial training at 8/255 lowers the robust error of every class. Now raise the budget to 16/255. **Do the classes keep their order?**

# %% cellView="form"
# @title Predict the pair that the robust network confuses most often at 16/255
pair = ""  # @param ["", "Shirt as T-shirt", "Pullover as Coat", "Sandal as Sneaker"]

# %%
plots.show(explorer.look("budgets", "exp1/natural", "exp1/pgd-at", eps=16))

# %%
import pandas as pd

curves = {name: explorer.source(f"exp1/{name}").curve for name in ("natural", "pgd-at")}
most = {}
for name, eps in ((name, eps) for name in curves for eps in (0, 8, 16)):
    wrong = curves[name].confusion(eps).fill_diagonal_(0)
    row, column = divmod(int(wrong.argmax()), len(wrong))
    classes = curves[name].classes
    most[name, f"{eps}/255"] = classes[row], classes[column], int(wrong.max())
assert most["natural", "8/255"][:2] == ("Sneaker", "Sandal")
assert most["natural", "8/255"][2] > 500 and most["pgd-at", "16/255"][0] == "Pullover"
pd.DataFrame(most, ["class", "taken for", "of 1,000"]).T

# %%
print("You predicted:", pair or "nothing yet")

# %% [markdown]
# <details><summary>Discussion</summary>
#
# One budget is one vertical cut through all curves, and curves cross. Clean and at 8/255 the robust network loses Shirt to T-shirt/top most often;
# at 16/255 it loses Pullover to Coat. A statement about classes needs its budget beside it.
# </details>
#
# ### How much is enough?
#
# **Which class needs a smaller budget after adversarial training than before?** The table shows the first stored budget (in grey levels of 255) at
# which at least half of a class is lost; – means that not even 32 is enough.

# %%
half = {name: [next((e for e in curve.eps
                     if curve.report(e).rob.by_class[c] >= 0.5), None)
               for c in range(len(classes))] for name, curve in curves.items()}
table = pd.DataFrame(half, classes, dtype="Int64")
assert table.index[table["pgd-at"] < table["natural"]].tolist() == ["Shirt"]
table.astype(object).fillna("–")

# %% [markdown]
# <details><summary>Discussion</summary>
#
# Shirt. More than half of its images are lost before anybody attacks. All other classes withstand more than before, some several times as much.
# This is the unfairness that notebooks 01 to 04 are about.
# </details>
#
# ### What are they taken for?
#
# Each row of the confusion matrix is a class; on the left without attack, on the right under attack. **Do wrong answers spread over all classes?**

# %%
wrong = curves["pgd-at"].confusion(16).fill_diagonal_(0)
for alike in ([0, 2, 3, 4, 6], [5, 7, 9]):  # tops and dresses; shoes
    assert wrong[alike][:, alike].sum() > 0.9 * wrong[alike].sum()
plots.show(explorer.look("confusion", "exp1/pgd-at", "exp1/natural", eps=16))

# %% [markdown]
# <details><summary>Discussion</summary>
#
# No. More than nine in ten lost tops and dresses are taken for another top or dress, and the same holds for shoes. An attack pushes an image over the
# nearest boundary.
# </details>
#
# ### Who is lost, and to whom?
#
# *Source-class fairness* asks how long each class withstands. *Target-class fairness* asks whether wrong answers are spread evenly; the dotted line is an
# even spread (Sun et al., 2023). **Does adversarial training improve both?** Then try `exp4/bat-code`.

# %%
from course_lib.diagnostics import from_uniform, targets

uneven = [from_uniform(targets(c.confusion(8), own=False)) for c in curves.values()]
assert uneven[0] < uneven[1]  # natural, PGD-AT
plots.show(explorer.look("fairness", "exp1/natural", "exp1/pgd-at", eps=8))

# %% [markdown]
# <details><summary>Discussion</summary>
#
# No. Source: nearly every class withstands longer. Target: the wrong answers of the robust network are *less* evenly spread than those of the
# natural one. Notebook 04 measures both for BAT.
# </details>
#
# ### What hides in a score?
#
# An unfairness score is a range: the highest bar minus the lowest. **Could two models with the same score treat the classes in between differently?**

# %%
score = "CRU_s, pgd20 at 8/255"
plots.show(explorer.look("scores", "exp1/natural", "exp1/pgd-at", score=score))

# %% [markdown]
# <details><summary>Discussion</summary>
#
# Yes. Here the two ranges are not far apart, but one model loses most images of half the classes and the other of one class alone. The classes between the
# ends are not in the score.
# </details>
#
# ### Does another seed agree?
#
# All curves are from seed 0. **Choose `exp1/pgd-at · seed 1` as the second model in the panel, and attack both now. Which classes differ?** Then
# look at all five seeds; the whiskers are 95 % intervals.

# %%
from course_lib.zoo import load_reports

reports = load_reports("exp1/pgd-at")
hardest = {tuple(report.rob.by_class.argsort()[:-4:-1]) for report in reports}
assert len(hardest) == 1
plots.show(plots.class_bars(reports))

# %% [markdown]
# <details><summary>Discussion</summary>
#
# The three hardest classes have the same order for every seed. Most classes move by a point or two between seeds, Shirt by 4.5 points.
# </details>
