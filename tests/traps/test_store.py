"""A store whose local disk or mirror fails, hangs or holds traps. A test is named by the finding
that it closes."""

import os
import threading
import time

import pytest

from course_lib.checkpoints import SaveError, Store
from course_lib.checkpoints.disk import RECORD, Mirror
from course_lib.errors import CourseError
from tests.faults.shims import ERRORS, RUN, FailingDisk, WatchedDisk, filled, make_state, newest


@pytest.mark.parametrize("code", ERRORS, ids=os.strerror)
def test_h5_a_failing_local_disk_still_feeds_the_mirror(tmp_path, code):
    store = filled(tmp_path / "here", tmp_path / "there")
    store.folder.disk = FailingDisk(0, code, stays=True)
    with pytest.raises(SaveError, match=f"Step 3 is not saved in .*here: {os.strerror(code)}. Make "
                                        "space"):
        store.save(3, make_state(3))
    assert store.status == f"not saved locally: {os.strerror(code)}, on Drive, verified"
    assert (newest(tmp_path / "here"), newest(tmp_path / "there")) == (2, 3)
    store.mirror.disk = FailingDisk(0, code, stays=True)
    with pytest.raises(SaveError, match=f"The copy in .*there fails .{os.strerror(code)}"):
        store.save(4, make_state(4))
    with pytest.warns(UserWarning, match="step 4, is not saved locally: .*, but not in .*there"):
        store.close()


def test_h6_with_nowhere_to_save_a_training_does_not_begin(tmp_path):
    store = Store(tmp_path / "here", tmp_path / "there")
    store.folder.disk = FailingDisk(1, ERRORS[0], stays=True)  # it can be listed
    with pytest.raises(CourseError, match="Nothing of this training .*here .*No space.*Make space"):
        store.open(*RUN)
    assert store._lock is None, "the folder is free for others"


def test_h7_a_mirror_that_hangs_is_a_warning(tmp_path, monkeypatch):
    """When training starts, too. When it answers again, it gets the newest checkpoint."""
    monkeypatch.setattr(Mirror, "patience", 0.1)
    filled(tmp_path / "here", tmp_path / "there")
    store = Store(tmp_path / "here", tmp_path / "there")
    store.mirror.disk, gate = WatchedDisk(), threading.Event()
    store.mirror.disk.before = lambda *_: gate.wait(60)  # no call returns until it is let go
    with pytest.warns(UserWarning, match=r"there cannot be read \(no answer in 0.1 s\)") as one:
        store.open(*RUN)
    assert (store.latest() or (0,))[0] == 2 and not store.siblings()  # the local one
    began = time.monotonic()
    with pytest.warns(UserWarning, match=r"there fails \(no answer in 0.1 s\). Train") as more:
        for step in range(3, 40):
            store.save(step, make_state(step))
    assert len(one) == len(more) == 1
    assert time.monotonic() - began < 0.1 * 36 and store.status == "saved locally"
    gate.set()
    time.sleep(0.2)
    monkeypatch.undo()
    store.close()
    assert store.status == "saved locally, on Drive, verified" and newest(tmp_path / "there") == 39


def test_h8_no_link_is_written_through(tmp_path):
    """In folders that others may write to. Links that are locks: tests/traps/test_writer.py."""
    (mine := tmp_path / "mine").write_text("precious")
    store = Store(tmp_path / "here", tmp_path / "there")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / f"ckpt-0-{'a' * 64}").symlink_to(mine)
    (store.dir / RECORD).symlink_to(mine)
    with pytest.warns(UserWarning, match="ckpt-0-a* is skipped"):
        store.open(*RUN)
    for step in range(1, 6):
        store.save(step, make_state(step))
    store.close()
    assert mine.read_text() == "precious" and newest(tmp_path / "there") == 5
    assert list((tmp_path / "there").glob("ckpt-0-*")), "what no run has read is nobody's to delete"
