"""The only optimiser loop. What it needs to go on exactly where it was is one dictionary.
 Everything random is derived from (seed, epoch, batch): the order of an epoch, the noise of a
batch. So a checkpoint holds weights, the optimiser's moments, the method's memory, the position and
the history, and no generator at all.
 Under torchrun (see parallel.py) each process takes its share of every batch, with noise of its
own, and after each batch all hold the same: the mean gradient, running averages, sums of
statistics. So the first one's checkpoint is everybody's.
"""

from __future__ import annotations

import hashlib
import io
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from course_lib.checkpoints import SaveError
from course_lib.data import AUGMENTATIONS, Dataset, Split, augment, batches
from course_lib.errors import CourseError, pick, whole
from course_lib.fairness import Report
from course_lib.inference import check_fit
from course_lib.lab import torchrun as parallel
from course_lib.machine import kernels
from course_lib.methods import Method, Step

FORMAT = 1  # of checkpoints; counts up when their meaning changes


@dataclass(frozen=True)
class Optim:
    """The optimiser as data. `drops` holds (epoch, factor): from that epoch on the rate is lr *
    factor."""

    name: str = "adam"
    lr: float = 1e-3
    batch: int = 100
    drops: tuple[tuple[int, float], ...] = ()
    momentum: float = 0.0
    weight_decay: float = 0.0
    # how each batch is changed before the loss; a name in AUGMENTATIONS
    augment: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        pick(OPTIMISERS, self.name, "optimiser")
        pick(AUGMENTATIONS, self.augment, "augmentation")
        whole(self.batch, "batch size", 1)
        if not 0 < self.lr < math.inf:
            raise CourseError(f"The learning rate is {self.lr}; it must be a positive number, such "
                              "as 1e-3.")
        for word, value in (("momentum", self.momentum), ("weight decay", self.weight_decay)):
            if not 0 <= value < 1:
                raise CourseError(f"The {word} is {value}; it must be a number from 0 to below 1.")

    def make(self, model: nn.Module) -> torch.optim.Optimizer:
        return OPTIMISERS[self.name](model, self)

    def rate(self, epoch: int) -> float:
        return self.lr * next((f for e, f in reversed(self.drops) if epoch >= e), 1.0)


OPTIMISERS: dict[str, Callable[[nn.Module, Optim], torch.optim.Optimizer]] = {
    "adam": lambda m, o: torch.optim.Adam(m.parameters(), o.lr, weight_decay=o.weight_decay,
                                          fused=True),
    "sgd": lambda m, o: torch.optim.SGD(m.parameters(), o.lr, momentum=o.momentum,
                                        weight_decay=o.weight_decay, fused=True),
}


def divided(by: float, every: int, epochs: int) -> tuple[tuple[int, float], ...]:
    """The report's schedule: the rate divided `by` so much `every` so many epochs.

    >>> divided(3, every=4, epochs=15)[:2]
    ((4, 0.3333333333333333), (8, 0.1111111111111111))
    """
    return tuple((e, by ** -(e // every)) for e in range(every, epochs, every))


class Checkpoints(Protocol):
    """What `fit` asks of a store; checkpoints.Store is one."""

    def open(self, identity: dict[str, Any], environment: dict[str, Any]) -> None: ...
    def latest(self) -> tuple[int, dict[str, Any]] | None: ...
    def save(self, step: int, state: dict[str, Any]) -> None: ...
    @property
    def status(self) -> str: ...
    def close(self) -> None: ...


@dataclass
class Run:
    """A trained model and what happened on the way, one entry an epoch."""

    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0  # of training, whatever the number of sittings


def fit(model: nn.Module, method: Method, data: Dataset | Split, *, epochs: int, optim: Optim,
        seed: int,
        validate: Callable[[nn.Module, Step], Report] | None = None,
        store: Checkpoints | None = None,
        progress: bool = True, save_every: float | None = None) -> Run:
    """Train `model` in place and return it with its history; with a store, go on where an earlier
    call was stopped.

    `validate(model, at)` is called when the method wants a report; hand it validation data, never
    test data. It is saved at the end of each epoch, when it is stopped, and every `save_every`
    seconds: by default a minute, or a hundred times what the last save took, so that saving costs a
    large network one part in a hundred at most; but ten minutes, if need be at a higher price.
    """
    train = data.train if isinstance(data, Dataset) else data
    if not len(train):
        raise CourseError("The training split is empty; training needs one image at least.")
    whole(epochs, "epochs", 0)
    t = _Training(model, method, train, epochs, optim, whole(seed, "seed", 0), validate)
    with _Keeper(t, store, save_every, progress) as keeper:
        while t.epoch < epochs:
            for x, y, weight in t.rest_of_epoch():
                t.update_method()
                t.step(*t.gradients(x, y, weight))
                keeper.tick()
            t.end_epoch()
            keeper.save()
    return Run(model, t.history, t.seconds)


class _Training:
    """One training as a state machine whose whole state is `state()`."""

    KEPT = ("memory", "stats", "epoch", "batch", "updated", "loss_sum", "seconds", "reports",
            "history")

    def __init__(self, model: nn.Module, method: Method, train: Split, epochs: int, optim: Optim,
                 seed: int,
                 validate: Callable[[nn.Module, Step], Report] | None) -> None:
        self.model, self.method, self.train, self.epochs, self.optim = (model, method, train,
            epochs, optim)
        self.seed, self.validate, self.group = seed, validate, parallel.group()
        self.optimiser = optim.make(model)
        self.device = next(model.parameters()).device
        check_fit(model, train.images(slice(0, 1)).to(self.device), len(train.classes))
        self.memory = method.init_state(len(train.classes))
        self.epoch = self.batch = 0
        self.batches = math.ceil(len(train.y) / optim.batch)
        self.loss_sum, self.seconds, self.updated = 0.0, 0.0, False
        self.stats: dict[str, Tensor] = {}
        self.reports: list[dict[str, Any]] = []
        self.history: list[dict[str, Any]] = []
        self.whole = True  # False while a step changes the weights

    def at(self, word: str = "batch") -> Step:
        return Step(self.epoch, self.epochs, self.batch, self.batches,
                    self.generator(word, self.batch), self.stats)

    def generator(self, word: str, number: int = 0) -> torch.Generator:
        """A generator that depends on nothing but (seed, epoch, what it is for)."""
        name = f"{self.seed}/{self.epoch}/{word}/{number}".encode()
        return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:8],
                                                            "little") >> 1)

    def rest_of_epoch(self) -> Iterator[tuple[Tensor, Tensor, float]]:
        """This process's share of each batch of this epoch that has not been trained on, and how
        large a share it is."""
        self.model.train()
        done = self.batch
        for i, (x, y) in enumerate(batches(self.train, self.optim.batch, self.generator("order"))):
            if i >= done:
                x = augment(x, self.generator("augment", i), self.optim.augment)
                x, y, weight = self.group.share(x, y)
                yield x.to(self.device), y.to(self.device), weight

    def update_method(self) -> None:
        """Give the method its report before the first batch of its period; once, however often we
        are stopped here."""
        every = self.method.update_every
        if every is None or self.updated or self.batch % (self.batches if every == "epoch"
                                                          else every):
            return
        at = self.at()
        report = self.report(at)
        memory = self.method.update(self.memory, report, at)
        self.memory, self.stats, self.updated = memory, {}, True
        if report is not None and self.batch == 0:  # the history keeps the first report of an epoch
            self.reports.append({"batch": self.batch, **report.to_json()})

    def report(self, at: Step) -> Report | None:
        """Found by the first process alone, and handed to the others."""
        with self.group.together():
            report = self.validate(self.model, at) if self.validate and self.group.first else None
        return self.group.from_first(report)

    def gradients(self, x: Tensor, y: Tensor, weight: float) -> tuple[float, dict[str, Tensor]]:
        """The loss and its statistics; the gradients are in the parameters. When it fails, the
        model's running averages are put back."""
        before = [b.clone() for b in self.model.buffers()]
        try:
            with self.group.together():
                loss, stats = self.loss(x, y)
                self.optimiser.zero_grad(set_to_none=True)
                loss.backward()
            loss = loss.detach()
            if self.group.size > 1:
                loss, stats = self.exchanged(loss.clone(), stats, before, weight)
        except BaseException:
            for now, then in zip(self.model.buffers(), before, strict=True):
                now.data.copy_(then)
            raise
        return loss.item(), stats

    def loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        g = self.group
        at = self.at("batch" if g.size == 1 else f"batch, process {g.rank} of {g.size}")
        out = self.method.loss(self.model, x, y, self.memory, at)
        loss, stats = out if isinstance(out, tuple) else (out, {})
        if not torch.isfinite(loss):
            raise CourseError(
                f"The loss became {loss.item()} in epoch {self.epoch + 1}, batch {self.batch + 1}. "
                "Try a smaller learning rate."
            )
        return loss, stats

    def exchanged(self, loss: Tensor, stats: dict[str, Tensor], before: list[Tensor],
                  weight: float) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss, gradients and running averages (what has changed in them) become the means over all
        processes, statistics the sums."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        averages = [(now, then) for now, then in zip(self.model.buffers(), before, strict=True)
                    if now.is_floating_point()]
        changes = [now - then for now, then in averages]
        self.group.mean([loss, *gradients, *changes], weight)
        for (now, then), change in zip(averages, changes, strict=True):
            now.data.copy_(then + change)
        return loss, self.group.total(stats, weight)

    def step(self, loss: float, stats: dict[str, Tensor]) -> None:
        self.whole = False
        for group in self.optimiser.param_groups:
            group["lr"] = self.optim.rate(self.epoch)
        self.optimiser.step()
        for k, v in stats.items():
            self.stats[k] = self.stats[k].to(
                v.device) + v.detach() if k in self.stats else v.detach().clone()
        self.loss_sum += loss
        self.batch, self.updated, self.whole = self.batch + 1, False, True

    def end_epoch(self) -> None:
        self.whole = False
        self.history.append(self.summary())
        self.epoch, self.batch, self.loss_sum, self.reports = self.epoch + 1, 0, 0.0, []
        self.whole = True

    def summary(self) -> dict[str, Any]:
        memory = {k: v.tolist() for k, v in self.memory.items()}
        return {"epoch": self.epoch + 1, "loss": self.loss_sum / self.batches,
                "lr": self.optim.rate(self.epoch),
                "state": memory, "validation": self.reports}

    def position(self) -> int:
        """How many batches have been trained on."""
        return self.epoch * self.batches + self.batch

    def state(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.KEPT}
        return {"model": self.model.state_dict(), "optim": self.optimiser.state_dict(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optim"])
        for name in self.KEPT:
            setattr(self, name, state[name])

    def as_the_first(self) -> None:
        """Stand where the first process stands, whatever it went on from."""
        if self.group.size > 1:
            file = io.BytesIO()
            torch.save(self.state() if self.group.first else None, file)
            state = torch.load(io.BytesIO(self.group.from_first(file.getvalue())),
                               weights_only=True, map_location="cpu")
            self.restore(state)

    def identity(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be this training's."""
        shapes = {name: tuple(v.shape) for name, v in self.model.state_dict().items()}
        # repr leaves that out, so that checkpoints from before it are known
        optim = repr(self.optim) + self.optim.augment
        return {"format": FORMAT, "model": f"{type(self.model).__name__} {shapes}",
                "method": repr(self.method), "optim": optim,
                "epochs": self.epochs, "seed": self.seed, "data": self.train.digest(),
                "classes": ", ".join(self.train.classes),
                **_processes(self.group.size)}


def environment() -> dict[str, Any]:
    """What may differ, but then the last digits may, too."""
    native, group = kernels(), parallel.group()
    kernel = native and native.library()
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "kernel": "PyTorch" if kernel is None else Path(kernel._name).stem,
            **_processes(group.size),
            **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})}


def _processes(number: int) -> dict[str, Any]:
    """One process says nothing of it, with torchrun and without: it does the same."""
    return {"processes of torchrun": number} if number > 1 else {}


class _Keeper:
    """Saves a training by the clock, at each epoch's end and when it is stopped, and shows how far
    it is.

    The first SIGINT or SIGTERM waits for the end of the batch; a second one does not. Among several
    processes all stop at the end of the same batch, and a second one changes nothing, since
    torchrun may send it beside Slurm's; the first process saves.
    """

    def __init__(self, t: _Training, store: Checkpoints | None, every: float | None,
                 progress: bool) -> None:
        self.t, self.store, self.asked, self.every = (t, store if t.group.first else None, every,
                                                      60.0 if every is None else every)
        self.stop: int | None = None  # the signal that asked us to stop
        self.handlers: dict[int, Any] = {}
        self.wants = [(p, p.requires_grad) for p in t.model.parameters()]
        with t.group.together():
            self.open()
        t.as_the_first()
        self.saved, self.saved_at = (t.position() if self.store and t.position()
                                     else -1), time.monotonic()
        self.began = time.monotonic() - t.seconds
        progress = progress and t.group.first
        self.bar = tqdm(total=t.epochs * t.batches, initial=t.position(), unit="batch",
                        disable=not progress, desc=t.method.name)
        if progress and (lines := self.where()):
            self.bar.write("; ".join(lines), file=self.bar.fp)  # standard output is for results

    def open(self) -> None:
        if self.store is not None:
            self.store.open(self.t.identity(), environment())
            if (found := self.store.latest()) is not None:
                self.t.restore(found[1])

    def where(self) -> list[str]:
        """saving in runs/exp1; resuming at epoch 7, batch 212 of 480 (61 %, about 2 min left)"""
        t, total = self.t, self.t.epochs * self.t.batches
        saving = [f"saving in {place}"] if (place := getattr(self.store, "dir", None)) else []
        if not t.position():
            return saving
        if t.position() >= total:
            return [f"already finished: {t.epochs} epochs"]
        left = t.seconds / t.position() * (total - t.position())
        time_left = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        share = f"{t.position() / total:.0%}, about {time_left} left"
        return [*saving,
                f"resuming at epoch {t.epoch + 1}, batch {t.batch} of {t.batches} ({share})"]

    def tick(self) -> None:
        """After every batch: is it time to save, or to stop?"""
        self.bar.update()
        if self.t.group.any(self.stop is not None):
            raise KeyboardInterrupt
        if time.monotonic() - self.saved_at >= self.every:
            self.save()

    def save(self) -> None:
        """A save that fails warns; training goes on, and the last good checkpoint stays."""
        t, began = self.t, time.monotonic()
        t.seconds = began - self.began
        if self.store is None or t.position() == self.saved:
            return
        try:
            self.store.save(t.position(), t.state())
            self.saved = t.position()
        except SaveError as e:
            warnings.warn(
                f"This checkpoint was not saved; training goes on and will try again. {e}",
                stacklevel=2)
        self.saved_at = time.monotonic()
        if self.asked is None:
            self.every = min(max(60.0, 100 * (self.saved_at - began)), 600.0)
        self.bar.set_postfix_str(self.store.status)

    def __enter__(self) -> _Keeper:
        def caught(number: int, frame: Any) -> None:
            if self.stop is not None and self.t.group.size == 1:
                raise KeyboardInterrupt
            self.stop = number

        if threading.current_thread() is threading.main_thread():
            self.handlers = {s: signal.signal(s, caught) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        """Whatever ended the training, the last whole state is saved and everything borrowed is
        given back."""
        try:
            if self.t.whole:
                self.save()
        finally:
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            for p, want in self.wants:
                p.requires_grad_(want)
            self.bar.close()
            if self.store is not None:
                self.store.close()
