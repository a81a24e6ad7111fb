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
# Every model that comes with the course, two side by side, under your own sliders: which classes an attack takes, what it turns
# them into, and how soon.
#
# **You will learn** to read an error curve over the budget, a confusion matrix under attack, and the walk of a single image; to
# tell source-class from target-class fairness; and to set your own trained models beside ours.
#
# **You need** notebook 00, and for the training histories notebook 02. No GPU.
#
# **Time:** a figure within fifteen seconds; as long as you like with the sliders; ten minutes for the two exercises.

# %% [markdown] tags=["badges"]
# *To run this notebook on your computer, open it in a copy of the course. In Colab or Kaggle, upload it together with `course.zip`, which `make bundle` writes.*

# %% cellView="form" jupyter={"source_hidden": true} tags=["setup"]
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

# %% [markdown]
# ## 1 · Predict first
#
# Adversarial training with PGD at $\varepsilon = 8/255$ lowers the robust error of nearly every class. Now turn the budget up
# to 16/255, twice what the model was trained for. Which pair of classes, do you think, will be confused most often?

# %% cellView="form"
# @title Your prediction
my_prediction = "Shirt as T-shirt/top"  # @param ["Shirt as T-shirt/top", "Pullover as Coat", "Sandal as Sneaker"]
print("You predict:", my_prediction)

# %% [markdown]
# ## 2 · Under your own sliders
#
# The answers of the models to PGD-20 at $\varepsilon = 0, 2, 4, \dots, 32$ of 255, on all 10,000 test images, are stored beside
# the models: a slider only has to look them up. An attack that says *attack now* is run here, on as many images of each class as
# you choose.
#
# - Choose a second model to set it beside the first; *Tab* and the arrow keys reach everything.
# - *Confusion matrix*: pick a class and what it is taken for, then *Show the images of this cell*, then *Show this image*.
# - *Scores*: one of the unfairness scores of notebook 05, opened up into the classes (or, of people, the groups) it is a range over.
# - *Table*: sort it, type words that a row must hold, and save it.
# - *Your own runs*: type the folder your trainings wrote to (in Colab with Drive:
#   `/content/drive/MyDrive/robust-fairness-course`), finished or stopped half-way.

# %%
from course_lib import lesson, plots
from course_lib.explorer import explore

panel = explore(out=session.results / "explorer")
panel

# %% [markdown]
# ## 3 · The same without widgets
#
# A form instead of sliders: choose, and run the cell. It shows what the panel shows, and works where widgets do not (on a printed
# page, for example).

# %% cellView="form"
# @title Choose, and run
VIEW = "errors"  # @param ["errors", "budgets", "confusion", "cell", "image", "fairness", "scores", "history"]
MODEL = "exp1/natural"  # @param {type:"string"}
BESIDE = "exp1/pgd-at"  # @param {type:"string"}
EPS = 8  # @param {type:"slider", min:0, max:32, step:2}
ATTACK = "stored"  # @param ["stored", "pgd10", "pgd20", "cw20"]
CLASS = ""  # @param {type:"string"}
TAKEN_FOR = ""  # @param {type:"string"}
IMAGE = 1  # @param {type:"integer"}
SCORE = ""  # @param {type:"string"}

from course_lib.explorer.views import Explorer

explorer = Explorer()
view = explorer.look(VIEW, MODEL, BESIDE, attack=ATTACK, eps=EPS, row=CLASS, column=TAKEN_FOR, number=IMAGE,
                     score=SCORE)
plots.show(view.ax, alt=view.alt)
print(view.alt)

# %% [markdown]
# Names of models are those of the table; seed 0 is meant unless you add another, as in `exp1/pgd-at · seed 1`. Stored answers are there for
# seed 0 alone: for another one choose an attack instead of `stored`.
#
# ## 4 · Reading the pictures
#
# **Over the budget.** The error of class $c$ under the budget $\varepsilon$ is
#
# $$\mathrm{err}_c(\varepsilon) = \Pr[\, \exists\, t: \arg\max f(z_t) \ne c \mid y = c \,], \qquad z_0, \dots, z_K \in B(x, \varepsilon)$$
#
# and its value at $\varepsilon = 0$ is the standard error. One budget is one vertical cut through all curves: two classes may well
# change places between 8/255 and 16/255.

# %%
view = explorer.look("budgets", "exp1/natural", "exp1/pgd-at", eps=8)
plots.show(view.ax, alt=view.alt)

# %% [markdown]
# **What they are taken for.** Each row of the confusion matrix is a class. On the left nobody attacks, on the right PGD does.

# %%
view = explorer.look("confusion", "exp1/pgd-at", "exp1/natural", eps=16)
plots.show(view.ax, alt=view.alt)

# %%
# NBVAL_CHECK_OUTPUT
curve = explorer.source("exp1/pgd-at").curve
for eps in (0, 8, 16):
    wrong = curve.confusion(eps).fill_diagonal_(0)
    source, target = divmod(int(wrong.argmax()), len(curve.classes))
    print(f"{eps:2}/255: {int(wrong.max()):4} of {int((curve.y == source).sum())} images of {curve.classes[source]} "
          f"are taken for {curve.classes[target]}; average error {100 * curve.errors(eps).mean:.1f} %")
assert (curve.classes[source], curve.classes[target]) == ("Pullover", "Coat")  # band
print("You predicted:", my_prediction)

# %% [markdown]
# Clean and at 8/255 it is Shirt that is lost most often, to T-shirt/top; at 16/255 it is Pullover, to Coat. A statement about
# classes needs its budget beside it.
#
# The curve at 8/255 is the stored report: same attack, same images, same figures.

# %%
from course_lib import load_report

report = load_report("exp1/pgd-at")
assert abs(curve.errors(8).mean - report.rob.mean) < 0.003  # another CPU may differ in the last image
print(f"from the curve {curve.errors(8).mean:.4f}, from the report {report.rob.mean:.4f}")

# %% [markdown]
# **One image.** The most frequent mistake of the natural model at 8/255, its first image, for two models: what each believes
# before and after, and the step at which the path crosses, if it does.

# %%
view = explorer.look("image", "exp1/natural", "exp1/pgd-at", eps=8)
plots.show(view.ax, alt=view.alt)

# %% [markdown]
# **Source and target.** *Source-class fairness* asks whether all classes hold out equally long, *target-class fairness* whether
# the wrong answers are spread evenly (Sun et al., 2023; the dotted line on the right is an even spread).

# %%
view = explorer.look("fairness", "exp1/natural", "exp1/pgd-at", eps=8)
plots.show(view.ax, alt=view.alt)

# %% [markdown]
# **A score and what is behind it.** An unfairness score is a range: the highest bar minus the lowest. What lies between is not in it.
# (`explorer.scores([...])` lists the scores that models have in common; models of people, which have no images, are shown by their
# scores and their training only.)

# %%
view = explorer.look("scores", "exp1/natural", "exp1/pgd-at", score="CRU_s, pgd20 at 8/255")
plots.show(view.ax, alt=view.alt)
print(view.alt)

# %% [markdown]
# ## 5 · Exercises
#
# ### Exercise 1 · Where the wrong answers go
#
# `matrix` is a confusion matrix of counts, a tensor of shape $[C, C]$ with a row for each true class. Return the share of the
# *wrong* answers that name each class: $C$ numbers that sum to one.

# %% tags=["exercise"]
def targets(matrix):
    return ...


lesson.check("07.targets", targets)

# %%
# lesson.hint("07.targets")

# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 1 (open it when you have tried)
def targets_solution(matrix):
    wrong = matrix - matrix.diag().diag()
    return wrong.sum(0) / wrong.sum()


assert lesson.check("07.targets", targets_solution)

# %% [markdown]
# ### Exercise 2 · The budget at which half is lost
#
# `eps` is a list of budgets and `errors` one class's error at each, the first below `level`. Return the budget at which the error
# first reaches `level`, on a straight line between the two neighbours; the last budget where it never does.

# %% tags=["exercise"]
def reached(eps, errors, level):
    return ...


lesson.check("07.reached", reached)

# %%
# lesson.hint("07.reached")

# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 2 (open it when you have tried)
def reached_solution(eps, errors, level):
    for i in range(1, len(eps)):
        if errors[i] > level:
            share = (level - errors[i - 1]) / (errors[i] - errors[i - 1])
            return eps[i - 1] + share * (eps[i] - eps[i - 1])
    return eps[-1]


assert lesson.check("07.reached", reached_solution)

# %% [markdown]
# With it, each class of two models in one number: the budget at which half of its images are lost (0 where they are lost before
# anybody attacks, 32 where not even that budget is enough).

# %%
# NBVAL_CHECK_OUTPUT
print(f"{'class':12}  {'natural':>8}  {'PGD-AT':>8}")
half, solved = [], lesson.exercises()["07.reached"].solution
for name in ("exp1/natural", "exp1/pgd-at"):
    c = explorer.source(name).curve
    rates = [[c.errors(e).by_class[k] for e in c.eps] for k in range(len(c.classes))]
    half.append([solved(c.eps, r, 0.5) if r[0] <= 0.5 else 0 for r in rates])
for name, *row in zip(curve.classes, *half, strict=True):
    print(f"{name:12}", *(f"{value:9.1f}" for value in row))
assert [name for name, a, b in zip(curve.classes, *half, strict=True) if b < a] == ["Shirt"]  # band

# %% [markdown]
# Nine classes withstand more than before, some four times as much. One withstands less: of Shirt more than half is lost before
# anybody attacks. This is the unfairness that notebooks 01 to 04 are about.
#
# ## What you have seen
#
# - One budget is one cut through many curves, and the order of the classes depends on where you cut.
# - An attack does not scatter images evenly: most wrong answers fall on a few neighbouring classes.
# - "Robust" is a matter of degree for each image: the path shows when it crosses, and for a better model that it never does.
# - The curves are one model each (seed 0) and say nothing of the spread over seeds: for that, notebooks 01 to 03.
