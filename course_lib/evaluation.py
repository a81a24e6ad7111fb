"""A model, a split and an attack give predictions; predictions, counted, give a Report."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.attacks import ATTACKS, PGD
from course_lib.data import Split, batches
from course_lib.errors import CourseError, integer, pick, resolve
from course_lib.fairness import Errors, Report
from course_lib.inference import check_fit, predict

NAMED: dict[str, Any] = {
    **ATTACKS,
    "pgd20-fine": PGD(0.01, 0.01 / 8),  # for the small budgets of Sooksatra and Rivas
    "pgd20-adult": "course_lib.datasets.adult:ATTACK",
    "autoattack": "course_lib.autoattack:ATTACK",
}


def named(attack: str, eps: Any = None) -> Any:
    """A named attack, under its own budget or under `eps`, such as 0.03 or "8/255"."""
    chosen = resolve(pick(NAMED, attack, "attack"))
    return chosen if eps is None else chosen.at(eps)


def evaluate(model: nn.Module | str, split: Any, attack: Any = None, *, name: str = "",
             early: bool = True, count_clean: bool = True, flips: bool = False, batch: int = 500,
             seed: int = 0, progress: bool = True) -> Report:
    """Per-class standard and robust errors, with warnings where they may mislead (judge/). `model`
    may be a stored one's name: then `seed` is its training's, too. `split` is a Dataset (its test
    split), a DataLoader or a pair (x, y); `attack` is a name, a budget, or another library's
    attack(x, y), by default PGD() or the stored recipe's own. An image is robust if the model is
    right on it with and without the attack; with `count_clean=False`, as in the papers' code, if it
    is right with the attack. With `early` PGD stops at the first wrong iterate, which counts a few
    more images as wrong: those that would have recovered. `flips` counts changed predictions, too,
    and attacks every image to the end.

    >>> evaluate("exp1/pgd-at", data.test.per_class(100))  # doctest: +SKIP
    """
    from course_lib import judge

    network, examples, chosen, name = judge.given(model, split, attack, name, seed)

    def evaluated(attack: Any) -> Report:
        answers = predictions(network, examples, attack, early=early and not flips, batch=batch,
                              seed=integer(seed, "seed", 0), name=name, progress=progress,
                              skip_wrong=count_clean and not flips)
        return counted(answers, examples.classes, name, float(attack.eps),
                       count_clean=count_clean, flips=flips)

    return judge.judged(evaluated, network, examples, chosen)


def counted(answers: Tensor, classes: tuple[str, ...], name: str, eps: float, *,
            count_clean: bool = True, flips: bool = False) -> Report:
    """The Report of `predictions`, counted class by class."""
    y, clean, attacked = answers
    # an image that is wrong when clean counts as wrong, whatever the attack does to it
    wrong = (attacked != y) | ((clean != y) & count_clean)
    counts, *errors = (tuple(y[these].bincount(minlength=len(classes)).tolist())
                       for these in (y >= 0, clean != y, wrong, attacked != clean))
    if missing := ", ".join(c for c, n in zip(classes, counts, strict=True) if not n):
        raise CourseError(f"The split holds no image of {missing}; take more, or drop the class.")
    nat, rob, flipped = (Errors(of_class, counts) for of_class in errors)
    return Report(nat, rob, classes, name, eps, flipped if flips else None)


def predictions(model: nn.Module, split: Split, attack: Any, *, early: bool = True,
                skip_wrong: bool = True, batch: int = 500, seed: int = 0,
                **options: Any) -> Tensor:
    """[3, N]: each image's label, its prediction when clean, and its prediction under attack. The
    attack is called with (model, x, y, generator=). With `early` PGD stops at the first wrong
    iterate, unless it computes in bfloat16: the iterate may be right in float32. With `skip_wrong`
    an image that is wrong when clean is not attacked. The options are those of `per_image`."""
    pgd = attack if early and isinstance(attack, PGD) and not attack.bf16 else None
    generator = torch.Generator().manual_seed(seed)

    def ys(x: Tensor, y: Tensor) -> Tensor:
        clean = predict(model, x, y)
        attacked, rest = clean.clone(), (clean == y) | (not skip_wrong)
        if rest.any():
            z = (attack(model, x[rest], y[rest], generator=generator) if pgd is None else
                 pgd.walk(model, x[rest], y[rest], generator=generator, stop=True).first_wrong)
            attacked[rest] = predict(model, z, y[rest])
        return torch.stack([y, clean, attacked])

    # a slow attack has smaller batches of its own, so that the progress bar moves
    return per_image(model, split, ys, batch=min(batch, getattr(attack, "batch", batch)), **options)


def per_image(model: nn.Module, split: Split, compute: Callable[[Tensor, Tensor], Tensor], *,
              batch: int = 500, name: str = "", progress: bool = False,
              tick: Callable[[int], object] = lambda images: None) -> Tensor:
    """compute(x, y) for every batch on the model's device, joined along the last dimension. `name`
    labels the progress bar; `tick` gets the number of images after each batch."""
    device, results = check_fit(model, split), []
    with tqdm(total=len(split), unit="image", desc=f"attack {name}".strip(),
              disable=not progress, delay=2) as bar, resolve("course_lib.machine:enough_memory")():
        for x, y in batches(split, batch):
            results.append(compute(x.to(device), y.to(device)).cpu())
            bar.update(len(y))
            tick(len(y))
    return torch.cat(results, -1)
