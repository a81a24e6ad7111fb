"""Friendly adversarial training (Zhang et al., ICML 2020): attack no further than needed."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.methods.base import Method, State, Step


@dataclass(frozen=True)
class FAT(Method):
    """min_f mean CE(f(x'), y),  x' = the iterate tau steps after the first misclassified one

    Where no iterate is misclassified, x' = z_K. tau grows with training: 0, then 1, then 2. With
    tau = K it is PGD-AT.

    Where we differ, and why:
    - The authors switch at epochs 50 and 90 of 120; we keep these shares of the epochs.
    - Budget and step are 8/255 and 2/255, as everywhere in the course; theirs are 0.031 and 0.007.
    """

    name = "fat"

    attack: PGD = PGD(steps=10, noise=0.001)
    # up to this share of the epochs: tau
    schedule: tuple[tuple[float, int], ...] = ((50 / 120, 0), (90 / 120, 1), (1.0, 2))

    def tau(self, at: Step) -> int:
        return next((t for share, t in self.schedule if at.epoch + 1 <= share * at.epochs),
                    self.schedule[-1][1])

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        walk = self.attack.walk(model, x, y, generator=at.generator, extra=self.tau(at), stop=True)
        # min_f mean CE(f(x'), y)
        return F.cross_entropy(model(walk.first_wrong), y)
