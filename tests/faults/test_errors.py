"""Every error at every system call of a save, and a disk that is full: earlier checkpoints survive,
and training has a say."""

import os

import pytest

from course_lib.checkpoints import SaveError, Store
from tests.faults.jobs import EPOCHS, train_here
from tests.faults.shims import ERRORS, FailingDisk, calls_of_a_save, filled, make_state, newest
from tests.faults.shims import same as same_state


@pytest.mark.parametrize(("code", "stays"), [(ERRORS[0], False), (ERRORS[1], True)])
def test_an_error_at_every_call_of_a_save(folder, code, stays):
    calls = calls_of_a_save(folder)
    for at, call in enumerate(calls):
        store = filled(place := folder / str(at))
        store.folder.disk = FailingDisk(at, code, stays=stays)
        pruning = at >= calls.index("listdir") == 8  # by then it is saved
        with (pytest.warns(UserWarning) if pruning else
              pytest.raises(SaveError, match=f"{os.strerror(code)}. Make space")):
            store.save(3, make_state(3))
        assert pruning or store.status == f"not saved: {os.strerror(code)}", call
        # 3 when only the last fsync failed
        assert newest(place) in ((3,) if pruning else (2, 3))
        store.folder.disk = os
        store.save(4, make_state(4))
        assert newest(place) == 4


def test_an_error_at_every_call_of_a_copy(folder):
    """The mirror fails, training does not notice, and the store tries again when it is closed."""
    for at, call in enumerate(calls_of_a_save(folder, mirror=True)):
        store = filled(folder / str(at), mirror := folder / f"{at} mirror")
        store.mirror.disk = FailingDisk(at, code := ERRORS[at % len(ERRORS)])
        with pytest.warns(UserWarning, match=os.strerror(code)):
            store.save(3, make_state(3))
            store.close()
        assert store.status == "saved locally, on Drive, verified", call
        assert newest(mirror) == 3


def test_training_goes_on_when_nothing_can_be_saved_any_more(folder):
    wanted, store = train_here(None), Store(folder)
    store.folder.disk = FailingDisk(100, ERRORS[0], stays=True)
    with pytest.warns(UserWarning, match=os.strerror(ERRORS[0])):
        assert same_state(train_here(store), wanted)
    assert 0 < (Store(folder).latest() or (0,))[0] < EPOCHS * 8
    assert same_state(train_here(Store(folder)), wanted)
