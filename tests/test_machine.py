"""Memory is kept: the same work after the setting makes the kernel hand out (nearly) no page
again."""

import subprocess
import sys

import pytest

WORK = """
import resource, sys, torch
from course_lib.machine import keep_memory
torch.set_num_threads(1)
print(keep_memory() if sys.argv[1] == "kept" else "untouched")
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(3):
        torch.ones(12_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def run(word: str, **more: str) -> tuple[str, int]:
    import os

    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | more
    said, faults = subprocess.run([sys.executable, "-c", WORK, word], capture_output=True,
                                  text=True, check=True, env=env).stdout.split()
    return said, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pages_are_kept():
    said, kept = run("kept")
    _, returned = run("untouched")
    assert said == "True" and kept < returned / 100 and returned > 9_000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_what_the_user_set_stays():
    assert run("kept", MALLOC_TOP_PAD_="0")[0] == "False"
