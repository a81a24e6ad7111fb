import sys

import pytest

from course_lib.errors import CourseError, integer, matching, pick, resolve

TABLE = {"lenet5": 1, "resnet18": 2}


@pytest.mark.parametrize("name", ["lenet", "", None, 5, ["lenet5"], float("nan")])
def test_an_unknown_name_lists_what_there_is(name: object) -> None:
    assert pick(TABLE, "resnet18", "model") == 2
    with pytest.raises(CourseError) as caught:
        pick(TABLE, name, "model")
    assert repr(name) in str(caught.value) and "There is: lenet5, resnet18." in str(caught.value)


@pytest.mark.parametrize("name", ["lenet-5", "LeNet5"])
def test_a_near_miss_gets_a_hint(name: str) -> None:
    with pytest.raises(CourseError, match="Did you mean 'lenet5'"):
        pick(TABLE, name, "model")


def test_patterns_fit_names_and_groups_in_the_order_of_the_names() -> None:
    names = ["exp1/a", "exp2/b", "exp10/a"]
    assert matching(names, ["EXP2", "*/a"]) == names and matching(names, "exp1") == ["exp1/a"]
    for patterns, say in ((["exp1", "exp3"], "Nothing is called exp3, so nothing was done"),
                          ([], "No name was given"), ("b", "Did you mean 'exp2/b'"),
                          (None, "Nothing is called None")):
        with pytest.raises(CourseError, match=say):
            matching(names, patterns)


@pytest.mark.parametrize("value", [1, 7, 10**12, 0, -1, 1.0, "1", None, True, float("nan")])
def test_whole_numbers_pass_and_others_do_not(value: object) -> None:
    if type(value) is int and value > 0:
        assert integer(value, "n", 1) == value
        return
    with pytest.raises(CourseError) as caught:
        integer(value, "epochs", 1)
    assert f"epochs is {value!r}" in str(caught.value) and "1 or more" in str(caught.value)


def test_an_entry_is_resolved_when_asked_for() -> None:
    assert resolve("sys:path") is sys.path and resolve(TABLE) is TABLE
