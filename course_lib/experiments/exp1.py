"""Experiment 1 (Claims 1 and 2): natural and adversarial training of LeNet-5 on Fashion-MNIST."""

from course_lib.attacks import PGD
from course_lib.methods import METHODS
from course_lib.recipes import Recipe
from course_lib.training import Optim


def divided(by: float, every: int, epochs: int) -> tuple[tuple[int, float], ...]:
    """The report's schedule as `drops`: the rate is divided by `by` every `every` epochs."""
    return tuple((e, by ** -(e // every)) for e in range(every, epochs, every))


THIRDS = divided(3, every=4, epochs=15)
REPORT, OURS = Optim("adam", 1e-3, 100, THIRDS), Optim("adam", 1e-3, 128, THIRDS)

RECIPES: dict[str, Recipe] = {
    "exp1/natural": Recipe("Natural training, as in the report", METHODS["natural"](), REPORT, 15,
                           transform="whole"),
    "exp1/pgd-at-mixed": Recipe(
        "The report's adversarial training: half of each batch attacked by PGD-20",
        METHODS["pgd_at"](PGD(steps=20), mix=0.5), REPORT, 15, transform="whole"),
    "exp1/pgd-at": Recipe("Adversarial training on adversarial images only, PGD-10",
                          METHODS["pgd_at"](), OURS, 15),
}
