"""Run the notebooks as a student in Colab would, as far as that can be had without Colab: python -m
tools.colab_twin [beginning of a name]
 A clean Python with Colab's versions (tests/colab/versions-*.txt); a stand-in for google.colab; an
empty working folder; and the repository only as a git address on this disk. Each notebook is run
whole without Drive, then with Drive; then its FULL training, at a small size, is killed, the
machine is thrown away, and a new one runs it to the end from what Drive has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

from course_lib.colab import FOLDER
from tools.addresses import setup_code
from tools.common import BUILD, ROOT, ToolError, sources
from tools.execute import Manager

HERE = ROOT / "tests" / "colab"
PYTHONS = ("3.13", "3.12")  # what Colab has, and had before
SMALL = "3000,12"  # images and epochs of a FULL training in the twin
SECONDS = 900  # for one cell
# seconds from the start of the kernel, the promise, for a machine that does nothing else
FIRST_FIGURE = 30


def versions() -> dict[str, str]:
    """Colab's packages by name, "" where the version is not known, from the newest list."""
    lines = sorted(HERE.glob("versions-*.txt"))[-1].read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {name: version for name, _, version in pairs}


def repository(folder: Path) -> str:
    """The working tree as it stands, as the one commit of a bare repository; its address."""
    bare = folder / "course.git"
    git = ["git", f"--git-dir={bare}", f"--work-tree={ROOT}", "-c", "user.name=twin", "-c",
           "user.email=twin@localhost", "-c", "gc.auto=0"]
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(bare)],
                   check=True)
    for name in ("core.compression", "pack.window"):  # a clone is quicker without
        subprocess.run([*git, "config", name, "0"], check=True)
    subprocess.run([*git, "add", "--all", "."], check=True, cwd=ROOT, capture_output=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "as it stands"], check=True, cwd=ROOT)
    return bare.as_uri()


def borrowed(folder: Path) -> Path:
    """A Python with the packages of this one, but without the course: nothing is installed twice.
    Its path."""
    venv.create(folder, symlinks=True)
    own = next((folder / "lib").glob("python*")) / "site-packages"
    lent = [path for path in sys.path if path.endswith("site-packages")]
    # .pth files there are not read again
    (own / "twin.pth").write_text("\n".join([str(HERE / "standin"), *lent, "import twin"]) + "\n")
    return folder / "bin" / "python"


def colab_python() -> str:
    """A Python of a version that Colab has; this one where there is none."""
    for version in PYTHONS:
        # pyenv keeps its versions side by side
        around = sorted(Path(sys.base_prefix).parent.glob(f"{version}*/bin/python3"))
        for name in (*map(str, around), f"python{version}"):
            if shutil.which(name) and not subprocess.run([name, "-c", "import venv, ensurepip"],
                                                         capture_output=True).returncode:
                return name
    return sys.executable


def installed(folder: Path, python: str) -> Path:
    """A Python with Colab's versions of everything that the course imports. Kept in `folder` while
    the list is the same."""
    words = sorted(f"{name}=={version}" if version else name for name, version in versions().items()
                   if name != "python")
    target, note = folder / "bin" / "python", folder / "installed.txt"
    if note.is_file() and note.read_text() == f"{python} {words}":
        return target
    print(f"Making a twin of Colab's Python in {folder} with {python}; this takes some minutes.",
          flush=True)
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    done = subprocess.run([str(target), "-m", "pip", "install", "--quiet", *words],
                          capture_output=True, text=True)
    if done.returncode:
        raise ToolError("Colab's versions cannot be had here; --borrow takes this Python's "
                        f"instead.\n{done.stderr[-800:]}")
    own = next((folder / "lib").glob("python*")) / "site-packages"
    (own / "twin.pth").write_text(f"{HERE / 'standin'}\nimport twin\n")
    note.write_text(f"{python} {words}")
    return target


@dataclass
class Watch:
    """What a run left behind while it went on."""

    # store -> the checkpoints that were whole on this machine's disk
    steps: dict[str, set[int]] = field(default_factory=dict)
    figure: float | None = None  # seconds until the first figure
    work: float = 0.0  # of these, seconds of a processor: what a busy machine does not stretch
    killed: str = ""  # the store that was being written to


@dataclass
class Twin:
    """A machine that can be thrown away, and a Drive that stays."""

    python: Path
    home: Path
    address: str
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.new_machine()
        argv = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}",
                "--IPKernelApp.log_level=ERROR"]
        spec = json.dumps({"argv": argv, "display_name": "twin", "language": "python"})
        (self.home / "kernels" / "twin").mkdir(parents=True, exist_ok=True)
        (self.home / "kernels" / "twin" / "kernel.json").write_text(spec)

    @property
    def content(self) -> Path:
        return self.home / "content"

    @property
    def drive(self) -> Path:
        return self.home / "drive"

    @property
    def course_in_drive(self) -> Path:
        return self.drive / "MyDrive" / FOLDER

    @property
    def mounts(self) -> int:
        """How often Drive was asked for."""
        asked = self.home / "mounts"
        return len(asked.read_text()) if asked.exists() else 0

    def new_machine(self) -> None:
        """Colab gives another one: what was on the disk is gone, what was on Drive is not."""
        for gone in ("content", "user"):
            shutil.rmtree(self.home / gone, ignore_errors=True)
            (self.home / gone).mkdir(parents=True)

    def environment(self, **words: str) -> dict[str, str]:
        """Nothing of the user's own: no data, no models, no network."""
        kept = {k: v for k, v in os.environ.items()
                if k in {"PATH", "LANG", "LC_ALL", "TMPDIR", "OMP_NUM_THREADS"}}
        nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY",
                                 "ALL_PROXY"), "http://127.0.0.1:9")
        own = {"HOME": str(self.home / "user"), "IPYTHONDIR": str(self.home / "user" / "ipython"),
               "PYDEVD_DISABLE_FILE_VALIDATION": "1",
               "TWIN_MACHINE": str(self.home)}
        return {**kept, **nowhere, **own, "COLAB_RELEASE_TAG": "twin",
                "MPLBACKEND": "module://matplotlib_inline.backend_inline",
                **self.extra, **words}

    def run(self, notebook: NotebookNode, *, kill: bool = False, **words: str) -> Watch:
        """Run all cells in place; with `kill`, kill the kernel as soon as a checkpoint is safe
        where the student wants it."""
        seen, began = Watch(), time.perf_counter()

        def figure(cell: NotebookNode, **_: Any) -> None:
            if seen.figure is None and any("image/png" in output.get("data", {})
                                           for output in cell.get("outputs", [])):
                seen.figure, seen.work = time.perf_counter() - began, processor_seconds(client)

        client = NotebookClient(notebook, kernel_name="twin", timeout=SECONDS,
                                kernel_manager_class=Manager,
                                resources={"metadata": {"path": str(self.content)}},
                                on_cell_executed=figure)  # keeps widgets, which interact needs
        client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(
            kernel_dirs=[str(self.home / "kernels")])
        with watched(self, client, seen, kill):
            try:
                client.execute(env=self.environment(**words))
            except DeadKernelError:
                if not seen.killed:
                    raise
        return seen


def processor_seconds(client: NotebookClient) -> float:
    """What the kernel and its children (git, a compiler) have used."""
    fields = Path(f"/proc/{pid_of(client)}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pid_of(client: NotebookClient) -> int:
    return int(client.km.provisioner.pid)  # type: ignore[union-attr]


def checkpoints_in(folder: Path) -> dict[str, set[int]]:
    """Store -> the steps of its whole checkpoints, however much is being written and deleted there
    just now."""
    found: dict[str, set[int]] = {}
    for at, _, names in os.walk(folder):
        steps = {int(name.split("-")[1]) for name in names
                 if name.startswith("ckpt-") and _complete(Path(at) / name)}
        if steps:
            found[str(Path(at).relative_to(folder))] = steps
    return found


def _complete(path: Path) -> bool:
    """Do its bytes hash to its name? One that is being written does not, one just deleted is no
    more."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == path.name.split("-")[2]
    except OSError:
        return False


@contextmanager
def watched(twin: Twin, client: NotebookClient, seen: Watch, kill: bool) -> Iterator[None]:
    """Look at the checkpoints while the notebook runs; a second one on Drive is the sign to
    kill."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            for store, steps in checkpoints_in(twin.content / "results").items():
                seen.steps.setdefault(store, set()).update(steps)
            safe = checkpoints_in(twin.course_in_drive)
            # not the first one: a training that began anew would be seen to write that again
            ripe = [store for store, steps in safe.items() if store in seen.steps
                    and max(steps) > min(seen.steps[store])]
            if kill and ripe and not seen.killed:
                seen.killed = ripe[0]
                os.kill(pid_of(client), signal.SIGKILL)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def opened(path: Path, address: str, *, drive: bool = False, full: bool = False,
           upto: str = "") -> NotebookNode:
    """The notebook as it opens in Colab, its outputs gone, its boxes ticked; `upto` cuts it after
    the cell that holds these words."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            if "setup" in cell.metadata.get("tags", []):
                cell.source = setup_code(address).replace("SAVE_TO_DRIVE = False",
                                                          f"SAVE_TO_DRIVE = {drive}")
            if full:
                cell.source = re.sub(r"^FULL = False", "FULL = True", cell.source, flags=re.M)
                # a training of a few images ends elsewhere than the stored one: that one comparison
                # is not for it
                cell.source = re.sub(r"(abs\(.+\) < )0\.\d+", r"\g<1>1", cell.source)
    if upto:
        last = next(n for n, cell in enumerate(notebook.cells) if upto in cell.source)
        notebook.cells = notebook.cells[: last + 1]
    return notebook


def said(notebook: NotebookNode, tag: str = "setup") -> str:
    """What the cell with this tag printed."""
    cell = next(cell for cell in notebook.cells if tag in cell.metadata.get("tags", []))
    return "".join(output.get("text", "") for output in cell.outputs)


def packages(python: Path) -> list[str]:
    """What is installed there, with versions."""
    script = ("from importlib.metadata import distributions; print(sorted({f'{d.name} {d.version}' "
              "for d in distributions()}))")
    return subprocess.run([str(python), "-c", script], check=True, capture_output=True,
                          text=True).stdout.split("', '")


def without_drive(twin: Twin, path: Path) -> str:
    before, notebook = twin.mounts, opened(path, twin.address)
    seen = twin.run(notebook)
    if twin.mounts != before or " only. " not in said(notebook) or said(notebook).count("\n") != 1:
        raise ToolError("the setup cell asked for Drive, or did not say in one line where results "
                        f"go: {said(notebook)!r}")
    if seen.figure is None or seen.work > FIRST_FIGURE:
        raise ToolError(f"the first figure came after {seen.work} s of work; {FIRST_FIGURE} s are "
                        "promised")
    return (f"first figure after {seen.figure:.1f} s of a cold start ({seen.work:.1f} s of a "
            "processor)")


def with_drive(twin: Twin, path: Path, upto: str = "") -> str:
    before, notebook = twin.mounts, opened(path, twin.address, drive=True, upto=upto)
    twin.run(notebook)
    if twin.mounts != before + 1 or "and in Drive" not in said(notebook):
        raise ToolError(f"Drive was asked for {twin.mounts - before} times, and the setup cell "
                        f"said {said(notebook)!r}")
    return "Drive was asked for once"


def killed_and_resumed(twin: Twin, path: Path, upto: str = "") -> str:
    """On a new machine, the first checkpoint of the same store is to be no older than the newest
    one on Drive."""
    if not any("FULL" in cell.source for cell in nbformat.read(path, as_version=4).cells
               if cell.cell_type == "code"):
        return "trains nothing"
    shutil.rmtree(twin.drive, ignore_errors=True)
    first = twin.run(opened(path, twin.address, drive=True, full=True, upto=upto), kill=True,
                     TWIN_SMALL=SMALL)
    if not first.killed:
        raise ToolError("FULL wrote no checkpoint to Drive that it could have been killed after")
    twin.new_machine()
    kept = max(checkpoints_in(twin.course_in_drive)[first.killed])
    second = twin.run(opened(path, twin.address, drive=True, full=True, upto=upto),
                      TWIN_SMALL=SMALL)
    written = second.steps.get(first.killed, set())
    if not written or min(written) < kept or max(written) == kept:
        raise ToolError(f"killed at batch {kept} or later; the next run wrote checkpoints "
                        f"{sorted(written)[:3]}: it did not go on")
    return f"killed after batch {kept}, went on from there on another machine"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("only", nargs="?", default="",
                        help="the beginning of a name, e.g. 01; all of them without it")
    parser.add_argument("--borrow", action="store_true",
                        help="this Python and its packages instead of Colab's")
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        python = borrowed(home / "venv") if args.borrow else installed(BUILD / "colab-twin",
            colab_python())
        before, address = packages(python), repository(home)
        for source in sources(args.only):
            twin = Twin(python, home / source.stem, address)
            for scenario in (without_drive, with_drive, killed_and_resumed):
                twin.new_machine()
                try:
                    word = scenario(twin, source.with_suffix(".ipynb"))
                except (ToolError, CellExecutionError, DeadKernelError) as error:
                    word, failed = (f"FAILED: {getattr(error, 'ename', '')} "
                                    f"{getattr(error, 'evalue', error)}", True)
                print(f"{source.stem:20} {scenario.__name__.replace('_', ' '):20} {word}",
                      flush=True)
        if packages(python) != before:
            print("FAILED: the notebooks changed what is installed", file=sys.stderr)
            failed = True
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(str(error))
