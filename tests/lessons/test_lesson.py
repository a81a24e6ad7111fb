"""Exercises: right answers pass, known mistakes get their own remark, and nothing a student writes
stops the check."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import pytest
import torch

from course_lib import CourseError
from course_lib.lessons.lesson import Exercise, check, exercises, hint

NAMES = sorted(exercises())
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.py"))
BOTH = [(name, remark) for name in NAMES for remark in exercises()[name].mistakes]


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes(name: str) -> None:
    verdict = check(name, exercises()[name].solution)
    assert verdict and "✓" in repr(verdict)


@pytest.mark.parametrize(("name", "remark"), BOTH)
def test_each_known_mistake_fails_with_its_own_remark(name: str, remark: str) -> None:
    verdict = check(name, exercises()[name].mistakes[remark])
    assert not verdict
    assert remark in repr(verdict)


@pytest.mark.parametrize("name", NAMES)
def test_each_exercise_knows_three_mistakes_and_a_hint_and_gives_no_answer_away(name: str) -> None:
    task = exercises()[name]
    assert len(task.mistakes) >= 3
    assert repr(hint(name)).startswith("Hint 1")
    with pytest.raises(CourseError, match=f"{len(task.hints)} hints"):
        hint(name, len(task.hints) + 1)


@pytest.mark.parametrize("answer", [..., None, lambda *a: None, lambda *a: ...])
def test_an_empty_answer_is_no_failure(answer: object) -> None:
    verdict = check("00.step", answer)
    assert not verdict
    assert "Nothing here yet" in repr(verdict)


def test_remarks_on_answers_nobody_foresaw() -> None:
    right = exercises()["01.chance"].solution
    assert "100 times" in repr(check("01.chance", lambda p, n: 100 * right(p, n)))
    assert "ZeroDivisionError" in repr(check("01.chance", lambda p, n: p / 0))
    assert "NaN" in repr(check("01.chance", lambda p, n: math.nan))
    assert "made of numbers" in repr(check("01.chance", "a lot"))
    assert "a little off" in repr(check("01.chance", lambda p, n: 1.02 * right(p, n)))
    assert "clearly off" in repr(check("01.chance", lambda p, n: 7.0))
    assert "shape (2,)" in repr(check("01.chance", lambda p, n: [right(p, n)] * 2))
    assert "TypeError" in repr(check("01.chance", lambda: 1.0))


def test_a_tensor_is_as_good_as_a_list_and_arguments_are_copies() -> None:
    solution = exercises()["01.class_errors"].solution

    def spoils_its_arguments(y: torch.Tensor, predicted: torch.Tensor, n: int) -> torch.Tensor:
        found = torch.tensor(solution(y, predicted, n), requires_grad=True)
        y.zero_()
        return found

    assert check("01.class_errors", spoils_its_arguments)
    assert check("01.class_errors", solution)


def test_a_word_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import course_lib.lessons

    task = Exercise(solution=lambda: "Shirt",
                    mistakes={"That is the easiest class.": lambda: "Trouser"},
                    hints=("Look at the bars.",))
    monkeypatch.setitem(course_lib.lessons.EXERCISES, "99.word", task)
    assert check("99.word", " shirt ")
    assert "easiest" in repr(check("99.word", "Trouser"))
    assert "a word" in repr(check("99.word", 6))


def test_an_unknown_exercise_lists_what_there_is() -> None:
    with pytest.raises(CourseError, match=r"Unknown exercise '00\.stop'.*00\.step"):
        check("00.stop", 1)


def cells(source: str, tag: str) -> list[str]:
    """The code cells of a percent source that carry a tag."""
    return [c for c in re.split(r"(?m)^# %%", source) if re.match(rf"[^\n]*\"{tag}\"", c)]


def answered(cell: str) -> str:
    """The one exercise a cell checks."""
    (name,) = re.findall(r"check\(\"([\w.]+)\"", cell)
    return name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_each_exercise_cell_has_a_solution_cell_and_exists(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    asked, solved = (sorted(answered(c) for c in cells(source, tag))
                     for tag in ("exercise", "solution"))
    assert asked == solved == sorted(n for n in NAMES if n.startswith(path.name[:2] + "."))


class Bent(ast.NodeTransformer):
    """The n-th operator or number of a function, changed."""

    def __init__(self, n: int) -> None:
        self.n, self.seen = n, 0

    def mine(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.n

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        swap = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
                ast.BitAnd: ast.BitOr}
        if type(node.op) in swap and self.mine():
            node.op = swap[type(node.op)]()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        swap = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn}
        if type(node.ops[0]) in swap and self.mine():
            node.ops = [swap[type(node.ops[0])]()]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return node.operand if isinstance(node.op, ast.Not) and self.mine() else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            return ast.Constant(not node.value) if self.mine() else node
        if isinstance(node.value, int | float) and self.mine():
            return ast.Constant(node.value + 1)
        return node


def mutants(cell: str) -> list[object]:
    """The function a solution cell defines, bent in each possible place."""
    (function,) = (n for n in ast.parse(cell[cell.index("\n") :]).body
                   if isinstance(n, ast.FunctionDef))
    found: list[object] = []
    while True:
        bent = Bent(len(found))
        tree = ast.fix_missing_locations(ast.Module(
            [bent.visit(ast.parse(ast.unparse(function)).body[0])], []))
        if bent.n >= bent.seen:
            return found
        room: dict[str, object] = {"torch": torch, "math": math}
        exec(compile(tree, "mutant", "exec"), room)
        found.append(room[function.name])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_every_mutation_of_a_written_solution_fails(path: Path) -> None:
    for cell in cells(path.read_text(encoding="utf-8"), "solution"):
        bent = mutants(cell)
        assert len(bent) >= 3
        assert [i for i, f in enumerate(bent) if check(answered(cell), f)] == []
