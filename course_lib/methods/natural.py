"""Natural training: the baseline that adversarial training is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.methods.base import Method, State, Step


@dataclass(frozen=True)
class Natural(Method):
    """min_f mean CE(f(x), y)"""

    name = "natural"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        # min_f mean CE(f(x), y)
        return F.cross_entropy(model(x), y)
