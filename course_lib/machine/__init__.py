"""The machine: its device, its threads, its memory, and the C++ kernels where they can be built."""

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError

# glibc's numbers of M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD, and what they are set to
MALLOC = ((-3, 1 << 30), (-1, 2**31 - 1), (-2, 64 << 20))
_LOCK = threading.Lock()
_SEEN: ContextVar[bool] = ContextVar("course_lib.machine.seen", default=False)
_CHANGED: dict[tuple[int, str], tuple[int, Any]] = {}  # by object, attribute: holders, value before


def device() -> torch.device:
    """Where models are trained and evaluated: the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kernels() -> Any:
    """course_lib.native, which computes some models faster; None where COURSE_NATIVE=0 is set."""
    if os.environ.get("COURSE_NATIVE") == "0":
        return None
    from course_lib import native

    return native


def environment() -> dict[str, Any]:
    """What may differ from an earlier run, but can change the last digits of a training."""
    kernel = (native := kernels()) and native.library()
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {"torch": str(torch.__version__), "threads": torch.get_num_threads(),
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "kernel": Path(kernel._name).stem if kernel else "PyTorch", **gpu}


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for a task that runs beside others; afterwards as many as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def keep_memory() -> bool:
    """Make glibc keep large blocks, which saves a third of the time at batch 500; False without
    glibc, or where the user has set MALLOC_*."""
    if not sys.platform.startswith("linux") or any(v.startswith("MALLOC_") for v in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # another C library has none
    return mallopt is not None and all(mallopt(*setting) for setting in MALLOC)


@contextmanager
def seen_before(seen: bool) -> Iterator[None]:
    """With `seen`, values on a GPU are not checked: each look at them makes the host wait."""
    token = _SEEN.set(seen)
    try:
        yield
    finally:
        _SEEN.reset(token)


def unseen(t: Tensor) -> bool:
    """Whether the values of `t` are still to be checked."""
    return t.numel() > 0 and not (_SEEN.get() and t.device.type != "cpu")


@contextmanager
def changed(changes: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Sets each (object, attribute, value); the last thread to leave restores what was before."""
    with _LOCK:
        for thing, name, value in changes:
            now = getattr(thing, name)
            holders, before = _CHANGED.get((id(thing), name), (0, now))
            _CHANGED[id(thing), name] = holders + 1, before
            if now is not value:
                setattr(thing, name, value)
    try:
        yield
    finally:
        with _LOCK:
            for thing, name, _ in changes:
                holders, before = _CHANGED.pop((id(thing), name))
                if holders > 1:
                    _CHANGED[id(thing), name] = holders - 1, before
                elif getattr(thing, name) is not before:
                    setattr(thing, name, before)


@contextmanager
def enough_memory() -> Iterator[None]:
    """A CourseError where the memory of the GPU does not suffice."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        e.__traceback__ = None  # whose frames would keep their tensors
        raise CourseError("The GPU is out of memory. Take smaller batches (batch= of Optim or "
                          "evaluate), or restart the notebook if other models fill it. A training "
                          "resumes from its store.") from None


@contextmanager
def channels_last(model: nn.Module) -> Iterator[None]:
    """Lays convolutions' weights channels last, up to twice as fast on a CPU; then as before."""
    with changed([  # contiguous() would leave a single input channel as it is
            (m, name, nn.Parameter(p.detach().clone(memory_format=torch.channels_last),
                                   p.requires_grad))
            for m in model.modules() for name, p in m._parameters.items()
            if type(p) is nn.Parameter and p.device.type == "cpu" and p.ndim == 4
            and p.dtype == torch.float32]):
        yield


class Accelerated(nn.Module):
    """Another model, computed in bfloat16, with 2 to 3 significant digits. It shares its
    parameters; its logits are float32. Published figures are evaluated without it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.model(x).float()
