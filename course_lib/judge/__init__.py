"""One judge of every evaluation: it takes what people have, and says what makes figures doubtful.

Gradients are looked at on a hundred images only, so that judging costs next to nothing.
"""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.attacks import OBJECTIVES, PGD
from course_lib.autoattack import CLASSES, SLACK, AutoAttack
from course_lib.data import Dataset, Split
from course_lib.errors import CourseError, CourseWarning, resolve
from course_lib.fairness import Report
from course_lib.inference import check_images, frozen, logits_of

LOOK = 100  # images on which gradients are checked
BLIND = 0.1  # we warn if a larger share of them has no usable gradient


def examination(name: str) -> tuple[tuple[str, float], ...]:
    """The attacks and budgets under which the models of a recipe are examined."""
    recipe = resolve("course_lib.experiments:RECIPES").get(name.partition("@")[0])
    return (recipe and recipe.examination) or (("pgd20", 8 / 255),)


def given(model: Any, split: Any, attack: Any, name: str,
          seed: int) -> tuple[nn.Module, Split, Any, str]:
    """A network, examples, an attack and its name, from all that `evaluate` takes."""
    eps = None
    if isinstance(model, str):
        attack, eps = examination(model)[0] if attack is None else (attack, None)
        model = resolve("course_lib.zoo:load_model")(model, seed=seed)
    if not isinstance(model, nn.Module):
        raise CourseError(f"The model is {type(model).__name__}; give a torch.nn.Module or the "
                          "name of a stored model, such as 'exp1/pgd-at'.")
    split = split.test if isinstance(split, Dataset) else split
    if not isinstance(split, Split):
        split = Split.of(split)
    if isinstance(attack, str):
        name, attack = name or attack, resolve("course_lib.evaluation:named")(attack, eps)
    elif isinstance(attack, Real) and not isinstance(attack, bool):
        attack = PGD().at(attack if isinstance(attack, int) else float(attack))
    elif attack is None or attack is PGD or attack is AutoAttack:
        attack = (attack or PGD)()
    return model, split, attack if isinstance(attack, PGD | AutoAttack) else Foreign(attack), name


class Foreign:
    """An attack that is not the course's: `attack(model, x, y)`, or bound to a model as
    `attack(x, y)`, or foolbox's with its budget, functools.partial(attack, epsilons=8 / 255)."""

    def __init__(self, attack: Any) -> None:
        if type(getattr(attack, "func", attack)).__module__.startswith("foolbox"):
            attack = _of_foolbox(attack)
        self.attack = getattr(attack, "run_standard_evaluation", attack)
        if not callable(self.attack) or isinstance(self.attack, type):
            raise CourseError(f"The attack is {getattr(attack, '__name__', type(attack).__name__)};"
                              " give a name such as 'pgd20', a budget such as 8 / 255, an attack "
                              "such as PGD(8 / 255), or a function attack(x, y).")
        words = inspect.signature(self.attack).parameters.values()
        required = [p for p in words if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
                    and p.default is p.empty]
        self.bound = 0 < len(required) < 3
        self.seeded = any(p.name == "generator" or p.kind is p.VAR_KEYWORD for p in words)
        self.farthest, self.claimed = 0.0, 0.0
        with suppress(AttributeError, CourseError):  # it claims none, or one of another norm
            self.claimed = PGD(eps=getattr(attack, "epsilon", None) or attack.eps).eps

    @property
    def eps(self) -> float:
        """The budget that it claims, if the largest change fits that; else the largest change."""
        fits = self.claimed / 2 <= self.farthest <= self.claimed + SLACK
        return self.claimed if fits else self.farthest

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *,
                 generator: torch.Generator) -> Tensor:
        options = {"generator": generator} if self.seeded and not self.bound else {}
        gpus = range(torch.cuda.device_count())
        with frozen(model), torch.enable_grad(), torch.random.fork_rng(devices=gpus):
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            try:
                z = self.attack(*[model][self.bound:], x.clone(), y, **options)
            except TypeError as e:
                raise CourseError(f"The attack cannot be called: {e}. It must take (x, y) or "
                                  "(model, x, y).") from e
        z = z[0] if isinstance(z, tuple) else z  # pyautoattack adds an accuracy
        if not isinstance(z, Tensor) or z.shape != x.shape:
            raise CourseError(f"The attack gave {type(z).__name__}; it must give a tensor of images"
                              f" in [0, 1], of shape {tuple(x.shape)}.")
        z = check_images(torch.where((z < 0) & (z >= -SLACK) | (z > 1) & (z <= 1 + SLACK),
                                     z.clamp(0, 1), z).to(x))
        self.farthest = max(self.farthest, float((z - x).abs().max()))
        return z


def _of_foolbox(attack: Any) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    if not (keywords := getattr(attack, "keywords", {})).get("epsilons"):
        raise CourseError("An attack of foolbox's needs its budget. Give functools.partial(attack, "
                          "epsilons=8 / 255).")

    def attacked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        from foolbox import PyTorchModel

        return attack(PyTorchModel(model, (0, 1), device=x.device), x, y)[1]  # within the budget

    vars(attacked)["eps"] = keywords["epsilons"]
    return attacked


def classes_for(attacks: Sequence[str], model: nn.Module, x: Tensor) -> int:
    """How many classes the model tells apart; an error where they are too few for these attacks of
    AutoAttack's, or where it cannot take such images."""
    if x.ndim != 4 or x.dtype != torch.float32:
        raise CourseError("AutoAttack takes float32 images of shape [B, C, H, W]; these are "
                          f"{x.dtype} of shape {tuple(x.shape)}.")
    with torch.no_grad():
        classes = logits_of(model, x[:1]).shape[1]
    if (needed := max(CLASSES[name] for name in attacks)) > classes:
        able = tuple(name for name in ("apgd-ce", "apgd-dlr", "fab-t", "square")
                     if CLASSES[name] <= classes)
        raise CourseError(f"This AutoAttack needs {needed} classes, but the model has "
                          f"{classes}. Use AutoAttack(attacks={able}).")
    return classes


def judged(evaluated: Callable[[Any], Report], model: nn.Module, split: Split,
           attack: Any) -> Report:
    """The report of an attack, with the warnings that it deserves; Python shows them, too.

    `evaluated` gives the report of any attack. It is called once more where gradients vanish.
    """
    report = evaluated(attack)
    remarks = (*_of_attack(report, split, attack), *_of_model(evaluated, report, model, split,
                                                              attack))
    for remark in remarks:
        warnings.warn(remark, CourseWarning, stacklevel=4)
    return dataclasses.replace(report, warnings=remarks)


def _of_attack(report: Report, split: Split, attack: Any) -> Iterator[str]:
    if sum(report.rob.wrong) < sum(report.nat.wrong):
        yield "Robust error is below standard error: the attacked images help the model."
    if getattr(attack, "claimed", 0) not in (0, report.eps):
        yield (f"The attack claims eps = {attack.claimed:.4g} and changes inputs by up to "
               f"{report.eps:.4g} (recorded). Did it leave the ball, or use another norm?")
    if not isinstance(attack, PGD):
        return
    if (reach := attack.steps * attack.step_size) < attack.eps * (1 - 1e-9):
        yield (f"Weak attack: its {attack.steps} steps of {attack.step_size:.3g} reach {reach:.3g} "
               f"at most, and the budget is {attack.eps:.3g}. Take more or larger steps.")
    if attack.bf16:
        yield "The attack computed in bfloat16, which is for training, not for published figures."
    if split.x.ndim == 2 and not attack.scale:
        yield ("A table was attacked in the units of images, the same for every feature. Give "
               "PGD(scale=...), one number per feature; for Adult take 'pgd20-adult'.")


def _of_model(evaluated: Callable[[Any], Report], report: Report, model: nn.Module, split: Split,
              attack: Any) -> Iterator[str]:
    where = next(model.parameters(), torch.empty(0)).device
    places = torch.linspace(0, len(split.y) - 1, min(LOOK, len(split.y))).long()
    x, y = split.images(places).to(where), split.y[places].to(where)
    by_margin = getattr(attack, "objective", "ce") == "margin"
    with torch.enable_grad(), frozen(model):
        z = x.detach().requires_grad_()
        logits = logits_of(model, z, y)
        loss = OBJECTIVES["margin" if by_margin else "ce"](logits, y, logits).sum()
        slope = torch.autograd.grad(loss, z)[0] if logits.requires_grad else torch.ones_like(z)
        again = torch.cat([logits_of(model, part).softmax(1).detach() for part in x.chunk(2)])
    p = logits.detach().softmax(1)
    if not logits.isfinite().all():
        yield "Some logits are infinite; losses and gradients mean nothing there."
    elif ((p - again).abs() > 0.05).any():
        yield ("The model's answers change from pass to pass, or with the other images in a batch, "
               "in eval mode too: is dropout or batch norm still as in training?")
    right, zero = p.argmax(1) == y, (slope == 0).flatten(1).all(1)
    # p_y = 1 in floating point: -log p_y and its gradient are rounded away
    blind = zero if by_margin else zero | (p.gather(1, y[:, None])[:, 0] == 1)
    many = BLIND * right.sum()
    if isinstance(attack, AutoAttack) or not report.eps or blind[right].sum() <= many:
        return
    remark = (f"The gradient of the attack's loss is zero, or rounded away by saturated logits, on "
              f"{blind[right].float().mean():.0%} of the images that the model gets right.")
    if not by_margin and report.eps <= 1:
        pgd = attack if isinstance(attack, PGD) else PGD().at(report.eps)
        other = evaluated(dataclasses.replace(pgd, objective="margin")).rob.mean
        if other < report.rob.mean + 0.01 and zero[right].sum() <= many:
            return  # the signs, which are all that PGD uses, are still right
        remark += (f" The margin loss (as in 'cw20') gives a robust error of {other:.1%} instead "
                   f"of {report.rob.mean:.1%}.")
    yield remark
