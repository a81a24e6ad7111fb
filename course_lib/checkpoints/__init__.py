"""Training that cannot be lost: `Store` keeps checkpoints in a folder and copies in another."""

from course_lib.checkpoints.disk import SaveError, load_weights
from course_lib.checkpoints.identity import layers, sources
from course_lib.checkpoints.saver import Saver
from course_lib.checkpoints.store import Store

__all__ = ["SaveError", "Saver", "Store", "layers", "load_weights", "sources"]
