"""Build the wheel with the models in it, and the same bytes as course.zip for Colab: python -m
tools.wheel [folder]

It is built from a clean copy, so that nothing of an earlier build gets into it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from course_lib.lessons.bat import MODELS
from tools.common import BUILD, ROOT, ToolError

FILES = ("pyproject.toml", "requirements.txt", "README.md", "LICENSE", "LICENSE-notebooks")
LARGEST = 40e6  # bytes


def left_out(folder: Any, names: list[str]) -> list[str]:
    """What the wheel leaves out: the weights of further seeds, except those that notebook 04
    attacks, and what writers leave behind."""
    return [name for name in names if name.startswith(".") or (
        name.endswith(".safetensors") and name != "seed0.safetensors"
        and "/".join(Path(folder).parts[-2:]) not in MODELS.values())]


def build(out: Path) -> Path:
    """The new wheel in `out`, made by this Python's own setuptools: no network. It holds records,
    curves, the weights of seed 0, and those that notebook 04 attacks."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        library = Path(folder, "course_lib")
        shutil.copytree(ROOT / "course_lib", library,
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copytree(ROOT / "serialized_models", library / "serialized_models",
                        ignore=left_out)
        offline = ["--no-deps", "--no-build-isolation", "--no-index"]
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir",
                   str(out), folder]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    made = sorted(out.glob("course_lib-*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not made:
        raise ToolError(f"The wheel could not be built:\n{done.stdout}{done.stderr}")
    if (size := made[-1].stat().st_size) > LARGEST:
        raise ToolError(f"{made[-1]} has {size / 1e6:.1f} MB; more than {LARGEST / 1e6:.0f} MB are "
                        "too many to upload. Store fewer weights of seed 0.")
    return made[-1]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD / "wheel"
    for old in out.glob("course_lib-*.whl"):
        old.unlink()
    wheel = build(out)
    bundle = Path(shutil.copy(wheel, out.parent / "course.zip"))  # a wheel is a zip
    for file in (wheel, bundle):
        print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(str(error))
