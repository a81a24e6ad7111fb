"""Training methods, one file per paper. Every file in this folder is imported and registers."""

import importlib
import pkgutil

from course_lib.methods.base import METHODS, Method, Step

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "Step"]
