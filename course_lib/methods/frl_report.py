"""FRL as the reproduction report describes it: class weights by softmax, and no memory."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.errors import CourseError
from course_lib.fairness import Report
from course_lib.methods.base import Method, State, Step
from course_lib.methods.frl import VARIANTS, even, gaps


@dataclass(frozen=True)
class FRLReport(Method):
    """The report's scheme. Nothing is carried over from one check to the next.

        w_i = softmax(1 + a (gap_i - tau))     eps_i = eps exp(a3 (err_flip(i) - tau2))
        L = sum_b w0 CE(f(x), y) / sum_b w0 + sum_b w1 CE(f(x'), argmax f(x)) / sum_b w1

    err_flip(i) is the share of class i whose prediction the attack changes. The second term takes
    the weight of the predicted class. A constant cancels in the softmax: tau moves margins only.

    Where we differ, and why:
    - The report's code checks on images that its hot start was trained on, and divides the mean
      error by one batch too many. Ours does neither.
    - The report's Remargin trains on shuffled labels by mistake. Ours attacks whole batches and has
      predicted labels, as its text can be read. FRLReportMended is its code without the mistake.
    """

    name = "frl_report"
    wants_report = "flips"
    limits = (("variant", VARIANTS), "0 <= rates <= inf")
    RECORDED_AS: ClassVar[dict[str, Any]] = {
        "kind": "FRL", "beta": 1.0, "clip": (1e-3, 1e3), "step": "fixed", "weights": "softmax",
        "accumulate": False, "boundary": "flips", "boundary_loss": "prediction", "centred": False}

    variant: str = "rw"  # rw: Reweight, rm: Remargin, rmrw: both
    tau: tuple[float, float] = (0.05, 0.05)  # tolerated gaps: standard error, flips
    rates: tuple[float, float, float] = (5.0, 1.0, 0.0)  # a1, a2 (weights), a3 (margins)
    attack: PGD = PGD(eps=16 / 255, step_size=1 / 255, steps=20)
    update_every: Any = 1  # type: ignore[misc]  # batches, or "epoch"

    def init_state(self, n_classes: int) -> State:
        return even(n_classes)

    def update(self, state: State, report: Report | None, at: Step) -> State:
        if report is None or report.flips is None:
            raise CourseError("FRLReport counts changed predictions on validation data; pass a "
                              "validate= to fit that calls evaluate with flips=True.")
        a1, a2, a3 = (a * on for a, on in zip(self.rates, VARIANTS[self.variant], strict=True))
        # w_i = softmax(1 + a (err(i) - err - tau)) for the standard error and the flips
        w0 = torch.softmax(1 + a1 * gaps(report.nat, self.tau[0]), 0)
        w1 = torch.softmax(1 + a2 * gaps(report.flips, self.tau[1]), 0)
        # eps_i = eps exp(a3 (err_flip(i) - tau2)), kept finite
        flips = torch.tensor(report.flips.by_class, dtype=torch.float32)
        margin = torch.exp(a3 * (flips - self.tau[1])).clamp(1e-3, 1e3)
        return {"w0": w0, "w1": w1, "margin": margin}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        w0, w1, margin = (state[k].to(x.device) for k in ("w0", "w1", "margin"))
        eps = (self.attack.eps * margin[y]).clamp(max=1)
        z = self.attack(model, x, y, eps=eps, generator=at.generator)
        clean, attacked = model(x), model(z)
        predicted = clean.detach().argmax(1)
        natural = F.cross_entropy(clean, y, reduction="none")
        boundary = F.cross_entropy(attacked, predicted, reduction="none")
        a, b = w0[y], w1[predicted]
        # sum_b w0 CE(f(x), y) / sum_b w0 + sum_b w1 CE(f(x'), argmax f(x)) / sum_b w1
        return (a * natural).sum() / a.sum() + (b * boundary).sum() / b.sum()


@dataclass(frozen=True)
class FRLReportMended(FRLReport):
    """The report's Remargin as its code would be with the labels in the right order.

    Half of each batch x~ is attacked, and all labels are the true ones:

        L = sum_b w0 CE(f(x), y) / sum_b w0 + 1/B sum_b CE(f(x~), y)

    Its code shuffles x~ with its labels, but compares f(x~) with the labels in their old order.
    """

    name = "frl_report_mended"
    RECORDED_AS: ClassVar[dict[str, Any]] = {}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Tensor:
        a, margin = (state[k].to(x.device)[y] for k in ("w0", "margin"))
        half, eps = len(y) // 2, (self.attack.eps * margin).clamp(max=1)
        z = self.attack(model, x[half:], y[half:], eps=eps[half:], generator=at.generator)
        natural = F.cross_entropy(model(x), y, reduction="none")
        # sum_b w0 CE(f(x), y) / sum_b w0 + 1/B sum_b CE(f(x~), y)
        return (a * natural).sum() / a.sum() + F.cross_entropy(model(torch.cat([x[:half], z])), y)
