"""The papers' experiments at the size of two processor cores: a small ResNet on CIFAR-10.

All train EPOCHS epochs (FRL's hot start included) over the same images in the same order.
"""

import dataclasses

from course_lib.attacks import PGD
from course_lib.experiments.gpu import EXAMINATION, methods, sgd
from course_lib.methods import METHODS, Method
from course_lib.recipes import Recipe

EPOCHS, HOT_EPOCHS = 8, 4  # of FRL's 8 the hot start has 4
HOT_START = "cifar10/hot-start"


def small(about: str, method: Method, seeds: int = 1, first: int = 0, last: int = EPOCHS) -> Recipe:
    """Epochs `first` to `last` of a rate that falls from 0.1 to zero in a line over the EPOCHS."""
    falling = sgd(0.1 * (1 - first / EPOCHS), 2e-4, *(
        (e - first + 1, (EPOCHS - e) / (EPOCHS - first)) for e in range(first + 1, last)))
    return Recipe(f"{about}, on CIFAR-10 with a small PreAct ResNet", method, falling, last - first,
                  "cifar10", model="preact_resnet_s", seeds=seeds, examination=EXAMINATION,
                  validation=PGD(bf16=True), validation_images=3000)


METHOD = methods(bf16=True)
KL = PGD(steps=10, objective="kl", start="gaussian", bf16=True)
RECIPES: dict[str, Recipe] = {
    "cifar10/natural": small("Natural training", METHODS["natural"]()),
    "cifar10/pgd-at": small("Adversarial training, PGD-10", METHOD["pgd-at"], seeds=3),
    "cifar10/trades-6": small("TRADES, beta 6", METHOD["trades-6"]),
    HOT_START: small("TRADES, from which FRL starts", METHODS["trades"](1.5, KL), last=HOT_EPOCHS),
    "cifar10/frl-05": dataclasses.replace(
        small("FRL (rmrw), tolerance 0.05", METHOD["frl-05"], first=HOT_EPOCHS), start=HOT_START),
    "cifar10/bat": small("BAT, as in its code", METHOD["bat"], seeds=3),
}
