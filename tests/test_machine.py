"""The device, the kernels' hook, and memory that is kept, for which the system hands out no page
again."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from course_lib.attacks import PGD
from course_lib.machine import device, environment, kernels
from tests.helpers import images, labels

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
print(min(faults() for _ in range(5)))  # the system may take idle pages back at any time
"""


def output(*code: str, **more: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | more
    return subprocess.run([sys.executable, "-c", *code], capture_output=True, text=True,
                          check=True, env=env).stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_pages_are_kept_unless_the_user_has_set_the_allocator() -> None:
    (said, kept), (_, returned) = output(WORK, "kept"), output(WORK, "untouched")
    assert said == "True" and int(kept) < int(returned) / 100 and int(returned) > 9_000
    assert output(WORK, "kept", MALLOC_TOP_PAD_="0")[0] == "False"


def test_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the device, and as part of the environment: whoever resumes elsewhere is told."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "one of some kind")
    for gpu, name in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert device().type == name
        assert environment().get("gpu") == ("one of some kind" if gpu else None)


def test_the_kernels_come_when_asked_for() -> None:
    """Nothing imports them before, and COURSE_NATIVE=0 keeps them away altogether."""
    code = ("import sys, torch; import course_lib.evaluation; from course_lib import models;"
            "print('course_lib.native' in sys.modules);"
            "models.build('lenet5')(torch.zeros(1, 1, 32, 32));"
            "print('course_lib.native' in sys.modules)")
    for value, loaded in (("1", "True"), ("0", "False")):
        assert output(code, COURSE_NATIVE=value) == ["False", loaded]
    assert (kernels() is None) == (os.environ.get("COURSE_NATIVE") == "0")


def test_channels_last_is_for_the_walk_only() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30 * 30, 10))
    weight, before, strides = model[0].weight, model[0].weight.data_ptr(), set()
    model[0].register_forward_pre_hook(lambda m, _: strides.add(m.weight.stride()))
    PGD(steps=2)(model, images(5, (3, 32, 32)), labels(5))
    assert strides == {(27, 1, 9, 3)}
    assert model[0].weight is weight and weight.data_ptr() == before and weight.is_contiguous()
