"""Fairness-aware adversarial learning, FAAL (Zhang et al., CVPR 2024): worst weights in a ball."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.methods.base import Method, State, Step


def worst_weights(a: Tensor, tau: float) -> Tensor:
    """argmax_w sum_c a_c w_c  over the simplex, where KL(U || w) <= tau, for float64 a [C]. There
    w_c is proportional to 1 / (mu - a_c). KL(U || w) falls as mu grows, so we look for log(mu - max
    a) on a grid, then on a finer one: 8 rounds of 256 points, without a wait for the device."""
    below = a.max() - a
    below = below / below.max().clamp(min=1e-300)  # neither scale nor shift of a matters
    low, high = a.new_tensor(-40.0), a.new_tensor(40.0)
    steps = torch.linspace(0, 1, 256, dtype=a.dtype, device=a.device)
    for _ in range(8):
        grid = low + (high - low) * steps
        w = 1 / (grid.exp()[:, None] + below)
        w = w / w.sum(1, keepdim=True)  # [256, C]
        # KL(U || w) = sum_c (1/C) log(1 / (C w_c))
        far = -(len(a) * w).log().mean(1) > tau
        low, high = torch.where(far, grid, low).amax(), torch.where(far, high, grid).amin()
    return w[-1]


@dataclass(frozen=True)
class FAAL(Method):
    """min_f (C/B) sum_b w_{y_b} CE(f(x'_b), y_b),  w = argmax sum_c a_c w_c, KL(U || w) <= tau

    a_c is the mean over class c of max_{j != y} p_j(x') - p_y(x'), -1 where the batch has none.

    Where we differ, and why:
    - The authors multiply a_c by the number of images of the class (`counts=True`), so that an
      absent class has a_c = 0, more than any that is mostly right. Their text means `counts=False`.
    - They use a general solver; a search for mu gives the same weights.
    """

    name = "faal"
    limits = ("0 <= tau <= inf",)

    tau: float = 0.5
    counts: bool = True
    attack: PGD = PGD(steps=10)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        logits = model(self.attack(model, x, y, generator=at.generator))
        p, own = logits.detach().softmax(1), F.one_hot(y, logits.shape[1])
        n = own.sum(0)
        # a_c = sum over class c of max_{j != y} p_j - p_y, or its mean
        a = (p.masked_fill(own.bool(), -1).amax(1) - (p * own).sum(1)) @ own.to(p.dtype)
        if not self.counts:
            a = torch.where(n > 0, a / n.clamp(min=1), -1.0)
        w = worst_weights(a.double(), self.tau).to(p)
        # (C/B) sum_b w_{y_b} CE(f(x'_b), y_b)
        return (len(w) * w[y] * F.cross_entropy(logits, y, reduction="none")).mean()
