"""Build the wheel from a clean copy, so that nothing of an earlier build gets into it: python -m
tools.wheel [folder]"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.common import BUILD, ROOT, ToolError

FILES = ("pyproject.toml", "requirements.txt", "README.md", "LICENSE", "LICENSE-notebooks")


def build(out: Path) -> Path:
    """The new wheel in `out`, made by this Python's own setuptools: no network."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "course_lib", Path(folder, "course_lib"),
                        ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        offline = ["--no-deps", "--no-build-isolation", "--no-index"]
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", *offline, "--wheel-dir",
                   str(out), folder]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    made = sorted(out.glob("course_lib-*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not made:
        raise ToolError(f"The wheel could not be built:\n{done.stdout}{done.stderr}")
    return made[-1]


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else BUILD / "wheel"
    shutil.rmtree(out, ignore_errors=True)
    wheel = build(out)
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(str(error))
