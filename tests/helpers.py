"""Small builders that several test files share."""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib import LOADERS, METHODS, PGD, RECIPES, Dataset, Optim, Split, build
from course_lib.autoattack import AutoAttack
from course_lib.fairness import Errors, Report
from course_lib.methods.base import Method, State, Step
from course_lib.recipes import Recipe
from course_lib.zoo import model_files

THREE = ("cat", "dog", "frog")


class Linear(nn.Module):
    """f(x) = W vec(x) + b, for which much can be solved by hand."""

    def __init__(self, shape: tuple[int, ...] = (1, 2, 2), classes: int = 2, seed: int = 0,
                 dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        n = int(np.prod(shape))
        self.weight = nn.Parameter(torch.randn(classes, n, generator=g,
                                               dtype=torch.float64).to(dtype))
        self.bias = nn.Parameter(torch.randn(classes, generator=g,
                                             dtype=torch.float64).to(dtype) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T + self.bias


class Small(nn.Module):
    """A network with all that an attack or a training could disturb: norms, dropout, modes."""

    def __init__(self, classes: int = 3, seed: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.drop = nn.Dropout(dropout)
            self.head = nn.Linear(4 * 6 * 6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.norm(self.conv(x)))).flatten(1))


@dataclasses.dataclass(frozen=True)
class Remembering(Method):
    """Has all that a checkpoint must hold: chance, statistics summed over a period, a memory,
    reports. `before` and `after` are called around each loss, `first` in each update."""

    update_every: Any = None
    before: Callable[[Step], None] = dataclasses.field(default=lambda at: None, repr=False)
    after: Callable[[Step], None] = dataclasses.field(default=lambda at: None, repr=False)
    first: Callable[[Step], None] = dataclasses.field(default=lambda at: None, repr=False)

    def init_state(self, n_classes: int) -> State:
        return {"weight": torch.ones(n_classes), "updates": torch.zeros((), dtype=torch.int64)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Any:
        self.before(at)
        logits = model((x + 0.1 * torch.randn(x.shape, generator=at.generator)).clamp(0, 1))
        wrong = F.one_hot(y, 3).T.float() @ (logits.argmax(1) != y).float()
        self.after(at)
        losses = F.cross_entropy(logits, y, reduction="none") * state["weight"][y]
        return losses.mean(), {"wrong": wrong, "seen": torch.bincount(y, minlength=3)}

    def update(self, state: State, report: Report | None, at: Step) -> State:
        self.first(at)
        weight = state["weight"]
        if at.stats:
            weight = weight + at.stats["wrong"] / at.stats["seen"].clamp(min=1)
        if report is not None:
            weight = weight + torch.tensor(report.rob.by_class, dtype=torch.float32)
        return {"weight": weight / weight.mean() + 0.01 * torch.rand(3, generator=at.generator),
                "updates": state["updates"] + 1}


class QuickJudge(AutoAttack):
    """AutoAttack with ten iterations, where it need not be strong."""

    def _judge(self, *given: Any, **words: Any) -> Any:
        judge = super()._judge(*given, **words)
        judge.apgd.n_iter, judge.apgd.n_restarts = 10, 1
        return judge


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, shape: tuple[int, ...] = (1, 6, 6), *, seed: int = 0,
           dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(n, *shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def labels(n: int, classes: int = 3) -> Tensor:
    return torch.arange(n) % classes


def split(n: int = 26, shape: tuple[int, ...] = (1, 6, 6), classes: tuple[str, ...] = THREE,
          seed: int = 0) -> Split:
    return Split(images(n, shape, seed=seed), labels(n, len(classes)), classes)


def tiny_dataset(root: object = None, limit: int | None = None, seed: int = 0) -> Dataset:
    """A data set for LeNet-5 that trains in a blink; has the signature of a loader."""
    n = 24 if limit is None else limit
    parts = [split(k, (1, 32, 32), seed=s) for s, k in enumerate((n, 9, 12))]
    return Dataset("tiny", THREE, parts[2], lambda: (parts[0], parts[1]))


def report(nat: tuple[int, ...] = (1, 5, 3), rob: tuple[int, ...] = (4, 9, 6),
           counts: tuple[int, ...] = (10, 10, 20), attack: str = "pgd20",
           eps: float = 8 / 255) -> Report:
    return Report(Errors(nat, counts), Errors(rob, counts), THREE, attack, eps)


def record(name: str = "tiny/first", seed: int = 0, *reports: Report, data: str = "tiny",
           **more: Any) -> dict[str, Any]:
    """A record of a LeNet-5 of three classes, with these reports."""
    made = {"model": "lenet5", "classes": list(THREE),
            "recipe": {"dataset": data, "method": {"name": "pgd_at"}}}
    return {"recipe": name, "seed": seed, "made_from": made,
            "reports": [r.to_json() for r in reports], **more}


def contents(root: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != ".lock"}


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Equal to the bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[k], other[k]) for k in mine)


def random_states() -> tuple[Any, ...]:
    """The state of every global source of chance, comparable with ==."""
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), kind, keys.tolist(), *rest


def belongings(model: nn.Module) -> dict[str, Any]:
    """All of a model that an attack must leave alone."""
    return {
        "modes": [m.training for m in model.modules()],
        "wants": [p.requires_grad for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "values": {k: v.tolist() for k, v in model.state_dict().items()},
        "chance": random_states(),
    }


@contextmanager
def left_alone(model: nn.Module) -> Iterator[None]:
    """Fails when the model or the global random states differ afterwards, also after an error."""
    before = belongings(model)
    try:
        yield
    finally:
        after = belongings(model)
        assert {k for k in before if before[k] != after[k]} == set()


def failing_at(*stops: int) -> Callable[..., None]:
    """A hook that raises at these of its calls, which are counted from 1."""
    calls = itertools.count(1)

    def fail(*_: object) -> None:
        if next(calls) in stops:
            raise ArithmeticError("stopped here on purpose")

    return fail


def counted(monkeypatch: pytest.MonkeyPatch, room: Any, name: str, noted: Callable[..., Any],
            stop: int | None = None) -> list[Any]:
    """`noted` of the arguments of each call of room.name; the `stop`-th call is interrupted."""
    calls, real = list[Any](), getattr(room, name)

    def watched(*args: Any, **words: Any) -> Any:
        calls.append(noted(*args, **words))
        if len(calls) == stop:
            raise KeyboardInterrupt
        return real(*args, **words)

    monkeypatch.setattr(room, name, watched)
    return calls


def with_tiny_recipes(patch: pytest.MonkeyPatch) -> None:
    """Recipes that train in a blink: tiny/first, and tiny/second, which starts from its weights."""
    first = Recipe(
        "tiny", METHODS["natural"](), Optim(batch=8), 2, "tiny", seeds=2,
        validation=PGD(0.05, 0.05, 1), examination=(("pgd10", 2 / 255),)
    )
    second = dataclasses.replace(first, method=METHODS["pgd_at"](PGD(0.02, 0.01, 2), mix=0.5),
                                 start="tiny/first", weights=False)
    patch.setitem(LOADERS, "tiny", tiny_dataset)
    patch.setitem(RECIPES, "tiny/second", second)
    patch.setitem(RECIPES, "tiny/first", first)


def network(seed: int = 0) -> nn.Module:
    """A LeNet-5 of three classes, such as the tiny recipes begin with."""
    return build("lenet5", seed=seed, classes=3)


def drop_weights(name: str, seed: int, root: Path | None = None) -> None:
    dropped: list[Path] = []
    with model_files(root).change() as (entries, _):
        if row := entries[name][str(seed)].pop("weights", None):
            dropped.append(model_files(root).folder / row["file"])
    for path in dropped:
        path.unlink()
