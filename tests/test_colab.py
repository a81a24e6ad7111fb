"""Against a stand-in google.colab: the real one exists in Colab only."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from course_lib import CourseError, colab
from tests.faults.shims import mounts, stand_in


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No sign of any host, and a place for Drive and results below tmp_path."""
    for sign in colab.SIGNS:
        monkeypatch.delenv(sign, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(colab, "DRIVE", tmp_path / "drive")
    monkeypatch.setattr(colab, "RESULTS", {"colab": str(tmp_path / "content"),
                                           "kaggle": str(tmp_path / "working")})


@pytest.mark.parametrize(("signs", "where"), [
    ((), "local"), (("BINDER_SERVICE_HOST",), "binder"), (("COLAB_RELEASE_TAG",), "colab"),
    (("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"), "kaggle")])
def test_where(monkeypatch, tmp_path, signs, where):
    for sign in signs:
        monkeypatch.setenv(sign, "1")
    session = colab.setup()
    assert session.where == where and session.drive is None
    assert session.results == {"kaggle": tmp_path / "working",
                               "colab": tmp_path / "content"}.get(where, tmp_path / "results")
    words = (colab.NAMES[where], torch.__version__, str(session.results), colab.LIFETIME[where])
    assert all(word in session.line() for word in words) and "\n" not in session.line()
    reason = "No module named" if where == "colab" else "has none"
    with pytest.warns(UserWarning, match=rf"Google Drive is not mounted \(.*{reason}"):
        assert colab.setup(drive=True).drive is None


def test_drive_is_asked_for_only_when_wanted(monkeypatch, tmp_path):
    asked = []
    stand_in(monkeypatch, lambda place: (asked.append(place), mounts(place)))
    assert colab.setup().drive is None and asked == [], "the loaded package means Colab"
    session = colab.setup(drive=True)
    assert asked == [str(tmp_path / "drive")]
    assert session.drive == tmp_path / "drive" / "MyDrive" / colab.FOLDER
    assert str(session.drive) in session.line()
    assert colab.setup(drive=True) == session  # "Run all" again
    monkeypatch.setenv("KAGGLE_URL_BASE", "x")
    assert colab.setup().where == "kaggle", "it looks like Colab"


@pytest.mark.parametrize(("error", "reason"), [
    (ValueError("mount failed"), "mount failed"), (NotImplementedError(), "NotImplementedError"),
    ([None], "MyDrive is not there")])
def test_a_drive_that_cannot_be_mounted_is_a_warning(monkeypatch, error, reason):
    stand_in(monkeypatch, Mock(side_effect=error))
    with pytest.warns(UserWarning, match=rf"is not mounted \(.*{reason}\). Results are saved"):
        store = colab.setup(drive=True).store("run")
    store.save(1, {"model": {}})
    assert store.mirror is None
    store.close()


def test_full_is_refused_only_where_the_machine_is_too_slow(monkeypatch):
    stored = [SimpleNamespace(record={"seconds": hours * 3600.0}) for hours in (3, 4, 9)]
    monkeypatch.setattr("course_lib.tables.stored_models", lambda root, name: stored)
    on = {where: colab.Session(where, torch.device(device), Path("results"))
          for where, device in (("colab", "cpu"), ("local", "cpu"), ("kaggle", "cuda"))}
    assert "a: 240.0 min" in on["colab"].how_long("a", full=True)  # it fits into a session
    assert on["colab"].how_long("a", "b") and on["kaggle"].how_long("a", "b", full=True)
    with pytest.raises(CourseError,
                       match=r"FULL would take about 8 hours here, .* T4 GPU, .*Or leave FULL off"):
        on["colab"].how_long("a", "b", full=True)
