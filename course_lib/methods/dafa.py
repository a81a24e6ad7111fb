"""Distance-aware fair adversarial training, DAFA (Lee et al., ICLR 2024)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.fairness import Report
from course_lib.methods.base import Loss, State, Step
from course_lib.methods.trades import TRADES


@dataclass(frozen=True)
class DAFA(TRADES):
    """min_f mean W_y CE(f(x), y) + beta mean KL(p(x) || p(x')),  x' in B(x, eps W_y)

        T_ij = p_i(j) p_j(j) where p_i(i) < p_j(j), else 0        W = 1 + lam (T 1 - T' 1)

    p_i(j) is the mean probability of class j on attacked images of class i in the last epoch of the
    warm-up. In each pair of classes the harder one takes weight from the easier one.

    Where we differ, and why, beside TRADES' differences:
    - The authors' code subtracts from both classes of a tie, ours and their paper from neither.
    - W is never negative, since it scales the budget; the authors have no such bound.
    """

    name = "dafa"
    update_every = "epoch"
    wants_report = ""
    limits = ("0 <= warmup <= 1", "0 <= lam <= inf")

    lam: float = 1.0
    warmup: float = 70 / 110  # share of the epochs

    def init_state(self, n_classes: int) -> State:
        return {"weight": torch.ones(n_classes)}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if at.epoch != round(self.warmup * at.epochs) or not at.stats:
            return state
        # p_i(j) = mean over class i of p_j(x')
        p = at.stats["p"].cpu() / at.stats["n"].cpu().clamp(min=1)[:, None]
        own = p.diag()
        # T_ij = p_i(j) p_j(j) where p_i(i) < p_j(j), else 0;  W = 1 + lam (T 1 - T' 1)
        t = p * own * (own[:, None] < own)
        return {"weight": (1 + self.lam * (t.sum(1) - t.sum(0))).clamp(min=0)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        w = state["weight"].to(x.device)[y]
        eps, step = ((w * size).clamp(max=1) for size in (self.attack.eps, self.attack.step_size))
        ce, kl, attacked, own = self.terms(model, x, y, at, eps=eps, step_size=step)
        # mean W_y CE(f(x), y) + beta mean KL(p(x) || p(x'))
        loss = (w * ce).mean() + self.beta * kl.mean()
        return loss, {"p": own.T @ attacked.detach().softmax(1), "n": own.sum(0)}
