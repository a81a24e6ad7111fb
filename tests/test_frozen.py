"""What must not change: recipe digests, a checkpoint's identity, names, arguments and help texts
that people use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from course_lib import RECIPES
from course_lib.recipes import digest
from course_lib.zoo import load_record, manifest
from tests.frozen.make import frozen

KEPT = json.loads((Path(__file__).parent / "frozen" / "face.json").read_text())
NOW = frozen()


def test_every_recipe_is_frozen() -> None:
    """New recipes may join; those of stored models never change."""
    assert len(KEPT["recipes"]) >= 188
    assert {name: NOW["recipes"].get(name) for name in KEPT["recipes"]} == KEPT["recipes"]


@pytest.mark.parametrize("name", [n for n in KEPT if n != "recipes"])
def test_the_face_is_as_it_was(name: str) -> None:
    assert NOW[name] == KEPT[name]


def test_stored_records_come_from_these_recipes() -> None:
    """A record names the digest of what it was made from, whatever the recipe looks like today."""
    stored = {(name, seed) for name, seeds in manifest().items() for seed in seeds
              if name in RECIPES}
    assert len(stored) > 100
    for name, seed in sorted(stored):
        assert load_record(name, seed=int(seed))["made_from"]["digest"] == digest(RECIPES[name]), (
            name, seed)
