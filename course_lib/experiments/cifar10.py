"""The papers' experiments at the size of two processor cores: a small ResNet on CIFAR-10.

All train EPOCHS epochs of one cycle of the rate (FRL's hot start included) over the same images in
the same order, with seven steps of attack. TRIALS chose schedule and steps, on validation data.
"""

import dataclasses

from course_lib.attacks import PGD
from course_lib.experiments import exp2
from course_lib.experiments.gpu import EXAMINATION, methods, sgd
from course_lib.methods import METHODS, Method
from course_lib.recipes import Recipe
from course_lib.training import Optim

EPOCHS, HOT_EPOCHS = 24, 12  # of FRL's 24 the hot start has 12
TRIAL_EPOCHS = 4
HOT_START = "cifar10/hot-start"


def falling(epochs: int) -> Optim:
    """A rate that falls from 0.1 to zero in a line."""
    return sgd(0.1, 2e-4, *((e + 1, 1 - e / epochs) for e in range(1, epochs)))


def cycle(epochs: int, first: int = 0, last: int | None = None, top: float = 0.2) -> Optim:
    """The rate rises in a line to `top` at a quarter of the epochs, and falls in a line to zero. A
    training has the epochs from `first` up to `last` of it."""
    times = ((e - first, (e + 0.5) / epochs) for e in range(first, last or epochs))
    return sgd(top, 2e-4, *((e + 1, min(4 * t, (1 - t) / 0.75)) for e, t in times))


def on(about: str, method: Method, optim: Optim, epochs: int, seeds: int = 1) -> Recipe:
    return Recipe(f"{about}, on CIFAR-10 with a small PreAct ResNet", method, optim, epochs,
                  "cifar10", model="preact_resnet_s", seeds=seeds, examination=EXAMINATION,
                  validation=PGD(bf16=True), validation_images=3000)


def small(about: str, method: Method, first: int = 0, last: int = EPOCHS) -> Recipe:
    """The epochs `first` to `last` of the cycle; what does not begin it begins at the hot start."""
    recipe = on(about, method, cycle(EPOCHS, first, last), last - first, seeds=3)
    return dataclasses.replace(recipe, start=HOT_START if first else "")


METHOD = methods(bf16=True, steps=7)
# which schedule and attack gives the most for the time, on validation data
TRIALS: dict[str, Recipe] = {f"tune/cifar10-{name}": exp2.trial(
    on(f"PGD-AT, {name}", methods(True, steps)["pgd-at"], optim, TRIAL_EPOCHS))
    for name, steps, optim in (("falling-10", 10, falling(TRIAL_EPOCHS)),
                               ("cycle-10", 10, cycle(TRIAL_EPOCHS)),
                               ("cycle-7", 7, cycle(TRIAL_EPOCHS)))}
KL = PGD(steps=7, objective="kl", start="gaussian", bf16=True)
RECIPES: dict[str, Recipe] = {
    "cifar10/natural": small("Natural training", METHODS["natural"]()),
    "cifar10/pgd-at": small("Adversarial training, PGD-7", METHOD["pgd-at"]),
    "cifar10/trades-6": small("TRADES, beta 6", METHOD["trades-6"]),
    HOT_START: small("TRADES, from which FRL starts", METHODS["trades"](1.5, KL), last=HOT_EPOCHS),
    "cifar10/control": small("TRADES, as long as FRL from the same hot start",
                             METHODS["trades"](1.5, KL), first=HOT_EPOCHS),
    "cifar10/frl-05": small("FRL (rmrw), tolerance 0.05", METHOD["frl-05"], first=HOT_EPOCHS),
    "cifar10/bat": small("BAT, as in its code", METHOD["bat"]),
    "cifar10/dafa": small("DAFA, beta 6", METHODS["dafa"](attack=KL)),
}
