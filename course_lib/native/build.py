"""Builds lenet.cpp on first use, into the user's cache, and loads it; None, and one log line, where
that cannot be done."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from course_lib.files import cache_dir

log = logging.getLogger(__name__)
SOURCE = Path(__file__).with_name("lenet.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-ffp-contract=fast",
         "-fno-math-errno", "-fopenmp-simd")
PATIENCE = 300  # seconds for a compiler that hangs


class BuildError(Exception):
    """Why there is no kernel; becomes the log line."""


def folder() -> Path:
    """Where libraries are kept: COURSE_CACHE or ~/.cache/course-data, native/."""
    return cache_dir() / "native"


def compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in names:
        if path := shutil.which(name):
            return path
    raise BuildError(f"no C++ compiler ({', '.join(names)})")


def flags() -> list[str]:
    """Later flags win: COURSE_NATIVE_FLAGS is for a sanitizer, another instruction set or a
    debugger."""
    return [*FLAGS, *os.environ.get("COURSE_NATIVE_FLAGS", "").split()]


def compiled(cxx: str, out: Path) -> Path:
    """`out`, made from lenet.cpp."""
    done = _run([cxx, *flags(), str(SOURCE), "-o", str(out)])
    if done.returncode or not out.is_file():
        lines = (done.stderr.strip() or "no message").splitlines()
        raise BuildError(f"{cxx} failed: {lines[-1][:200]}")
    return out


def key(cxx: str) -> str:
    """What the machine code depends on: a home folder may be shared by different machines."""
    what = [SOURCE.read_text(), " ".join(flags()), _run([cxx, "--version"]).stdout,
            platform.machine(), _features()]
    return hashlib.sha256("\0".join(what).encode()).hexdigest()[:16]


def library() -> ctypes.CDLL | None:
    """The kernel, built if need be, or None. COURSE_NATIVE=0 turns it off."""
    if os.environ.get("COURSE_NATIVE") == "0":
        return None
    return _library(*(os.environ.get(word) for word in ("COURSE_CACHE", "CXX",
                                                        "COURSE_NATIVE_FLAGS")))


@functools.cache
def _library(*settings: str | None) -> ctypes.CDLL | None:  # tried once under the same settings
    try:
        return _kept(folder(), compiler())
    except (BuildError, OSError) as why:
        log.warning("LeNet-5 runs on PyTorch, several times slower, as its C++ kernel is not to be "
                    "had: %s", why)
        return None


def _kept(where: Path, cxx: str) -> ctypes.CDLL:
    name = f"lenet-{key(cxx)}-"
    try:
        found = sorted(where.glob(name + "*.so"))
    except OSError:
        found = []
    for path in found:
        # else half-written or damaged: loading it could crash
        if path.name == name + _digest(path):
            return _load(path)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = compiled(cxx, Path(scratch) / "lenet.so")
        return _load(_keep(fresh, where, name) or fresh)  # once loaded its file may go


def _keep(fresh: Path, where: Path, name: str) -> Path | None:
    """A copy in the cache, there whole or not at all, also when two processes build at once."""
    target = where / (name + _digest(fresh))
    part = where / f".{os.getpid()}-{target.name}"
    try:
        where.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fresh, part)
        os.replace(part, target)
        return target
    except OSError as why:
        log.warning("The C++ kernel is built anew in each process, as it cannot be kept in %s: %s",
                    where, why)
        return None
    finally:
        _remove(part)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] + ".so"
    except OSError:
        return "unreadable"


def _load(path: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    for door in ("lenet_walk", "lenet_pass", "lenet_lanes", "lenet_kept_size", "lenet_pool",
                 "fab_nearest", "relu_of_norm"):
        if not hasattr(lib, door):
            raise BuildError(f"{path} lacks {door}")
    lib.lenet_kept_size.restype = ctypes.c_int64
    # of the OpenMP that PyTorch has loaded, where it has
    if pool := getattr(ctypes.CDLL(None), "GOMP_parallel", None):
        lib.lenet_pool(pool)
    return lib


def _features() -> str:
    """The CPU's features in the system's own words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        return platform.processor()


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # what is loaded under Python is not meant for a compiler
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace",
                              timeout=PATIENCE, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise BuildError(f"{command[0]}: {why}") from why
