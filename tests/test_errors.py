import pytest

from course_lib.errors import CourseError, pick, whole

TABLE = {"lenet5": 1, "resnet18": 2}


def test_pick_finds() -> None:
    assert pick(TABLE, "resnet18", "model") == 2


@pytest.mark.parametrize("name", ["lenet", "", None, 5, ["lenet5"], float("nan")])
def test_an_unknown_name_lists_what_there_is(name: object) -> None:
    with pytest.raises(CourseError) as caught:
        pick(TABLE, name, "model")
    assert repr(name) in str(caught.value) and "There is: lenet5, resnet18." in str(caught.value)


def test_a_near_miss_gets_a_hint() -> None:
    with pytest.raises(CourseError, match="Did you mean 'lenet5'"):
        pick(TABLE, "lenet-5", "model")


@pytest.mark.parametrize("value", [1, 7, 10**12])
def test_whole_numbers_pass(value: int) -> None:
    assert whole(value, "n", 1) == value


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, float("nan")])
def test_others_do_not(value: object) -> None:
    with pytest.raises(CourseError) as caught:
        whole(value, "epochs", 1)
    assert f"epochs is {value!r}" in str(caught.value) and "1 or more" in str(caught.value)
