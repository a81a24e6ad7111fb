"""Against a stand-in google.colab: the real one exists in Colab only."""

import os
import re
from pathlib import Path

import pytest
import torch

from course_lib import colab
from course_lib.errors import CourseError
from tests.faults.shims import mounts, stand_in


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No sign of any host, and a place for Drive and results below tmp_path."""
    for sign in colab.SIGNS:
        monkeypatch.delenv(sign, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(colab, "DRIVE", tmp_path / "drive")
    monkeypatch.setattr(colab, "RESULTS", {"colab": str(tmp_path / "content"),
                                           "kaggle": str(tmp_path / "working")})


@pytest.mark.parametrize(("signs", "where"), [
    ((), "local"), (("BINDER_SERVICE_HOST",), "binder"), (("BINDER_REPO_URL",), "binder"),
    (("COLAB_RELEASE_TAG",), "colab"), (("KAGGLE_KERNEL_RUN_TYPE",), "kaggle"),
    (("KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"), "kaggle"),
])
def test_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signs: tuple[str, ...],
               where: str) -> None:
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


def test_drive_is_asked_for_only_when_wanted(monkeypatch: pytest.MonkeyPatch,
                                             tmp_path: Path) -> None:
    asked: list[str] = []
    stand_in(monkeypatch, lambda place: (asked.append(place), mounts(place)))
    assert colab.setup().drive is None and asked == [], "the loaded package means Colab"
    session = colab.setup(drive=True)
    assert asked == [str(tmp_path / "drive")]
    assert session.drive == tmp_path / "drive" / "MyDrive" / colab.FOLDER
    assert str(session.drive) in session.line()
    assert colab.setup(drive=True) == session  # "Run all" again
    monkeypatch.setenv("KAGGLE_URL_BASE", "x")
    assert colab.whereabouts() == "kaggle", "it looks like Colab"


def test_the_store_of_a_session_has_its_copy_in_drive(monkeypatch: pytest.MonkeyPatch,
                                                      tmp_path: Path) -> None:
    stand_in(monkeypatch, mounts)
    store = colab.setup(drive=True).store("exp1/pgd-at")
    store.save(4, {"model": {"w": torch.ones(2)}})
    store.close()
    assert store.dir == tmp_path / "content" / "exp1" / "pgd-at"
    os.rename(tmp_path / "content", tmp_path / "taken away by Colab")
    step, state = colab.setup(drive=True).store("exp1/pgd-at").latest() or (0, {})
    assert (step, state["model"]["w"].tolist()) == (4, [1, 1])
    assert colab.setup().store("exp1/pgd-at").latest() is None  # without Drive there is nothing


@pytest.mark.parametrize(("error", "reason"), [
    (ValueError("mount failed"), "mount failed"), (OSError(107, "gone"), r"\[Errno 107\] gone"),
    (NotImplementedError(), "NotImplementedError"), (None, "MyDrive is not there"),
])
def test_a_drive_that_cannot_be_mounted_is_a_warning(
        monkeypatch: pytest.MonkeyPatch, error: Exception | None, reason: str) -> None:
    def mount(place: str) -> None:
        if error is not None:
            raise error

    stand_in(monkeypatch, mount)
    with pytest.warns(UserWarning, match=rf"is not mounted \(.*{reason}\). Results are saved"):
        store = colab.setup(drive=True).store("run")
    store.save(1, {"model": {}})
    assert store.mirror is None
    store.close()


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "a\\b", "c:x", "a\0b", "a\nb"])
def test_a_store_stays_below_the_results(name: str) -> None:
    with pytest.raises(CourseError, match="plain name"):
        colab.setup().store(name)


def test_only_this_room_knows_colab() -> None:
    root = Path(colab.__file__).parent
    knowing = {path.name for path in root.rglob("*.py")
               if "google.colab" in path.read_text(encoding="utf-8")}
    assert knowing == {"colab.py"}


def test_the_time_of_a_training_is_measured_and_guessed() -> None:
    session = colab.setup()
    line, time = session.how_long("exp1/pgd-at"), r"\d+ (s|minutes)"
    assert re.fullmatch(rf"exp1/pgd-at: {time} on one CPU core \(measured\), {time} on a GPU "
                        r"\(an estimate\)", line)
    assert session.how_long("exp1/natural", "exp1/pgd-at").splitlines()[1] == line
    with pytest.raises(CourseError, match="Nothing is called exp1/nothing"):
        session.how_long("exp1/nothing")


def test_full_is_refused_only_where_the_machine_is_too_slow(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colab, "_seconds", lambda name: (4 * 3600.0, 600.0))
    on = {where: colab.Session(where, torch.device(device), Path("results"))
          for where, device in (("colab", "cpu"), ("local", "cpu"), ("kaggle", "cuda"))}
    assert "4 hours" in on["colab"].how_long("a", full=True)  # it fits into a session
    assert on["colab"].how_long("a", "b") and on["kaggle"].how_long("a", "b", full=True)
    with pytest.raises(CourseError,
                       match=r"FULL would take about 8 hours here, .* T4 GPU, .*Or leave FULL off"):
        on["colab"].how_long("a", "b", full=True)
