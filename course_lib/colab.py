"""Where am I, what have I got, where do I save? The only file that knows Colab, Kaggle and Binder.

session = setup(drive=SAVE_TO_DRIVE)
fit(..., store=session.store("exp1/pgd-at"))
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from course_lib.checkpoints import Store
from course_lib.errors import CourseError
from course_lib.machine import device, keep_memory
from course_lib.zoo import load_record, manifest

DRIVE = Path("/content/drive")
FOLDER = "robust-fairness-course"  # in Drive
# elsewhere: beside the notebook
RESULTS = {"colab": "/content/results", "kaggle": "/kaggle/working/results"}
NAMES = {"colab": "Colab", "kaggle": "Kaggle", "binder": "Binder", "local": "this computer"}
KEPT = {
    "colab": "When Colab takes the machine away, they go with it: tick SAVE_TO_DRIVE to keep them.",
    "kaggle": "Kaggle keeps them with 'Save Version'.",
    "binder": "Binder throws them away at the end: download what you want to keep.",
    "local": "They stay there.",
}
# seconds: a forward and backward pass of a small network on a GPU, which mostly waits for its
# launches. A guess
GPU_PASS = 1.5e-3
# seconds of training that a session without a GPU can be expected to live through
LONGEST = 6 * 3600


@dataclass(frozen=True)
class Session:
    """One notebook's surroundings."""

    where: str  # "kaggle", "colab", "binder" or "local"
    device: torch.device
    results: Path  # where results go
    drive: Path | None = None  # the course's folder in a mounted Drive

    def store(self, name: str) -> Store:
        """The store of a run, such as "exp1/pgd-at": under `results`, with copies in Drive when it
        is mounted."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith(
                "/") or ".." in parts or "\\" in name or ":" in name or not name.isprintable():
            raise CourseError(f"A store cannot be called {name!r}; give it a plain name with / in "
                              "it if you like, such as 'exp1/pgd-at'.")
        return Store(self.results.joinpath(*parts), None if self.drive is None
                     else self.drive.joinpath(*parts))

    def line(self) -> str:
        """Versions, device and where results go."""
        device = (torch.cuda.get_device_name(self.device) if self.device.type == "cuda"
                  else f"CPU, {torch.get_num_threads()} threads")
        versions = f"Python {platform.python_version()}, torch {torch.__version__}"
        keeps = f"and in Drive ({self.drive})." if self.drive else f"only. {KEPT[self.where]}"
        return f"{NAMES[self.where]}: {versions}, {device}. Results go to {self.results} {keeps}"

    def how_long(self, *recipes: str, full: bool = False) -> str:
        """What training the recipes takes, on a CPU and on a GPU; with `full` an error where this
        machine is too weak for it."""
        times = {name: _seconds(name) for name in recipes}
        words = "{}: {} on one CPU core (measured), {} on a GPU (an estimate)"
        rows = [words.format(name, _time(cpu), _time(gpu)) for name, (cpu, gpu) in times.items()]
        total = sum(cpu for cpu, _ in times.values())
        if full and self.device.type == "cpu" and total > LONGEST:
            advice = ("In Colab: Runtime, Change runtime type, T4 GPU, then run everything again. "
                      if self.where == "colab" else "")
            raise CourseError(
                f"FULL would take about {_time(total)} here, since this runtime has no GPU. "
                f"{advice}"
                "Or leave FULL off: the stored results need no training."
            )
        return "\n".join(rows)


def _seconds(name: str) -> tuple[float, float]:
    """Of a stored recipe's training: the median over its seeds as measured, and a guess for a GPU
    from the number of passes."""
    records = [load_record(name, seed=int(seed)) for seed in manifest().get(name, {})]
    if not records:
        raise CourseError(f"Nobody has measured {name}: it is not stored. Train it: python -m "
                          f"course_lib train {name}")
    made = records[0]["made_from"]
    steps = (made["recipe"]["method"].get("attack") or {}).get("steps", 0)
    batches = made["epochs"] * made["training_examples"] / made["recipe"]["optim"]["batch"]
    return statistics.median(record["seconds"]
                             for record in records), batches * (steps + 1) * GPU_PASS


def _time(seconds: float) -> str:
    return (f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes" if seconds < 5400
            else f"{seconds / 3600:.0f} hours")


def setup(drive: bool = False) -> Session:
    """Look around and, where `drive` is asked for, mount Google Drive. Safe to call again; what is
    missing is a warning."""
    keep_memory()
    where = whereabouts()
    results = Path(RESULTS.get(where, "results")).absolute()
    return Session(where, device(), results, _mount(where) if drive else None)


def whereabouts() -> str:
    """Kaggle first: it looks like Colab."""
    if "KAGGLE_KERNEL_RUN_TYPE" in os.environ or "KAGGLE_URL_BASE" in os.environ:
        return "kaggle"
    if "COLAB_RELEASE_TAG" in os.environ or "google.colab" in sys.modules:
        return "colab"
    return ("binder" if "BINDER_SERVICE_HOST" in os.environ or "BINDER_REPO_URL" in os.environ
            else "local")


def _mount(where: str) -> Path | None:
    """The course's folder in Drive, or None and a warning: a course must go on without it."""
    if where != "colab":
        warnings.warn(f"There is no Google Drive to mount on {NAMES[where]}. Results are saved "
                      f"here only. {KEPT[where]}", stacklevel=3)
        return None
    try:
        from google.colab import drive

        drive.mount(str(DRIVE))
        home = DRIVE / "MyDrive"
        if home.is_dir():
            return home / FOLDER
        reason = f"{home} is not there"
    # google.colab has its own kinds for a closed window, a refusal, a time-out
    except Exception as error:
        reason = str(error) or type(error).__name__
    warnings.warn(
        f"Google Drive is not mounted ({reason}). Results are saved on this machine only, and go "
        "when it goes. "
        "To try again, run this cell again and allow the access it asks for.",
        stacklevel=3,
    )
    return None
