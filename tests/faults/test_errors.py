"""Every error at every system call of a save, and a disk that is full: earlier checkpoints survive,
and training has a say."""

import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from course_lib.checkpoints import SaveError, Store
from course_lib.errors import CourseError
from course_lib.training import fit
from tests.faults.jobs import EPOCHS, training
from tests.faults.shims import (
    ERRORS,
    RUN,
    FailingDisk,
    calls_of_a_save,
    filled,
    make_state,
    newest,
    same,
)


@pytest.mark.parametrize("code", ERRORS, ids=os.strerror)
@pytest.mark.parametrize("stays", [False, True], ids=["once", "for good"])
def test_every_error_at_every_call_of_a_save(folder: Path, code: int, stays: bool) -> None:
    calls = calls_of_a_save(folder)
    refused = 0
    for at, call in enumerate(calls):
        store = filled(place := folder / str(at))
        store.folder.disk = FailingDisk(at, code, stays=stays)
        pruning = at >= calls.index("listdir")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                store.save(3, make_state(3))
                saved = True
            except SaveError as error:
                assert f"{os.strerror(code)}. Make space" in str(error)
                assert store.status == f"not saved: {os.strerror(code)}"
                saved, refused = False, refused + 1
        assert saved == pruning, call
        assert len(told) == pruning
        # 3 when only the last fsync failed
        assert newest(place) in ((3,) if saved else (2, 3))
        store.folder.disk = os
        store.save(4, make_state(4))
        assert newest(place) == 4
    assert refused == calls.index("listdir") == 8


@pytest.mark.parametrize("code", ERRORS, ids=os.strerror)
def test_every_error_at_every_call_of_a_copy(folder: Path, code: int) -> None:
    """The mirror fails, training does not notice, and the store tries again when it is closed."""
    for at, call in enumerate(calls_of_a_save(folder, mirror=True)):
        store = filled(folder / str(at), mirror := folder / f"{at} mirror")
        assert store.mirror
        store.mirror.disk = FailingDisk(at, code)
        with pytest.warns(UserWarning, match=os.strerror(code)):
            store.save(3, make_state(3))
            store.close()
        assert store.status == "saved locally, on Drive, verified", call
        assert newest(mirror) == 3


def test_a_mirror_that_is_broken_for_good_is_told_once_and_costs_nothing(folder: Path) -> None:
    store = Store(folder / "here", folder / "there")
    assert store.mirror
    store.mirror.disk = FailingDisk(0, ERRORS[0], stays=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(20):
            store.save(step, make_state(step))
            assert store.status == "saved locally"
        store.close()
    during, after = (str(warning.message) for warning in told)
    assert "fails (No space left on device). Training goes on" in during
    assert "step 19, is saved locally, but not in" in after
    assert newest(folder / "here") == 19


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB; without the right to mount one the test is skipped: the shims above cover
    ENOSPC at every call."""
    (place := tmp_path / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)],
                      capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    store = Store(small_disk / "run")
    store.open(*RUN)
    last = refused = 0
    for step in range(1, 60):
        # ever larger, until 20 did not fit; then small ones again
        size = 100 * step if refused < 20 else 100
        try:
            store.save(step, make_state(step, size=size))
            last, kept = step, size
        except SaveError as error:
            assert "No space left on device" in str(error)
            refused += 1
        step, state = store.latest() or (0, {})
        assert step == last and same(state, make_state(last, size=kept))
    assert (refused, last) == (20, 59)
    store.close()


@pytest.mark.parametrize("code", ERRORS, ids=os.strerror)
def test_training_goes_on_when_nothing_can_be_saved_any_more(folder: Path, code: int) -> None:
    def train(store: Store | None) -> dict[str, torch.Tensor]:
        model, method, split, optim = training("stateful")
        return fit(model, method, split, epochs=EPOCHS, optim=optim, seed=3, store=store,
                   progress=False, save_every=0.0).model.state_dict()

    wanted, store = train(None), Store(folder)
    store.folder.disk = FailingDisk(100, code, stays=True)
    with pytest.warns(UserWarning, match=os.strerror(code)):
        assert same(train(store), wanted)
    assert 0 < (Store(folder).latest() or (0,))[0] < EPOCHS * 8
    assert same(train(Store(folder)), wanted)


def test_a_store_where_none_can_be_made_is_refused(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(CourseError, match="Choose a folder that you may write to"):
        Store(folder / "file" / "run")
    with pytest.raises(CourseError, match="null byte"):
        Store(folder / "a\0b")
