"""Drive is a folder that outlives the machine: what is mounted twice is the same."""

import os
from pathlib import Path


def mount(mountpoint: str, force_remount: bool = False, timeout_ms: int = 120000,
          readonly: bool = False) -> None:
    if os.environ.get("TWIN_DRIVE") == "refused":
        raise ValueError("mount failed")
    asked = Path(os.environ["TWIN_MACHINE"]) / "mounts"
    asked.write_text(asked.read_text() + "1" if asked.exists() else "1")
    (Path(mountpoint) / "MyDrive").mkdir(parents=True, exist_ok=True)


def flush_and_unmount(timeout_ms: int = 86400000) -> None:
    """Nothing is late here."""
