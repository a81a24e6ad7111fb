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
# # 01 · Is adversarial training unfair?
#
# Does adversarial training treat classes unequally, and does it hit hardest those that were hard before? Experiment 1 of the
# reproduction report, with five seeds of each model.
#
# **You will learn** to define and measure standard, robust and boundary error by class; to test a claim about classes with means,
# spreads and intervals over seeds; and to tell what a correlation over ten classes can say and what it cannot.
#
# **You need** notebook 00 (what PGD is and how a network is trained against it) and the idea of a confidence interval.
#
# **Time:** half an hour to read, about a minute to run on two processor cores; twenty minutes more for the exercises.

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

# %% cellView="form"
# @title How much: FULL trains the recipes of section 10 for real, with checkpoints
FULL = False  # @param {type:"boolean"}

# %% [markdown]
# ## 1 · What is measured
#
# A model $f$ predicts the class with the largest logit. An attack turns $x$ into $x'$. For a class $c$, the *standard error*, the
# *robust error* and the *boundary error* are
#
# $$\mathrm{err}_{\mathrm{nat}}(c) = \Pr\left[ \arg\max f(x) \ne c \mid y = c \right]$$
#
# $$\mathrm{err}_{\mathrm{rob}}(c) = \Pr\left[ \arg\max f(x) \ne c \ \text{or} \ \arg\max f(x') \ne c \mid y = c \right]$$
#
# $$\mathrm{err}_{\mathrm{bndy}}(c) = \mathrm{err}_{\mathrm{rob}}(c) - \mathrm{err}_{\mathrm{nat}}(c)$$
#
# The boundary error is what the attack adds: images that are right, but so close to the border of their class that the attack
# takes them across. First by hand, on twenty images of each class:

# %%
from itertools import pairwise

import numpy as np
import torch
from IPython.display import Markdown

from course_lib import PGD, evaluate, lesson, load, load_model, plots
from course_lib.fairness import Spread, class_spreads, t95
from course_lib.zoo import load_record, load_reports

test = load("fashion-mnist").test
classes = test.classes
model = load_model("exp1/natural", seed=0)
attack = PGD(eps=8 / 255, step_size=2 / 255, steps=20)

few = test.per_class(20)
x, y = few.images(), few.y
z = attack(model, x, y)
with torch.no_grad():
    wrong = model(x).argmax(1) != y
    wrong_attacked = model(z).argmax(1) != y

of_class = [y == c for c in range(len(classes))]
# err_nat(c) = Pr[ argmax f(x) != c | y = c ]
err_nat = np.array([wrong[mine].float().mean() for mine in of_class])
# err_rob(c) = Pr[ argmax f(x) != c or argmax f(x') != c | y = c ]
err_rob = np.array([(wrong | wrong_attacked)[mine].float().mean() for mine in of_class])
# err_bndy(c) = err_rob(c) - err_nat(c)
err_bndy = err_rob - err_nat

# the same by the library
report = evaluate(model, few, attack, early=False, progress=False)
assert np.allclose(report.nat.by_class, err_nat)
assert np.allclose(report.rob.by_class, err_rob)
assert np.allclose(report.bnd.by_class, err_bndy)
print(f"the same by hand and by the library; boundary error on these images: {err_bndy.mean():.0%}")

# %% [markdown]
# Twenty images a class are too few to judge by. Everything that follows uses stored reports on all 10,000 test images, 1,000 of
# each class, unless a cell says otherwise.
#
# ## 2 · Three ways to train
#
# All models are LeNet-5 networks, trained with the same optimiser, learning rate, number of epochs and schedule (*all attacked* in batches
# of 128, the others of 100). They differ in the images they were shown, and in the attack's steps.

# %% tags=["nbval-check-output"]
RECIPE_NAMES = {
    "exp1/natural": "natural",
    "exp1/pgd-at-mixed": "half attacked",
    "exp1/pgd-at": "all attacked",
}
rows = ["| model | shown | training images | epochs | seeds |", "|---|---|---:|---:|---:|"]
for name, label in RECIPE_NAMES.items():
    made = load_record(name)["made_from"]
    images, epochs, seeds = made["training_examples"], made["epochs"], len(load_reports(name))
    rows.append(f"| {label} | {made['recipe']['about']} | {images:,} | {epochs} | {seeds} |")
Markdown("\n".join(rows))

# %% [markdown]
# *Half attacked* is the report's adversarial training: a random half of each batch is attacked, the other half stays clean. *All
# attacked* is what the name means elsewhere (Madry et al.). It leaves 20 % of the training set out for validation, as all later
# models of this course do.
#
# ### Your predictions
#
# In notebook 00 you saw how unequal the classes of the natural model are under attack. Now the training itself is against the
# attack.

# %% cellView="form"
# @title Your predictions
worst_class_standard_error = "it stays about the same"  # @param ["it falls", "it stays about the same", "it rises"]
classes_that_pay_most = "all pay about the same"  # @param ["the easy classes", "all pay about the same", "the hard classes"]
print(f"Standard error of the hardest class: {worst_class_standard_error}.")
print(f"Who pays most: {classes_that_pay_most}.")

# %% [markdown]
# ## 3 · Claim 1: unequal in standard and in robust error
#
# The report's first claim: adversarial training is unfair across classes, in standard as well as in robust error. Bars are means
# over five seeds, whiskers 95 % intervals of these means.

# %%
at_8 = {label: load_reports(name, eps=8 / 255) for name, label in RECIPE_NAMES.items()}
at_16 = {label: load_reports(name, eps=16 / 255) for name, label in RECIPE_NAMES.items()}
plots.show(
    plots.class_bars(at_8, kind="nat"),
    alt="Standard error by class for the three trainings, easiest class first. Adversarial "
    "training changes it little for most classes and raises it a lot for Shirt, the hardest.",
)

# %%
order = plots.difficulty(at_8["natural"])
plots.show(
    plots.class_bars(at_8, kind="rob", order=order),
    alt="Robust error at 8/255 by class. Adversarial training lowers it for every class, "
    "but Shirt stays far above the others.",
)

# %%
plots.show(
    plots.class_bars(at_16, kind="rob", order=order),
    alt="Robust error at 16/255 by class, twice the budget of the training. The natural model loses nearly "
    "everything; the adversarially trained ones keep the easy classes and lose most of Shirt.",
)

# %% [markdown]
# The three figures as numbers, average and worst class, in percent, mean ± sample standard deviation over seeds:

# %% tags=["nbval-check-output"]
from course_lib import results

average = {(label, e): np.mean([r.rob.mean for r in at[label]]) for label in at_8 for e, at in ((8, at_8), (16, at_16))}
assert abs(average["half attacked", 8] - average["all attacked", 8]) < 0.02  # band
assert average["all attacked", 16] < average["half attacked", 16] - 0.02  # band
results(*RECIPE_NAMES)

# %% [markdown]
# Is the inequality larger than chance? Take the gap between the worst and the best class, one value a seed, and its 95 %
# interval.

# %% tags=["nbval-check-output"]
def gaps(reports, kind):
    """Worst minus best class, one a seed."""
    errors = [getattr(r, kind) for r in reports]
    return [e.worst - e.by_class.min() for e in errors]


def interval(s):
    return f"{100 * s.mean:.1f}" + (f" [{100 * s.low:.1f}, {100 * s.high:.1f}]" if s.n > 1 else " (one seed)")


for kind, title in (("nat", "standard error"), ("rob", "robust error at 8/255")):
    print(f"worst minus best class, {title}, points [95 % interval]")
    for label, reports in at_8.items():
        print(f"  {label:14} {interval(Spread.of(gaps(reports, kind)))}")
before, after = (gaps(at_8[label], "nat") for label in ("natural", "half attacked"))
grown = Spread.of(b - a for a, b in zip(before, after, strict=True))
print(f"growth of the gap in standard error, natural to half attacked: {interval(grown)}")

for label in ("half attacked", "all attacked"):
    for kind in ("nat", "rob"):
        assert Spread.of(gaps(at_8[label], kind)).low > 0.2  # Claim 1
assert grown.low > 0

# %% [markdown]
# **Claim 1 holds.** Both kinds of adversarial training leave wide gaps in standard and in robust error; no interval comes near
# zero. In standard error the gap is wider than it was before. In robust error it is narrower than the natural model's, which has
# little robustness to share out: a few of its classes are safe by themselves, the others are lost.
#
# ## 4 · Claim 2: hardest hit are those that were hard before
#
# The second claim: adversarial training makes existing inequality worse. Here is what it *adds* to the standard error of each
# class, against how hard the class was for the natural model.

# %%
axes = plots.panels(2, 11, 4.4)
for ax, label in zip(axes, ("half attacked", "all attacked"), strict=True):
    plots.cost_of_robustness(at_8["natural"], at_8[label], ax)
    ax.set_title(label)
axes[1].set_ylabel("")
plots.show(
    axes[1],
    alt="Two scatter plots, half and all attacked: standard error of each class before, against what "
    "adversarial training adds. Most classes lie near zero, Shirt high on the right, T-shirt/top below zero.",
)

# %% [markdown]
# How strong is the relation? Pearson's $r$ asks for a straight line, Spearman's $\rho$ is Pearson's $r$ of the ranks and asks
# only for the same order:
#
# $$r(u, v) = \frac{\sum_c (u_c - \bar u)(v_c - \bar v)}{\sqrt{\sum_c (u_c - \bar u)^2 \ \sum_c (v_c - \bar v)^2}}
# \qquad \rho(u, v) = r(\mathrm{rank}\ u, \mathrm{rank}\ v)$$


# %% tags=["nbval-check-output"]
def pearson(u, v):
    # r = sum (u - mean u)(v - mean v) / sqrt( sum (u - mean u)^2 sum (v - mean v)^2 )
    u, v = u - u.mean(), v - v.mean()
    return u @ v / np.sqrt((u @ u) * (v @ v))


def rank(u):
    # how many are smaller, ties sharing their places
    return (u[:, None] > u).sum(1) + (u[:, None] == u).sum(1) / 2


def spearman(u, v):
    return pearson(rank(u), rank(v))


def relation(measure, label, suffered, keep=slice(None)):
    """One value a seed: standard error of the natural model, against what a class suffers."""
    pairs = zip(at_8["natural"], at_8[label], strict=True)
    found = [(a.nat.by_class, suffered(a, b)) for a, b in pairs]
    return Spread.of(measure(before[keep], after[keep]) for before, after in found)


def by_chance(n):
    """|r| that n unrelated classes exceed one time in twenty: t / sqrt( n - 2 + t^2 )"""
    return t95(n - 2) / np.sqrt(n - 2 + t95(n - 2) ** 2)


def added(a, b):
    return b.nat.by_class - a.nat.by_class  # standard error that adversarial training adds


def unprotected(a, b):
    return b.bnd.by_class  # boundary error that it leaves


n = len(classes)
no_shirt = [c for c in range(n) if classes[c] != "Shirt"]
print("mean over seeds [95 % interval]                          without Shirt")
for title, suffered in (("standard error added", added), ("boundary error left", unprotected)):
    for label in ("half attacked", "all attacked"):
        for name, measure in (("r", pearson), ("ρ", spearman)):
            s = relation(measure, label, suffered)
            without = relation(measure, label, suffered, no_shirt)
            row = f"{name} = {s.mean:5.2f} [{s.low:5.2f}, {s.high:5.2f}]   {without.mean:5.2f}"
            print(f"{title:22}{label:15}{row}")
print(f"chance exceeds, one time in twenty: {by_chance(n):.2f} with {n} classes, {by_chance(n - 1):.2f} with {n - 1}")

for label in ("half attacked", "all attacked"):
    assert relation(pearson, label, added).mean > by_chance(n)  # band
    assert relation(pearson, label, unprotected, no_shirt).mean > by_chance(n - 1)  # band
    assert relation(pearson, label, added, no_shirt).mean < by_chance(n - 1)  # band

# %% [markdown]
# Read this with care:
#
# - The interval is over **seeds**. It says how surely *these ten classes* would show the relation again if all was trained anew.
#   It does not say what ten other classes would show: for that, $n = 10$, and the last line says how much chance can do with so
#   few.
# - One class can make a Pearson correlation. Hence the last column, and Spearman's $\rho$, to which an outlier is only one rank.
# - In "standard error added", the error before is on both axes, since what is added is after minus before. Noise in it then
#   pushes the correlation *down*, so it does not make the relation. The next cell makes sure: it takes the error before from
#   other seeds.

# %% tags=["nbval-check-output"]
natural, mixed = ([r.nat.by_class for r in at_8[label]] for label in ("natural", "half attacked"))
other_seed = natural[1:] + natural[:1]
triples = zip(other_seed, natural, mixed, strict=True)
apart = Spread.of(pearson(before, after - own) for before, own, after in triples)
print(f"error before from another seed: r = {apart.mean:.2f} [{apart.low:.2f}, {apart.high:.2f}]\n")

cost = {}
for c in order[::-1]:
    cost[classes[c]] = Spread.of(m[c] - a[c] for a, m in zip(natural, mixed, strict=True))
print("standard error added (half attacked), points [95 % interval], hardest class first")
for name, s in cost.items():
    print(f"  {name:12} {interval(s)}")
assert max(cost, key=lambda name: cost[name].mean) == "Shirt" and cost["Shirt"].low > 0.05
assert min(cost, key=lambda name: cost[name].mean) == "T-shirt/top"  # band

# %% [markdown]
# **Claim 2 holds for the hardest class; as a rule for all classes it is half true.** Shirt was worst before, and pays by far the
# most. Without Shirt, what adversarial training *adds* to the standard error follows the old difficulty no better than chance
# could; one of the hard classes, T-shirt/top, even gains. What it *leaves* unprotected does follow it, with Shirt and without:
# the harder a class was, the more of its images stay close enough to a border to be taken across.
#
# ## 5 · "Does not exist in naturally trained models"
#
# The abstract of the FRL paper says of such disparity that it "does not exist in naturally trained models". The paper worked on
# CIFAR-10 with a ResNet-18. Let us test the sentence on what we have. If all classes were equally hard, each class's error would
# be the average, give or take the chance of 1,000 images: the grey band.

# %%
ax = plots.class_bars({"natural": at_8["natural"]}, kind="nat")
p = np.mean([r.nat.mean for r in at_8["natural"]])
half = 1.96 * np.sqrt(p * (1 - p) / 1000)  # 1,000 images a class; see exercise 3
ax.axhspan(100 * (p - half), 100 * (p + half), color="0.6", alpha=0.5, lw=0, zorder=0)
ax.axhline(100 * p, color="black", lw=1, ls="--")
plots.show(
    ax,
    alt="Standard error of the natural models by class with a narrow grey band around the average, "
    "where equally hard classes would lie. Five classes lie far below the band, Shirt far above.",
)

# %% tags=["nbval-check-output"]
spreads = class_spreads([r.nat for r in at_8["natural"]])
best, worst = spreads[order[0]], spreads[order[-1]]
outside = sum(not p - half <= s.mean <= p + half for s in spreads)
print(f"best class:  {classes[order[0]]:12} {interval(best)} %")
print(f"worst class: {classes[order[-1]]:12} {interval(worst)} %")
print(f"outside the band, {100 * (p - half):.1f} to {100 * (p + half):.1f} %: {outside} of {n} classes")
assert best.mean < 0.08 and worst.mean > 0.25 and best.high < worst.low  # band

# %% [markdown]
# **On Fashion-MNIST the sentence is false.** Natural training alone leaves some classes several times as wrong as others. What
# adversarial training does to the standard error is to take an inequality that is there, and widen it.
#
# ## 6 · Who is taken for whom
#
# Errors have a direction. Of 1,000 shirts, how many are taken for what? The next cell computes it anew for the models of seed 0,
# on all 10,000 clean test images.

# %%
robust_model = load_model("exp1/pgd-at-mixed", seed=0)
with torch.no_grad():
    said, said_robust = ((m(test.images())).argmax(1) for m in (model, robust_model))

shirt, t_shirt = (test.y == classes.index(name) for name in ("Shirt", "T-shirt/top"))
print(f"{'the model says':14} {'natural':>8} {'half attacked':>14}   (of the 1,000 shirts)")
for c in torch.bincount(said[shirt], minlength=n).argsort(descending=True)[:6]:
    before, after = (int((s[shirt] == c).sum()) for s in (said, said_robust))
    print(f"{classes[c]:14} {before:8} {after:14}")
back = [int((s[t_shirt] == classes.index("Shirt")).sum()) for s in (said, said_robust)]
print(f"T-shirts taken for a shirt: {back[0]}, {back[1]}")

# confusion[a, b]: how many images of class a the natural model takes for b
confusion = torch.bincount(n * test.y + said, minlength=n * n).reshape(n, n)
both_ways = (confusion + confusion.T).triu(1)
pairs = [divmod(int(i), n) for i in both_ways.flatten().argsort(descending=True)[:5]]
print("\nmost confused, both ways together:")
for a, b in pairs:
    print(f"  {classes[a]} and {classes[b]}: {int(both_ways[a, b])}")
assert "Shirt" in (classes[pairs[0][0]], classes[pairs[0][1]])
assert sum("Shirt" in (classes[a], classes[b]) for a, b in pairs) >= 3  # band
assert back[1] < back[0] and (said_robust[shirt] == 0).sum() > (said[shirt] == 0).sum()  # band

# %% [markdown]
# After adversarial training many more shirts are taken for T-shirts, and fewer T-shirts for shirts: the border between the two
# has moved into Shirt. What T-shirt/top gains, Shirt pays for.
#
# Would you have known? The first row are shirts that the natural model recognises. Then come shirts that it takes for something
# else, each followed by what they were taken for.

# %%
panel = {"Shirt, recognised": shirt & (said == test.y)}
for c in torch.bincount(said[shirt & (said != test.y)]).argsort(descending=True)[:3]:
    panel[f"Shirt, taken for {classes[c]}"] = shirt & (said == c)
    panel[classes[c]] = (test.y == c) & (said == c)
first_nine = {label: torch.nonzero(which).flatten()[:9] for label, which in panel.items()}
plots.show(
    plots.image_rows({label: test.images(places) for label, places in first_nine.items()}),
    alt="Rows of nine images: shirts the model recognises; shirts taken for T-shirt/top, Pullover "
    "and Coat, each above a row of real ones. The rows are hard to tell apart.",
)

# %% [markdown]
# Some of these labels are a matter of taste. An error rate of zero is not to be had for Shirt, and part of the inequality is in
# the data. But that does not explain why the error *rises* when the training changes and the data stay the same.
# [Notebook 06](06_theory.ipynb) explains it in a model that can be solved by hand.
#
# ## 7 · What an attack has to do
#
# The same boot, attacked against the natural and against the adversarially trained model:

# %%
boots = test.y == classes.index("Ankle boot")
place = torch.nonzero(boots & (said == test.y) & (said_robust == test.y)).flatten()[:1]
x, y = test.images(place), test.y[place]
left, right = plots.panels(2, 10, 2.3)
for ax, m, label in ((left, model, "natural"), (right, robust_model, "half attacked")):
    z = attack(m, x, y)
    with torch.no_grad():
        p_z = m(z).softmax(1)[0]
    plots.adversarial(x[0], z[0], ax, after=f"{classes[p_z.argmax()]}, {p_z.max():.0%}")
    ax.set_title(f"attack on the {label} model", fontsize=10)
plots.show(
    right,
    alt="An ankle boot, the change and the attacked boot, once for each model. "
    "Both changes are patches of black and white; both attacked boots still look like boots.",
)

# %% [markdown]
# ### More budget
#
# How much change does each class bear? Here the attack runs live, with ten steps, on 100 images of each class: each point of a
# class is uncertain by several points.

# %%
some = test.per_class(100)
budgets = (0, 2, 4, 8, 12, 16)


def under(m, eps):
    return evaluate(m, some, PGD(eps=eps, step_size=eps / 4, steps=10), progress=False)


curves = {
    "natural": {e / 255: under(model, e / 255) for e in budgets},
    "half attacked": {e / 255: under(robust_model, e / 255) for e in budgets},
}
named = [classes[order[0]], classes[order[-2]], classes[order[-1]]]
left, right = plots.panels(2, 10, 3.8, sharey=True)
for ax, (label, reports) in zip((left, right), curves.items(), strict=True):
    plots.budget_curves(reports, ax, named=named)
    ax.set_title(label, pad=22)
right.set_ylabel("")
plots.show(
    right,
    alt="Robust error of every class against the budget of the attack. Natural model: steep, Shirt first. "
    "Half attacked: the easy classes stay low, Shirt starts high and stays far above the average.",
)
for reports in curves.values():  # more budget, more errors (up to chance in the attack)
    means = [r.rob.mean for r in reports.values()]
    assert all(b > a - 0.02 for a, b in pairwise(means))
# the live subset agrees with the stored report of this model
live, stored_there = curves["half attacked"][8 / 255], at_8["half attacked"][0]
assert abs(live.rob.mean - stored_there.rob.mean) < 0.06

# %% [markdown]
# ## 8 · Beside the report's own models
#
# The report published its trained networks. For this course they were measured anew: all 10,000 test images, PGD with 20 steps of
# 2/255, errors in percent. It trained one network each; so the fair question is whether its network could be one of ours. The
# last column is the 95 % interval for *one more* training, $\bar e \pm t s \sqrt{1 + 1/n}$ with mean $\bar e$ and standard
# deviation $s$ over our $n$ seeds; a figure of theirs outside it would be marked.

# %% tags=["nbval-check-output"]
# the report's published models, measured for this course: (average, worst class), %
REPORT = {
    "natural": {"standard": (11.56, 32.2), "8/255": (53.66, 96.2), "16/255": (83.01, 100.0)},
    "half attacked": {"standard": (13.32, 47.6), "8/255": (24.00, 67.7), "16/255": (39.13, 89.3)},
}
ours = {}
for label in REPORT:
    ours[label, "standard"] = [r.nat for r in at_8[label]]
    ours[label, "8/255"] = [r.rob for r in at_8[label]]
    ours[label, "16/255"] = [r.rob for r in at_16[label]]
rows = ["| model | error | ours | theirs | one more training would give |"]
rows.append("|---|---|---:|---:|---|")
beside = {}
for (label, what), errors in ours.items():
    for which, theirs in zip(("average", "worst"), REPORT[label][what], strict=True):
        s = Spread.of(e.mean if which == "average" else e.worst for e in errors)
        # mean -+ t s sqrt( 1 + 1/n ), which cannot leave 0 to 100 %
        reach = t95(s.n - 1) * s.sd * np.sqrt(1 + 1 / s.n)
        low, high = 100 * max(0, s.mean - reach), 100 * min(1, s.mean + reach)
        verdict = "" if low - 0.05 <= theirs <= high + 0.05 else " (theirs is outside)"
        rows.append(f"| {label} | {what}, {which} | {s} | {theirs:.2f} | {low:.1f} to {high:.1f}{verdict} |")
        beside[f"{label}: {what}, {which}"] = {"ours: mean, 95 % interval": (s.mean, s.low, s.high), "the report's model": [theirs / 100] * 3}
        assert abs(theirs - 100 * s.mean) < {"average": 3, "worst": 8}[which]  # band
Markdown("\n".join(rows))

# %%
plots.show(
    plots.attack_gaps(beside, xlabel="error (%)"),
    alt="Twelve rows, one a quantity: our mean with its 95 % interval, and the report's model as a square. "
    "They lie close together in every row.",
)

# %% [markdown]
# ## 9 · The same on CIFAR-10
#
# The papers have their figures on CIFAR-10: photographs of ten kinds of animals and vehicles. Ours come from what two CPU cores can
# train: a small PreAct ResNet with 175k parameters, 8 epochs, 40,000 training images (10,000 are kept for validation). The papers'
# ResNet-18 has 64 times as many parameters, and BAT's authors train it for 200 epochs on all 50,000 images. So our standard and robust
# errors must be larger than theirs. The boundary error need not be: it is at most what the standard error leaves. What one can compare is
# which classes are hard, and how far apart the classes lie. The attack is the same: PGD with 20 steps of 2/255 within 8/255, on all 10,000
# test images.

# %% tags=["nbval-check-output"]
from course_lib import RECIPES, build
from course_lib.zoo import missing, reports

ON_CIFAR = {"cifar10/natural": "natural", "cifar10/pgd-at": "PGD-AT"}
missing(*ON_CIFAR)
photos = {label: found for name, label in ON_CIFAR.items() if (found := reports(name))}  # label -> seed -> report

recipe = RECIPES["cifar10/pgd-at"]
ours_, theirs_ = (sum(p.numel() for p in build(m, classes=10).parameters()) for m in (recipe.model, "resnet18"))
print(f"ours: {ours_:,} parameters, {recipe.epochs} epochs; a ResNet-18: {theirs_:,} parameters, {theirs_ / ours_:.0f} times as many")
for name, label in ON_CIFAR.items():
    if label in photos:
        made, images = load_record(name)["made_from"], sum(photos[label][min(photos[label])].nat.counts)
        print(f"{label}: {made['training_examples']:,} training images, {images:,} test images, seeds {', '.join(map(str, photos[label]))}")

# %%
if photos:
    listed = {label: list(found.values()) for label, found in photos.items()}
    left, right = plots.panels(2, 13, 3.8)
    plots.class_bars(listed, left, kind="nat")
    plots.class_bars(listed, right, kind="rob", order=plots.difficulty(next(iter(listed.values()))))
    plots.show(
        right,
        alt="Standard error (left) and robust error at 8/255 (right) by class of CIFAR-10 for the models that are trained, in the order "
        "of the first one's standard error, easiest class first.",
    )
else:
    print("nothing to draw yet")

# %% [markdown]
# Beside the papers: FRL's abstract names two classes of a PGD-trained ResNet-18, with their accuracies (those of its first version and
# those at ICML differ); BAT's Table 1 has averages and worst classes. Errors in percent:

# %% tags=["nbval-check-output"]
# printed in the papers. FRL's abstract, accuracy in %: class -> (clean, attacked); BAT, Table 1: errors in %, (average, worst class)
FRL_FIRST = {"automobile": (93, 67), "cat": (59, 17)}
FRL_ICML = {"automobile": (93, 67), "cat": (65, 17)}
BAT_TABLE_1 = {"nat": (13.43, 31.40), "bnd": (39.47, 54.90), "rob": (52.90, 81.20)}
WHAT = {"nat": "standard", "bnd": "boundary", "rob": "robust"}
at = list(photos.get("PGD-AT", {}).values())


def our(value):
    """One figure over the seeds."""
    return str(Spread.of(value(r) for r in at)) if at else "not trained yet"


def class_error(kind, name):
    return our(lambda r: getattr(r, kind).by_class[r.classes.index(name)])


rows = ["| PGD-AT on CIFAR-10 | ours | FRL, first version | FRL, ICML | BAT, Table 1 |", "|---|---:|---:|---:|---:|"]
for name in FRL_FIRST:
    for k, kind in enumerate(("nat", "rob")):
        printed = [str(100 - accuracies[name][k]) for accuracies in (FRL_FIRST, FRL_ICML)]
        rows.append(f"| {name}, {WHAT[kind]} | {class_error(kind, name)} | {printed[0]} | {printed[1]} | |")
for kind, printed in BAT_TABLE_1.items():
    for which, title, theirs in zip(("mean", "worst"), ("average", "worst class"), printed, strict=True):
        value = our(lambda r, kind=kind, which=which: getattr(getattr(r, kind), which))
        rows.append(f"| {title}, {WHAT[kind]} | {value} | | | {theirs:.2f} |")
Markdown("\n".join(rows))

# %% [markdown]
# Two things of the papers' should show at any size. *Cat* should be among the two worst classes, and the best class's standard error
# should be less than half of the worst's. And the claims of sections 3 to 5, on these models:

# %% tags=["nbval-check-output"]
YES = {True: "yes", False: "no"}
if at:
    mean_of = {kind: np.mean([getattr(r, kind).by_class for r in at], axis=0) for kind in ("nat", "rob")}
    for kind, by_class in mean_of.items():
        worst_two = [at[0].classes[c] for c in by_class.argsort()[::-1][:2]]
        print(f"PGD-AT, {WHAT[kind]} error: the two worst classes are {' and '.join(worst_two)}. Cat among them: {YES['cat' in worst_two]}")
        print(f"  Claim 1, worst minus best class: {interval(Spread.of(gaps(at, kind)))} points")
    low, high = mean_of["nat"].min(), mean_of["nat"].max()
    print(f"best class's standard error {100 * low:.1f} %, worst's {100 * high:.1f} %. Less than half: {YES[low < high / 2]}")
else:
    print("PGD-AT is not trained yet, so there is no verdict: make models WHICH=cifar10")

if "natural" in photos:
    first = next(iter(photos["natural"].values()))
    bounds, by_class = first.nat.intervals(), first.nat.by_class
    easy, hard = by_class.argmin(), by_class.argmax()
    apart = bounds[easy, 1] < bounds[hard, 0]
    print(
        f'natural: {first.classes[easy]} {100 * by_class[easy]:.1f} %, {first.classes[hard]} {100 * by_class[hard]:.1f} %; "does not exist '
        f'in naturally trained models" is {"false here, too" if apart else "not refuted here"}'
    )
both = sorted(photos.get("natural", {}).keys() & photos.get("PGD-AT", {}).keys())
if both:
    found = [(photos["natural"][s], photos["PGD-AT"][s]) for s in both]
    chance = f"chance exceeds {by_chance(10):.2f} one time in twenty; seeds: {len(both)}"
    for title, suffered in (("standard error added", added), ("boundary error left", unprotected)):
        s = Spread.of(pearson(a.nat.by_class, suffered(a, b)) for a, b in found)
        print(f"Claim 2, {title} against the error before: r = {s.mean:.2f} ({chance})")
    hit = [Spread.of(r.nat.worst for r in reports) for reports in zip(*found, strict=True)]
    print(f"Claim 2, worst class's standard error: {hit[0]} % natural, {hit[1]} % PGD-AT")

# %% [markdown]
# Claim 2 is not seen here as a rule (one seed): what is added follows no order beyond chance, and the boundary error that is left runs the
# other way. A class that is mostly wrong already, as cat is, has little left to lose. The worst class itself did suffer most.
#
# What a small network says of a class it says of *its* capacity as well: this compares the pattern with the papers', and does not
# reproduce their figures. For those there are recipes at their own size, for a GPU, such as `gpu/cifar10/resnet18/pgd-at`.
#
# ## 10 · Train it yourself
#
# In a few seconds, on a small part of the training set: the same two trainings side by side. The figures are rougher, the pattern
# is there.

# %%
from course_lib import Optim, fit
from course_lib.methods import METHODS

small = load("fashion-mnist", limit=2500)
short = Optim("adam", lr=2e-3, batch=50)
few_steps = PGD(eps=8 / 255, step_size=3 / 255, steps=5)
quick = {"natural": METHODS["natural"](), "half attacked": METHODS["pgd_at"](few_steps, mix=0.5)}
found = {}
for label, method in quick.items():
    fresh = build("lenet5", seed=0)
    run = fit(fresh, method, small, epochs=10, optim=short, seed=0, progress=False)
    found[label] = under(run.model, 8 / 255)

left, right = plots.panels(2, 12, 3.6, sharey=True)
plots.class_bars(found, left, kind="nat", order=order)
plots.class_bars(found, right, kind="rob", order=order)
plots.show(
    right,
    alt="Standard error (left) and robust error (right) by class of two models trained "
    "for seconds. Under attack the half-attacked model is better on average; on clean images Shirt is worse.",
)
assert found["half attacked"].rob.mean < found["natural"].rob.mean

# %% [markdown]
# The real thing: with `FULL` the cell below trains the recipes of this experiment as they are stored, with checkpoints. Stop it
# whenever you like; run again, it goes on. It needs the whole training set (downloaded once), and a while of training:

# %%
from course_lib import Report
from course_lib.recipes import run as run_recipe

print(session.how_long(*RECIPE_NAMES, full=FULL))
for name in RECIPE_NAMES:
    if FULL:
        _, record = run_recipe(name, seed=0, out=session.results, mirror=session.drive)
        yours, stored_one = (Report.from_json(r["reports"][0]) for r in (record, load_record(name)))
        print(f"   worst robust error: yours {yours.rob.worst:.1%}, stored {stored_one.rob.worst:.1%}")
        assert abs(yours.rob.mean - stored_one.rob.mean) < 0.03

# %% [markdown]
# ## 11 · Exercises
#
# Write your answer in place of the dots and run the cell. For a hint, take away the `#` before `lesson.hint` and run that cell.
#
# ### Exercise 1 · Errors by class
#
# From true classes `y` and `predicted` classes (two tensors of whole numbers) compute the standard error of each of the
# `n_classes` classes, as a list of fractions.


# %% tags=["exercise"]
def class_errors(y, predicted, n_classes):
    return ...


lesson.check("01.class_errors", class_errors)

# %%
# lesson.hint("01.class_errors")


# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 1 (open it when you have tried)
def class_errors_solution(y, predicted, n_classes):
    errors = []
    for c in range(n_classes):
        of_this_class = predicted[y == c]
        errors.append(1 - float((of_this_class == c).float().mean()))
    return errors


assert lesson.check("01.class_errors", class_errors_solution)

# %% [markdown]
# ### Exercise 2 · The boundary error
#
# From `y`, the predictions `clean` on clean images and `attacked` on attacked ones, compute the boundary error over all images as
# one fraction, so that standard error plus boundary error is the robust error of section 1.


# %% tags=["exercise"]
def boundary_error(y, clean, attacked):
    return ...


lesson.check("01.boundary", boundary_error)

# %%
# lesson.hint("01.boundary")


# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 2 (open it when you have tried)
def boundary_error_solution(y, clean, attacked):
    taken_across = (clean == y) & (attacked != y)
    return float(taken_across.float().mean())


assert lesson.check("01.boundary", boundary_error_solution)

# %% [markdown]
# ### Exercise 3 · How much is chance?
#
# An error rate $p$ was measured on $n$ images. How far does its 95 % interval reach to each side (use 1.96 and the normal
# approximation)? Then look again at the bars: which differences between two classes are larger than $\sqrt{2}$ times that?


# %% tags=["exercise"]
def half_width(p, n):
    return ...


lesson.check("01.chance", half_width)

# %%
# lesson.hint("01.chance")


# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 3 (open it when you have tried)
def half_width_solution(p, n):
    variance = p * (1 - p) / n
    return 1.96 * variance**0.5


assert lesson.check("01.chance", half_width_solution)

# %% [markdown]
# ## What was claimed, and what was found

# %% tags=["nbval-check-output"]
gap = {kind: interval(Spread.of(gaps(at_8["half attacked"], kind))) for kind in ("nat", "rob")}
r, r_without = (relation(pearson, "half attacked", added, keep) for keep in (slice(None), no_shirt))
worst_nat = {label: Spread.of(e.nat.worst for e in at_8[label]) for label in at_8}
theirs = {label: REPORT[label]["standard"][1] for label in REPORT}
closing = [
    (
        "claimed",
        "the report found",
        f"we found ({r.n} seeds; mean ± standard deviation, or mean [95 % interval])",
    ),
    ("---", "---", "---"),
    (
        "Claim 1: unequal in standard and robust error",
        "confirmed",
        f"holds: worst minus best class {gap['nat']} points in standard error, "
        f"{gap['rob']} in robust error at 8/255",
    ),
    (
        "Claim 2: what was hard suffers most",
        f"confirmed; worst class {theirs['natural']:.1f} → {theirs['half attacked']:.1f} % (its models)",
        f"holds for the worst class, {worst_nat['natural']} → {worst_nat['half attacked']} %; "
        f"r = {r.mean:.2f} [{r.low:.2f}, {r.high:.2f}] over {n} classes, {r_without.mean:.2f} without Shirt",
    ),
    (
        'FRL\'s abstract: disparity "does not exist in naturally trained models"',
        "not tested",
        f"false here: {classes[order[0]]} {best} %, {classes[order[-1]]} {worst} %",
    ),
]
Markdown("\n".join(f"| {' | '.join(row)} |" for row in closing))

# %% [markdown]
# **Where we differ from the report, and why**
#
# - *What adversarial training is.* The report shows its network half clean, half attacked images. We do the same (*half
#   attacked*) and also what the name means elsewhere (*all attacked*). At 8/255 the two are about equally robust on average. At
#   16/255 *all attacked* is more robust on average (its worst class is not), and it pays for it in standard accuracy, most of it in Shirt's
#   and Pullover's.
# - *How many images.* The report trains Experiment 1 on all 60,000 images, and so do our first two models. *All attacked* uses
#   48,000, so that no validation image was ever trained on. Compare it with the others only with that in mind.
# - *Which test images.* The report's evaluation loop stops after the first 3,000 test images. Its figures above were measured
#   again on all 10,000. The last cell shows how much that matters.
# - *Which budget.* What the report's notebooks call PGD error is at 16/255, twice the budget of the training. We show both.
# - *What counts as robust.* For us an image that is wrong without any attack is not robust. The authors ask only for the attacked
#   image.
# - *How often.* One training there, five seeds here.

# %%
print(f"{'standard error, seed 0':24} {'average':>8} {'Shirt':>8}")
for label, predictions in (("natural", said), ("half attacked", said_robust)):
    for title, part in (("first 3,000", slice(0, 3000)), ("all 10,000", slice(None))):
        wrong = (predictions != test.y)[part].float()
        print(f"{label + ', ' + title:24} {wrong.mean():8.1%} {wrong[shirt[part]].mean():8.1%}")

# %% [markdown]
# **Where to go next.** 02_reweight asks whether weights for the classes can close the gap (FRL, Reweight), 03_remargin whether
# larger attacks on some classes can; 04_bat chooses other images from the attack's walk.
