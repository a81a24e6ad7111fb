"""Exercises: right answers pass, known mistakes get remarks, and no answer stops the check."""

import ast
import copy
import math
import re

import pytest
import torch
from scipy.special import ndtri

from course_lib import PGD, CourseError, load, load_model
from course_lib.lessons import bat
from course_lib.lessons.lesson import check, exercises, hint
from tools.common import sources

EXERCISES = exercises()


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_passes_each_mistake_gets_its_own_remark_and_hints_run_out(name):
    task, verdict = EXERCISES[name], check(name, EXERCISES[name].solution)
    assert verdict and "✓" in repr(verdict) and len(task.mistakes) >= 3
    assert repr(hint(name)).startswith("Hint 1")
    with pytest.raises(CourseError, match=f"{len(task.hints)} hints"):
        hint(name, len(task.hints) + 1)
    for remark, wrong in task.mistakes.items():
        verdict = check(name, wrong)
        assert not verdict and remark in repr(verdict)


RIGHT = EXERCISES["01.chance"].solution


@pytest.mark.parametrize(("answer", "remark"), [
    (lambda p, n: 100 * RIGHT(p, n), "100 times"),
    (lambda p, n: p / 0, "ZeroDivisionError"),
    (lambda p, n: math.nan, "NaN"),
    ("a lot", "made of numbers"),
    (lambda p, n: 1.02 * RIGHT(p, n), "a little off"),
    (lambda p, n: 7.0, "clearly off"),
    (lambda p, n: [RIGHT(p, n)] * 2, "shape (2,)"),
    (lambda: 1.0, "TypeError"),
    *((empty, "Nothing here yet") for empty in (..., None, lambda *a: None, lambda *a: ...))])
def test_remarks_on_other_answers(answer, remark):
    verdict = check("01.chance", answer)
    assert not verdict and remark in repr(verdict)


def test_a_tensor_is_as_good_as_a_list_and_arguments_are_copies():
    lists, update = EXERCISES["01.class_errors"].solution, EXERCISES["02.update"].solution
    assert check("01.class_errors", lambda *case: torch.tensor(lists(*case), requires_grad=True))
    # the second argument is one tensor that several cases share
    assert check("02.update", lambda *case: (update(*case), case[1].zero_())[0])


def solutions(path, tag="solution"):
    """The code cells of a percent source that carry a tag, by the exercise each of them checks."""
    cells = [c for c in re.split(r"(?m)^# %%", path.read_text(encoding="utf-8"))
             if re.match(rf"[^\n]*\"{tag}\"", c)]
    return {name: c for c in cells for name in re.findall(r"check\(\"([\w.]+)\"", c)}


@pytest.mark.parametrize("path", sources(), ids=lambda p: p.stem)
def test_each_exercise_of_a_notebook_has_a_solution_whose_every_mutation_fails(path):
    mine = sorted(n for n in EXERCISES if n.startswith(path.name[:2] + "."))
    assert sorted(solutions(path, "exercise")) == sorted(solutions(path)) == mine
    for name, cell in solutions(path).items():
        right, *bent = versions(cell)
        assert check(name, right) and len(bent) >= 3
        assert [i for i, f in enumerate(bent) if check(name, f)] == []


SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn}


def bend(node):
    """Change an operator or a number in place. False if the node is neither."""
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        node.ops = [SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    else:
        return False
    return True


def versions(cell):
    """The function a solution cell defines: as it is, then bent in each possible place."""
    (function,) = (n for n in ast.parse(cell[cell.index("\n") :]).body
                   if isinstance(n, ast.FunctionDef))
    made = []
    for i, _ in enumerate(ast.walk(function)):
        bent, names = copy.deepcopy(function), {"torch": torch, "math": math, "ndtri": ndtri}
        if i == 0 or bend(list(ast.walk(bent))[i]):  # the first node is the function itself
            exec(ast.unparse(bent), names)
            made.append(names[function.name])
    return made


def test_a_slice_holds_the_pair_on_both_sides_of_the_boundary():
    model, split = load_model("exp4/bat-paper"), load("fashion-mnist").test.per_class(10)
    attack = PGD(steps=10, objective="kl", start="gaussian")
    z = torch.stack([z for z, _ in attack.path(model, split.images(), split.y)])
    t = attack.walk(model, split.images(), split.y).t_wrong
    i = int(((t > 2) & (t < 9)).nonzero()[0])
    u, v, predicted, walk = bat.plane(model, z[:, i], int(t[i]), size=121)
    for step in (0, int(t[i]) - 1, int(t[i])):  # these lie in the plane: distances stay
        assert walk[step].norm() == pytest.approx(float((z[step, i] - z[0, i]).norm()), abs=1e-4)
        column, row = (int((axis - walk[step, k]).abs().argmin()) for k, axis in enumerate((u, v)))
        near = predicted[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        assert model(z[step, i][None]).argmax() in near
