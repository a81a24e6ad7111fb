"""One training in several processes: which of them this is, and what they tell each other.
 torchrun starts the processes and `joined` makes them a group: gloo between CPUs, nccl between
GPUs. Where nobody did, the group is of one, and nothing here does anything.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.errors import CourseError

T = TypeVar("T")
# the others wait while the first one validates; a process that dies is noticed at once all the same
PATIENCE = timedelta(days=1)


@dataclass(frozen=True)
class Group:
    """Process `rank` of `size`. Every process must make the same calls in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """The one that saves, shows and stores."""
        return self.rank == 0

    def share(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """This process's part of a batch, and its share of the whole; where there is none, the
        first image, which counts nothing.

        >>> Group(1, 2).share(torch.arange(5.0), torch.arange(5))
        (tensor([3., 4.]), tensor([3, 4]), 0.4)
        """
        mine = y.tensor_split(self.size)[self.rank]
        if not len(mine):
            return x[:1], y[:1], 0.0
        return x.tensor_split(self.size)[self.rank], mine, len(mine) / len(y)

    def mean(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Each tensor becomes the sum over the processes of weight times tensor; all of them in one
        exchange."""
        if self.size == 1:
            return
        with torch.no_grad():
            flat = torch.cat([t.flatten() for t in tensors]) * weight
            _ask(dist.all_reduce, flat)
            for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                t.copy_(part.view(t.shape))

    def total(self, stats: dict[str, Tensor], weight: float) -> dict[str, Tensor]:
        """The sums over the processes, but for those whose images count nothing."""
        if self.size == 1:
            return stats
        sums = {k: (v if weight else torch.zeros_like(v)).detach().clone() for k,
                v in sorted(stats.items())}
        for v in sums.values():
            _ask(dist.all_reduce, v)
        return sums

    def any(self, flag: bool) -> bool:
        """Is it so in any process?"""
        if self.size == 1:
            return flag
        flags = torch.tensor([float(flag)])
        _ask(dist.all_reduce, flags)
        return bool(flags.item())

    def from_first(self, thing: T) -> T:
        """What the first process has here; a thing that pickles."""
        if self.size == 1:
            return thing
        box: list[Any] = [thing if self.first else None]
        _ask(dist.broadcast_object_list, box)
        return box[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails in one process fails in all of them, so that none waits for it."""
        try:
            yield
        except BaseException as e:
            with suppress(CourseError):  # where the others are gone, its own reason is what counts
                self._tell(str(e) if isinstance(e, CourseError) and str(e)
                           else f"{type(e).__name__}: {e}")
            raise
        for rank, reason in enumerate(self._tell("")):
            if reason:
                raise CourseError(
                    f"Process {rank} of {self.size} (counted from 0) failed: {reason}")

    def _tell(self, reason: str) -> list[str]:
        """What went wrong in each process; nothing at all is the usual case, and a short
        exchange."""
        if not self.any(bool(reason)) or self.size == 1:
            return []
        reasons = [""] * self.size
        _ask(dist.all_gather_object, reasons, reason)
        return reasons


def _ask(exchange: Callable[..., Any], *words: Any, **named: Any) -> None:
    try:
        exchange(*words, **named)
    except RuntimeError as e:
        raise CourseError(
            "The other processes of this training cannot be reached "
            f"({str(e).splitlines()[0][:200]}). One of them has ended; its own "
            "output says why. Under --max-restarts torchrun starts all of them anew; otherwise "
            "give the same command again."
        ) from None


def group() -> Group:
    """The group that this process is in."""
    return (Group(dist.get_rank(), dist.get_world_size()) if dist.is_available()
            and dist.is_initialized() else Group())


def met(store: dist.Store, rank: int, size: int) -> str:
    """A name that the processes of this start share, and those of no other.

    torchrun's store outlives a restart and goes on telling where the dead ones could be reached;
    the number of restarts, which torchrun also tells, need not be the same on every machine. So
    each process asks under a name that is new, and only a first process that is alive answers.
    """
    me = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", me)
        name = store.get(f"answer/{me}").decode()  # which waits for it
        store.set(f"has/{name}/{rank}", "")
        return name
    others = list(range(1, size))
    while others:
        for r in others:
            if store.check([f"asks/{r}"]):
                store.set(f"answer/{store.get(f'asks/{r}').decode()}", me)
        others = [r for r in others if not store.check([f"has/{me}/{r}"])]
        time.sleep(0.02 if others else 0)
    return me


@contextmanager
def joined() -> Iterator[Group]:
    """As long as the block runs, the group of the processes that torchrun started; "cuda" is then
    this process's own GPU."""
    if not dist.is_available() or dist.is_initialized() or not dist.is_torchelastic_launched():
        yield group()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, size = (int(os.environ[word]) for word in ("RANK", "WORLD_SIZE"))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, False,
                          PATIENCE)
    here = dist.PrefixStore(met(store, rank, size), store)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _ask(dist.init_process_group, backend, store=here, rank=rank, world_size=size, timeout=PATIENCE)
    yield group()
    dist.destroy_process_group()  # not after an error: it would wait for those that are gone
