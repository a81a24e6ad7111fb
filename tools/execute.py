"""Execute a notebook's source offline, with a progress bar, and keep the outcome until one of its
inputs changes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from queue import Empty
from typing import Any

import jupytext
import nbformat
from jupyter_client import AsyncKernelClient, AsyncKernelManager
from jupyter_client.channels import AsyncZMQSocketChannel
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_output
from tqdm import tqdm
from traitlets import Type

from tools.common import BUILD, ROOT, write

KEPT = BUILD / "executed"
VERSIONS = ("ipykernel", "jupytext", "matplotlib", "matplotlib-inline", "nbclient", "numpy",
            "torch", "torchvision")
CELL_SECONDS = 600
AT_ONCE = min(2, os.cpu_count() or 1)  # notebooks, which share the cores
PICTURE = re.compile(r'<img[^>]* alt="([^"]*)" src="data:image/png;base64,([^"]+)"')
# the discard port: whoever asks the network for something learns at once that there is none
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Executed:
    notebook: NotebookNode
    seconds: float
    fresh: bool  # executed just now, not kept from before


def inputs() -> Iterator[Path]:
    """The files that every notebook may depend on."""
    yield Path(__file__)
    for folder in ("course_lib", "serialized_models"):
        found = (p for p in (ROOT / folder).rglob("*") if p.is_file())
        yield from sorted(p for p in found if p.suffix not in {".pyc", ".so", ".md"}
                          and not p.name.startswith("."))


def fingerprint(text: str) -> str:
    """A hash over all that an execution depends on: the source, the library, the models, the
    versions."""
    total = hashlib.sha256(text.encode())
    for path in inputs():
        total.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(
            path.read_bytes()).digest())
    total.update(repr([sys.version_info[:3],
                       *((name, metadata.version(name)) for name in VERSIONS)]).encode())
    return total.hexdigest()


def surroundings() -> dict[str, str]:
    """The environment of the kernel: no network, no data but the embedded, no profile of this
    machine."""
    (BUILD / "ipython").mkdir(parents=True, exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name != "COURSE_MODELS"
            and not name.lower().endswith("_proxy")}
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
                            NOWHERE)
    own = {"COURSE_CACHE": str(BUILD / "cache"), "IPYTHONDIR": str(BUILD / "ipython"),
           "JUPYTER_PREFER_ENV_PATH": "1",
           "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // AT_ONCE))}
    return {**kept, **proxies, **own, "no_proxy": "localhost,127.0.0.1"}


class Channel(AsyncZMQSocketChannel):
    """Looks for messages once a second: on a busy machine pyzmq can miss that one has come, and
    would wait for it until the cell's time is over, or for ever."""

    async def get_msg(  # type: ignore[override]  # as in the class above
            self, timeout: float | None = None) -> dict[str, Any]:
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return await super().get_msg(max(0.0, min(1.0, end - time.monotonic())))
            except Empty:
                if time.monotonic() >= end:
                    raise


class Client(AsyncKernelClient):
    shell_channel_class = Type(Channel)
    iopub_channel_class = Type(Channel)


class Manager(AsyncKernelManager):
    client_factory = Type(Client)


def key(cell: NotebookNode) -> str:
    return hashlib.sha256(cell.source.encode()).hexdigest()[:16]


def execute(notebook: NotebookNode, label: str, folder: Path, times: dict[str, float]) -> dict[str,
        float]:
    """Execute in place; `times` are what the cells took before, for the time left. Returns what
    they took now."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    usual = sum(times.values()) / len(times) if times else 1.0
    share = {key(cell): times.get(key(cell), usual) for cell in code}
    took, began = {}, time.perf_counter()
    bar = tqdm(
        total=sum(share[key(cell)] for cell in code),
        desc=f"{label:26}",
        bar_format="{desc} {percentage:3.0f}% |{bar:24}| {elapsed} so far, {remaining} left",
        mininterval=0.2 if sys.stderr.isatty() else 15,
    )

    def count(cell: NotebookNode, cell_index: int, **_: object) -> None:
        nonlocal began
        if cell.cell_type == "code" and cell.source.strip():
            took[key(cell)], began = time.perf_counter() - began, time.perf_counter()
            bar.update(share[key(cell)])

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        kernel_manager_class=Manager,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        store_widget_state=True,  # for `still`; without it, nbclient fails at an Output widget
        coalesce_streams=True,
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        on_cell_executed=count,
    )
    with bar:
        asyncio.run(client.async_execute(env=surroundings()))  # which closes its event loop
    return took


def progress_bar(output: NotebookNode) -> bool:
    """It says nothing on paper."""
    return (output.output_type == "stream" and output.name == "stderr"
            and bool(re.search(r"\r|\d+%\|", output.text)))


def still(output: NotebookNode, state: dict[str, Any]) -> list[NotebookNode]:
    """The output as it is, or what a live widget showed at its first setting: what was drawn
    inside it, as `ipywidgets.interact` does, or its picture, without its controls."""
    view = output.get("data", {}).get("application/vnd.jupyter.widget-view+json")
    waiting, shown = ([view["model_id"]] if view else []), [] if view else [output]
    while waiting:
        widget = state.get(waiting.pop(0), {}).get("state", {})
        shown += widget.get("outputs", [])
        for alt, png in PICTURE.findall(str(widget.get("value", ""))):
            width = int.from_bytes(base64.b64decode(png[:32])[16:20]) // 2  # it is drawn at 2x
            shown.append(new_output(
                "display_data", {"image/png": png, "text/plain": html.unescape(alt)},
                metadata={"image/png": {"alt": html.unescape(alt), "width": width}}))
        waiting += [child.removeprefix("IPY_MODEL_") for child in widget.get("children", [])]
    return shown


def tidy(notebook: NotebookNode) -> None:
    """Take out what a page cannot show and what differs from machine to machine."""
    widgets = notebook.metadata.pop("widgets", {})
    state = widgets.get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [shown for output in cell.outputs if not progress_bar(output)
                            for shown in still(output, state)]


def executed(source: Path, label: str = "", again: bool = False) -> Executed:
    """The executed notebook of a source: from build/executed/ if no input has changed, else
    executed now."""
    text = source.read_text(encoding="utf-8")
    print_of_now, kept = fingerprint(text), KEPT / f"{source.stem}.ipynb"
    before = nbformat.read(kept, as_version=4) if kept.is_file() else None
    course = before.metadata.get("course", {}) if before else {}
    if before and course.get("fingerprint") == print_of_now and not again:
        return Executed(before, course["seconds"], fresh=False)
    notebook, began = jupytext.reads(text, fmt="py:percent"), time.perf_counter()
    times = execute(notebook, label or source.stem, source.parent, course.get("times", {}))
    tidy(notebook)
    seconds = round(time.perf_counter() - began, 1)
    notebook.metadata["course"] = {"fingerprint": print_of_now, "seconds": seconds, "times": times}
    write(kept, nbformat.writes(notebook))
    return Executed(notebook, seconds, fresh=True)

