"""What a student does to a cell that trains: the stop button, "Run all" after a reconnect, a second
tab, a Drive that is full."""

import dataclasses
import errno
import itertools
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib import colab
from course_lib.checkpoints import Store
from course_lib.errors import CourseError
from course_lib.training import fit
from tests.faults.jobs import EPOCHS, training
from tests.faults.shims import FailingDisk, end, mounts, same, stand_in, start


@pytest.fixture(autouse=True)
def in_colab(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sign in ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE"):
        monkeypatch.delenv(sign, raising=False)
    monkeypatch.setattr(colab, "DRIVE", folder / "drive")
    monkeypatch.setattr(colab, "RESULTS", {"colab": str(folder / "content")})
    stand_in(monkeypatch, mounts)


HAPPENS: list[Any] = [lambda: None]


def cell(store: Store | None, lr: float | None = None) -> dict[str, Tensor]:
    """The training cell of a notebook: the weights at its end. Something may happen at a batch."""
    model, stateful, split, optim = training("stateful")
    optim = optim if lr is None else dataclasses.replace(optim, lr=lr)
    steps = itertools.count(1)
    hook = register_optimizer_step_post_hook(lambda *_: next(steps) == 14 and HAPPENS[0]())
    try:
        return fit(model, stateful, split, epochs=EPOCHS, optim=optim, seed=3, store=store,
                   progress=False, save_every=0.0).model.state_dict()
    finally:
        hook.remove()


@pytest.fixture
def wanted() -> dict[str, Tensor]:
    return cell(None)


def stopped(store: Store) -> None:
    HAPPENS[0] = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        cell(store)
    HAPPENS[0] = lambda: None


def test_the_stop_button_and_the_cell_again(wanted: dict[str, Tensor]) -> None:
    session = colab.setup()
    stopped(session.store("run"))
    # the batch under way is finished and kept
    assert (session.store("run").latest() or (0,))[0] == 14
    assert same(cell(session.store("run")), wanted)
    assert same(cell(session.store("run")), wanted)  # once more: it is finished


def test_run_all_after_a_reconnect(wanted: dict[str, Tensor], folder: Path) -> None:
    stopped(colab.setup(drive=True).store("run"))
    shutil.rmtree(folder / "content")  # the machine is another one
    store = colab.setup(drive=True).store("run")
    assert (store.latest() or (0,))[0] == 14
    assert same(cell(store), wanted)
    assert store.status == "saved locally, on Drive, verified"


def test_a_second_tab(folder: Path) -> None:
    session = colab.setup()
    ready = folder / "ready"
    child = start("hold", folder=str(session.results / "run"), ready=str(ready))
    while not ready.exists():
        time.sleep(0.001)
    with pytest.raises(CourseError, match="made by another run"):
        cell(session.store("run"))
    for path in (session.results / "run").glob("ckpt-*"):
        path.unlink()
    with pytest.raises(CourseError, match=rf"is being written by process {child.pid} .*"
                       r"store.fresh\(\)"):
        cell(session.store("run"))
    end(child, kill=True)


def test_drive_is_not_mounted(wanted: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: str) -> None:
        raise ValueError("mount failed")

    stand_in(monkeypatch, refuse)
    with pytest.warns(UserWarning, match="Google Drive is not mounted"):
        session = colab.setup(drive=True)
    stopped(session.store("run"))
    assert same(cell(session.store("run")), wanted)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOTCONN], ids=os.strerror)
def test_drive_fails_in_mid_run_and_comes_back(wanted: dict[str, Tensor], code: int) -> None:
    store = colab.setup(drive=True).store("run")
    assert store.mirror
    store.mirror.disk = FailingDisk(20, code, stays=True)
    HAPPENS[0] = lambda: store.mirror and setattr(store.mirror, "disk", os)
    with pytest.warns(UserWarning, match=os.strerror(code)) as told:
        assert same(cell(store), wanted)
    HAPPENS[0] = lambda: None
    assert len(told) == 1
    assert store.status == "saved locally, on Drive, verified"


def test_another_learning_rate_is_not_stuck(wanted: dict[str, Tensor]) -> None:
    session = colab.setup()
    stopped(session.store("run"))
    with pytest.raises(CourseError, match=r"optim.lr is 0.5, was 0.01.*store.fresh\(\)"):
        cell(session.store("run"), lr=0.5)
    store = session.store("run").fresh()
    assert not same(cell(store, lr=0.5), wanted)
    assert store.dir.name == "run-2"
    assert same(cell(session.store("run")), wanted)  # the old run goes on where it was
