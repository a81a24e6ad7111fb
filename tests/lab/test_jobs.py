"""The runner: nothing is done twice, and what fails is named and costs nothing else."""

import os
from functools import partial

import pytest
import torch

from course_lib.errors import CourseError
from course_lib.lab.jobs import Task, piece, run_all

DONE = []


def work(name, error=None):
    DONE.append(name)
    if error is not None:
        raise error
    return name.upper()


def task(name, error=None, needs="", stored=None):
    return Task(name, partial(work, name, error), lambda: stored, frozenset(needs.split()))


def run(groups, finish=lambda group, found: (group, *found), **words):
    DONE.clear()
    return run_all(groups, finish, **{"jobs": 1, "progress": False, **words})


def test_each_task_is_done_once_after_those_it_needs():
    """And each group is finished as soon as it is complete."""
    one, two, three = task("one", needs="two"), task("two"), task("three", stored="there")
    assert run({"a": [one, two], "b": [two, three]}) == [("a", "ONE", "TWO"), ("b", "TWO", "there")]
    assert DONE == ["two", "one"]
    groups = {"a": [task("one"), task("two")], "b": [task("three")], "c": [task("x", stored="X")]}
    assert run(groups, lambda group, found: len(DONE)) == [2, 3, 0]
    assert run({}) == []


def test_what_fails_is_named_and_costs_no_other():
    """A task, one with a bug, a group that cannot be finished, and more than are named."""
    finished = []

    def finish(group, found):
        if group.startswith("g"):
            raise CourseError(f"{group} is gone")
        finished.append(group)

    groups = {"a": [task("bad", CourseError("The disk is full."))],
              "b": [task("bug", ZeroDivisionError("by zero"))], "e": [task("good")]}
    with pytest.raises(CourseError) as caught:
        run(groups, finish)
    assert finished == ["e"] and sorted(DONE) == ["bad", "bug", "good"]
    text = str(caught.value)
    assert "bad: The disk is full." in text and "in work" in text and "by zero" in text
    with pytest.raises(CourseError) as caught:
        run({f"g{i}": [task(f"t{i}")] for i in range(8)} | {"h": [task("t8")]}, finish)
    assert finished == ["e", "h"] and len(DONE) == 9
    assert str(caught.value).splitlines()[4:] == ["g4 is gone", "... and 3 more errors"]


def test_a_killed_worker_is_reported_in_plain_words():
    dead = Task("dead", partial(os._exit, 3), partial({}.get, "result"))
    with pytest.raises(CourseError, match="A worker process was killed.*rerun with fewer jobs"):
        run({"a": [dead]}, jobs=2)


def test_a_piece_is_believed_only_as_it_was_written(tmp_path):
    one, other = (piece("p", n, partial(torch.full, (3, 2), n, dtype=torch.float16), tmp_path)
                  for n in (1, 2))
    assert one.stored() is None and other.stored() is None
    value = one.work()
    assert torch.equal(value, one.stored()) and one.stored().dtype == torch.float16
    (file,) = tmp_path.rglob("ckpt-*")
    assert torch.equal(other.work(), other.stored()) and not torch.equal(value, other.stored())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is skipped"):
        assert one.stored() is None
