"""The exercises, one file a notebook. A file put here is found by itself: its EXERCISES are added
to these."""

from __future__ import annotations

import importlib
import pkgutil

from course_lib.lessons.lesson import Exercise

EXERCISES: dict[str, Exercise] = {}
for _module in pkgutil.iter_modules(__path__):
    if _module.name != "lesson":
        EXERCISES.update(importlib.import_module(f"{__name__}.{_module.name}").EXERCISES)
