"""The machine: its device, its threads, its memory, and the C++ kernels where they can be built."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import nn

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # mallopt's numbers for them
SETTINGS = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 64 << 20}


def device() -> torch.device:
    """Where models are trained and evaluated: the GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kernels() -> ModuleType | None:
    """course_lib.native, which computes some models faster; None where COURSE_NATIVE=0 is set.

    Ask it first whether it serves a model: without a C++ compiler it serves none.
    """
    if os.environ.get("COURSE_NATIVE") == "0":
        return None
    from course_lib import native

    return native


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
    """Make glibc keep its memory; False where there is no glibc, or the user has set MALLOC_*.

    glibc returns each large block to the system and asks for it again, which takes a third of the
    time at batch 500. The Makefile sets the same through MALLOC_* variables, which are read only
    when a process starts; this works later.
    """
    if not sys.platform.startswith("linux") or any(v.startswith("MALLOC_") for v in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(number, value) for number, value in SETTINGS.items())


@contextmanager
def channels_last(model: nn.Module) -> Iterator[nn.Module]:
    """The model with its convolutions' weights channels last; afterwards they lie as before.

    On a CPU such convolutions are up to twice as fast.
    """
    moved = [p for p in model.parameters() if type(p) is nn.Parameter and p.device.type == "cpu"
             and p.ndim == 4 and p.dtype == torch.float32]
    before = [p.data for p in moved]
    try:
        for p in moved:  # contiguous() would leave a single input channel as it is
            p.data = p.data.clone(memory_format=torch.channels_last)
        yield model
    finally:
        for p, data in zip(moved, before, strict=True):
            p.data = data
