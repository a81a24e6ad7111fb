"""PGD adversarial training (Madry et al., ICLR 2018), and natural training, its baseline."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.methods.base import Method, State, Step


@dataclass(frozen=True)
class Natural(Method):
    """min_f mean CE(f(x), y)"""

    name = "natural"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        # min_f mean CE(f(x), y)
        return F.cross_entropy(model(x), y)


@dataclass(frozen=True)
class PGDAT(Method):
    """min_f mean max_{z in B(x, eps)} CE(f(z), y), the maximum approached by PGD.

    `mix` is the clean share of each batch: 0 in Madry et al., 0.5 in the reproduction report.

    Where we differ, and why:
    - The attack runs in eval mode, as everywhere in the course. For LeNet-5 it is the same.
    - Madry et al. used 7 steps; 10 is the later custom and what BAT's and FRL's baselines use.
    """

    name = "pgd_at"
    limits = ("0 <= mix <= 1",)

    attack: PGD = PGD(steps=10)
    mix: float = 0.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        order = torch.randperm(len(x), generator=at.generator)
        attacked = order[round(self.mix * len(x)):].to(x.device)
        z = x.clone()
        z[attacked] = self.attack(model, x[attacked], y[attacked], generator=at.generator)
        # min_f (1/B) sum_b CE(f(z_b), y_b), over clean and attacked images alike
        return F.cross_entropy(model(z), y)
