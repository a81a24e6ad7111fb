"""One call of a C++ kernel: a structure of addresses and numbers, as lenet.cpp declares it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from course_lib.errors import CourseError
from course_lib.native.build import library


def fields(tensors: str, longs: str, ints: str) -> list[tuple[str, type]]:
    """The fields of a structure in lenet.cpp, in its order: pointers, int64_t, int32_t."""
    return [(name, kind) for names, kind in ((tensors, c_void_p), (longs, c_int64), (ints, c_int32))
            for name in names.split()]


class Call(ctypes.Structure):
    """The arguments of one kernel; each kernel's subclass mirrors its structure in lenet.cpp."""

    def run(self, door: str, parameters: Sequence[Tensor] = (), /,
            **tensors: Tensor | None) -> None:
        """Fill in the addresses and call the function `door`. Outputs must be contiguous."""
        lib = library()
        if lib is None:  # turned off since the question whether it serves
            raise CourseError("The C++ kernel was turned off while it ran; use `native.off()`.")
        # these names keep the memory alive until the call returns
        weights = [p.detach().contiguous() for p in parameters]
        alive = {name: t.detach().contiguous() for name, t in tensors.items() if t is not None}
        addresses = (c_void_p * len(weights))(*[p.data_ptr() for p in weights])
        if weights:
            self.parameters = ctypes.addressof(addresses)
        for name, t in alive.items():
            setattr(self, name, t.data_ptr())
        self.threads = torch.get_num_threads()
        function: Any = getattr(lib, door)
        if function(ctypes.byref(self)):
            raise CourseError("Out of memory in the C++ kernel; use smaller batches.")
