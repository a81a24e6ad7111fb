"""Who loses, to whom, and how soon: what Sun et al. (AAAI 2023) look at beside error rates.

    source-class fairness: does every class hold out equally long? Steps until it is misclassified,
    the diagonal of the
                           adversarial confusion matrix
    target-class fairness: are the wrong answers spread evenly? Column sums of the same matrix
    against the uniform distribution Eq. 4:                 do perturbation and distance to the
    decision boundary go together?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import OBJECTIVES, PGD
from course_lib.data import Split, batches
from course_lib.errors import CourseError, pick
from course_lib.inference import check_images, frozen, logits_of, predict

QUICK = PGD(steps=10)  # the paper's confusion matrices: 10 steps of 2/255
# its counts of steps: up to 1,000 of 0.4/255, from the image itself
SLOW = PGD(step_size=0.4 / 255, steps=1000, start="clean")


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """[C, C]: how many images of each class (row) were taken for each class (column).

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    both = torch.stack([y, predicted]) if y.shape == predicted.shape else torch.tensor([-1])
    if both.numel() and not 0 <= int(both.min()) <= int(both.max()) < classes:
        raise CourseError(f"{len(y)} labels and {len(predicted)} predictions must be alike in "
                          f"number and lie in 0 to {classes - 1}.")
    return torch.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes,
        classes)


def confusion_path(model: nn.Module, split: Split, attack: PGD = QUICK, *, batch: int = 500,
                   seed: int = 0) -> Tensor:
    """[K + 1, C, C]: the confusion matrix at each iterate z_0 .. z_K of the attack.

    Every image is attacked to the end, also one that is wrong already; z_0 is the attack's start,
    not always the clean image.
    """
    c, g = len(split.classes), torch.Generator().manual_seed(seed)
    found = torch.zeros(attack.steps + 1, c, c, dtype=torch.int64)
    for x, y in _served(model, split, batch):
        for t, (z, _) in enumerate(attack.path(model, x, y, generator=g)):
            found[t] += confusion(y, predict(model, z), c).cpu()
    return found


def shares(matrix: Tensor) -> Tensor:
    """Confusion counts [..., C, C] as shares of each source class: rows sum to one, however many
    images a class has."""
    total = matrix.sum(-1, keepdim=True)
    if (total == 0).any():
        raise CourseError("A class has no image in this confusion matrix; every class needs one at "
                          "least.")
    return matrix / total


def kept(matrix: Tensor) -> Tensor:
    """The diagonal [..., C]: the share of each class that is still right, its source-class
    fairness."""
    return shares(matrix).diagonal(dim1=-2, dim2=-1)


def targets(matrix: Tensor, *, own: bool = True) -> Tensor:
    """Column sums [..., C] of the shares, scaled to sum to one: how often each class is the answer.

    With own=False only wrong answers count: how often each class is what others are taken for.
    Nothing wrong: all zero.
    """
    s = shares(matrix)
    if not own:
        s = s - torch.diag_embed(s.diagonal(dim1=-2, dim2=-1))
    columns = s.sum(-2)
    return columns / columns.sum(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).tiny)


def from_uniform(p: Tensor) -> Tensor:
    """Total variation distance of p [..., C] from the uniform distribution, 1/2 sum |p_c - 1/C|:
    the share that would have to move."""
    return (p - 1 / p.shape[-1]).abs().sum(-1) / 2


@dataclass(frozen=True)
class Steps:
    """When each image is first misclassified; `limit` where it never was: such a count is censored,
    it says "at least"."""

    t: Tensor  # [N], 0 for an image that is wrong without an attack
    y: Tensor
    limit: int
    classes: tuple[str, ...]

    def _by_class(self, values: Tensor, among: Tensor) -> np.ndarray:
        mine = [values[among & (self.y == c)].double() for c in range(len(self.classes))]
        return np.array([float(v.mean()) if len(v) else np.nan for v in mine])

    @property
    def censored(self) -> np.ndarray:
        """The share of each class that was never misclassified."""
        return self._by_class(self.t == self.limit, torch.ones_like(self.t, dtype=torch.bool))

    @property
    def mean(self) -> np.ndarray:
        """The mean by class, a censored image counted as `limit`: a lower bound of what more steps
        would give."""
        return self._by_class(self.t, torch.ones_like(self.t, dtype=torch.bool))

    @property
    def of_the_lost(self) -> np.ndarray:
        """The mean by class over the images that were misclassified; NaN where none was."""
        return self._by_class(self.t, self.t < self.limit)


def steps_to_wrong(model: nn.Module, split: Split, attack: PGD = SLOW, *, batch: int = 500,
                   seed: int = 0) -> Steps:
    """Source-class fairness: how many steps of the attack each image withstands."""
    g = torch.Generator().manual_seed(seed)
    found = [(attack.walk(model, x, y, generator=g, stop=True).t_wrong.cpu(), y.cpu()) for x,
             y in _served(model, split, batch)]
    t, y = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Steps(t, y, attack.steps, split.classes)


def boundary_distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """d(x) [N]: the signed l-infinity distance to the decision boundary, to first order; negative
    where x is misclassified.

        d(x) = m(x) / ||grad_x m(x)||_1,   m(x) = f_y(x) - max_{j != y} f_j(x)

    For a linear model and no box this is exact. It does not change when all logits are scaled, so
    that confident and modest models can be compared; where the gradient vanishes it is infinite
    (zero where m does too).
    """
    _, m, gradient = _gradient(model, x, y, "margin")
    return torch.nan_to_num(-m / gradient.abs().flatten(1).sum(1), nan=0.0, posinf=torch.inf,
                            neginf=-torch.inf)


def gradient_size(model: nn.Module, x: Tensor, y: Tensor, objective: str = "ce") -> tuple[Tensor,
        Tensor]:
    """||grad_x L||_1 of each image [N], and the share of its pixels whose gradient is exactly zero:
    those no step moves."""
    gradient = _gradient(model, x, y, objective)[2].flatten(1)
    return gradient.abs().sum(1), (gradient == 0).double().mean(1)


def constraint(delta: Tensor, distance: Tensor, centre: Tensor | None = None) -> float:
    """C_D = (1/n) sum_i (delta_i - delta^_i) d(x_i), Eq. 4 of the paper.

    The paper leaves open how its three quantities are measured. It adapts a constraint on the
    covariance of a group's attribute with the distance to the boundary, with the perturbation in
    the attribute's place, so we read, unless told otherwise:

    - delta_i: how large a perturbation x_i takes, in attack steps until it is misclassified
      (`steps_to_wrong`);
    - delta^_i: the mean of delta over the data. Then C_D is a covariance: 0 where all images stand
      equally far. The words "mean over attack steps" can also mean each image's own mean: give it
      as `centre` [N] (see `perturbations`), with delta_i the size of the last perturbation. Then
      C_D is no covariance but a mean of distances, weighted by how the perturbation grew;
    - d(x_i): `boundary_distance`, signed, in the units of the image.
    """
    delta, distance = delta.double(), distance.double()
    if not len(delta) == len(distance) > 0 or (centre is not None and len(centre) != len(delta)):
        raise CourseError("Eq. 4 wants one perturbation and one distance an image; given: "
                          f"{len(delta)} and {len(distance)}.")
    return float(((delta - (delta.mean() if centre is None
                            else centre.double())) * distance).mean())


def between_classes(delta: Tensor, distance: Tensor, y: Tensor) -> float:
    """The part of `constraint`'s covariance that lies between classes: sum_c (n_c/n) (mean_c delta
    - mean delta) mean_c d.

    The rest lies between images of one class, about which fairness between classes says nothing.
    """
    means = {c: (delta[y == c].double().mean(), distance[y == c].double().mean())
             for c in y.unique().tolist()}
    d, far = (torch.stack([means[int(c)][k] for c in y]) for k in (0, 1))
    return constraint(d, far)


def perturbations(model: nn.Module, x: Tensor, y: Tensor, attack: PGD = QUICK) -> tuple[Tensor,
        Tensor]:
    """||z_K - x||_2 of each image, and the mean of ||z_t - x||_2 over the steps t = 1 .. K: Eq. 4
    taken by the word."""
    sizes = torch.stack([(z - x).flatten(1).norm(dim=1) for z, _ in attack.path(model, x, y)])
    return sizes[-1], sizes[1:].mean(0)


def correlation(u: np.ndarray, v: np.ndarray, *, ranks: bool = False) -> float:
    """Pearson's r, or with `ranks` Spearman's rho (ties share their rank); NaN where one of the two
    does not vary.

    >>> round(correlation(np.array([1, 2, 3]), np.array([1, 10, 100]), ranks=True), 3)
    1.0
    """
    u, v = (np.asarray(w, float) for w in (u, v))
    if u.shape != v.shape or u.ndim != 1 or len(u) < 2:
        raise CourseError("A correlation needs two rows of equally many numbers, two at least; "
                          f"given: {u.shape} and {v.shape}.")
    if ranks:
        u, v = ((w[:, None] > w).sum(1) + ((w[:, None] == w).sum(1) - 1) / 2 for w in (u, v))
    if np.ptp(u) == 0 or np.ptp(v) == 0:
        return float("nan")
    return float(np.corrcoef(u, v)[0, 1])


def _gradient(model: nn.Module, x: Tensor, y: Tensor, objective: str) -> tuple[Tensor, Tensor,
        Tensor]:
    """f(x), L(f(x), y) of each image, grad_x L, in eval mode; the model stays as it was."""
    loss_of, x = pick(OBJECTIVES, objective, "objective"), check_images(x, y)
    with torch.enable_grad(), frozen(model):
        z = x.clone().requires_grad_()
        logits = logits_of(model, z, y)
        loss = loss_of(logits, y, F.log_softmax(logits.detach(), 1))
        (gradient,) = torch.autograd.grad(loss.sum(), z)
    return logits.detach(), loss.detach(), gradient


def _served(model: nn.Module, split: Split, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The split in batches, where the model is."""
    if not len(split):
        raise CourseError("The split is empty; a diagnosis needs one image of each class at least.")
    where = next(model.parameters(), torch.empty(0)).device
    for x, y in batches(split, batch):
        yield x.to(where), y.to(where)
