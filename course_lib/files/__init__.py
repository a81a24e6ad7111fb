"""How the course reads and writes files: one atomic writer, lock, hash check and download."""

from course_lib.files.atomic import check_writable, locked, take_lock, write_together
from course_lib.files.downloads import cache_dir, download, in_cache, sha256_of, within
from course_lib.files.manifest import (
    Entries,
    StoredFiles,
    inside,
    json_bytes,
    parse_json,
    read_bytes,
)

__all__ = ["Entries", "StoredFiles", "cache_dir", "check_writable", "download", "in_cache",
           "inside", "json_bytes", "locked", "parse_json", "read_bytes", "sha256_of", "take_lock",
           "within", "write_together"]
