"""When a training is saved and how it is stopped, for the loop in training.py."""

import signal
import threading
import time
import warnings
from contextlib import suppress
from itertools import chain
from typing import Any, Self

from tqdm.auto import tqdm

from course_lib.checkpoints.disk import SaveError, pack, unpack
from course_lib.checkpoints.identity import identity, weights
from course_lib.checkpoints.store import OtherRun
from course_lib.errors import CourseError
from course_lib.machine import environment


class Saver:
    """Saves a training by the clock, after each epoch and when it is stopped; shows its progress.

    The first SIGINT or SIGTERM waits for the end of the batch; a second one does not, except among
    several processes, which must all stop after the same batch.
    """

    store: Any

    def __init__(self, t: Any, store: Any, every: float | None, progress: bool,
                 fresh: bool) -> None:
        self.t, self.store = t, store if t.group.first else None
        self.asked, self.every = every, 60.0 if every is None else every
        self.stopped, self.handlers = False, dict[int, Any]()
        if self.store is not None:
            self.open(fresh)
            if (newest := self.store.latest()) is not None:
                try:
                    if newest[0] > t.epochs * t.batches:
                        raise CourseError(f"{self.store.dir} holds {newest[1]['epoch']} epochs, and"
                                          f" epochs={t.epochs} asks for fewer. Give as many, or "
                                          "start a new run with fresh=True.")
                    t.restore(newest[1])
                except BaseException:
                    self.store.close()
                    raise
        if t.group.size > 1:
            packed = t.group.from_first(pack(0, {}, t.state()) if t.group.first else None)
            t.restore(unpack(packed[1], 0)[2])
            t.identity = t.group.from_first(t.identity)
        self.saved = t.position() if self.store and t.position() else -1
        self.saved_at = time.monotonic()
        self.began = self.saved_at - t.seconds
        self.bar = tqdm(total=t.epochs * t.batches, initial=t.position(), unit="batch",
                        disable=not (progress and t.group.first), desc=t.method.name)
        # saving in runs/exp1; resuming at epoch 7, batch 212 of 480
        words = [f"saving in {self.store.dir}"] if hasattr(self.store, "dir") else []
        if done := t.position():
            words += [f"resuming at epoch {t.epoch + 1}, batch {t.batch} of {t.batches}"]
        if done == self.bar.total:
            words = [f"already finished: {t.epochs} epochs"]
        if words and not self.bar.disable:
            self.bar.write("; ".join(words), file=self.bar.fp)  # standard output is for results

    def open(self, fresh: bool) -> None:
        """Take the store that this training has begun: the given one, or one beside it. A stopped
        call leaves its model as in the newest checkpoint, which names the first weights.
        """
        given, mine, word = self.store, identity(self.t), "the initial weights"
        used = (s for s in given.siblings() if s.latest())  # the others are nobody's yet
        for self.store in [given.fresh()] if fresh else chain(used, [given]):
            try:
                return self.claim(mine)
            except OtherRun as e:
                refused = e
            newest = self.store.latest()
            if newest and mine[word] in [weights(newest[1].get(kind, {}))
                                         for kind in ("model", "average")]:
                with suppress(OtherRun):
                    return self.claim(mine | {word: newest[1].get("began")})
        raise refused

    def claim(self, mine: dict[str, Any]) -> None:
        """Open the store for this training; OtherRun if it is not this training's."""
        self.store.open(mine, environment() | self.t.group.identity())
        self.t.identity, self.t.began = mine, mine["the initial weights"]

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self.handlers = {s: signal.signal(s, self.stop)
                             for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def stop(self, number: int, frame: Any) -> None:
        if self.stopped and self.t.group.size == 1:
            raise KeyboardInterrupt
        self.stopped = True

    def tick(self) -> None:
        """After every batch: is it time to stop, or to save?"""
        self.show()
        self.bar.update()
        if self.t.group.any(self.stopped):
            raise KeyboardInterrupt
        if time.monotonic() - self.saved_at >= self.every:
            self.save()

    def show(self) -> None:
        """pgd_at, epoch 3/15: 20 % ... loss 0.512, worst class 41 %, saved locally"""
        t = self.t
        if self.bar.disable or not t.position():
            return
        last = t.history[-1] if t.history else {"validation": []}
        loss = t.loss_sum / t.batch if t.batch else last["loss"]
        words = [f"loss {loss:.3f}", *(f"worst class {max(row['rob']):.0%}"
                                       for row in (t.reports or last["validation"])[:1])]
        epoch = f"{t.method.name}, epoch {min(t.epoch + 1, t.epochs)}/{t.epochs}"
        self.bar.set_description_str(epoch, refresh=False)
        words += [self.store.status] if self.store else []
        self.bar.set_postfix_str(", ".join(words), refresh=False)

    def save(self) -> None:
        """A save that fails warns; training goes on, and the last good checkpoint stays."""
        t, began = self.t, time.monotonic()
        t.seconds = began - self.began
        if self.store is None or t.position() == self.saved:
            return
        try:
            self.store.save(t.position(), t.state())
            self.saved = t.position()
        except SaveError as e:
            warnings.warn(f"Not saved; training goes on and tries again. {e}", stacklevel=2)
        self.saved_at = time.monotonic()
        if self.asked is None:
            self.every = min(max(60.0, 100 * (self.saved_at - began)), 600.0)
        self.show()
        self.bar.refresh()

    def __exit__(self, *error: object) -> None:
        """However the training ended: save the last consistent state, and restore the rest."""
        try:
            if self.t.consistent:
                self.save()
        finally:
            for number, handler in self.handlers.items():
                signal.signal(number, handler)
            self.bar.close()
            if self.store is not None:
                self.store.close()
