"""Balance adversarial training (Sun et al., AAAI 2023): fairness between source classes and between
target classes.
 The walk of an attack crosses the decision boundary between x_c, its last right iterate, and x_a,
its first wrong one.

    L_source = CE(f(x_c), y) + beta KL(p(x) || p(x_a))
    L_target = distance of p(x_c) and of p(x_a) from the uniform distribution U
    L        = L_source + alpha L_target
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.errors import pick
from course_lib.methods.base import Method, State, Step
from course_lib.methods.trades import kl


def to_uniform(logits: Tensor) -> Tensor:
    """KL(p || U) = log C - H(p): what the authors' code has. Its gradient vanishes where p is
    confident."""
    log_p = F.log_softmax(logits, 1)
    return math.log(logits.shape[1]) + (log_p.exp() * log_p).sum(1)


def from_uniform(logits: Tensor) -> Tensor:
    """KL(U || p): what the paper has. Its gradient, p - U, does not vanish where p is confident."""
    return -math.log(logits.shape[1]) - F.log_softmax(logits, 1).mean(1)


TARGET = {"to_uniform": to_uniform, "from_uniform": from_uniform}


@dataclass(frozen=True)
class BAT(Method):
    """The authors' code by default; `BAT.preset` gives the paper's Algorithm 1 and the ablations of
    its Table 2.

    Where paper and code part (algorithm, start of the walk, images never or at once misclassified)
    the two presets do. Where we differ from both, and why:
    - Budget and step are 8/255 and 2/255 (the paper's); the code has 0.031 and 0.007.
    """

    name = "bat"

    alpha: float = 1.0
    beta: float = 6.0
    attack: PGD = PGD(steps=10, objective="kl", start="gaussian")
    draws: int = 2  # x_c and x_a from walks of their own (code), or from one (paper)
    tau: int = 1  # x_a is taken so many wrong iterates after the first (code: 1, paper: 0)
    target: str = "to_uniform"  # KL(p || U) (code) or "from_uniform", KL(U || p) (paper)
    source_on: str = "boundary"  # x_c and x_a, or "ends": x and z_K, which is TRADES
    target_on: tuple[str, ...] = ("clean", "first")  # of: clean (x_c), first (x_a), last (z_K)
    # the paper's edge cases: x itself when wrong at once, z_{K-1} when never wrong
    literal: bool = False

    def __post_init__(self) -> None:
        pick(TARGET, self.target, "target term")
        pick(dict.fromkeys(("boundary", "ends")), self.source_on, "source_on")
        for word in self.target_on:
            pick(dict.fromkeys(("clean", "first", "last")), word, "target_on")

    @classmethod
    def preset(cls, name: str, **changes: Any) -> BAT:
        """code, paper or ablation-1 .. ablation-6, with your changes."""
        return dataclasses.replace(cls(**pick(PRESETS, name, "preset of BAT")), **changes)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        images = self.images(model, x, y, at.generator)
        c, a = (x, images["last"]) if self.source_on == "ends" else (images["clean"],
            images["first"])
        at_c = model(c)
        clean = at_c if c is x else model(x)
        logits = {"clean": at_c} if c is images.get("clean") else {}
        logits["last" if self.source_on == "ends" else "first"] = at_a = model(a)
        # L_source = CE(f(x_c), y) + beta KL(p(x) || p(x_a))
        source = F.cross_entropy(at_c, y) + self.beta * kl(clean, at_a).mean()
        if not self.target_on:
            return source
        far = [TARGET[self.target](logits[w] if w in logits else model(images[w])).mean()
               for w in self.target_on]
        return source + self.alpha * torch.stack(far).sum()

    def images(self, model: nn.Module, x: Tensor, y: Tensor,
               generator: torch.Generator) -> dict[str, Tensor]:
        """The boundary pair x_c and x_a, and z_K where it is asked for."""
        whole = "last" in self.target_on or self.source_on == "ends"
        walk = self.attack.walk(model, x, y, generator=generator, extra=self.tau, stop=not whole)
        before = walk
        if self.draws == 2:
            before = self.attack.walk(model, x, y, generator=generator, stop=True)
        clean, k = before.last_right, self.attack.steps
        if self.literal:
            clean = torch.where(_rows(before.t_wrong == 0, x), x, clean)
        else:  # the code never tests z_K, and takes it when no earlier iterate is wrong
            clean = torch.where(_rows(before.t_wrong == k, x), before.last, clean)
        first = torch.where(_rows(walk.t_wrong == 0, x), x,
                            walk.first_wrong) if self.literal else walk.first_wrong
        return {"clean": clean, "first": first, "last": walk.last}


def _rows(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (x.ndim - 1))


PAPER: dict[str, Any] = {"draws": 1, "tau": 0, "target": "from_uniform", "literal": True}
PRESETS: dict[str, dict[str, Any]] = {
    "code": {},
    "paper": PAPER,
    "ablation-1": {"target_on": ()},
    "ablation-2": {"target_on": ("clean",)},
    "ablation-3": {"target_on": ("first",)},
    "ablation-4": {"target_on": ("last",)},
    "ablation-5": {},
    "ablation-6": {"source_on": "ends"},
}
