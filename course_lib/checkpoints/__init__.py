"""Training that cannot be lost: `Store` keeps checkpoints in a folder, and copies of them in a second one."""

from course_lib.checkpoints.packing import SaveError
from course_lib.checkpoints.store import Store

__all__ = ["SaveError", "Store"]
