"""TRADES (Zhang et al., ICML 2019): standard error and boundary error, each with its own term."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.methods.base import Loss, Method, State, Step


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL(softmax p || softmax q) of each example, from logits; gradients flow through both."""
    return F.kl_div(F.log_softmax(q, 1), F.log_softmax(p, 1), reduction="none",
                    log_target=True).sum(1)


@dataclass(frozen=True)
class TRADES(Method):
    """min_f mean CE(f(x), y) + beta mean KL(p(x) || p(x')),  x' = argmax_{z} KL(p(x) || p(z))

    Where we differ, and why:
    - Budget and step are 8/255 and 2/255, as everywhere in the course; theirs are 0.031 and 0.007.
    - The Gaussian start is projected at once; the authors project after the first step.
    - The authors forward x, x', x in train mode, we x, x'. The gradients are equal; the running
      averages of batch norm differ a little.
    """

    name = "trades"

    beta: float = 6.0  # the paper's 1 / lambda
    attack: PGD = PGD(steps=10, objective="kl", start="gaussian")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        z = self.attack(model, x, y, generator=at.generator)
        clean, attacked = model(x), model(z)
        # CE(f(x), y) + beta KL(p(x) || p(x'))
        return F.cross_entropy(clean, y) + self.beta * kl(clean, attacked).mean()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, at: Step,
              **budgets: Any) -> tuple[Tensor, ...]:
        """For methods that weight: CE(f(x), y) and KL(p(x) || p(x')) of each example, f(x'), and
        the labels one-hot."""
        z = self.attack(model, x, y, generator=at.generator, **budgets)
        clean, attacked = model(x), model(z)
        ce = F.cross_entropy(clean, y, reduction="none")
        return ce, kl(clean, attacked), attacked, F.one_hot(y, clean.shape[1]).to(ce.dtype)
