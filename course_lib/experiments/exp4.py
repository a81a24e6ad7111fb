"""Experiment 4: BAT and its rivals on equal terms, BAT's ablations, and classes left out.

All train on the same 48,000 images in the same order for EPOCHS epochs, FRL's hot start included
(FRL's models are those of Experiment 3). Each method had the same number of trials on validation
data (seed 0) before any test report was made.
"""

from typing import Any

from course_lib.experiments.exp1 import divided
from course_lib.experiments.exp2 import FRL_EPOCHS, HOT_EPOCHS, attack, trades_attack, trial
from course_lib.methods import METHODS, Method
from course_lib.methods.bat import BAT
from course_lib.recipes import Recipe
from course_lib.training import Optim

EPOCHS, TRIAL_EPOCHS = HOT_EPOCHS + FRL_EPOCHS, 15
# tried for each method: the budget in 255ths, and BAT's alpha
TRIED: dict[str, tuple[tuple[float, ...], ...]] = {
    **dict.fromkeys(("pgd-at", "trades-1", "trades-6", "fat", "gairat"),
                    ((8,), (10,), (12,), (16,))),
    "bat-code": ((8, 1.0), (8, 0.3), (12, 1.0), (12, 0.3)),
    "bat-paper": ((8, 0.3), (8, 0.1), (12, 0.3), (12, 0.1))}
# The budget (and BAT's alpha) of each method: of its trials the one with the lowest mean of the
# worst class's standard and robust error. Tests check it.
CHOSEN: dict[str, tuple[float, ...]] = {
    "pgd-at": (8,), "trades-1": (12,), "trades-6": (8,), "fat": (8,), "gairat": (10,),
    "bat-code": (8, 1.0), "bat-paper": (8, 0.3),
}
# the classes of exp1/pgd-at on validation data, in the order of their errors
HARDEST = ("Shirt", "Pullover", "Coat", "T-shirt/top")
EASIEST = ("Trouser", "Bag", "Sandal", "Ankle boot")


def method(name: str, eps: float, alpha: float = 0.0) -> Method:
    """A method trained under a budget of eps/255."""
    if name in ("trades-1", "trades-6"):
        return METHODS["trades"](float(name[-1]), trades_attack(eps))
    if name in ("pgd-at", "gairat", "fat"):
        noise = 0.001 if name == "fat" else 0.0
        return METHODS[name.replace("-", "_")](attack(eps, noise=noise))
    return BAT.preset(name.removeprefix("bat-"), alpha=alpha, attack=trades_attack(eps))


def equal(about: str, method: Method, epochs: int = EPOCHS, **changes: Any) -> Recipe:
    """A recipe on the terms that all share."""
    schedule = divided(3, every=4 if epochs == TRIAL_EPOCHS else 9, epochs=epochs)
    return Recipe(about, method, Optim("adam", 2e-3, 128, schedule), epochs, **changes)


TRIALS: dict[str, Recipe] = {
    f"tune/{label}": trial(equal(f"Trial on validation data: {label}", method(name, *settings),
                                 TRIAL_EPOCHS))
    for name, tried in TRIED.items() for settings in tried
    for label in ["-".join([name, *(f"{s:g}" for s in settings)])]}
FEW: dict[str, Any] = {"weights": False, "seeds": 3}
RECIPES: dict[str, Recipe] = {
    **{f"exp4/{name}": equal(f"{name}, trained at {eps:g}/255"
                             + "".join(f" with alpha {a:g}" for a in alpha),
                             method(name, eps, *alpha))
       for name, (eps, *alpha) in CHOSEN.items()},
    # number 5 is BAT itself
    **{f"exp4/ablation-{k}": equal(f"Ablation {k} of BAT's Table 2",
                                   method(f"ablation-{k}", *CHOSEN["bat-code"]), **FEW)
       for k in (1, 2, 3, 4, 6)},
    **{f"exp4/without-{group}": equal(f"PGD-AT without the {group} four classes",
                                      method("pgd-at", *CHOSEN["pgd-at"]),
                                      transform=f"without-{group}", **FEW)
       for group in ("hardest", "easiest")},
}
