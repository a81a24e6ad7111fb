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
# # 00 · Start here
#
# **The finding.** A change that you can hardly see turns a sneaker into a sandal for a
# well-trained network. The same attack succeeds on almost every sneaker, but on few bags
# and trousers. One average error hides such differences between classes.
#
# **You will learn** what an adversarial example is and how projected gradient descent (PGD)
# finds one; what standard and robust errors per class show; how to train a network against
# the attack, and how to resume a training. **You need** Python and a first acquaintance with
# PyTorch (tensors, a forward pass, `autograd`), and no GPU. **Time:** twenty minutes to read,
# less than a minute to run on two processor cores, ten minutes for the two exercises.

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

# %%
import torch
from ipywidgets import interact
from torch.nn import functional as F

from course_lib import PGD, evaluate, fit, lesson, load, load_model, plots
from course_lib.zoo import load_reports

reports = load_reports("exp1/natural", eps=8 / 255)  # one report per seed
bars = {"standard error": reports, "robust error, ε = 8/255": reports}
plots.show(plots.class_bars(bars, kind=["nat", "rob"]))

# %% [markdown]
# Five networks that differ in their random seed only, on 10,000 test images; whiskers are
# 95 % intervals. The rest of this notebook explains both kinds of bars.
#
# ## 1 · Ten classes
#
# Fashion-MNIST has small grey pictures of clothes. Here is one test image per class. Images
# are tensors with values in $[0, 1]$, so one grey level of a screen is $1/255$.

# %%
test = load("fashion-mnist").test
classes = test.classes
first = torch.tensor([int((test.y == c).nonzero()[0]) for c in range(len(classes))])
plots.show(plots.images(test.images(first), titles=classes, columns=5))

# %% [markdown]
# T-shirt, pullover, coat and shirt look alike, even to us. This will matter later.
#
# ## 2 · A model and its probabilities
#
# `load_model` gives a LeNet-5 that was trained in the usual way on all 60,000 training
# images. It recognises this sneaker.

# %%
model = load_model("exp1/natural", seed=0)
x, y = test.images(slice(70, 71)), test.y[70:71]  # a clear example; others follow below
with torch.no_grad():
    # p(x) = softmax f(x)
    p_clean = model(x).softmax(1)[0]
left, right = plots.panels(2, 8, 2.8, width_ratios=[1, 3])
plots.images(x, left)
plots.probabilities({"clean image": p_clean}, classes, right)
plots.show(right)
assert p_clean.argmax() == y

# %% [markdown]
# ### Your prediction
#
# We are going to change every pixel by at most 8 grey levels of 255.

# %% cellView="form"
# @title What will the model say? Choose before you read on.
prediction = ""  # @param ["", "still Sneaker", "another shoe", "a Bag"]

# %% [markdown]
# ## 3 · The attack, by hand
#
# The attack looks for an image $z$ near $x$ with the largest possible loss for the true class
# $y$. "Near" means in the ball $B(x, \varepsilon)$ of all $z$ with
# $|z_i - x_i| \le \varepsilon$ in every pixel $i$. PGD starts from a random point of the
# ball. Each step moves every pixel uphill by $a$ and then projects: back into the ball, and
# into the box $[0, 1]$ of real images (Madry et al., 2018).
#
# $$z_{t+1} = \Pi_{B(x, \varepsilon)} \left( z_t + a \cdot
# \mathrm{sign}( \nabla_z L(f(z_t), y) ) \right), \qquad t = 0, \dots, K - 1$$
#
# Steps of one grey level let us watch.

# %%
eps, a, K = 8 / 255, 1 / 255, 11

# z_0 = Proj( x + u ),  u ~ Uniform(-eps, eps)
u = eps * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 1)
z = (x + u).clamp(x - eps, x + eps).clamp(0, 1)

for _ in range(K):
    z.requires_grad_()
    # L(f(z), y) = -log p_y(z)
    loss = F.cross_entropy(model(z), y)
    # g = grad_z L: the derivative by the image; the network stays as it is
    (gradient,) = torch.autograd.grad(loss, z)
    # z_{t+1} = Proj( z_t + a sign(g) )
    z = (z.detach() + a * gradient.sign()).clamp(x - eps, x + eps).clamp(0, 1)

attack = PGD(eps=eps, step_size=a, steps=K)
assert torch.allclose(z, attack(model, x, y), atol=1e-6)  # the library does the same
assert (z - x).abs().max() <= eps + 1e-6

# %%
with torch.no_grad():
    p = model(z).softmax(1)[0]
plots.show(plots.adversarial(x[0], z[0]))
plots.show(plots.probabilities({"clean": p_clean, "attacked": p}, classes))
print(f"You predicted: {prediction or '–'}. The model says {classes[p.argmax()]}.")
assert classes[p.argmax()] == "Sandal" and p.max() > 0.9

# %% [markdown]
# **Change it.** Move the budget, and choose other images of a class. At which budget does
# the prediction change? Which class is the hardest to move?

# %% tags=["slider", "nbval-ignore-output"]
@interact(levels=(0, 16), name=list(classes), example=(0, 19))
def attacked(levels=4, name="Sneaker", example=9):
    place = (test.y == classes.index(name)).nonzero()[example]
    x, y = test.images(place), test.y[place]
    z = PGD(levels / 255, levels / 4 / 255, 20)(model, x, y) if levels else x
    with torch.no_grad():
        p, q = (model(images).softmax(1)[0] for images in (x, z))
    left, right = plots.panels(2, 8, 2.8, width_ratios=[1, 3])
    plots.images(z, left)
    plots.show(plots.probabilities({"clean": p, "attacked": q}, classes, right))

# %% [markdown]
# ### Exercise 1 · One step
#
# Write one step of PGD for any images. Given are the iterate `z`, the clean images `x`, the
# gradient of the loss at `z`, the step size `a` and the budget `eps`. Return the next
# iterate. `lesson.check` works offline and says what went wrong. For a hint, remove the `#`
# in the cell below.

# %% tags=["exercise"]
def step(z, x, gradient, a, eps):
    return ...


lesson.check("00.step", step)

# %%
# lesson.hint("00.step")

# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 1 (open it when you have tried)
def step_solution(z, x, gradient, a, eps):
    uphill = z + a * gradient.sign()
    in_ball = uphill.clamp(x - eps, x + eps)
    return in_ball.clamp(0, 1)


assert lesson.check("00.step", step_solution)

# %% [markdown]
# ## 4 · The walk
#
# Usually one looks at the last iterate only. But PGD walks from $z_0$ to $z_K$, and somewhere
# it crosses the boundary between two classes. `attack.path` yields each iterate and whether
# the model still classifies it correctly.

# %%
walk = list(attack.path(model, x, y))  # K + 1 pairs (z_t, is z_t right)
right = [bool(ok) for _, ok in walk]
with torch.no_grad():
    p = model(torch.cat([z_t for z_t, _ in walk])).softmax(1)
names = [classes[int(y)], classes[int(p[-1].argmax())]]
lines = p[:, [classes.index(name) for name in names]]
plots.show(plots.walk(lines, right, labels=names))

landmarks = attack.walk(model, x, y)  # what the library keeps of a walk, in one pass
assert int(landmarks.t_wrong) == right.index(False)
assert torch.equal(landmarks.first_wrong, walk[right.index(False)][0])

# %% [markdown]
# The last right and the first wrong iterate are on opposite sides of the boundary. Several
# methods of this course train on these images instead of the last one.
#
# ### Exercise 2 · The crossing
#
# `right` is a list such as `[True, True, False, True]`: is the iterate $z_t$ classified
# correctly, for $t = 0, \dots, K$? Return the index of the first wrong iterate, and $K$ if
# there is none.

# %% tags=["exercise"]
def first_wrong(right):
    return ...


lesson.check("00.crossing", first_wrong)

# %%
# lesson.hint("00.crossing")

# %% cellView="form" jupyter={"source_hidden": true} tags=["solution"]
# @title Solution of exercise 2 (open it when you have tried)
def first_wrong_solution(right):
    for t, ok in enumerate(right):
        if not ok:
            return t
    return len(right) - 1


assert lesson.check("00.crossing", first_wrong_solution)

# %% [markdown]
# ## 5 · Which classes lose most?
#
# One sneaker proves nothing, so back to the first figure. The **standard error** of a class
# is the share of its images that the model gets wrong as they are. The **robust error** is
# the share that it gets wrong as they are or under attack. Their difference, the **boundary
# error**, is what the attack adds. For one of the five networks:

# %%
table = reports[0].frame().sort_values("boundary", ascending=False)
assert [*table["class"][:1], *table["class"][-2:]] == ["Sneaker", "Bag", "Trouser"]
table

# %% [markdown]
# The standard error alone does not show which classes are at risk. Sneaker is among the
# easiest classes, and the attack adds more error to it than to any other. The intervals
# in the first figure are much smaller than these differences, so chance in training does
# not explain them. The question of this course is how a defence treats the classes.
#
# ## 6 · Train a network against the attack
#
# Adversarial training shows the network attacked images instead of clean ones:
#
# $$\min_f \quad \frac{1}{n} \sum_i \max_{z \in B(x_i, \varepsilon)} L(f(z), y_i)$$
#
# PGD looks for the inner maximum. We train for a moment, on a small part of the training
# set. `FULL` trains 15 epochs on 4,800 images instead of 6 epochs on 1,600 (a fifth of
# `limit` is kept for validation). This is 7.5 times as much work, about half a minute on
# an idle machine. Its checkpoints are kept in
# the results folder. A GPU does not help with so small a network.

# %% cellView="form"
# @title How much?
FULL = False  # @param {type:"boolean"}

# %%
import tempfile
from pathlib import Path

from course_lib import Optim, build
from course_lib.checkpoints import Store
from course_lib.methods import METHODS

limit, epochs = (6000, 15) if FULL else (2000, 6)
data, scratch = load("fashion-mnist", limit=limit), Path(tempfile.mkdtemp())
method = METHODS["pgd_at"](PGD(eps=8 / 255, step_size=3 / 255, steps=5))
settings = {"epochs": epochs, "optim": Optim("adam", lr=2e-3, batch=50), "seed": 0,
            "progress": FULL}
keep = FULL or session.drive
store = session.store(f"00/small-{limit}") if keep else Store(scratch / "small")
run = fit(build("lenet5", seed=0), method, data, **settings, store=store)
losses = [row["loss"] for row in run.history]
plots.show(plots.curves({"loss on attacked images": losses}))
assert losses[-1] < losses[0] < 2.4

# %% [markdown]
# Compare it with the natural network on the same 1,000 test images:

# %%
some = test.per_class(100)
natural = evaluate(model, some, PGD(steps=10), progress=False)
trained = evaluate(run.model, some, PGD(steps=10), progress=False)
plots.show(plots.class_bars({"natural": natural, "trained just now": trained}))
assert trained.nat.mean > natural.nat.mean  # robustness and few images have a price ...
assert trained.rob.mean < natural.rob.mean  # ... and this is what robustness is

# %% [markdown]
# The robust error falls, and the standard error rises: partly because the natural network
# saw 60,000 images, and this one a few. Notebook 01 compares networks that saw equally many,
# class by class.
#
# ### When the connection breaks
#
# Colab disconnects. To see what happens then, the store below presses the stop button after
# its first save. Then we run the same line again. Both trainings end with the same weights.

# %%
import signal


class StopAfterFirstSave(Store):
    pressed = False

    def save(self, step, state):
        super().save(step, state)
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)  # what the stop button sends


try:
    stopping = StopAfterFirstSave(scratch / "stopped")
    fit(build("lenet5", seed=0), method, data, **settings, store=stopping)
except KeyboardInterrupt:
    store = Store(scratch / "stopped")
    print("stopped, with a checkpoint:", store.latest() is not None)
again = fit(build("lenet5", seed=0), method, data, **settings, store=store)
old, new = run.model.state_dict(), again.model.state_dict()
assert all(torch.equal(old[name], new[name]) for name in old)  # equal to the last bit

# %% [markdown]
# | what happens | what the course does | what you do |
# |---|---|---|
# | You press stop. | It finishes the batch and saves a checkpoint. | Run the cell again. |
# | Colab deletes the machine. | With `SAVE_TO_DRIVE`, the checkpoints are in Drive; without it, they are lost. | Tick the same boxes and run all cells. |
# | You change a setting. | It refuses to mix two trainings and names the setting. | Change it back, or call `store.fresh()`. |
# | Drive is full or lost. | It saves on the machine only, with a warning. | Make room, or mount it again. |
#
# ## What was claimed, and what was found
#
# Errors of the five natural networks in percent, with 95 % intervals over seeds.

# %%
import pandas as pd

from course_lib.tables import interval, spread

CLAIMS = {"errors without an attack are small": ("nat", "mean"),
          "errors under attack are large": ("rob", "mean"),
          "the attack takes most from Sneaker": ("bnd", "Sneaker"),
          "... and least from Trouser": ("bnd", "Trouser")}
found = {claim: interval(spread("exp1/natural", kind, which))
         for claim, (kind, which) in CLAIMS.items()}
taken = {c: spread("exp1/natural", "bnd", c).mean for c in classes}
assert (max(taken, key=taken.get), min(taken, key=taken.get)) == ("Sneaker", "Trouser")
pd.DataFrame({"found here": found, "verdict": "confirmed"})

# %% [markdown]
# **Next.** [01](01_unfairness.ipynb) asks whether adversarial training makes unequal
# classes more unequal. [02](02_reweight.ipynb) and [03](03_remargin.ipynb) change weights
# and margins of classes (FRL), and [04](04_bat.ipynb) trains on other images of the walk (BAT).
