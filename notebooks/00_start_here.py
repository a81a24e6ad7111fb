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
# Five minutes: an image, a model, an attack, and whose accuracy it took.
#
# **You will learn** what an adversarial example is and how projected gradient descent (PGD) makes one; why one average error
# hides what happens to single classes; how to train a network against the attack, and how such a training survives a lost
# connection.
#
# **You need** Python and a first acquaintance with PyTorch: tensors, a forward pass, `autograd`. No GPU.
#
# **Time:** five minutes to read and less than a minute to run on two processor cores; ten minutes more for the two exercises.

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
# @title How much: FULL trains ten times as long and keeps its checkpoints
FULL = False  # @param {type:"boolean"}

import tempfile

from course_lib.checkpoints import Store

THROWN_AWAY = Path(tempfile.mkdtemp())  # a quick look keeps its checkpoints here


def store_for(name):
    return session.store(f"00/{name}") if FULL or session.drive else Store(THROWN_AWAY / name)


# %% [markdown]
# ## 1 · Ten classes
#
# Fashion-MNIST is a data set of small grey pictures of clothes. Here is one test image of each class. The images are tensors with
# values in $[0, 1]$, so one grey level of a screen is $1/255$.

# %%
import torch
from torch.nn import functional as F

from course_lib import PGD, evaluate, fit, lesson, load, load_model, plots

test = load("fashion-mnist").test
first_of_each = torch.tensor([torch.nonzero(test.y == c)[0, 0] for c in range(len(test.classes))])
x, y = test.images(first_of_each), test.y[first_of_each]
plots.show(
    plots.images(x, titles=[test.classes[c] for c in y], columns=5),
    alt="One test image of each of the ten classes of Fashion-MNIST, "
    "from T-shirt/top to ankle boot, each under its class name.",
)

# %% [markdown]
# Look at the T-shirt, the pullover, the coat and the shirt: even for us they are not far apart. Keep that in mind.
#
# ## 2 · A model, and what it believes
#
# `load_model` gives a LeNet-5 that was trained the usual way on all 60,000 training images. We show it a shirt that it
# recognises.

# %%
model = load_model("exp1/natural", seed=0)

shirts = torch.nonzero(test.y == test.classes.index("Shirt")).flatten()
with torch.no_grad():
    belief = model(test.images(shirts)).softmax(1)  # p(x) = softmax f(x), one row an image
sure = (belief.argmax(1) == test.classes.index("Shirt")) & (belief.amax(1) > 0.8)
place = shirts[sure][0]  # the first shirt that the model is at least 80 % sure of
x, y = test.images(place[None]), test.y[place[None]]
p_clean = belief[sure][0]

left, right = plots.panels(2, 9, 3, width_ratios=[1, 3])
plots.images(x, left)
plots.probabilities({"clean image": p_clean}, test.classes, right)
plots.show(
    right,
    alt="A shirt, and the model's probabilities for it: nearly all of the belief is on the class Shirt.",
)
assert p_clean.argmax() == y

# %% [markdown]
# ### Your prediction
#
# We are going to change every pixel by at most 8 grey levels of 255. You would have to look closely to see it. What will the
# model say? Choose before you read on.

# %% cellView="form"
# @title Your prediction
my_prediction = "still Shirt"  # @param ["still Shirt", "a class that looks like it", "anything, a Bag for instance"]
print("You predict:", my_prediction)

# %% [markdown]
# ## 3 · The attack, written out
#
# The attack searches for the image $z$ near $x$ on which the loss of the true class $y$ is largest. "Near" is the ball $B(x,
# \varepsilon)$ of all $z$ with $|z_i - x_i| \le \varepsilon$ in every pixel $i$. From a random point of the ball, each step goes
# uphill by $a$ in every pixel, and is then projected back into the ball and into the box $[0, 1]$ of real images (Madry et al.,
# 2018):
#
# $$z_{t+1} = \Pi_{B(x, \varepsilon)} \left( z_t + a \cdot \mathrm{sign}( \nabla_z L(f(z_t), y) ) \right), \qquad t = 0, \dots, K - 1$$
#
# Each equation stands above the line that computes it. We take steps of one grey level, so that we can watch.

# %%
eps, a, K = 8 / 255, 1 / 255, 11

# z_0 = Proj( x + u ),  u ~ Uniform(-eps, eps)
u = eps * (2 * torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) - 1)
z = (x + u).clamp(x - eps, x + eps).clamp(0, 1)

for _ in range(K):
    z.requires_grad_()
    # L(f(z), y) = -log p_y(z)
    loss = F.cross_entropy(model(z), y)
    # g = grad_z L: the network stays as it is, the image is what we differentiate by
    (gradient,) = torch.autograd.grad(loss, z)
    # z_{t+1} = Proj( z_t + a sign(g) )
    z = (z.detach() + a * gradient.sign()).clamp(x - eps, x + eps).clamp(0, 1)

attack = PGD(eps=eps, step_size=a, steps=K)
assert torch.allclose(z, attack(model, x, y), atol=1e-6)  # the library's PGD is these lines
assert (z - x).abs().max() <= eps + 1e-6
print(f"largest change of a pixel: {255 * (z - x).abs().max():.1f} grey levels")

# %% [markdown]
# What did it do to the image, and to the model's belief?

# %%
with torch.no_grad():
    p_attacked = model(z).softmax(1)[0]

left, right = plots.panels(2, 10, 3, width_ratios=[1, 1])
plots.adversarial(x[0], z[0], left)
plots.probabilities({"clean image": p_clean, "attacked image": p_attacked}, test.classes, right)
plots.show(
    right,
    alt="Left: the clean shirt, the change that the attack makes (enlarged), and the attacked shirt, "
    "which looks the same. Right: the probabilities have moved from Shirt to another class.",
)
said = test.classes[p_attacked.argmax()]
print(f"The model now says {said} with {p_attacked.max():.0%}. You predicted: {my_prediction}.")
assert p_attacked.argmax() != y

# %% [markdown]
# ## 4 · The walk
#
# PGD is usually called for its last iterate only. But it walks there, from $z_0$ to $z_K$, and somewhere on the way it crosses
# the border between two classes. `attack.path` yields every iterate with the word whether the model still gets it right.

# %%
walk = list(attack.path(model, x, y))  # K + 1 pairs (z_t, is z_t right)
iterates = torch.cat([z_t for z_t, _ in walk])
is_right = [bool(ok) for _, ok in walk]
with torch.no_grad():
    p = model(iterates).softmax(1)

titles = [f"t = {t}\n{test.classes[row.argmax()]}\n{row.max():.0%}" for t, row in enumerate(p)]
plots.show(
    plots.images(iterates, titles=titles, columns=6, framed=[not ok for ok in is_right]),
    alt="The twelve iterates of the attack. They all look like the same shirt; "
    "from some step on the prediction above them is another class, and they are framed.",
)

# %%
rival = int(p[-1].argmax())
names = [test.classes[int(y)], test.classes[rival]]
ax = plots.walk(p[:, [int(y), rival]], is_right, labels=names)
plots.show(
    ax,
    alt="The probability of Shirt falls step by step while that of the rival class rises; "
    "where they cross, the prediction turns wrong.",
)

crossing = is_right.index(False)
landmarks = attack.walk(model, x, y)  # what the library keeps of a walk, in one pass
assert int(landmarks.t_wrong) == crossing
assert torch.equal(landmarks.first_wrong, iterates[[crossing]])
assert torch.equal(landmarks.last_right, iterates[[crossing - 1]])
print(f"The first wrong iterate is z_{crossing}.")

# %% [markdown]
# The last right and the first wrong iterate sit on both sides of the border. Several methods of this course train on exactly
# these images instead of the last one.
#
# ## 5 · Whose accuracy did it take?
#
# One shirt proves nothing. The course stores what PGD with 20 steps does to all 10,000 test images, for five models that differ
# only in their random seed. The **standard error** of a class is the share of its images that the model gets wrong as they are.
# The **robust error** is the share that it gets wrong as they are or under attack.
#
# **Predict first:** an attack of 8 grey levels is the same for everybody. Will it cost every class about the same? Which will it
# cost most?

# %%
from course_lib.fairness import Spread, class_spreads
from course_lib.zoo import load_reports

reports = load_reports("exp1/natural", eps=8 / 255)  # five reports, one a seed
bars = {"standard error": reports, "robust error, ε = 8/255": reports}
plots.show(
    plots.class_bars(bars, kind=["nat", "rob"]),
    alt="Standard and robust error of the natural models by class, easiest first. The attack takes "
    "little from some classes and nearly everything from others; Shirt has the largest error both times.",
)

# %% tags=["nbval-check-output"]
standard, robust = class_spreads([r.nat for r in reports]), class_spreads([r.rob for r in reports])
print(f"errors in %, mean ± standard deviation over {len(reports)} seeds")
print(f"{'class':12}  {'standard':>13}  {'robust':>13}  taken by the attack")
for c in plots.difficulty(reports):
    taken = 100 * (robust[c].mean - standard[c].mean)
    print(f"{test.classes[c]:12}  {standard[c]!s:>13}  {robust[c]!s:>13}  {taken:6.1f} points")
average = Spread.of(r.rob.mean for r in reports)
print(f"{'average':12}  {Spread.of(r.nat.mean for r in reports)!s:>13}  {average!s:>13}")

assert 0.5 < average.mean < 0.6  # band
assert max(s.mean for s in robust) > 0.9 > 0.4 > min(s.mean for s in robust)  # band
loss = {test.classes[c]: robust[c].mean - standard[c].mean for c in range(len(robust))}
assert max(loss, key=loss.get) == "Sneaker"  # band

# %% [markdown]
# The average tells nobody's story: some classes keep most of their images, others lose nearly all. Nor does the standard error:
# Sneaker is among the easiest classes, and the attack takes more from it than from any other. The whiskers are 95 % intervals
# over the seeds, so chance in training does not explain the differences. How a defence should treat its classes is what this
# course is about.
#
# ## 6 · Train one against the attack
#
# Adversarial training shows the network attacked images instead of clean ones:
#
# $$\min_f \quad \frac{1}{n} \sum_i \max_{z \in B(x_i, \varepsilon)} L(f(z), y_i)$$
#
# The inner maximum is what PGD looks for. Here we train on a small part of the training set for a moment. `fit` is the course's
# only training loop; given a `store`, it keeps checkpoints.

# %%
from course_lib import Optim, build
from course_lib.methods import METHODS

limit, epochs = (6000, 15) if FULL else (2000, 6)  # FULL: about ten times as much work
data = load("fashion-mnist", limit=limit)
method = METHODS["pgd_at"](PGD(eps=8 / 255, step_size=3 / 255, steps=5))
optim = Optim("adam", lr=2e-3, batch=50)
settings = {"epochs": epochs, "optim": optim, "seed": 0, "progress": FULL}

store = store_for(f"small-{limit}-{epochs}")
run = fit(build("lenet5", seed=0), method, data, **settings, store=store)
losses = [row["loss"] for row in run.history]
plots.show(
    plots.curves({"loss on attacked images": losses}),
    alt="The training loss on attacked images falls from epoch to epoch.",
)
assert losses[-1] < losses[0] < 2.4
if not FULL:
    passes = 15 * 4800 / 50 * (5 + 1)  # epochs, batches, and the passes of each: five steps of the attack and one of the training
    print(f"FULL would train for about {7.5 * run.seconds:.0f} s here (from this run), {passes * 1.5e-3:.0f} s on a GPU (an estimate)")

# %% [markdown]
# Not much of a training, yet compare it with the natural model on the same 1,000 test images:

# %%
some = test.per_class(100)
natural = evaluate(model, some, PGD(steps=10), progress=False)
trained = evaluate(run.model, some, PGD(steps=10), progress=False)
for name, report in (("natural", natural), ("trained just now", trained)):
    print(f"{name:18} standard error {report.nat.mean:4.0%}   robust error {report.rob.mean:4.0%}")
assert trained.nat.mean > natural.nat.mean  # robustness has its price ...
assert trained.rob.mean < natural.rob.mean  # ... and this is what it buys

# %% [markdown]
# It gives up standard accuracy and gains robustness. For which classes? That is the question of the next notebook.
#
# ### When the connection breaks
#
# Colab disconnects. So we press the stop button in the middle of a training, and run the same line again. To press it without
# you, the store below sends, after its first save, the signal that the button of Jupyter and Colab sends.

# %%
import signal


class StopAfterFirstSave(Store):
    """A store that presses the stop button once."""

    pressed = False

    def save(self, step, state):
        super().save(step, state)
        if not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


try:
    store = StopAfterFirstSave(THROWN_AWAY / "interrupted")
    fit(build("lenet5", seed=0), method, data, **settings, store=store)
except KeyboardInterrupt:
    step, _ = Store(THROWN_AWAY / "interrupted").latest()
    print(f"stopped; newest checkpoint: batch {step} of {epochs * len(data.train) // optim.batch}")

store = Store(THROWN_AWAY / "interrupted")
again = fit(build("lenet5", seed=0), method, data, **settings, store=store)
one, two = run.model.state_dict(), again.model.state_dict()
same = all(torch.equal(one[name], two[name]) for name in one)
print("run again to the end; the same weights as without the stop, to the last bit:", same)
assert [row["loss"] for row in again.history] == losses and same

# %% [markdown]
# ## 7 · Exercises
#
# Write your answer in place of the dots and run the cell. `lesson.check` works offline and says what went wrong. For a hint, take
# away the `#` before `lesson.hint` and run that cell.
#
# ### Exercise 1 · One step
#
# Write one step of PGD for any images: from the iterate `z`, the clean images `x`, the gradient of the loss at `z`, the step size
# `a` and the budget `eps`. Return the next iterate.

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
# ### Exercise 2 · The crossing
#
# `right` is a list such as `[True, True, False, True]`: is the iterate $z_t$ classified correctly, for $t = 0, \dots, K$? Return
# the index of the first wrong iterate, and $K$ where there is none.

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
# ## What you have seen, and where to go next
#
# - A change that nobody sees turns a shirt into something else, and PGD finds it by a few steps uphill.
# - The same budget takes very different shares from different classes. Averages hide it.
# - Adversarial training buys robustness and pays with standard accuracy.
# - A training with a `store` can be stopped anywhere and goes on to the same weights.
#
# Next comes **01_unfairness**: does adversarial training make unequal classes more unequal? After that, 02 and 03 show what can
# be done about it by weights and margins (FRL), and 04 by choosing other images from the walk (BAT).
#
# ## Appendix · When something breaks
#
# | what happens | what the course does | what you do |
# |---|---|---|
# | You press stop | The batch ends, a checkpoint is saved, then the cell stops | Run the cell again: it goes on |
# | The runtime is gone | With `SAVE_TO_DRIVE` the newest checkpoint is on Drive; else it went along | Tick the same boxes, *Run all* |
# | It runs in a second tab, too | The second one does not write into the first one's folder and says so | Stop one, or `store.fresh()` |
# | You changed a setting | The store does not mix two trainings and says what differs | Put it back, or `store.fresh()` |
# | Drive is not mounted, or lost | Checkpoints are kept on this machine, and a warning says so | Mount it again: the next save is copied |
# | Drive is full | The same; older copies go only after a newer one was read back | Make space |
#
# Two of these can be shown anywhere. First, a setting that has changed:

# %%
from course_lib import CourseError

try:
    fit(build("lenet5", seed=0), method, data, **(settings | {"seed": 1}), store=store)
except CourseError as e:
    print(str(e).replace(str(THROWN_AWAY), "results"))

# %% [markdown]
# Second, a Drive that cannot be reached. The training ends as if nothing had happened, with a warning:

# %%
import warnings

(THROWN_AWAY / "no-drive").write_text("a file, where a folder should be")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lonely = Store(THROWN_AWAY / "lonely", mirror=THROWN_AWAY / "no-drive" / "course")
    done = fit(build("lenet5", seed=0), method, data, **(settings | {"epochs": 1}), store=lonely)
print(f"epochs trained: {len(done.history)}, checkpoint: {lonely.status}")
for warning in caught:
    print("warning:", str(warning.message).replace(str(THROWN_AWAY), "results"))
assert lonely.status == "saved locally" and caught
