"""JupyterLab and Voilà on this machine, and the browser that looks at them.

$COURSE_WIDGETS_VENV names another environment for the servers: make test-widgets7.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "build" / "browser"  # screenshots
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NOTEBOOK = "explorer.ipynb"
OPENING, PATIENCE = 120_000, 30_000  # milliseconds; a busy machine is slow, not wrong


def chromium() -> str:
    """Where the browser is. In CI it must be there; elsewhere a test that needs it is skipped."""
    for path in filter(None, map(shutil.which, NAMES)):
        return path
    if os.environ.get("CI"):
        pytest.fail("There is no browser here, and CI must have one: .ci/run installs chromium.")
    pytest.skip(f"None of {', '.join(NAMES)} is installed: no look at the explorer in a browser.")


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as p:
        opened = p.chromium.launch(executable_path=chromium(),
                                   args=["--no-sandbox", "--no-proxy-server"])
        try:
            yield opened
        finally:
            opened.close()


def command(kind: str, port: int) -> list[str]:
    venv = os.environ.get("COURSE_WIDGETS_VENV")
    python = str(ROOT / venv / "bin" / "python") if venv else sys.executable
    if kind == "voila":
        return [python, "-m", "voila", NOTEBOOK, f"--port={port}", "--no-browser",
                "--Voila.ip=127.0.0.1", "--Voila.log_level=ERROR"]
    return [python, "-m", "jupyterlab", f"--port={port}", "--no-browser", "--ip=127.0.0.1",
            "--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.port_retries=0",
            "--ServerApp.log_level=ERROR", *["--allow-root"] * (os.geteuid() == 0)]


def surroundings(folder: Path) -> dict[str, str]:
    """Nothing of this machine's settings, and none left behind."""
    own = ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
           "IPYTHONDIR", "JUPYTER_RUNTIME_DIR")
    return {**os.environ, **{name: str(folder / name.lower()) for name in own},
            "PYTHONPATH": str(ROOT), "JUPYTER_PREFER_ENV_PATH": "1", "PYTHONWARNINGS": "ignore"}


@contextlib.contextmanager
def server(kind: str, folder: Path, code: str) -> Iterator[str]:
    """The address of a server on a folder whose one notebook holds `code`; it and all its kernels
    are gone afterwards."""
    cell = nbformat.v4.new_code_cell(code, id="explorer")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), folder / NOTEBOOK)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with (folder / f"{kind}.log").open("wb") as log:
        running = subprocess.Popen(command(kind, port), cwd=folder, env=surroundings(folder),
                                   stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            # Voilà executes a page that is asked for: its list of static files answers without
            _await(f"{address}/api" if kind == "lab" else f"{address}/voila/static/none", running,
                   folder / f"{kind}.log")
            yield f"{address}/lab/tree/{NOTEBOOK}" if kind == "lab" else address
        finally:  # the server ends its kernels; what does not end is ended
            running.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _await(address: str, running: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + OPENING / 1000
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < until and running.poll() is None:
        try:
            opener.open(address, timeout=5).close()
            return
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"The server did not answer:\n{log.read_text(errors='replace')[-2000:]}")


def opened(b: Browser, kind: str, address: str) -> Page:
    """The page with the explorer's first figure. In JupyterLab the cell is run as a reader does."""
    page = b.new_page(viewport={"width": 1400, "height": 1500})
    page.set_default_timeout(OPENING)
    page.goto(address)
    if kind == "lab":
        page.get_by_text("| Idle").wait_for()  # the kernel is there
        page.locator(".jp-CodeCell .jp-Editor").first.click()
        page.keyboard.press("Shift+Enter")
    page.locator("img.explorer-figure").wait_for()
    page.set_default_timeout(PATIENCE)
    return page
