"""Worst-class adversarial training, WAT (Li and Liu, AAAI 2023): class weights by Hedge."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.fairness import Report
from course_lib.methods.base import Loss, State, Step
from course_lib.methods.trades import TRADES


@dataclass(frozen=True)
class WAT(TRADES):
    """min_f mean (w_y + w_{C+1}) (CE(f(x), y) + beta KL(p(x) || p(x')))

        G_c += cost_c after each epoch        w = C softmax(eta G), in the first epoch w = 1

    cost_c is the mean loss of class c, and of all images for c = C + 1.

    Where we differ, and why, beside TRADES' differences:
    - We take the losses of the epoch just trained, which cost nothing; the authors take those on
      validation data.
    - Weights and costs are part of a checkpoint. The authors' start again at 1 on resuming.
    """

    name = "wat"
    update_every = "epoch"
    wants_report = ""
    limits = ("0 <= eta <= inf",)

    eta: float = 0.1

    def init_state(self, n_classes: int) -> State:
        return {"cost": torch.zeros(n_classes + 1), "weight": torch.ones(n_classes + 1)}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if not at.stats:  # before the first epoch
            return state
        sums, n = at.stats["loss"].cpu(), at.stats["n"].cpu()
        # G += cost;  w = C softmax(eta G)
        cost = state["cost"] + torch.cat([sums / n.clamp(min=1), sums.sum(0, True) / n.sum()])
        return {"cost": cost, "weight": (len(cost) - 1) * torch.softmax(self.eta * cost, 0)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        w = state["weight"].to(x.device)
        ce, kl, _, own = self.terms(model, x, y, at)
        # l = CE(f(x), y) + beta KL(p(x) || p(x'))
        each = ce + self.beta * kl
        # (1/B) sum_b (w_{y_b} + w_{C+1}) l_b
        return ((w[y] + w[-1]) * each).mean(), {"loss": each.detach() @ own, "n": own.sum(0)}
