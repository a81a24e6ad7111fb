"""What the children of the warm process do (see warm.py). Each job may be killed at any moment."""

import hashlib
import itertools
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib import PGD, CourseError, Method, Optim, Split, Store, fit
from course_lib.methods.pgd_at import PGDAT
from tests.faults.shims import RUN, KillingDisk, make_state
from tests.helpers import Remembering, Small, split

EPOCHS, BATCH, IMAGES = 4, 8, 60  # the last batch of an epoch is a short one
METHODS = {"pgd_at": PGDAT(PGD(steps=2)), "stateful": Remembering(3)}


def training(name: str) -> tuple[nn.Module, Method, Split, Optim]:
    """A small training with a running average in the model, momentum or moments, and a rate that
    drops within the run."""
    optim = (Optim("sgd", lr=0.05, batch=BATCH, momentum=0.9, drops=((2, 0.5),))
             if name == "pgd_at" else Optim("adam", lr=1e-2, batch=BATCH, drops=((3, 0.1),)))
    return Small(), METHODS[name], split(IMAGES), optim


def train_here(store: Store | None, happens: Callable[[], object] = lambda: None
               ) -> dict[str, Tensor]:
    """The weights after the stateful training, in this process; something may happen at a batch."""
    model, method, data, optim = training("stateful")
    steps = itertools.count(1)
    hook = register_optimizer_step_post_hook(lambda *_: next(steps) == 14 and happens())
    try:
        return fit(model, method, data, epochs=EPOCHS, optim=optim, seed=3, store=store,
                   progress=False, save_every=0.0).model.state_dict()
    finally:
        hook.remove()


def train(folder: str | None, name: str, log: str, out: str, save_every: float) -> None:
    """Train to the end, from wherever an earlier job was killed; write down each step, and at the
    end the weights' hash. Without a folder: the same training without a store."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(what: str, step: int) -> None:
        os.write(file, f"{what} {step} {time.monotonic()}\n".encode())

    def save(step: int, state: dict[str, Any]) -> None:
        write("save", step)
        Store.save(store, step, state)
        write("saved", step)

    model, method, data, optim = training(name)
    store: Any = None if folder is None else Store(folder)
    register_optimizer_step_post_hook(lambda *_: write("step", -1))
    if store is not None:
        store.save = save
        write("start", (store.latest() or (0,))[0])
    run = fit(model, method, data, epochs=EPOCHS, optim=optim, seed=3, store=store, progress=False,
              save_every=save_every)
    weights = b"".join(t.contiguous().numpy().tobytes() for t in run.model.state_dict().values())
    history = [{**epoch, "seconds": 0} for epoch in run.history]
    part = Path(out).with_suffix(".part")
    part.write_text(json.dumps([hashlib.sha256(weights).hexdigest(), history]))
    part.rename(out)  # a kill in between leaves no half of it


def save_and_die(folder: str, step: int, at: int, when: str, mirror: str | None = None) -> None:
    """Save once, and be killed at a call of it; of the mirror's, when there is one."""
    store = Store(folder, mirror)
    store.open(*RUN)
    for folder in store.folders:
        for _, name in folder.checkpoints():
            folder.read(name)  # so that the save prunes
    (store.mirror or store.folder).disk = KillingDisk(at, when)
    store.save(step, make_state(step))


def write_many(folder: str, who: int, first: int, saves: int) -> None:
    """Save as fast as possible, without a lock."""
    store = Store(folder)
    for step in range(first, first + saves):
        store.save(step, make_state(step, seed=who))


def hold(folder: str, ready: str) -> None:
    """Hold the lock until killed."""
    store = Store(folder)
    store.open(*RUN)
    store.save(1, make_state(1))
    Path(ready).touch()
    time.sleep(60)


def child(job: str, words: dict[str, Any]) -> None:
    """Do a job, and end at once: there is nothing to tidy up, and torch takes its time to."""
    code = 1
    try:
        globals()[job](**words)
        code = 0
    except CourseError:  # refused
        code = 3
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
