"""A warm process that forks a child a job: importing torch costs seconds, forking costs
milliseconds.
 Reads one JSON object a line: {"job": name, "words": {...}} is answered with the child's number at
once, {"wait": number} with how it ended (0, an exit code, or minus the signal that killed it).
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import torch

from course_lib.errors import CourseError
from tests.faults import jobs


def main() -> None:
    torch.set_num_threads(1)
    warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                child(order["job"], order["words"])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    os._exit(0)  # nothing to tidy up, and torch takes its time to


def warm_up() -> None:
    """Let torch do its late imports here, once. No backward pass: its threads would not survive a
    fork."""
    for name in jobs.METHODS:
        model, _, _, optim = jobs.training(name)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser = optim.make(model)
        optimiser.step()
        optimiser.load_state_dict(optimiser.state_dict())


def child(job: str, words: dict[str, object]) -> None:
    code = 1
    try:
        getattr(jobs, job)(**words)
        code = 0
    except CourseError:  # refused
        code = 3
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
