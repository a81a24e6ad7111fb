"""The same PGD by the usual libraries: one function each, given a model, images, labels and a
number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import EPS, STEP, pytorch_only, usual_model
from course_lib.attacks import PGD

Work = Callable[[], Any]


def ours(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    attack = PGD(EPS, STEP, steps)
    return lambda: attack(model, x, y)


def ours_dropping(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    """As `evaluate` does it: an image that is already wrong is attacked no further."""
    attack = PGD(EPS, STEP, steps)
    return lambda: attack.walk(model, x, y, stop=True)


def ours_pytorch(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    return pytorch_only(ours(model, x, y, steps))


def torchattacks_pgd(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    import torchattacks

    attack = torchattacks.PGD(usual_model(model), eps=EPS, alpha=STEP, steps=steps)
    return lambda: attack(x, y)


def torchattacks_on_kernel(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    """Somebody else's attack on this model: its forward and backward pass are the kernel's."""
    import torchattacks

    attack = torchattacks.PGD(model, eps=EPS, alpha=STEP, steps=steps)
    return lambda: attack(x, y)


def foolbox_pgd(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    import foolbox

    attack = foolbox.attacks.LinfPGD(abs_stepsize=STEP, steps=steps)
    bounded = foolbox.PyTorchModel(usual_model(model), bounds=(0, 1))
    return lambda: attack.run(bounded, x, y, epsilon=EPS)


def art_pgd(model: nn.Module, x: Tensor, y: Tensor, steps: int = 20) -> Work:
    from art.attacks.evasion import ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    classifier = PyTorchClassifier(
        usual_model(model), nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0, 1),
        device_type="cpu")
    attack = ProjectedGradientDescentPyTorch(
        classifier, eps=EPS, eps_step=STEP, max_iter=steps, num_random_init=1, batch_size=len(x),
        verbose=False)
    images, labels = x.numpy(), torch.nn.functional.one_hot(y, 10).numpy()
    return lambda: attack.generate(images, labels)


SIDES: dict[str, Callable[..., Work]] = {
    "this course": ours,
    "this course, finished images dropped": ours_dropping,
    "this course, PyTorch alone": ours_pytorch,
    "torchattacks": torchattacks_pgd,
    "torchattacks on our kernel": torchattacks_on_kernel,
    "foolbox": foolbox_pgd,
    "ART": art_pgd,
}
