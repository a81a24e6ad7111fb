"""The library without what only POSIX has and without a compiler, as on Windows and macOS."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = """
import importlib, pkgutil, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # importing it raises ImportError
import course_lib
for m in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    if not m.name.endswith("__main__"):
        importlib.import_module(m.name)
from course_lib import PGD, Optim, build, evaluate, fit, load
from course_lib.checkpoints import Store
from course_lib.machine import kernels
from course_lib.methods import METHODS

train = load("fashion-mnist", limit=1000).train.per_class(10)
model, store = build("lenet5"), Store("saved")
run = fit(model, METHODS["pgd_at"](PGD(steps=2)), train, epochs=1, optim=Optim(batch=100), seed=0,
          store=store, progress=False)
again = fit(build("lenet5"), METHODS["pgd_at"](PGD(steps=2)), train, epochs=1,
            optim=Optim(batch=100), seed=0, store=Store("saved"), progress=False)
print(kernels() is None or kernels().library() is None, len(run.history), len(again.history),
      evaluate(model, train, PGD(steps=2), progress=False).nat.counts)
"""


def test_one_batch_is_trained_without_posix_and_without_a_compiler(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if k in {"HOME", "SYSTEMROOT", "TMPDIR"}}
    env = {**kept, "PATH": str(tmp_path), "CC": "", "CXX": "", "PYTHONPATH": str(ROOT),
           "COURSE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], cwd=tmp_path, env=env,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"True 1 1 {(10,) * 10}"
