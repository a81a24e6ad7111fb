# @title Set up: run me first
# COURSE: empty if the course is installed or around this notebook; otherwise a git address, or
# the name of course.zip or of a wheel, uploaded to this session or to your Drive.
COURSE = ""  # @param {type: "string"}
SAVE_TO_DRIVE = False  # @param {type: "boolean"}

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

work, drive = Path.cwd(), Path("/content/drive/MyDrive")
around = [f for f in (work / "course", work, *work.parents) if (f / "course_lib").is_dir()]
if not around and not importlib.util.find_spec("course_lib"):
    name, address, part = COURSE or "course.zip", COURSE or "@ADDRESS@", work / "course.part"
    if SAVE_TO_DRIVE and "://" not in address and not (work / name).exists():
        importlib.import_module("google.colab.drive").mount(str(drive.parent))
    files = [f for f in (work / name, drive / name) if zipfile.is_zipfile(f)]
    shutil.rmtree(part, ignore_errors=True)
    if files:
        zipfile.ZipFile(files[0]).extractall(part)
    elif "://" in address:
        subprocess.run(["git", "clone", "--quiet", "--depth=1", address, part])
    if not (part / "course_lib").is_dir():
        raise FileNotFoundError(
            f"{address or name} was not found. Upload course.zip to this session (in Colab: the "
            "folder on the left), wait until the upload has ended, and run this cell again. From "
            "your Drive: tick SAVE_TO_DRIVE. `make bundle` in a copy of the course writes it.")
    around = [part.rename(work / "course")]
sys.path[:0] = map(str, around[:1])
from course_lib import colab

session = colab.setup(drive=SAVE_TO_DRIVE)
print(session.line())
