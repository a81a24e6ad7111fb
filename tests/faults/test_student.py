"""A cell that trains: the stop button, "Run all" after a reconnect, a Drive that is full."""

import errno
import os
import shutil
import signal

import pytest

from course_lib import colab
from tests.faults.jobs import train_here as cell
from tests.faults.shims import FailingDisk, mounts, same, stand_in


@pytest.fixture(autouse=True)
def in_colab(folder, monkeypatch):
    for sign in ("KAGGLE_KERNEL_RUN_TYPE", "KAGGLE_URL_BASE"):
        monkeypatch.delenv(sign, raising=False)
    monkeypatch.setattr(colab, "DRIVE", folder / "drive")
    monkeypatch.setattr(colab, "RESULTS", {"colab": str(folder / "content")})
    stand_in(monkeypatch, mounts)


@pytest.fixture(scope="module")
def wanted():
    return cell(None)


def test_run_all_after_a_reconnect(wanted, folder):
    with pytest.raises(KeyboardInterrupt):
        cell(colab.setup(drive=True).store("run"), lambda: os.kill(os.getpid(), signal.SIGINT))
    shutil.rmtree(folder / "content")  # the machine is another one
    store = colab.setup(drive=True).store("run")
    assert (store.latest() or (0,))[0] == 14
    assert same(cell(store), wanted)
    assert store.status == "saved locally, on Drive, verified"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOTCONN], ids=os.strerror)
def test_drive_fails_in_mid_run_and_comes_back(wanted, code):
    store = colab.setup(drive=True).store("run")
    store.mirror.disk = FailingDisk(20, code, stays=True)
    with pytest.warns(UserWarning, match=os.strerror(code)) as told:
        assert same(cell(store, lambda: setattr(store.mirror, "disk", os)), wanted)
    assert len(told) == 1
    assert store.status == "saved locally, on Drive, verified"
