"""Drive is a folder that outlives the machine: what is mounted twice is the same."""

import os
from pathlib import Path


def mount(mountpoint: str) -> None:
    if os.environ.get("TWIN_DRIVE") == "refused":
        raise ValueError("mount failed")
    with open(Path(os.environ["TWIN_MACHINE"]) / "mounts", "a") as asked:
        asked.write("1")
    (Path(mountpoint) / "MyDrive").mkdir(parents=True, exist_ok=True)
