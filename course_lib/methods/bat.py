"""Balance adversarial training (Sun et al., AAAI 2023): fair to source and to target classes.

An attack crosses the decision boundary between x_c, its last correctly classified iterate, and
x_a, its first misclassified one.

    L_source = CE(f(x_c), y) + beta KL(p(x) || p(x_a))
    L_target = distance of p(x_c) and of p(x_a) from the uniform distribution U
    L        = L_source + alpha L_target
"""

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.errors import pick
from course_lib.methods.base import State, Step
from course_lib.methods.trades import TRADES, kl


def to_uniform(logits: Tensor) -> Tensor:
    """KL(p || U) = log C - H(p), as in the code. The gradient vanishes where p is confident."""
    log_p = F.log_softmax(logits, 1)
    return math.log(logits.shape[1]) + (log_p.exp() * log_p).sum(1)


def from_uniform(logits: Tensor) -> Tensor:
    """KL(U || p), as in the paper. The gradient, p - U, does not vanish where p is confident."""
    return -math.log(logits.shape[1]) - F.log_softmax(logits, 1).mean(1)


TARGET = {"to_uniform": to_uniform, "from_uniform": from_uniform}


@dataclass(frozen=True)
class BAT(TRADES):
    """The authors' code by default; `preset` gives the paper's Algorithm 1 and its ablations.

    Where we differ, and why, beside TRADES' differences (our forward passes: x_c, x, x_a):
    - Paper and code differ (passes, edge cases, L_target); the two presets do as they do.
    - Budget and step, 8/255 and 2/255, are those of the paper.
    """

    name = "bat"
    limits = (("target", TARGET), ("source_on", ("boundary", "ends")),
              ("target_on", ("clean", "first", "last")))

    alpha: float = 1.0
    draws: int = 2  # x_c and x_a from two walks (code), or from one (paper)
    tau: int = 1  # x_a is this many misclassified iterates after the first (paper: 0)
    target: str = "to_uniform"  # KL(p || U) (code) or "from_uniform", KL(U || p) (paper)
    source_on: str = "boundary"  # x_c and x_a, or "ends": x and z_K, which is TRADES
    target_on: tuple[str, ...] = ("clean", "first")  # of: clean (x_c), first (x_a), last (z_K)
    # the paper's edge cases: x itself if z_0 is misclassified, z_{K-1} if no iterate is
    literal: bool = False

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """code, paper or ablation-1 .. ablation-6, with your changes."""
        return cls(**{**pick(PRESETS, name, "preset of BAT"), **changes})

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        images = {"x": x, **self.images(model, x, y, at.generator)}
        c, a = ("x", "last") if self.source_on == "ends" else ("clean", "first")
        f = {name: model(images[name]) for name in dict.fromkeys((c, "x", a, *self.target_on))}
        # L_source = CE(f(x_c), y) + beta KL(p(x) || p(x_a))
        source = F.cross_entropy(f[c], y) + self.beta * kl(f["x"], f[a]).mean()
        # L_target = distance of p(x_c) and of p(x_a) from U
        target = sum(TARGET[self.target](f[name]).mean() for name in self.target_on)
        # L = L_source + alpha L_target
        return source + self.alpha * target

    def images(self, model: nn.Module, x: Tensor, y: Tensor,
               generator: torch.Generator) -> dict[str, Tensor]:
        """The boundary pair x_c and x_a, and z_K where it is asked for."""
        stop = self.source_on != "ends" and "last" not in self.target_on
        walk = before = self.attack.walk(model, x, y, generator=generator, extra=self.tau,
                                         stop=stop)
        if self.draws == 2:
            before = self.attack.walk(model, x, y, generator=generator, stop=True)
        clean, first = before.last_right, walk.first_wrong
        column = (-1, *[1] * (x.ndim - 1))
        if self.literal:  # x itself where z_0 is misclassified
            clean = torch.where((before.t_wrong == 0).reshape(column), x, clean)
            first = torch.where((walk.t_wrong == 0).reshape(column), x, first)
        else:  # the code never tests z_K, and takes it where no earlier iterate is misclassified
            never = before.t_wrong == self.attack.steps
            clean = torch.where(never.reshape(column), before.last, clean)
        return {"clean": clean, "first": first, "last": walk.last}


PRESETS: dict[str, dict[str, Any]] = {
    "code": {}, "ablation-5": {},
    "paper": {"draws": 1, "tau": 0, "target": "from_uniform", "literal": True},
    "ablation-1": {"target_on": ()}, "ablation-2": {"target_on": ("clean",)},
    "ablation-3": {"target_on": ("first",)}, "ablation-4": {"target_on": ("last",)},
    "ablation-6": {"source_on": "ends"},
}
