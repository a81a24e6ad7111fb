"""Fair Robust Learning (Xu et al., ICML 2021): class weights and class margins as dual variables.

    min_f R_nat + R_bndy   s.t.   R_nat(i) - R_nat <= tau1,  R_bndy(i) - R_bndy <= tau2   for every
    class i
 Each epoch measures the gaps on validation data, moves one multiplier a class and constraint by its
gap, and turns the multipliers into class weights (Reweight) and class budgets (Remargin).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.errors import CourseError, pick
from course_lib.fairness import Report
from course_lib.methods.base import Method, State, Step
from course_lib.methods.trades import kl

# which of lambda 0, 1, 2 move
VARIANTS = {"rw": (True, True, False), "rm": (True, False, True), "rmrw": (True, True, True)}


@dataclass(frozen=True)
class FRL(Method):
    """The authors' dual update (code of 2022); `FRL.preset` gives that of 2021 and the reproduction
    report's scheme.

    Where we differ, and why:
    - Robust means right when clean and right when attacked, so that the boundary error is never
      negative.
    - The multiplier of the margins may be clipped where its margin is (`windup=False`): the
      authors' keeps drifting beyond the clip and needs as long to come back.
    - The authors halve rate1 at their epoch 40, the last; we never get there.
    """

    name = "frl"

    # rw: Reweight, rm: Remargin (the authors' also reweights the natural error), rmrw: both
    variant: str = "rmrw"
    # tolerated gap of the standard and of the boundary error
    tau: tuple[float, float] = (0.07, 0.07)
    # of lambda 0 (natural), 1 (boundary), 2 (margin)
    rates: tuple[float, float, float] = (0.05, 0.10, 0.20)
    lim: float = 0.5  # the most the multipliers of one constraint may sum to
    clip: tuple[float, float] = (0.98, 3.0)  # of the margins
    beta: float = 1.5  # TRADES' weight of the boundary term
    attack: PGD = PGD(steps=10, objective="kl", start="gaussian")
    # does Remargin alone reweight the natural error, as the authors' does?
    natural_reweight: bool = True
    normaliser: str = "separate"  # of the weights in a batch: separate (2022) or joint (2021)
    # attack step: a quarter of the batch's largest budget, of the example's own, or fixed
    step: str = "largest"
    windup: bool = True
    weights: str = "lagrangian"  # or softmax (report)
    accumulate: bool = True  # do multipliers remember? (report: no)
    boundary: str = "difference"  # boundary error: robust - standard, or flips (report)
    boundary_loss: str = "kl"  # or prediction: cross-entropy to the clean prediction (report)
    centred: bool = True  # is the mean error subtracted before the margins move? (report: no)
    update_every: Any = "epoch"  # type: ignore[misc]  # or a number of batches

    def __post_init__(self) -> None:
        pick(VARIANTS, self.variant, "variant of FRL")
        for word, allowed in ALLOWED.items():
            pick(dict.fromkeys(allowed), getattr(self, word), word)
        if not 0 <= self.lim <= 1 or not 0 < self.clip[0] <= self.clip[1] or min(*self.rates,
                self.beta) < 0:
            raise CourseError(
                f"lim {self.lim} must lie in [0, 1], clip {self.clip} be positive and in order, "
                f"rates {self.rates} and beta {self.beta} not negative."
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> FRL:
        """authors_2022, authors_2021 or report, with your changes."""
        return dataclasses.replace(cls(**pick(PRESETS, name, "preset of FRL")), **changes)

    def init_state(self, n_classes: int) -> State:
        even, zero, one = (torch.full((n_classes,), v) for v in (1 / n_classes, 0.0, 1.0))
        return {"lam0": zero, "lam1": zero.clone(), "lam2": zero.clone(), "w0": even,
                "w1": even.clone(), "margin": one}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if report is None:
            raise CourseError("FRL needs fairness measured on validation data; pass validate= to "
                              "fit.")
        nat = torch.tensor(report.nat.by_class, dtype=torch.float32)
        errors = report.flips if self.boundary == "flips" else report.bnd
        if errors is None:
            raise CourseError("This FRL counts flipped predictions; evaluate validation data with "
                              "flips=True.")
        bnd = torch.tensor(errors.by_class, dtype=torch.float32)
        gap0 = nat - report.nat.mean - self.tau[0]  # gamma0_i = err_nat(i) - err_nat - tau1
        gap1 = bnd - errors.mean - self.tau[1]  # gamma1_i = err_bndy(i) - err_bndy - tau2
        gap2 = gap1 if self.centred else bnd - self.tau[1]
        moves = [r * g * float(on) for r, g, on in zip(self.rates, (gap0, gap1, gap2),
                                                       self._moving(), strict=True)]
        return self._turned(*(m + state[f"lam{k}"] if self.accumulate else m for k,
                              m in enumerate(moves)))

    def _moving(self) -> tuple[bool, bool, bool]:
        nat, bnd, margin = VARIANTS[self.variant]
        return nat and (self.variant != "rm" or self.natural_reweight), bnd, margin

    def _turned(self, lam0: Tensor, lam1: Tensor, lam2: Tensor) -> State:
        """Multipliers into class weights and margins."""
        if self.weights == "softmax":
            w0, w1 = torch.softmax(1 + lam0, 0), torch.softmax(1 + lam1, 0)
        else:
            lam0, lam1 = self.bounded(lam0), self.bounded(lam1)
            # w_i = 1/C + lambda_i - mean(lambda), which sums to one
            w0, w1 = (1 / len(lam) + lam - lam.mean() for lam in (lam0, lam1))
        factor = 2.0 if self.weights == "lagrangian" else 1.0
        low, high = self.clip
        if not self.windup:
            lam2 = lam2.clamp(torch.tensor(low).log() / factor, torch.tensor(high).log() / factor)
        # eps_i = eps * clip(exp(2 lambda2_i))
        margin = torch.exp(factor * lam2).clamp(low, high)
        return {"lam0": lam0, "lam1": lam1, "lam2": lam2, "w0": w0, "w1": w1, "margin": margin}

    def bounded(self, lam: Tensor) -> Tensor:
        """Clamp at 0; scale so that the sum is at most `lim`."""
        lam = lam.clamp(min=0)
        return lam * (self.lim / lam.sum()).clamp(max=1) if lam.sum() > 0 else lam

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        w0, w1, margin = (state[k].to(x.device) for k in ("w0", "w1", "margin"))
        eps = self.attack.eps * margin[y]
        z = self.attack(model, x, y, eps=eps.clamp(max=1), step_size=self._step(eps),
                        generator=at.generator)
        clean, attacked = model(x), model(z)
        natural = F.cross_entropy(clean, y, reduction="none")
        if self.boundary_loss == "kl":
            boundary, label = kl(clean, attacked), y
        else:
            label = clean.detach().argmax(1)
            boundary = F.cross_entropy(attacked, label, reduction="none")
        a, b = w0[y], w1[label]
        if self.normaliser == "joint":
            # sum_b (w0 CE + beta w1 KL) / sum_b (w0 + w1)
            return (a * natural + self.beta * b * boundary).sum() / (a + b).sum()
        # sum_b w0 CE / sum_b w0 + beta sum_b w1 KL / sum_b w1
        return (a * natural).sum() / a.sum() + self.beta * (b * boundary).sum() / b.sum()

    def _step(self, eps: Tensor) -> float | Tensor:
        if self.step == "fixed":
            return self.attack.step_size
        return eps / 4 if self.step == "own" else float(eps.max()) / 4


ALLOWED = {
    "normaliser": ("separate", "joint"),
    "step": ("largest", "own", "fixed"),
    "weights": ("lagrangian", "softmax"),
    "boundary": ("difference", "flips"),
    "boundary_loss": ("kl", "prediction"),
}
PRESETS: dict[str, dict[str, Any]] = {
    "authors_2022": {},
    "authors_2021": {
        "beta": 1.0, "tau": (0.1, 0.1), "rates": (0.05, 0.10, 0.10), "clip": (0.98, 2.5),
        "normaliser": "joint", "step": "fixed",
    },
    "report": {
        "variant": "rw", "tau": (0.05, 0.05), "rates": (5.0, 1.0, 0.0), "beta": 1.0,
        "clip": (1e-3, 1e3), "step": "fixed",
        "attack": PGD(eps=16 / 255, step_size=1 / 255, steps=20), "weights": "softmax",
        "accumulate": False, "boundary": "flips",
        "boundary_loss": "prediction", "centred": False, "update_every": 1,
    },
}
