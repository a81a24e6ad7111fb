"""What students and instructors get is made from the one source, and nothing is lost or given away
on the way."""

import ast

import nbformat
import pytest

from course_lib.lessons.lesson import exercises
from tools.common import sources
from tools.student import for_instructor, for_student, tags

SOURCES = [source for source in sources() if source.with_suffix(".ipynb").is_file()]


def read(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def names(code, context):
    """The names that a cell reads (Load) or makes (Store, and what it defines)."""
    nodes = list(ast.walk(ast.parse(code)))
    found = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, context)}
    return found | {n.name for n in nodes if context is ast.Store
                    and isinstance(n, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_a_student_gets_everything_but_solutions_and_outputs(source):
    whole, mine = read(source), for_student(read(source))
    nbformat.validate(mine)
    kept = [cell for cell in whole.cells if "solution" not in tags(cell)]
    assert [cell.source for cell in mine.cells] == [cell.source for cell in kept]
    for cell, before in zip(mine.cells, kept, strict=True):
        if cell.cell_type == "code":  # the panel's picture stays until the panel is there
            assert cell.outputs == (before.outputs if "panel" in tags(cell) else [])
    assert [c.metadata.cellView for c in mine.cells if "setup" in tags(c)] == ["form"]
    asked = [name for name in exercises() if name.startswith(source.stem[:2] + ".")]
    assert len(whole.cells) - len(mine.cells) == len(asked)
    for name in asked:
        assert sum(f'check("{name}"' in cell.source
                   for cell in mine.cells) == 1, "the exercise itself stays"


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_nothing_else_needs_a_solution(source):
    """Or the student's version would stop at a NameError."""
    code = [cell for cell in read(source).cells if cell.cell_type == "code"]
    solved = set().union(*(names(c.source, ast.Store) for c in code if "solution" in tags(c)))
    others = [c.source for c in code if "solution" not in tags(c)]
    made, needed = (set().union(*(names(source, kind) for source in others))
                    for kind in (ast.Store, ast.Load))
    assert (solved - made) & needed == set()


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: s.stem)
def test_an_instructor_gets_all_of_it_open_and_the_mistakes_to_expect(source):
    whole = read(source)
    for_student(whole)
    mine = for_instructor(whole)
    assert whole == read(source), "it is not changed on the way"
    nbformat.validate(mine)
    added = [cell for cell in mine.cells if cell.id.startswith("mistakes-")]
    assert [(c.source, c.get("outputs")) for c in mine.cells if c not in added] == [
        (c.source, c.get("outputs")) for c in whole.cells]
    assert not [c for c in mine.cells if "solution" in tags(c)
                and ("cellView" in c.metadata or "jupyter" in c.metadata)]
    for name in (name for name in exercises() if name.startswith(source.stem[:2] + ".")):
        (cell,) = [c for c in added if f"`{name}`" in c.source]
        assert all(remark in cell.source for remark in exercises()[name].mistakes)
