"""The training loop, `fit`, and the state from which it resumes exactly.

Everything random is derived from (seed, epoch, batch): the order of an epoch, the noise of a batch.
So a checkpoint holds weights, the optimiser's moments, the method's memory, the position and the
history, and no state of a random generator.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.data import AUGMENTATIONS, Dataset, Split, batches
from course_lib.errors import CourseError, integer, resolve
from course_lib.fairness import Report
from course_lib.inference import check_fit
from course_lib.methods import Method, Step

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


@dataclass(frozen=True)
class Averaging:
    """An average of the weights after each epoch from `first` (counted from 0) replaces the
    trained weights at the end. With `accept`, an epoch counts only if each class has at least this
    robust accuracy on validation data (FAWA, Wei et al., CVPR 2023)."""

    limits = "0 <= decay < 1", "0 <= first < inf", "0 <= accept <= 1"

    decay: float = 0.85
    first: int = 0
    accept: float = 0.0

    def __post_init__(self) -> None:
        resolve("course_lib.judge.kinds:check_fields")(self)


@dataclass(frozen=True)
class Optim:
    """The optimiser as data. `drops` holds (epoch, factor): from that epoch on the rate is
    lr * factor. Over `cosine` epochs it falls to zero along a cosine. `augment` is a
    name in AUGMENTATIONS. With `averaging` an average of the weights is the trained model."""

    limits = (("name", OPTIMISERS), ("augment", AUGMENTATIONS), "0 < lr < inf", "1 <= batch < inf",
              "0 <= momentum < 1", "0 <= weight_decay < 1", "0 <= cosine < inf")

    name: str = "adam"
    lr: float = 1e-3
    batch: int = 100
    drops: tuple[tuple[int, float], ...] = ()
    momentum: float = 0.0
    weight_decay: float = 0.0
    augment: str = field(default="", repr=False)
    nesterov: bool = False
    cosine: int = 0
    averaging: Averaging | None = None

    def __post_init__(self) -> None:
        resolve("course_lib.judge.kinds:check_fields")(self)
        if (self.momentum and self.name != "sgd") or (self.nesterov and not self.momentum):
            raise CourseError(f"A momentum needs sgd, and Nesterov needs a momentum; this is "
                              f"{self.name} with {self.momentum}.")

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of these settings, for the parameters of `model`."""
        more = {"momentum": self.momentum, "nesterov": self.nesterov} if self.name == "sgd" else {}
        return OPTIMISERS[self.name](model.parameters(), lr=self.lr, fused=True,
                                     weight_decay=self.weight_decay, **more)

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, which are counted from 0."""
        lr = float(self.lr * max((d for d in self.drops if d[0] <= epoch), default=(0, 1.0))[1])
        # lr (1 + cos(pi t / T)) / 2
        return lr * (1 + math.cos(math.pi * min(epoch / self.cosine, 1))) / 2 if self.cosine else lr


@dataclass
class Run:
    """A trained model, an entry per epoch, the seconds it took, and with a store its identity."""

    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    identity: dict[str, Any] = field(default_factory=dict, repr=False)


def fit(model: nn.Module, method: Method, data: Dataset | Split, *, epochs: int, optim: Optim,
        seed: int, validate: Callable[[nn.Module, Step], Report] | None = None,
        store: Any = None, fresh: bool = False, progress: bool = True,
        save_every: float | None = None, callback: Callable[[Run], object] | None = None) -> Run:
    """Train `model` in place and return it, in eval mode, with its history.

    With a `store`, such as Store("runs/mine"), the same call resumes where an earlier one stopped;
    more `epochs` continue a finished training. It is saved after each epoch, when it is stopped,
    and every `save_every` seconds (by default a minute, or more where a save is slow); `fresh=True`
    starts a new training beside the saved one. `validate(model, at)` makes reports on
    validation data, never test data. `callback` gets the run so far after each epoch.

    >>> fit(model, METHODS["pgd_at"](), data, epochs=10, optim=Optim(), seed=0)  # doctest: +SKIP
    """
    resolve("course_lib.judge.kinds:check_training")(model, method, optim, store, validate)
    t = _Training(model, method, data.train if isinstance(data, Dataset) else data,
                  integer(epochs, "epochs", 0), optim, integer(seed, "seed", 0), validate)
    saving = resolve("course_lib.checkpoints:Saver")(t, store, save_every, progress, fresh)
    with saving as saver, resolve("course_lib.machine:enough_memory")():
        while t.epoch < epochs:
            for x, y, share in t.rest_of_epoch():
                t.update_method()
                t.step(*t.gradients(x, y, share))
                saver.tick()
            t.end_epoch()
            saver.save()
            if callback and t.group.first:
                callback(Run(model, t.history, t.seconds, t.identity))
    if t.average:
        model.load_state_dict(t.average)
    return Run(model.eval(), t.history, t.seconds, t.identity)


@dataclass(eq=False)
class _Training:
    """A training that can stop after any batch; `state()` is all that it needs to resume."""

    model: nn.Module
    method: Method
    train: Split
    epochs: int
    optim: Optim
    seed: int
    validate: Callable[[nn.Module, Step], Report] | None
    saved = ("memory", "stats", "epoch", "batch", "updated", "loss_sum", "seconds", "reports",
             "history", "began", "average")

    def __post_init__(self) -> None:
        self.device = check_fit(self.model, self.train)
        self.group, self.optimiser = processes, self.optim.make(self.model)
        self.batches = math.ceil(len(self.train.y) / self.optim.batch)
        every = self.method.update_every
        self.every = self.batches if every == "epoch" else every
        self.epoch, self.batch, self.loss_sum, self.seconds = 0, 0, 0.0, 0.0
        self.memory = self.method.init_state(len(self.train.classes))
        self.stats: dict[str, Tensor] = {}  # sums since the last update
        self.updated = False  # has the method been updated since the last batch?
        self.average: dict[str, Tensor] = {}  # of the model's state, with Optim.averaging
        self.reports: list[dict[str, Any]] = []  # of this epoch
        self.history: list[dict[str, Any]] = []
        self.identity, self.began = dict[str, Any](), ""  # with a store; the initial weights' hash
        self.consistent = True  # False while a step changes the state

    def generator(self, purpose: str, number: int = 0) -> torch.Generator:
        """A generator that depends on nothing but (seed, epoch, what it is for)."""
        digest = hashlib.sha256(f"{self.seed}/{self.epoch}/{purpose}/{number}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def at(self, suffix: str = "") -> Step:
        return Step(self.epoch, self.epochs, self.batch, self.batches,
                    self.generator("batch" + suffix, self.batch), self.stats)

    def rest_of_epoch(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """This process's part of each batch that is left, and how large a share that is."""
        self.model.train()
        change, done = resolve(AUGMENTATIONS[self.optim.augment]), self.batch
        for i, (x, y) in enumerate(batches(self.train, self.optim.batch, self.generator("order"))):
            if i >= done:
                x, y, share = self.group.share(change(x, self.generator("augment", i)), y)
                yield x.to(self.device), y.to(self.device), share

    def update_method(self) -> None:
        """Before the first batch of each period the method gets its report, once."""
        if self.every is None or self.updated or self.batch % self.every:
            return
        at = self.at()
        report = self.report(at) if self.method.wants_report else None
        memory = self.method.update(self.memory, report, at)
        if not isinstance(memory, dict):
            raise CourseError(f"{type(self.method).__name__}.update returned {memory!r}; it must "
                              "return the new memory, a dict of tensors.")
        self.memory, self.stats, self.updated = memory, {}, True

    def report(self, at: Step) -> Report | None:
        """The report on validation data; the history keeps the first one of an epoch."""
        report = self.validate(self.model, at) if self.validate and self.group.first else None
        self.model.train()
        report = self.group.from_first(report)
        if report is not None and not self.reports:
            self.reports.append({"batch": self.batch, **report.to_json()})
        return report

    @torch.random.fork_rng([])  # from which dropout draws
    def gradients(self, x: Tensor, y: Tensor, share: float) -> tuple[float, dict[str, Tensor]]:
        """The loss and its statistics; the gradients are in the parameters. After a failure the
        model's running averages are as before."""
        torch.manual_seed(self.generator("network" + self.group.suffix, self.batch).initial_seed())
        before = [b.clone() for b in self.model.buffers()]
        try:
            with resolve("course_lib.machine:seen_before")(self.batch > 0):
                out = self.method.loss(self.model, x, y, self.memory, self.at(self.group.suffix))
                loss, value, stats = resolve("course_lib.judge.kinds:check_loss")(
                    self.method, out, self.epoch, self.batch)  # for its value the host waits, once
                self.optimiser.zero_grad(set_to_none=True)
                loss.backward()
            return self.group.exchange(self.model, before, value, stats, share)
        except BaseException:
            for now, then in zip(self.model.buffers(), before, strict=True):
                now.data.copy_(then)
            raise

    def step(self, loss: float, stats: dict[str, Tensor]) -> None:
        self.consistent = False
        for parameters in self.optimiser.param_groups:
            parameters["lr"] = self.optim.rate(self.epoch)
        self.optimiser.step()
        for k, v in stats.items():
            self.stats[k] = self.stats.get(k, torch.zeros_like(v)).to(v.device) + v.detach()
        self.loss_sum += loss
        self.batch, self.updated, self.consistent = self.batch + 1, False, True

    def end_epoch(self) -> None:
        averaging, average = self.optim.averaging, self.average
        if averaging and self.epoch >= averaging.first:
            report = self.report(self.at()) if averaging.accept else None
            if report is None or report.rob.worst <= 1 - averaging.accept:
                # avg <- a avg + (1 - a) theta; the first theta is copied, and so are counters
                a, theta = averaging.decay, self.model.state_dict()
                average = {k: a * average[k].to(v.device) + (1 - a) * v
                           if average and v.is_floating_point() else v.clone()
                           for k, v in theta.items()}
        if self.validate and not self.reports:  # the method asked for none
            self.report(self.at())
        row = {"epoch": self.epoch + 1, "loss": self.loss_sum / self.batches,
               "lr": self.optim.rate(self.epoch),
               "state": {k: v.tolist() for k, v in self.memory.items()}, "validation": self.reports}
        # at once: an interrupt comes before or after
        vars(self).update(epoch=self.epoch + 1, batch=0, loss_sum=0.0, reports=[],
                          history=[*self.history, row], average=average)

    def position(self) -> int:
        """How many batches have been trained on."""
        return self.epoch * self.batches + self.batch

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optim": self.optimiser.state_dict(),
                **{name: getattr(self, name) for name in self.saved}}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optim"])
        vars(self).update({name: state[name] for name in self.saved})


# The processes that train together: this one alone. lab/torchrun.py puts its Group in this place.
processes: Any = SimpleNamespace(
    size=1, first=True, suffix="", identity=dict, any=bool, from_first=lambda thing: thing,
    share=lambda x, y: (x, y, 1.0),
    exchange=lambda model, before, loss, stats, share: (loss, stats))
