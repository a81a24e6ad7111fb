"""Fair Robust Learning (Xu et al., ICML 2021): class weights and class margins as dual variables.

    min_f R_nat + R_bndy   s.t.   R_nat(i) - R_nat <= tau1,  R_bndy(i) - R_bndy <= tau2

for every class i. Before each epoch the gaps on validation data move one multiplier per class and
constraint. Multipliers become class weights (Reweight) and class budgets (Remargin).
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError, pick
from course_lib.fairness import Errors, Report
from course_lib.methods.base import State, Step
from course_lib.methods.trades import TRADES

# which of lambda 0 (natural), 1 (boundary) and 2 (margin) move
VARIANTS = {"rw": (True, True, False), "rm": (True, False, True), "rmrw": (True, True, True)}


@dataclass(frozen=True)
class FRL(TRADES):
    """The authors' dual update, by default as in their code of 2022.

        gamma_i = gap_i - tau                  lambda_i += rate gamma_i
        w_i = 1/C + lambda_i - mean(lambda)    eps_i = eps clip(exp(2 lambda_i))
        L = sum_b w0 CE(f(x), y) / sum_b w0 + beta sum_b w1 KL(p(x) || p(x')) / sum_b w1

    Where we differ, and why, beside TRADES' differences:
    - Robust means correct both clean and attacked, so the boundary error is never negative.
    - `windup=False` clips lambda2 with its margin. The authors' drifts on and is slow to return.
    - The authors halve rate0 and rate1 at epoch 40 (in 2021 also at 80 and 120). Ours are constant,
      also in authors_2021, to keep the rule simple.
    """

    name = "frl"
    limits = (("variant", VARIANTS), ("normaliser", ("separate", "joint")),
              ("step", ("largest", "fixed")), "0 <= rates <= inf", "0 <= lim <= 1",
              "0 <= beta <= inf")

    variant: str = "rmrw"  # rw: Reweight, rm: Remargin, rmrw: both
    tau: tuple[float, float] = (0.07, 0.07)  # tolerated gaps: standard, boundary error
    rates: tuple[float, float, float] = (0.05, 0.10, 0.20)  # natural, boundary, margin
    lim: float = 0.5  # the most the multipliers of one constraint may sum to
    clip: tuple[float, float] = (0.98, 3.0)  # least and largest margin
    beta: float = 1.5  # TRADES' weight of the boundary term
    natural_reweight: bool = True  # does rm move lambda0, as the authors' does?
    normaliser: str = "separate"  # of the weights in a batch: separate (2022) or joint (2021)
    step: str = "largest"  # a quarter of the batch's largest budget (2022), or "fixed" (2021)
    windup: bool = True
    update_every: Any = "epoch"  # type: ignore[misc]  # or a number of batches

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.clip[0] <= self.clip[1]:
            raise CourseError(f"clip is {self.clip}; it must be two positive numbers in order.")

    @classmethod
    def preset(cls, name: str, variant: str = "rmrw", **changes: Any) -> Self:
        """The constants of the authors' code, "authors_2022" or "authors_2021", with your changes.

        >>> FRL.preset("authors_2021", "rm").lim
        0.3
        """
        of_variant = pick(pick(PRESETS, name, "preset of FRL"), variant, f"variant in {name}")
        return cls(**{"variant": variant, **of_variant, **changes})

    def init_state(self, n_classes: int) -> State:
        return {f"lam{k}": torch.zeros(n_classes) for k in range(3)} | even(n_classes)

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if report is None:
            raise CourseError("FRL needs the errors on validation data; pass validate= to fit.")
        rates = [rate * on for rate, on in zip(self.rates, VARIANTS[self.variant], strict=True)]
        if self.variant == "rm" and not self.natural_reweight:
            rates[0] = 0.0
        gap0, gap1 = gaps(report.nat, self.tau[0]), gaps(report.bnd, self.tau[1])
        # lambda_i <- lambda_i + rate gamma_i
        lam0, lam1, lam2 = (state[f"lam{k}"] + rates[k] * gap
                            for k, gap in enumerate((gap0, gap1, gap1)))
        # those of the weights are never negative, and their sum is at most lim
        lam0, lam1 = (lam * (self.lim / lam.sum()).clamp(max=1) if lam.sum() > 0 else lam
                      for lam in (lam0.clamp(min=0), lam1.clamp(min=0)))
        # w_i = 1/C + lambda_i - mean(lambda), which sums to one
        w0, w1 = (1 / len(lam) + lam - lam.mean() for lam in (lam0, lam1))
        if not self.windup:
            lam2 = lam2.clamp(*(torch.tensor(edge).log() / 2 for edge in self.clip))
        # eps_i = eps * clip(exp(2 lambda2_i))
        margin = torch.exp(2 * lam2).clamp(*self.clip)
        return {"lam0": lam0, "lam1": lam1, "lam2": lam2, "w0": w0, "w1": w1, "margin": margin}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        a, b, margin = (state[k].to(x.device)[y] for k in ("w0", "w1", "margin"))
        eps = self.attack.eps * margin
        step = self.attack.step_size if self.step == "fixed" else eps.max() / 4
        ce, kl, *_ = self.terms(model, x, y, at, eps=eps.clamp(max=1), step_size=step)
        if self.normaliser == "joint":
            # sum_b (w0 CE + beta w1 KL) / sum_b (w0 + w1)
            return (a * ce + self.beta * b * kl).sum() / (a + b).sum()
        # sum_b w0 CE / sum_b w0 + beta sum_b w1 KL / sum_b w1
        return (a * ce).sum() / a.sum() + self.beta * (b * kl).sum() / b.sum()


def gaps(errors: Errors, tau: float) -> Tensor:
    """How far each class's error is above the mean error, beyond the tolerance tau."""
    # gamma_i = err(i) - err - tau
    return torch.tensor(errors.by_class, dtype=torch.float32) - errors.mean - tau


def even(n_classes: int) -> State:
    """Equal class weights and margins of one."""
    weight = torch.full((n_classes,), 1 / n_classes)
    return {"w0": weight, "w1": weight.clone(), "margin": torch.ones(n_classes)}


_2021: dict[str, Any] = {"beta": 1.0, "tau": (0.1, 0.1), "rates": (0.05, 0.10, 0.10),
                         "normaliser": "joint", "step": "fixed"}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "authors_2022": {"rw": {"tau": (0.1, 0.1), "clip": (0.98, 2.5)}, "rmrw": {}},  # has no rm
    "authors_2021": {"rw": _2021 | {"clip": (0.98, 2.5)}, "rmrw": _2021,
                     "rm": _2021 | {"clip": (0.98, 2.5), "lim": 0.3}},
}
