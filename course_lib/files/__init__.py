"""How the course reads and writes files: one atomic writer, lock, hash check and download."""

from course_lib.files.atomic import NO_LOCKS, cannot_write, locked, write_together
from course_lib.files.downloads import cache_dir, download, in_cache, sha256_of
from course_lib.files.manifest import (
    Entries,
    StoredFiles,
    inside,
    json_bytes,
    parse_json,
    read_bytes,
)

__all__ = ["NO_LOCKS", "Entries", "StoredFiles", "cache_dir", "cannot_write", "download",
           "in_cache", "inside", "json_bytes", "locked", "parse_json", "read_bytes", "sha256_of",
           "write_together"]
