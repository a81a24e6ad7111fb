"""Geometry-aware instance-reweighted adversarial training (Zhang et al., ICLR 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.methods.base import Method, State, Step


@dataclass(frozen=True)
class GAIRAT(Method):
    """min_f mean omega(kappa) CE(f(x'), y),  x' = z_K

    kappa counts the correctly classified iterates of z_0 .. z_{K-1}. omega = (1 + tanh(L +
    5 (1 - 2 kappa / K))) / 2, scaled to a mean of one in the batch. With L = inf it is PGD-AT.

    Where we differ, and why:
    - Weights begin at a share of the training (the authors: epoch 30 of 100 or 60 of 120), since
      ours is shorter.
    - Budget and step are 8/255 and 2/255, as everywhere in the course; theirs are 0.031 and 0.007.
    """

    name = "gairat"
    limits = ("0 <= begin <= 1",)

    attack: PGD = PGD(steps=10)
    L: float = -1.0
    begin: float = 0.3  # share of the epochs trained as PGD-AT

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        walk = self.attack.walk(model, x, y, generator=at.generator)
        ce = F.cross_entropy(model(walk.last), y, reduction="none")
        if at.epoch < self.begin * at.epochs:
            return ce.mean()
        # omega = (1 + tanh(L + 5 (1 - 2 kappa / K))) / 2
        kappa, steps = walk.n_right, max(self.attack.steps, 1)
        omega = (1 + torch.tanh(self.L + 5 * (1 - 2 * kappa / steps))) / 2
        omega = torch.where(omega.sum() > 0, omega, 1.0)  # where every omega rounds to zero
        # (1/B) sum_b (B omega_b / sum omega) CE_b
        return (omega * ce).sum() / omega.sum()
