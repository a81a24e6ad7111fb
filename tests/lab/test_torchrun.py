"""Two processes train as one: the same batches, the same gradients, one checkpoint, and the same
bits after a kill."""

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib import METHODS, CourseError, Optim, Store, evaluate, fit, recipes, training
from course_lib.__main__ import main, program
from course_lib.lab import torchrun as parallel
from course_lib.lab.torchrun import Group
from tests.helpers import Linear, Remembering, Small, split, with_tiny_recipes
from tests.test_training import BATCHES, EPOCHS, OPTIM, Memory, listening, same, train, validate

ROOT = Path(__file__).parents[2]
LOCAL = {"GLOO_SOCKET_IFNAME": "lo"}
FIVE = dataclasses.replace(OPTIM, batch=5)  # of 26 images the last batch has one


class Pair:
    """Two processes in a group of gloo, which are given one job after the other."""

    def __init__(self, folder):
        context = multiprocessing.get_context("spawn")
        self.pipes, ends = zip(*(context.Pipe() for _ in range(2)), strict=True)
        self.workers = [context.Process(target=work, args=(rank, str(folder / "meeting"), end),
                                        daemon=True) for rank, end in enumerate(ends)]
        for worker in self.workers:
            worker.start()

    def __call__(self, job, *words):
        """The answers of the two; an exception counts as one."""
        for pipe in self.pipes:
            pipe.send((job, words))
        assert all(pipe.poll(240) for pipe in self.pipes), "the two wait for each other"
        return [pipe.recv() for pipe in self.pipes]


def work(rank, meeting, pipe):
    os.environ.update(LOCAL)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    training.processes = Group(rank, 2)
    while True:
        job, words = pipe.recv()
        try:
            pipe.send(job(rank, *words))
        except Exception as e:
            pipe.send(e)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    found = Pair(tmp_path_factory.mktemp("pair"))
    yield found
    for worker in found.workers:
        worker.kill()
        worker.join()


def natural(rank, images, optim, epochs=2):
    data = split(images)
    return fit(Linear((1, 6, 6), 3), METHODS["natural"](), dataclasses.replace(
        data, x=data.x.double()), epochs=epochs, seed=0, progress=False, optim=optim)


# the last batch: of three images; of one, so that one process has none
@pytest.mark.parametrize(("optim", "images"), [
    (Optim("sgd", 0.05, 5, momentum=0.9), 28), (Optim(batch=5), 26)])
def test_two_processes_train_as_one(pair, optim, images):
    start, alone = natural(0, images, optim, 0), natural(0, images, optim)
    first, second = pair(natural, images, optim)
    assert same(first, second)
    began, ended, both = (run.model.state_dict() for run in (start, alone, first))
    torch.testing.assert_close(both, ended, rtol=0, atol=1e-9)
    assert max((v - began[k]).abs().max().item() for k, v in ended.items()) > 1e-6
    for one, two in zip(alone.history, first.history, strict=True):
        assert two == {**one, "loss": pytest.approx(one["loss"], abs=1e-6)}


def seen(rank):
    """What a method was given, and the first number that it drew, batch by batch."""
    calls = []
    fit(Small(), listening(METHODS["natural"], calls)(), split(26), epochs=2, seed=0,
        progress=False, optim=dataclasses.replace(OPTIM, augment="crop-flip"))
    return calls


def test_the_two_share_each_batch_of_one_and_draw_noise_of_their_own(pair):
    alone, (first, second), again = seen(0), pair(seen), pair(seen)
    assert len(alone) == len(first) == len(second) == 2 * BATCHES
    for (x, y, _), (x0, y0, _), (x1, y1, _) in zip(alone, first, second, strict=True):
        assert torch.equal(torch.cat([x0, x1]), x) and torch.equal(torch.cat([y0, y1]), y)
        assert len(y0) - len(y1) in (0, 1)
    drawn = [number for calls in (alone, first, second) for *_, number in calls]
    assert len(set(drawn)) == len(drawn) == 6 * BATCHES
    assert [number for calls in again for *_, number in calls] == drawn[2 * BATCHES :]


SCALE = torch.tensor([0.4914, 1 / 3])


def with_everything(rank):
    model, periods = Small(), []
    model.register_buffer("scale", SCALE.clone())  # a mean over 3 and 2 images would change it
    method = Remembering(3, first=lambda at: periods.append(
        int(at.stats["seen"].sum()) if at.stats else 0))
    return train(method, validate=validate, model=model, optim=FIVE), periods


def test_both_hold_the_same_and_statistics_are_of_the_whole_batch(pair):
    """Weights, running averages, memory, reports; the last image counts for one of the two only."""
    (first, counted), (second, counted_too) = pair(with_everything)
    alone, counted_alone = with_everything(0)
    assert same(first, second)
    assert counted == counted_too == counted_alone == [0, 15, 11, 15, 11, 15]
    two, one = (run.model.state_dict() for run in (first, alone))
    assert torch.equal(two["scale"], SCALE)
    assert two["norm.num_batches_tracked"] == one["norm.num_batches_tracked"]
    moved, apart = ((one["norm.running_var"] - other).abs().max()
                    for other in (torch.ones(4), two["norm.running_var"]))
    assert apart < moved / 2  # of half as many images each
    assert not torch.equal(two["conv.weight"], one["conv.weight"])  # other noise, other halves


def once(rank, out):
    """The record; what is shown; and how often the model is examined, saved and validated."""
    store, shown, examined, validated = Memory(), io.StringIO(), [], []
    with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
        train(Remembering("epoch"), store=store, progress=True,
              validate=lambda *words: validated.append(words) or validate(*words))
    with pytest.MonkeyPatch.context() as patch:
        with_tiny_recipes(patch)
        patch.setattr(recipes, "evaluate", lambda *words, **named: examined.append(words)
                      or evaluate(*words, **named))
        record = recipes.run("tiny/first", 0, out, progress=False)[1]
    return ({**record, "seconds": 0}, shown.getvalue(),
            (len(examined), len(store.opened) + len(store.saves) + store.closed, len(validated)))


def test_the_first_shows_saves_validates_and_examines_for_both(pair, tmp_path):
    (record, shown, did), (its, nothing, other) = pair(once, str(tmp_path))
    assert "21/21" in shown and nothing == "" and record == its
    assert did == (2, 2 + EPOCHS, EPOCHS) and other == (0, 0, 0)
    assert len(record["reports"]) == 1 and record["validation"]["counts"] == [3, 3, 3]


def resumed_everywhere(rank):
    words = {"validate": validate, "method": Remembering(3), "optim": FIVE}
    whole, saves = train(**words), Memory()
    found = [same(whole, train(store=saves, save_every=0, **words))]
    for step in range(1, 19):  # the second process has nothing but what the first one tells it
        store = Memory({step: saves.saves[step]} if rank == 0 else {})
        found.append(same(whole, train(model=Small(seed=9), store=store, **words)))
    return found


def test_resuming_from_every_batch_gives_the_same_bits(pair):
    assert pair(resumed_everywhere) == [[True] * 19] * 2


def stopped(rank, who, signals):
    """Where each was when `who` was told to stop in its ninth batch, what was saved, and whether
    it went on to the same end."""
    store, batches = Memory(), []

    def ring(at):
        batches.append(at.batch)
        for _ in range(signals * (rank == who and len(batches) == 9)):
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        train(Remembering(before=ring), store=store)
    return len(batches), sorted(store.saves), same(train(), train(store=store))


@pytest.mark.parametrize(("who", "signals"), [(0, 1), (1, 2)])
def test_a_signal_to_one_stops_both_after_the_same_batch(pair, who, signals):
    assert pair(stopped, who, signals) == [(9, [7, 9], True), (9, [], True)]


def kept(rank, folder):
    train(store=Store(folder), epochs=1)
    return dict(json.loads((Path(folder) / "store.json").read_text())["environment"])


def test_so_many_processes_as_it_began_with(pair, tmp_path):
    assert all(e["processes of torchrun"] == 2 for e in pair(kept, str(tmp_path)))
    with pytest.raises(CourseError,
                       match=r"processes of torchrun is not given, was 2\. Restore these to"):
        kept(0, str(tmp_path))


def test_a_restart_does_not_meet_the_dead():
    """The store still holds what the processes of earlier starts left in it."""
    store, names = dist.HashStore(), []
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            found = set(pool.map(lambda rank: parallel.met(store, rank, 3), range(3)))
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3


# 640 images, 5 batches an epoch, noise in each
WORDS = ("train", "tune/trades-1-12", "--limit", "800", "--epochs", "3", "--out")
# the second process is killed after its seventh batch; after the restart the first after its third
KILLS = {("1", "0"): 7, ("0", "1"): 3}


def undisturbed(rank, out):
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        return main([*WORDS, out])


def end_of(out):
    """The last checkpoint to the bit, without the seconds that it took."""
    (place,) = out.rglob("store.json")
    step, state = Store(place.parent).latest() or (0, {})
    return json.dumps([step, {**state, "seconds": 0}], default=Tensor.tolist)


def killed():
    """The course's program, in a process that is killed where KILLS says, each once."""
    steps, me = iter(range(1, 1000)), (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"])

    def kill(*_):
        if next(steps) == KILLS.get(me):
            Path(f"{sys.argv[-1]}.kill-{me[1]}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(kill)
    program()


def test_killed_processes_are_started_again_and_end_with_the_same_weights(pair, tmp_path):
    """TRADES, started by the batch script of docs/scaling.md, as Slurm would start it on one
    machine with two processors. `torchrun` runs this file in place of the course."""
    assert pair(undisturbed, str(tmp_path / "whole")) == [0, 0]
    (script,) = re.findall(r"```text\n(#!/bin/bash\n.*?)```",
                           (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"), re.S)
    (tmp_path / "train.sbatch").write_text(script)
    torchrun = (f"{sys.executable} -m torch.distributed.run --local-addr 127.0.0.1 "
                '"${@/#course_lib/tests.lab.test_torchrun}"')
    for name, does in {"srun": '"$@"', "scontrol": "echo 127.0.0.1", "torchrun": torchrun}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\nexec {does}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"NNODES": "1", "JOB_NODELIST": "here", "JOB_ID": str(os.getpid()),
             "GPUS_ON_NODE": "2", "CPUS_PER_TASK": "2"}
    done = subprocess.run(
        ["bash", tmp_path / "train.sbatch", *WORDS[1:], tmp_path / "killed"], cwd=ROOT, text=True,
        env={**os.environ, **LOCAL, "PATH": f"{tmp_path}:{os.environ['PATH']}",
             **{f"SLURM_{name}": value for name, value in slurm.items()}},
        capture_output=True, timeout=400, stdin=subprocess.DEVNULL)
    shown = done.stdout + done.stderr
    assert done.returncode == 0 and done.stdout.count("finished") == 1, shown
    assert len([*tmp_path.glob("killed.kill-*")]) == len(KILLS), shown
    # The first process saves when it loses the second one (in batch 7, or 8 once that is done);
    # killed itself, it has lost what came after
    resumed = re.findall(r"resuming at epoch (\d), batch (\d) of 5", shown)
    assert resumed in ([("2", "1")] * 2, [("2", "2")] * 2), shown
    assert end_of(tmp_path / "killed") == end_of(tmp_path / "whole")
    assert end_of(tmp_path / "whole").startswith("[15, ")


if __name__ == "__main__":
    killed()
