"""One training in several processes, which torchrun starts and `joined` makes a group.

Each process takes its share of every batch, with noise of its own. After each batch all hold the
same mean gradient, running averages and sums of statistics, so the first's checkpoint serves all.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_lib import training
from course_lib.errors import CourseError

T = TypeVar("T")
PATIENCE = timedelta(days=1)  # the others wait while the first validates; a dead one shows at once


class Group:
    """Process `rank` of `size`. Every process must make the same calls in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.first = rank == 0  # the process that saves, shows and validates
        self.suffix = f", process {rank} of {size}"  # of the name of its random numbers

    def identity(self) -> dict[str, Any]:
        return {"processes of torchrun": self.size}

    def share(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, float]:
        """This process's part of a batch, and its share; an empty part is an image that counts 0.

        >>> Group(1, 2).share(torch.arange(5.0), torch.arange(5))
        (tensor([3., 4.]), tensor([3, 4]), 0.4)
        """
        mine = torch.arange(len(y)).tensor_split(self.size)[self.rank]
        part = mine if len(mine) else slice(0, 1)
        return x[part], y[part], len(mine) / len(y)

    def exchange(self, model: nn.Module, before: list[Tensor], loss: float,
                 stats: dict[str, Tensor], share: float) -> tuple[float, dict[str, Tensor]]:
        """Means of loss, gradients and changes of running averages; sums of statistics."""
        averages = [(now, then, now - then) for now, then in
                    zip(model.buffers(), before, strict=True) if now.is_floating_point()]
        means = [next(model.parameters()).new_tensor(loss),
                 *(p.grad for p in model.parameters() if p.grad is not None),
                 *(change for _, _, change in averages)]
        flat = parameters_to_vector(means) * share
        _ask(dist.all_reduce, flat)
        vector_to_parameters(flat, means)
        for now, then, change in averages:
            now.data.copy_(then + change)
        sums = {k: v.detach().clone() if share else torch.zeros_like(v)
                for k, v in sorted(stats.items())}
        for v in sums.values():
            _ask(dist.all_reduce, v)
        return means[0].item(), sums

    def any(self, flag: bool) -> bool:
        """Is it so in any process?"""
        _ask(dist.all_reduce, flags := torch.tensor([float(flag)]))
        return bool(flags)

    def from_first(self, thing: T) -> T:
        """What the first process has here."""
        box: list[Any] = [thing if self.first else None]
        _ask(dist.broadcast_object_list, box)
        return box[0]


def _ask(exchange: Callable[..., Any], *words: Any, **named: Any) -> None:
    """Exchange something. When one process fails, this ends the others, too."""
    try:
        exchange(*words, **named)
    except RuntimeError as e:
        raise CourseError(f"Another process of this training has ended ({str(e)[:200]}). Its own "
                          "output says why; run the same command again.") from None


def met(store: dist.Store, rank: int, size: int) -> str:
    """A name that the processes of this start share, and those of no other: torchrun's store
    outlives a restart and still has what dead processes left. Each process asks under a new name,
    which only a first process that is alive answers."""
    me = uuid.uuid4().hex
    if rank:
        store.set(f"asks/{rank}", me)
        name = store.get(f"answer/{me}").decode()  # which waits for it
        store.set(f"has/{name}/{rank}", "")
        return name
    while others := [r for r in range(1, size) if not store.check([f"has/{me}/{r}"])]:
        for r in others:
            if store.check([f"asks/{r}"]):
                store.set(f"answer/{store.get(f'asks/{r}').decode()}", me)
        time.sleep(0.02)
    return me


@contextmanager
def joined() -> Iterator[Any]:
    """Within the block, `fit` trains as part of the processes that torchrun started; "cuda" is then
    this process's own GPU. Without torchrun nothing changes."""
    alone = training.processes
    if not dist.is_available() or dist.is_initialized() or not dist.is_torchelastic_launched():
        yield alone
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    rank, size, port = (int(os.environ[word]) for word in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, size, False, PATIENCE)
    here = dist.PrefixStore(met(store, rank, size), store)
    _ask(dist.init_process_group, backend, store=here, rank=rank, world_size=size, timeout=PATIENCE)
    if size > 1:
        training.processes = Group(rank, size)
    yield training.processes
    training.processes = alone
    dist.destroy_process_group()  # not after an error: it would wait for those that are gone
