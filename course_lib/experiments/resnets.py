"""The papers' own experiments, residual networks on photographs: gpu/ at the papers' size, cifar10/
at that of two processor cores.
 All are trained on the training half (40,000 images of CIFAR's 50,000), since FRL needs the other
for validation and all are to see the same; budgets are 8/255 in ten steps of 2/255, as in the
papers, and the last epoch's weights are kept.
"""

from __future__ import annotations

import dataclasses

from course_lib.attacks import PGD
from course_lib.methods import METHODS, Method
from course_lib.recipes import RECIPES, Recipe
from course_lib.training import Optim


def _methods(bf16: bool = False) -> dict[str, Method]:
    """What BAT's tables compare; the attacks are those of the methods' own files."""
    ce, kl = PGD(steps=10, bf16=bf16), PGD(steps=10, objective="kl", start="gaussian", bf16=bf16)
    trades, frl = METHODS["trades"], METHODS["frl"]
    return {
        "pgd-at": METHODS["pgd_at"](ce), "trades-1": trades(1.0, kl), "trades-6": trades(6.0, kl),
        "frl-05": frl(tau=(0.05, 0.05), attack=kl), "frl-07": frl(tau=(0.07, 0.07), attack=kl),
        "bat": METHODS["bat"](attack=kl),
        "fat": METHODS["fat"](dataclasses.replace(ce, noise=0.001)),
        "gairat": METHODS["gairat"](ce),
    }


def _sgd(rate: float, decay: float, *drops: tuple[int, float]) -> Optim:
    """The papers' SGD; a drop comes with an epoch counted from one, as the papers do."""
    return Optim("sgd", rate, 128, tuple((epoch - 1, factor) for epoch, factor in drops), 0.9,
                 decay, "crop-flip")


# ------------------------------------------------------------------------------------------------ at the papers' size

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenette": "Imagenette"}
NETWORKS = {"resnet18": "ResNet-18", "preact_resnet18": "PreAct ResNet-18",
            "wide_resnet28x10": "WRN-28-10"}
# FRL's authors start from a robust network that they do not describe; this loss is nearest to FRL's
GPU_HOT_START = "trades-1"
EXAMINATION = (("pgd20", 8 / 255), ("cw20", 8 / 255))
# Epochs and optimiser of each method, as its authors' code has them. PGD-AT has the 110 epochs of
# DAFA's baselines, which stop soon after the first drop: with 200 epochs (CFA) the best checkpoint
# is far better than the last, and we choose none. Their momentum is Nesterov's; ours is plain, as
# for all other methods.
SCHEDULES: dict[str, tuple[int, Optim]] = {
    "pgd-at": (110, _sgd(0.1, 5e-4, (100, 0.1), (105, 0.01))),
    "trades": (76, _sgd(0.1, 2e-4, (75, 0.1))),
    "frl": (40, _sgd(1e-3, 5e-4)),
    "bat": (200, _sgd(0.1, 2e-4, (75, 0.1), (90, 0.01), (100, 0.001))),
    "fat": (120, _sgd(0.1, 2e-4, (60, 0.1), (90, 0.01), (110, 0.005))),
    "gairat": (100, _sgd(0.1, 2e-4, (30, 0.1), (60, 0.01))),
    "gairat, wide": (120, _sgd(0.1, 2e-4, (60, 0.1), (90, 0.01), (110, 0.005))),
}


def _gpu(data: str, network: str, name: str, method: Method) -> Recipe:
    wide, kind = name == "gairat" and network == "wide_resnet28x10", name.rstrip(
        "0123456789").rstrip("-")
    epochs, optim = SCHEDULES["gairat, wide" if wide else kind]
    # weights begin with the first drop, at epoch 60 of 120 or 30 of 100, counted from one
    if kind == "gairat":
        method = METHODS["gairat"](method.attack, begin=(59 if wide else 29) / epochs)  # type: ignore[attr-defined]
    recipe = Recipe(f"{name} with {NETWORKS[network]} on {DATA[data]}, the authors' schedule, for "
                    "a GPU", method, optim, epochs, data,
                    model=network + ("_imagenet" if data == "imagenette" else ""), seeds=1,
                    examination=EXAMINATION)
    if kind != "frl":
        return recipe
    # the authors' 300 a class; of the others' classes all there are
    few = 3000 if data == "cifar10" else None
    return dataclasses.replace(recipe, start=f"gpu/{data}/{network}/{GPU_HOT_START}",
                               validation_images=few)


def _papers() -> dict[str, Recipe]:
    return {f"gpu/{data}/{network}/{name}": _gpu(data, network, name, method)
            for data in DATA for network in NETWORKS for name, method in _methods().items()}


# ------------------------------------------------------------------------------------------------ at the size of two cores

EPOCHS, HOT_EPOCHS = 8, 4  # of FRL's 8 the hot start has 4
HOT_START = "cifar10/hot-start"


def _falling(first: int, last: int) -> Optim:
    """Epochs `first` to `last` of SGD at 0.1 that falls to nothing in a straight line over the
    EPOCHS."""
    rate = 0.1 * (1 - first / EPOCHS)
    return _sgd(rate, 2e-4, *((e - first + 1, (EPOCHS - e) / (EPOCHS - first))
                              for e in range(first + 1, last)))


def _small(about: str, method: Method, seeds: int = 1, first: int = 0,
           last: int = EPOCHS) -> Recipe:
    return Recipe(f"{about}, on CIFAR-10 with a small PreAct ResNet", method, _falling(first, last),
                  last - first, "cifar10",
                  model="preact_resnet_s", seeds=seeds, examination=EXAMINATION,
                  validation=PGD(bf16=True), validation_images=3000)


def _two_cores() -> dict[str, Recipe]:
    """All on equal terms: EPOCHS epochs, FRL's hot start counted, over the same images in the same
    order."""
    methods = _methods(bf16=True)
    hot = METHODS["trades"](1.5, methods["trades-1"].attack)  # type: ignore[attr-defined]
    frl = _small("FRL (rmrw), tolerance 0.05", methods["frl-05"], first=HOT_EPOCHS)
    return {
        "cifar10/natural": _small("Natural training", METHODS["natural"]()),
        "cifar10/pgd-at": _small("Adversarial training, PGD-10", methods["pgd-at"], 3),
        "cifar10/trades-6": _small("TRADES, beta 6", methods["trades-6"]),
        HOT_START: _small("TRADES, from which FRL starts", hot, last=HOT_EPOCHS),
        "cifar10/frl-05": dataclasses.replace(frl, start=HOT_START),
        "cifar10/bat": _small("BAT, as in its code", methods["bat"], 3),
    }


RECIPES.update({**_two_cores(), **_papers()})
