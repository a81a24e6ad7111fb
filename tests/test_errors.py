"""The checks behind most sentences; more of them in tests/traps/test_doors.py."""

import numpy as np
import pytest

from course_lib.errors import CourseError, instead, integer, pick
from course_lib.zoo import matching

TABLE = {"lenet5": 1, "resnet18": 2}


@pytest.mark.parametrize(("name", "hint"), [
    ("lenet", "Did you mean 'lenet5'? There"), ("LeNet-5", "Did you mean 'lenet5'? There"),
    *[(name, "There") for name in ("", None, 7, ["a"], float("nan"))]])
def test_an_unknown_name_lists_what_there_is(name: object, hint: str) -> None:
    assert pick(TABLE, "resnet18", "model") == 2
    with pytest.raises(CourseError) as caught:
        pick(TABLE, name, "model")
    assert str(caught.value) == f"Unknown model {name!r}. {hint} is: lenet5, resnet18."


def test_patterns_fit_names_and_groups_in_the_order_of_the_names() -> None:
    assert instead(["Bag", "Coat"], "C") == " Did you mean 'Coat'? There is: Bag, Coat."
    names = ["exp1/a", "exp2/b", "exp10/a"]
    assert matching(names, ["EXP2", "*/a"]) == names and matching(names, "exp1") == ["exp1/a"]
    for patterns, say in ((["exp1", "exp3"], "Nothing is called exp3, so nothing was done"),
                          ([], "Nothing is called None"), ("b", "Did you mean 'exp2/b'")):
        with pytest.raises(CourseError, match=say):
            matching(names, patterns)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, float("nan"), 2**63])
def test_whole_numbers_pass_and_others_do_not(value: object) -> None:
    assert integer(10**12, "n", 1) == 10**12 and integer(np.int64(3), "n", 1) == 3
    with pytest.raises(CourseError, match=f"epochs is {value!r}; .*, 1 or more"):
        integer(value, "epochs", 1)
