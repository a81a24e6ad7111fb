"""Builds lenet.cpp on first use, into the user's cache, loads it, and calls its functions. Where
this fails there is no kernel, and one line in the log."""

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from ctypes import c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch import Tensor

from course_lib.errors import CourseError
from course_lib.files import cache_dir, sha256_of, write_together

log = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("lenet.cpp")
FLAGS = ("-std=c++17", "-O2", "-march=native", "-shared", "-fPIC", "-pthread", "-ffp-contract=fast",
         "-fno-math-errno", "-fopenmp-simd")
PATIENCE = 300  # seconds for a compiler that hangs
_LOCK = threading.Lock()  # one thread compiles, others wait
_TRIED: dict[tuple[str | None, ...], tuple[ctypes.CDLL | None, str]] = {}
_off: ContextVar[bool] = ContextVar("course_lib.native.off", default=False)


@contextlib.contextmanager
def off() -> Iterator[None]:
    """PyTorch alone, for comparison."""
    token = _off.set(True)
    try:
        yield
    finally:
        _off.reset(token)


def library() -> ctypes.CDLL | None:
    """The kernels, built if need be, or None. COURSE_NATIVE=0 and `off` turn them off."""
    return None if _off.get() or os.environ.get("COURSE_NATIVE") == "0" else _attempt()[0]


def reason() -> str:
    """Why there is no kernel; nothing where there is one."""
    return "COURSE_NATIVE=0" if os.environ.get("COURSE_NATIVE") == "0" else _attempt()[1]


def _attempt() -> tuple[ctypes.CDLL | None, str]:
    """The kernels, or None and the reason: tried once with the same settings."""
    settings = tuple(map(os.environ.get, ("COURSE_CACHE", "CXX", "COURSE_NATIVE_FLAGS")))
    with _LOCK:
        if settings not in _TRIED:
            try:
                _TRIED[settings] = _found_or_compiled(compiler()), ""
            except (CourseError, OSError) as why:
                log.warning("LeNet-5 runs on PyTorch, several times slower, because its C++ kernel "
                            "cannot be built: %s", why)
                _TRIED[settings] = None, str(why)
        return _TRIED[settings]


def _found_or_compiled(cxx: str) -> ctypes.CDLL:
    """From the cache, or compiled and put there, under its hash: a damaged one could crash."""
    folder, name = cache_dir() / "native", f"lenet-{key(cxx)}-"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _ours(folder):
        raise CourseError(f"other users may write to {folder}")
    for path in folder.glob(name + "*.so"):
        if _ours(path) and path.stem == name + sha256_of(path.read_bytes())[:16]:
            return _load(path)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "lenet.so"
        more = os.environ.get("COURSE_NATIVE_FLAGS", "").split()  # they come last and win
        done = _run([cxx, *FLAGS, *more, str(SOURCE), "-o", str(fresh)])
        if done.returncode or not fresh.is_file():
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise CourseError(f"{cxx} failed: {last[:200]}")
        raw = fresh.read_bytes()
    path = folder / f"{name}{sha256_of(raw)[:16]}.so"
    write_together({path: raw})
    return _load(path)


def _ours(path: Path) -> bool:
    """Does it belong to this user or to root, and may no other write to it? What is loaded runs
    with this user's rights. A link counts as one that all may write to."""
    at = path.lstat()
    return os.name == "nt" or (at.st_uid in (0, os.getuid()) and not at.st_mode & 0o022)


def _load(path: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    lib.lenet_kept_size.restype = ctypes.c_int64
    # the threads of the OpenMP that PyTorch has loaded, if it has
    if pool := getattr(ctypes.CDLL(None), "GOMP_parallel", None):
        lib.lenet_pool(pool)
    return lib


def compiler() -> str:
    """The path of $CXX, or of the first C++ compiler there is."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if found := next(filter(None, map(shutil.which, names)), None):
        return found
    raise CourseError(f"no C++ compiler ({', '.join(names)})")


def key(cxx: str) -> str:
    """A hash of all that the machine code depends on: different machines may share a home."""
    processor = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line for line in lines
                          if line.lower().startswith(("flags", "features"))), "")
    made_from = [SOURCE.read_text(), *FLAGS, os.environ.get("COURSE_NATIVE_FLAGS", ""),
                 _run([cxx, "--version"]).stdout, platform.machine(), processor]
    return hashlib.sha256("\0".join(made_from).encode()).hexdigest()[:16]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # what is loaded under Python is not meant for a compiler
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              timeout=PATIENCE, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise CourseError(f"{command[0]}: {why}") from why


class Call(ctypes.Structure):
    """The arguments of one kernel, as its `structure` names them."""

    def run(self, door: str, parameters: Sequence[Tensor] = (), /,
            **tensors: Tensor | None) -> None:
        """Fill in the addresses and call the function `door`. Outputs must be contiguous."""
        # these names keep the memory alive until the call returns
        weights = [p.detach().contiguous() for p in parameters]
        alive = {name: t.detach().contiguous() for name, t in tensors.items() if t is not None}
        addresses = (c_void_p * len(weights))(*[p.data_ptr() for p in weights])
        if weights:
            self.parameters = ctypes.addressof(addresses)
        for name, t in alive.items():
            setattr(self, name, t.data_ptr())
        self.threads = torch.get_num_threads()
        if getattr(_attempt()[0], door)(ctypes.byref(self)):  # also where it is off by now
            raise CourseError("Out of memory in the C++ kernel; use smaller batches.")


def structure(tensors: str, longs: str, ints: str) -> type[Call]:
    """A structure of lenet.cpp by its fields, in their order: pointers, int64_t, int32_t."""
    kinds = ((tensors, c_void_p), (longs, c_int64), (ints, c_int32))
    fields = [(name, kind) for names, kind in kinds for name in names.split()]
    return type("Arguments", (Call,), {"_fields_": fields})
