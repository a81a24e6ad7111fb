"""Class-focused online learning, CFOL (Pethick et al., TMLR 2023): weights for each batch."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.fairness import Report
from course_lib.methods.base import Loss, Method, State, Step


@dataclass(frozen=True)
class CFOL(Method):
    """min_f mean C p_y CE(f(x'), y),  p = gamma U + (1 - gamma) softmax(v)

    After each batch v_c += eta C #(misclassified attacked images of class c). No class has less
    than the floor gamma / C. `margins` is ours: x' in B(x, eps (C p_y)^margins).

    Where we differ, and why:
    - The authors draw classes from p. We weight them, which is their option `reweight`: all methods
      of the course see the same images in the same order.
    - Their attack has 7 steps and keeps the best iterate; ours is the course's PGD-10.
    """

    name = "cfol"
    update_every = 1
    wants_report = ""
    limits = ("0 <= gamma <= 1", "0 <= eta <= inf")

    eta: float = 5e-6  # for 200 epochs of 40,000 images; in proportion more for shorter runs
    gamma: float = 0.5
    margins: float = 0.0
    attack: PGD = PGD(steps=10)

    def init_state(self, n_classes: int) -> State:
        return {"v": torch.zeros(n_classes), "p": torch.full((n_classes,), 1 / n_classes)}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if not at.stats:  # before the first batch
            return state
        # v_c += eta C #wrong_c;  p = gamma U + (1 - gamma) softmax(v)
        wrong = at.stats["wrong"]
        v = state["v"].to(wrong.device) + self.eta * len(state["v"]) * wrong
        return {"v": v, "p": self.gamma / len(v) + (1 - self.gamma) * torch.softmax(v, 0)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        w = len(state["p"]) * state["p"].to(x.device)[y]
        budget, attack = w ** self.margins, self.attack
        z = attack(model, x, y, eps=(attack.eps * budget).clamp(max=1),
                   step_size=(attack.step_size * budget).clamp(max=1), generator=at.generator)
        logits = model(z)
        # (1/B) sum_b C p_{y_b} CE(f(x'_b), y_b)
        loss = (w * F.cross_entropy(logits, y, reduction="none")).mean()
        wrong = (logits.argmax(1) != y)[:, None] * F.one_hot(y, len(state["p"]))
        return loss, {"wrong": wrong.sum(0)}
