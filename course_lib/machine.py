"""Keep memory instead of giving it back after every large tensor.
 glibc returns each large block to the kernel and asks for it again: at batch 500 a third of the
time and more is spent there. The Makefile sets the same through MALLOC_* variables, which are read
only when a process starts; this works later.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # mallopt's numbers for them
SETTINGS = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 64 << 20}


def keep_memory() -> bool:
    """Set glibc's allocator to keep what it has. False, and nothing done, where there is no glibc
    or the user has set it."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_")
                                                   for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(word, value) for word, value in SETTINGS.items())


@contextmanager
def one_thread() -> Iterator[None]:
    """A task among several processes takes one thread; with one job this is the caller's own
    process, so it is put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def device() -> torch.device:
    """Where models are trained and examined: the GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
