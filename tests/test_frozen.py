"""What must not change: recipe digests, a checkpoint's identity, names, arguments and help texts
that people use."""

import json
from pathlib import Path

import pytest

from tests.frozen.make import frozen

KEPT = json.loads((Path(__file__).parent / "frozen" / "face.json").read_text())
NOW = frozen()


def test_every_recipe_is_frozen():
    """New recipes may join; those of stored models never change."""
    assert len(KEPT["recipes"]) >= 188
    assert {name: NOW["recipes"].get(name) for name in KEPT["recipes"]} == KEPT["recipes"]


@pytest.mark.parametrize("name", [n for n in KEPT if n != "recipes"])
def test_the_face_is_as_it_was(name):
    assert NOW[name] == KEPT[name]
