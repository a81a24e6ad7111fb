"""Experiment 2 (Claim 3): FRL's class weights, from a TRADES hot start.

Budget and beta were chosen on validation data (seed 0, TRIALS) before any test report was made.
The other settings are the authors' (code of 2022), but for Adam and a schedule for LeNet-5.
"""

import dataclasses
from itertools import product
from typing import Any

from course_lib.attacks import PGD
from course_lib.experiments import exp1
from course_lib.experiments.exp1 import divided
from course_lib.methods import METHODS, Method
from course_lib.recipes import Recipe
from course_lib.training import Optim

EPS, BETA = 12, 1.5  # the budget in 255ths, and TRADES' weight
HOT_EPOCHS, FRL_EPOCHS = 15, 20  # together 35, as in the report
HOT_START = "exp2/hot-start"


def attack(eps: float, steps: int = 10, **words: Any) -> PGD:
    """PGD under a budget of eps/255, with steps of a quarter of it."""
    return PGD(eps=eps / 255, step_size=eps / 4 / 255, steps=steps, **words)


def trades_attack(eps: float) -> PGD:
    return attack(eps, objective="kl", start="gaussian")


def trial(recipe: Recipe) -> Recipe:
    """One seed, for validation data alone: such models never see the test set."""
    return dataclasses.replace(recipe, examination=(), weights=False, seeds=1)


def frl(variant: str, tau: float, eps: float = EPS, beta: float = BETA, **changes: Any) -> Method:
    return METHODS["frl"](variant=variant, tau=(tau, tau), beta=beta, attack=trades_attack(eps),
                          **changes)


def from_hot_start(about: str, method: Method, **changes: Any) -> Recipe:
    """FRL from the hot start; the validation attack has the training's budget."""
    words = {"epochs": FRL_EPOCHS, "start": HOT_START, "validation": attack(EPS, steps=20),
             "optim": Optim("adam", 1e-3, 128, divided(3, every=7, epochs=FRL_EPOCHS)), **changes}
    return Recipe(about, method, **words)


def tolerances(name: str, variant: str) -> dict[str, Recipe]:
    return {f"{name}-{100 * tau:02.0f}": from_hot_start(f"FRL ({variant}), tolerance {tau}",
                                                        frl(variant, tau)) for tau in (0.05, 0.07)}


def report_scheme(about: str, method: Method, seeds: int = 1, **changes: Any) -> Recipe:
    """The report's own FRL: its hot start, optimiser and validation."""
    return from_hot_start(about, method, start="exp2/report-hot-start", seeds=seeds,
                          optim=Optim("adam", 1e-4, 100, divided(3, every=4, epochs=FRL_EPOCHS)),
                          validation=PGD(eps=16 / 255), validation_images=2100, **changes)


RECIPES: dict[str, Recipe] = {
    HOT_START: Recipe("TRADES, from which every FRL model starts",
                      METHODS["trades"](BETA, trades_attack(EPS)),
                      Optim("adam", 2e-3, 128, divided(3, every=4, epochs=HOT_EPOCHS)), HOT_EPOCHS),
    "exp2/control": from_hot_start("As long as FRL from the same hot start, but with even weights: "
                                   "what more training alone does", frl("rw", 1.0)),
    **tolerances("exp2/reweight", "rw"),
}
# other budgets and betas, of Experiment 3, too
TRIALS: dict[str, Recipe] = {f"tune/{variant}-{eps}-{beta:g}": trial(from_hot_start(
    f"FRL ({variant}), trained at {eps}/255 with beta {beta:g}", frl(variant, 0.05, eps, beta),
    validation=attack(eps, steps=20)))
    for variant in ("rw", "rmrw") for eps, beta in ((8, 1.5), (16, 1.5), (12, 3.0))}

# The report's grid of alphas, natural : boundary, for its own scheme and for the authors'.
GRID: dict[str, Recipe] = {
    "exp2/report-hot-start": dataclasses.replace(
        exp1.RECIPES["exp1/pgd-at-mixed"], transform="",
        about="The report's hot start, without the leak: trained on the 48,000"),
    "exp2/report-5-1": report_scheme("The report's Reweight 5:1, a check every batch",
                                     METHODS["frl_report"]()),
    # ten times as quick, and seed 0 is the same to a tenth of a point
    "exp2/report-5-1-every-20": report_scheme(
        "The report's Reweight 5:1, a check every 20 batches",
        METHODS["frl_report"](update_every=20), seeds=5, weights=False)}
for a, b in product((1, 2, 5, 10), repeat=2):
    GRID[f"exp2/grid-report/{a}-{b}"] = report_scheme(
        f"The report's scheme, alpha {a}:{b}, 10 rounds, a check every 20 batches",
        METHODS["frl_report"](rates=(float(a), float(b), 0.0), update_every=20),
        epochs=10, weights=False)
    GRID[f"exp2/grid-authors/{a}-{b}"] = from_hot_start(
        f"The authors' scheme, rates .05 x {a}:{b}, 10 rounds",
        frl("rw", 0.05, rates=(0.05 * a, 0.05 * b, 0.0)), epochs=10, weights=False, seeds=1)
