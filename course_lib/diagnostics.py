"""Source-class and target-class fairness, which Sun et al. (AAAI 2023) add to error rates.

    source class: does every class resist an attack equally long? Steps until an image is
                  misclassified, and the diagonal of the confusion matrix under attack.
    target class: are the wrong answers spread evenly? Its column sums against the uniform
                  distribution.
"""

import torch
from torch import Tensor, nn

from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.errors import CourseError
from course_lib.evaluation import per_image
from course_lib.inference import check_images, frozen, logits_of, predict
from course_lib.scores import class_means

QUICK = PGD(steps=10)  # the paper's confusion matrices: 10 steps of 2/255


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """[C, C]: how many images of each true class (row) were predicted as each class (column).

    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    both = torch.cat([y, predicted])
    if y.shape != predicted.shape or ((both < 0) | (both >= classes)).any():
        raise CourseError(f"{len(y)} labels and {len(predicted)} predictions; they must be equally "
                          f"many and lie in 0 to {classes - 1}.")
    return torch.bincount(y.long() * classes + predicted, minlength=classes**2).view(classes, -1)


def confusion_path(model: nn.Module, split: Split, attack: PGD = QUICK, *, batch: int = 500,
                   seed: int = 0) -> Tensor:
    """[K + 1, C, C]: the confusion matrix at each iterate z_0 .. z_K of the attack. Every image is
    attacked to the end. z_0 is the attack's start, which need not be the image."""
    generator = torch.Generator().manual_seed(seed)
    y, *steps = per_image(model, split, lambda x, y: torch.stack(
        [y, *[predict(model, z) for z, _ in attack.path(model, x, y, generator=generator)]]),
        batch=batch)
    return torch.stack([confusion(y, predicted, len(split.classes)) for predicted in steps])


def shares(matrix: Tensor) -> Tensor:
    """Counts [..., C, C] as shares of each true class: every row sums to one."""
    total = matrix.sum(-1, keepdim=True)
    if (total == 0).any():
        raise CourseError("A class has no image in this confusion matrix; each needs one.")
    return matrix / total


def kept(matrix: Tensor) -> Tensor:
    """Source-class fairness [..., C]: the share of each class still classified correctly."""
    return shares(matrix).diagonal(dim1=-2, dim2=-1)


def targets(matrix: Tensor, *, own: bool = True) -> Tensor:
    """Target-class fairness [..., C]: how often each class is the answer, from the column sums.
    With own=False only wrong answers count; all are zero where no answer is wrong."""
    s = shares(matrix)
    if not own:
        s = s - torch.diag_embed(s.diagonal(dim1=-2, dim2=-1))
    columns = s.sum(-2)
    return columns / columns.sum(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).tiny)


def from_uniform(p: Tensor) -> Tensor:
    """Total variation distance of p [..., C] from uniform: the share that would have to move."""
    # 1/2 sum_c |p_c - 1/C|
    return (p - 1 / p.shape[-1]).abs().sum(-1) / 2


def steps_to_wrong(model: nn.Module, split: Split, attack: PGD, *, batch: int = 500,
                   seed: int = 0) -> tuple[Tensor, Tensor]:
    """Source-class fairness: the step t [N] at which each image is first misclassified, and its
    label [N]. t is 0 where an image is wrong without an attack, and K where it never is, so that
    the mean of a class is a lower bound."""
    generator = torch.Generator().manual_seed(seed)
    t, y = per_image(model, split, lambda x, y: torch.stack(
        [attack.walk(model, x, y, generator=generator, stop=True).t_wrong, y]), batch=batch)
    return t, y


def boundary_distance(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """d(x) [N]: the signed l-infinity distance to the decision boundary, to first order; negative
    where x is misclassified. It is exact for a linear model, and scaling all logits does not change
    it. Where the gradient vanishes it is infinite, or zero if the margin does too."""
    with torch.enable_grad(), frozen(model):
        z = check_images(x, y).clone().requires_grad_()
        logits = logits_of(model, z, y)
        # m_j(x) = f_y(x) - f_j(x)
        m = logits.gather(1, y[:, None]) - logits
        grads = [torch.autograd.grad(m.sum(0)[j], z, retain_graph=True)[0] for j in range(len(m.T))]
    # d(x) = min_{j != y} m_j(x) / ||grad_x m_j(x)||_1
    d = m.detach() / torch.stack([g.abs().flatten(1).sum(1) for g in grads], 1)
    d = torch.nan_to_num(d, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    return d.scatter(1, y[:, None], torch.inf).amin(1)


def constraint(delta: Tensor, distance: Tensor) -> float:
    """C_D, Eq. 4 of the paper, from perturbations delta_i and distances d(x_i) of n images. The
    paper leaves its quantities open. We take `steps_to_wrong` as delta_i, `boundary_distance` as d,
    and the mean of delta over the data as delta^. C_D is then a covariance: 0 where all images are
    equally far away."""
    if not len(delta) == len(distance) > 0:
        raise CourseError("Eq. 4 needs one perturbation and one distance per image; given: "
                          f"{len(delta)} and {len(distance)}.")
    delta, distance = delta.double(), distance.double()
    # C_D = (1/n) sum_i (delta_i - delta^) d(x_i)
    return float(((delta - delta.mean()) * distance).mean())


def between_classes(delta: Tensor, distance: Tensor, y: Tensor) -> float:
    """The part of `constraint`'s covariance that lies between classes, not within them."""
    # sum_c (n_c/n) (mean_c delta - mean delta) mean_c d
    means = (torch.from_numpy(class_means(v, y, int(y.max()) + 1))[y.cpu()]
             for v in (delta, distance))
    return constraint(*means)
