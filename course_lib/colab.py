"""Where am I, and where do I save? The only file that knows Colab, Kaggle and Binder.

    session = setup(drive=SAVE_TO_DRIVE)
    fit(..., store=session.store("exp1/pgd-at"))
"""

import os
import platform
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch

from course_lib.errors import CourseError, resolve

DRIVE = Path("/content/drive")
FOLDER = "robust-fairness-course"  # the course's folder in Drive
RESULTS = {"colab": "/content/results", "kaggle": "/kaggle/working/results"}  # else: ./results
# environment variables and modules; Kaggle's first, because it looks like Colab
SIGNS = {"KAGGLE_KERNEL_RUN_TYPE": "kaggle", "KAGGLE_URL_BASE": "kaggle",
         "COLAB_RELEASE_TAG": "colab", "google.colab": "colab",
         "BINDER_SERVICE_HOST": "binder", "BINDER_REPO_URL": "binder"}
NAMES = {"colab": "Colab", "kaggle": "Kaggle", "binder": "Binder", "local": "this computer"}
LIFETIME = {
    "colab": "Colab deletes them with the machine. To keep them, tick SAVE_TO_DRIVE, run this cell "
             "again, and allow the access that it asks for.",
    "kaggle": "Kaggle keeps them with 'Save Version'.",
    "binder": "Binder deletes them at the end: download the files that you want to keep.",
    "local": "They stay there.",
}


@dataclass(frozen=True)
class Session:
    """The host and device of one notebook, and the folders it saves to."""

    where: str  # the host: "kaggle", "colab", "binder" or "local"
    device: torch.device
    results: Path
    drive: Path | None = None  # the course's folder in a mounted Drive

    def store(self, name: str) -> Any:
        """The store of a run such as "exp1/pgd-at", with copies in Drive if it is mounted."""
        path = PurePath(name)
        if not path.parts or path.anchor or ".." in path.parts or not name.isprintable():
            raise CourseError(f"A store cannot be called {name!r}. Give it a plain name, with / if "
                              "you like, such as 'exp1/pgd-at'.")
        return resolve("course_lib.checkpoints:Store")(self.results / path,
                                                       self.drive and self.drive / path)

    def line(self) -> str:
        """Versions, device and where results are saved."""
        device = (torch.cuda.get_device_name(self.device) if self.device.type == "cuda"
                  else f"CPU, {torch.get_num_threads()} threads")
        also = f"and in Drive ({self.drive})." if self.drive else f"only. {LIFETIME[self.where]}"
        return (f"{NAMES[self.where]}: Python {platform.python_version()}, torch "
                f"{torch.__version__}, {device}. Results go to {self.results} {also}")

    def how_long(self, *recipes: str, full: bool = False) -> str:
        """Training times. With `full`, more than six hours without a GPU are an error."""
        slow = self.device.type == "cpu"
        return str(resolve("course_lib.tables:how_long")(recipes, full and slow))


def setup(drive: bool = False) -> Session:
    """Find the host and the device. `drive=True` mounts Google Drive; a failure is a warning."""
    from course_lib.machine import device, keep_memory, kernels

    keep_memory()
    if kernel := kernels():  # compiled in the background, the first time
        threading.Thread(target=kernel.library, daemon=True).start()
    present = (host for sign, host in SIGNS.items() if sign in os.environ or sign in sys.modules)
    where = next(present, "local")
    results = Path(RESULTS.get(where, "results")).absolute()
    return Session(where, device(), results, _mount(where) if drive else None)


def _mount(where: str) -> Path | None:
    """The course's folder in Drive, or None and a warning."""
    home, reason = DRIVE / "MyDrive", f"{NAMES[where]} has none"
    if where == "colab":
        try:
            from google.colab import drive

            drive.mount(str(DRIVE))
            if home.is_dir():
                return home / FOLDER
            reason = f"{home} is not there"
        except Exception as error:  # google.colab has its own kinds for a refusal or a time-out
            reason = str(error) or type(error).__name__
    warnings.warn(f"Google Drive is not mounted ({reason}). Results are saved here only. "
                  f"{LIFETIME[where]}", stacklevel=3)
    return None
