"""Class-wise calibrated fair adversarial training, CFA (Wei et al., CVPR 2023)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.fairness import Report
from course_lib.methods.base import Loss, State, Step
from course_lib.methods.trades import TRADES


@dataclass(frozen=True)
class CFA(TRADES):
    """min_f mean (CE(f(x), y) + b_y KL(p(x) || p(x'))) / (1 + b_y),  x' in B(x, eps g_y)

        g_c = lambda1 + t_c  (class margins)        b_c = beta (lambda2 + t_c)  (class betas)

    t_c is the share of class c that was right under attack in the epoch just trained. With `plain`
    the loss is mean CE(f(x'), y). The paper's average of weights is Optim's `averaging`.

    Where we differ, and why, beside TRADES' differences:
    - The authors start in epoch 10 of 200; we keep this share of the epochs.
    - They attack in train mode; ours is eval mode, as everywhere in the course.
    """

    name = "cfa"
    update_every = "epoch"
    wants_report = ""
    limits = ("0 <= begin <= 1", "0 <= lambda1 <= inf", "0 <= lambda2 <= inf")

    lambda1: float | None = 0.3  # the paper's for TRADES; None leaves the margins at 1
    lambda2: float | None = 0.5  # None leaves the betas alone
    begin: float = 0.05  # share of the epochs before the first update
    plain: bool = False

    def init_state(self, n_classes: int) -> State:
        return {"margin": torch.ones(n_classes), "beta": torch.full((n_classes,), self.beta)}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if at.epoch < self.begin * at.epochs or not at.stats:
            return state
        # t_c = right_c / n_c
        t = at.stats["right"].cpu() / at.stats["n"].cpu().clamp(min=1)
        # g_c = lambda1 + t_c;  b_c = beta (lambda2 + t_c)
        return {"margin": state["margin"] if self.lambda1 is None else self.lambda1 + t,
                "beta": state["beta"] if self.lambda2 is None else self.beta * (self.lambda2 + t)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        eps = (self.attack.eps * state["margin"].to(x.device)[y]).clamp(max=1)
        b = state["beta"].to(x.device)[y]
        ce, kl, attacked, own = self.terms(model, x, y, at, eps=eps)
        # mean (CE + b_y KL) / (1 + b_y), or mean CE(f(x'), y)
        loss = F.cross_entropy(attacked, y) if self.plain else ((ce + b * kl) / (1 + b)).mean()
        return loss, {"right": (attacked.argmax(1) == y).to(own.dtype) @ own, "n": own.sum(0)}
