"""The papers' own experiments at their size: ResNets on photographs, for a GPU.

All train on 40,000 of CIFAR's 50,000 images, since FRL needs the others for validation. Budgets
are 8/255 in ten steps of 2/255, and the last epoch's weights are stored.
"""

from typing import Any

from course_lib.attacks import PGD
from course_lib.methods import METHODS, Method
from course_lib.recipes import Recipe
from course_lib.training import Optim

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenette": "Imagenette"}
NETWORKS = {"resnet18": "ResNet-18", "preact_resnet18": "PreAct ResNet-18",
            "wide_resnet28x10": "WRN-28-10"}
EXAMINATION = (("pgd20", 8 / 255), ("cw20", 8 / 255))


def methods(bf16: bool = False, steps: int = 10) -> dict[str, Method]:
    """The methods of BAT's tables with their own attacks."""
    ce = PGD(steps=steps, bf16=bf16)
    kl = PGD(steps=steps, objective="kl", start="gaussian", bf16=bf16)
    trades, frl = METHODS["trades"], METHODS["frl"]
    return {
        "pgd-at": METHODS["pgd_at"](ce), "trades-1": trades(1.0, kl), "trades-6": trades(6.0, kl),
        "frl-05": frl(tau=(0.05, 0.05), attack=kl), "frl-07": frl(tau=(0.07, 0.07), attack=kl),
        "bat": METHODS["bat"](attack=kl),
        "fat": METHODS["fat"](PGD(steps=steps, noise=0.001, bf16=bf16)),
        # weights begin with the first drop of the rate, at epoch 30 of 100
        "gairat": METHODS["gairat"](ce, begin=29 / 100),
    }


def sgd(rate: float, decay: float, *drops: tuple[int, float]) -> Optim:
    """The papers' SGD. A drop has an epoch counted from one, as in the papers."""
    return Optim("sgd", rate, 128, tuple((epoch - 1, factor) for epoch, factor in drops), 0.9,
                 decay, "crop-flip")


# Epochs and optimiser of each method, as in its authors' code. PGD-AT has the 110 epochs of DAFA's
# baselines, which stop soon after the first drop: with 200 epochs (CFA) the best checkpoint is far
# better than the last, and we choose none. DAFA's momentum is Nesterov's; ours is plain, as
# everywhere.
LONG = (120, sgd(0.1, 2e-4, (60, 0.1), (90, 0.01), (110, 0.005)))
TRADES, FRL = (76, sgd(0.1, 2e-4, (75, 0.1))), (40, sgd(1e-3, 5e-4))
SCHEDULES: dict[str, tuple[int, Optim]] = {
    "pgd-at": (110, sgd(0.1, 5e-4, (100, 0.1), (105, 0.01))),
    "trades-1": TRADES, "trades-6": TRADES, "frl-05": FRL, "frl-07": FRL,
    "bat": (200, sgd(0.1, 2e-4, (75, 0.1), (90, 0.01), (100, 0.001))),
    "fat": LONG,
    "gairat": (100, sgd(0.1, 2e-4, (30, 0.1), (60, 0.01))),
}


def recipe(data: str, network: str, name: str, method: Method) -> Recipe:
    epochs, optim = SCHEDULES[name]
    if name == "gairat" and network == "wide_resnet28x10":
        (epochs, optim), method = LONG, METHODS["gairat"](PGD(steps=10), begin=59 / 120)
    settings: dict[str, Any] = {}
    if name.startswith("frl"):
        # The authors start from a robust network that they do not describe; TRADES' loss is
        # nearest to FRL's. They have 300 validation images per class; we take all where there are
        # fewer.
        settings = {"start": f"gpu/{data}/{network}/trades-1",
                    "validation_images": 3000 if data == "cifar10" else None}
    model = network + ("_imagenet" if data == "imagenette" else "")
    return Recipe(f"{name} with {NETWORKS[network]} on {DATA[data]}, the authors' schedule, for "
                  "a GPU", method, optim, epochs, data, model=model, seeds=1,
                  examination=EXAMINATION, **settings)


RECIPES: dict[str, Recipe] = {
    f"gpu/{data}/{network}/{name}": recipe(data, network, name, method)
    for data in DATA for network in NETWORKS for name, method in methods().items()}
