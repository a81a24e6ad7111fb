"""A training method is a frozen dataclass with a loss and, where it needs one, a memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError, resolve
from course_lib.fairness import Report

State = dict[str, Tensor]
Loss = Tensor | tuple[Tensor, State]  # the state: statistics, summed until the next update


@dataclass(frozen=True)
class Step:
    """The position in the training, and the only source of chance that a method may use."""

    epoch: int
    epochs: int
    batch: int
    batches: int
    generator: torch.Generator
    stats: Mapping[str, Tensor] = field(default_factory=dict)  # sums over the period that ends here


@dataclass(frozen=True)
class Method:
    """One paper; a method with a `name` is found under it in METHODS."""

    name: ClassVar[str] = ""
    # when `update` is called: None, "epoch" or a number of batches; a method may make it a field
    update_every: ClassVar[Any] = None
    # the report that `update` reads: "errors", "flips" (these count changed predictions too) or ""
    wants_report: ClassVar[str] = "errors"
    # what fields may be: ("variant", the names to choose from), or a text such as "0 <= mix <= 1"
    limits: ClassVar[tuple[Any, ...]] = ()
    # class name and constants in the digests of a method that was once part of another class
    RECORDED_AS: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if name := vars(cls).get("name"):
            other: Any = METHODS.get(name, cls)
            if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
                raise CourseError(f"A method is called {name!r} already, {other.__module__}."
                                  f"{other.__qualname__}. Give {cls.__qualname__} another name.")
            METHODS[name] = cls

    def __post_init__(self) -> None:
        resolve("course_lib.judge.kinds:check_fields")(self)

    def init_state(self, n_classes: int) -> State:
        """The memory before the first batch: a dict of tensors, saved with every checkpoint."""
        return {}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: State, at: Step) -> Loss:
        """The loss of a batch, or the loss and statistics for `Step.stats` of the next update."""
        raise NotImplementedError

    def update(self, state: State, report: Report | None, at: Step) -> State:
        """The memory for the coming period, from the report on validation data if there is one."""
        return state


METHODS: dict[str, Callable[..., Method]] = {}
