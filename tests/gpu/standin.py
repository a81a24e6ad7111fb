"""A GPU for machines that have none. Its tensors say cuda:0, hold the values of a CPU, and refuse
to meet the CPU's tensors and generators, as a real GPU's do.

PyTorch's C++ takes them for the CPU's. So whatever names a device is answered in Python: calls in
`_Doors`, operations in `StandIn.compute`. What the host waits for counts as a read, a copy from the
host as an upload, under the line of the library that asked.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA, CPU, aten = torch.device("cuda:0"), torch.device("cpu"), torch.ops.aten
# how often the host waits, for the size of the result or for a value that is checked
READS = {aten._local_scalar_dense: 1, aten.nonzero: 1, aten.masked_select: 1, aten._unique2: 1,
         aten.equal: 1, aten.bincount: 2, aten.repeat_interleave: 1}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
FULL = ("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 14.74 GiB. "
        "Set max_split_size_mb, or change the size, type, shape or channels of the input.")
RealGenerator = torch.Generator


class OnGPU(Tensor):
    """A tensor on the GPU; `held` has its values."""

    held: Tensor
    device, is_cuda, is_cpu = CUDA, True, False  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGPU:
        t = Tensor._make_wrapper_subclass(cls, held.shape, strides=held.stride(),
                                          dtype=held.dtype, device=CPU)
        t.held = held
        return t

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return GPU[-1].compute(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.held!r} on {CUDA}"


class Moved(torch.autograd.Function):
    """A copy on the other device; its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        gpu, copy = GPU[-1], getattr(x, "held", x).detach().clone()
        gpu.note(gpu.reads if isinstance(x, OnGPU) else gpu.uploads)
        return copy if isinstance(x, OnGPU) else gpu.placed(copy)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return Moved.apply(g)


class GPUGenerator(RealGenerator):
    device = CUDA


class _Generators(type):
    """The kind of what takes the place of `torch.Generator`."""

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        return GPUGenerator() if torch.device(device).type == "cuda" else RealGenerator(device)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, RealGenerator)


def check_generator(leaves: Any, here: bool) -> None:
    for g in (g for g in leaves if isinstance(g, RealGenerator)):
        if isinstance(g, GPUGenerator) != here:
            raise RuntimeError(f"Expected a '{'cuda' if here else 'cpu'}' device type for "
                               f"generator but found '{g.device.type}'")


class StandIn:
    """The GPU's counts, memory, and the seed of its own global generator."""

    def __init__(self, memory: float) -> None:
        self.reads, self.uploads = Counter[str](), Counter[str]()
        self.memory, self.seed = memory, 0

    def counts(self) -> tuple[int, int]:
        return self.reads.total(), self.uploads.total()

    def note(self, counter: Counter[str], n: int = 1) -> None:
        frame: Any = sys._getframe(1)
        while frame.f_back and "course_lib" not in frame.f_code.co_filename:
            frame = frame.f_back
        if n:
            counter[f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"] += n

    def placed(self, held: Tensor) -> OnGPU:
        self.memory -= 1
        if self.memory < 0:
            raise torch.OutOfMemoryError(FULL)
        return OnGPU(held)

    def compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """One operation of which a part is on the GPU."""
        leaves = tree_leaves((args, kwargs))
        held = {id(t.held): t for t in leaves if isinstance(t, OnGPU)}
        stored = {t.held.untyped_storage().data_ptr() for t in held.values()}
        self.check(func, args, leaves)

        def back(t: Tensor) -> Tensor:
            if id(t) in held:
                return held[id(t)]
            return OnGPU(t) if t.untyped_storage().data_ptr() in stored else self.placed(t)

        plain = tree_map_only(OnGPU, lambda t: t.held, (args, kwargs))
        out = func(*plain[0], **plain[1])
        if torch.Tag.inplace_view in func.tags:  # such as squeeze_
            with no_dispatch():
                func(*args, **kwargs)
        return out if out is args[0] else tree_map_only(Tensor, back, out)

    def check(self, func: Any, args: Any, leaves: list[Any]) -> None:
        """Count what moves, and refuse what a GPU refuses."""
        packet, home = func.overloadpacket, not isinstance(args[0], Tensor) or args[0].is_cuda
        host = [t for t in leaves if isinstance(t, Tensor) and not t.is_cuda]
        self.note(self.reads, READS.get(packet, packet is aten.copy_ and not home))
        if packet in INDEXED:
            places = [t for t in args[1] if t is not None]
            fills = len(args) > 2 and args[2].numel() == 1  # then a mask needs no size
            self.note(self.reads, sum(t.dtype == torch.bool for t in places) * (not fills))
            if home:  # a GPU's tensor takes places from the host
                host = [t for t in host if all(t is not place for place in places)]
                self.note(self.uploads, sum(not t.is_cuda for t in places))
        if packet is aten.copy_:
            self.note(self.uploads, len(host) * home)
        # single numbers may come from the host, but it takes no results
        elif any(t.dim() or packet is aten.cat for t in host) or (
                not home and func._schema.is_mutable):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least "
                               f"two devices, cuda:0 and cpu! ({func})")
        check_generator(leaves, here=True)


GPU: list[StandIn] = []  # the last one is in use


class _Doors(TorchFunctionMode):
    """What Python calls with a device, or to bring values home."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, first = dict(kwargs or {}), args[0] if args else None
        if func is Tensor.to:
            return _to(*args, **kwargs)
        if func in (Tensor.cuda, Tensor.cpu):
            return _to(args[0], CUDA if func is Tensor.cuda else CPU)
        if isinstance(first, OnGPU):
            if func is Tensor.tolist or (func is Tensor.__format__ and not first.dim()):
                return func(Moved.apply(first), *args[1:])
            if func in (Tensor.numpy, Tensor.__array__):
                raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()"
                                " to copy the tensor to host memory first.")
            if func is F.one_hot:  # C++ makes the result where it believes the labels to be
                return GPU[-1].placed(F.one_hot(first.held, *args[1:], **kwargs))
        elif kwargs.keys() & {"device", "generator"}:  # a factory, such as torch.rand
            device = torch.device(kwargs.pop("device", None) or "cpu")
            check_generator(kwargs.values(), device.type == "cuda")
            made = func(*args, **kwargs)
            if func in (torch.tensor, torch.as_tensor, torch.asarray):
                return _to(made, device)
            return GPU[-1].placed(made) if device.type == "cuda" else made
        return func(*args, **kwargs)


def _to(x: Tensor, *where: Any, copy: bool = False, **words: Any) -> Tensor:
    """x.to(...) in its forms."""
    if where and isinstance(where[0], Tensor):
        where = (where[0].device, where[0].dtype)
    device, dtype, *_ = torch._C._nn._parse_to(*where, **words)
    x = x.to(dtype=dtype) if dtype else x
    if device and device.type != x.device.type:
        return Moved.apply(x)
    return x.clone() if copy else x


@contextmanager
def standin(memory: float = float("inf")) -> Iterator[StandIn]:
    """Within the block there is a GPU, with memory for so many tensors."""
    gpu, autocast, apply = StandIn(memory), torch.autocast, nn.Module._apply
    swaps = torch.__future__.set_swap_module_params_on_conversion

    def swapping(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        """Parameters change their class as they move, and stay the objects that they were."""
        for child in module.children() if recurse else ():
            child._apply(fn)
        swaps(True)
        try:
            return apply(module, fn, False)
        finally:
            swaps(False)

    def seeded(seed: Any, *_: Any) -> None:
        gpu.seed = int(seed)

    answers: dict[str, Any] = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "get_device_name": lambda *_: "Stand-in", "is_bf16_supported": lambda *_: True,
        "manual_seed": seeded, "manual_seed_all": seeded, "set_rng_state": seeded,
        "get_rng_state": lambda *_: torch.tensor([gpu.seed])}
    with pytest.MonkeyPatch.context() as patch, _Doors():
        for name, answer in answers.items():
            for place in (torch.cuda, torch.cuda.random):
                patch.setattr(place, name, answer, raising=False)
        patch.setattr(torch, "Generator", _Generators("Generator", (), {}))
        patch.setattr(torch, "autocast", lambda device, *words: autocast("cpu", *words))
        patch.setattr(nn.Module, "_apply", swapping)
        GPU.append(gpu)
        yield gpu
    GPU.pop()
