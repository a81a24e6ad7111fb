import dataclasses
import io
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attacks import PGD
from course_lib.checkpoints import SaveError
from course_lib.data import Split
from course_lib.errors import CourseError
from course_lib.evaluation import evaluate
from course_lib.fairness import Report
from course_lib.methods import METHODS, Method, Step
from course_lib.training import OPTIMISERS, Optim, Run, divided, environment, fit
from tests.helpers import THREE, Small, images, labels, left_alone, random_states, same_weights, split, tiny_dataset

TRAIN, VALIDATION = split(26), split(12, seed=1)
OPTIM = Optim(lr=0.05, batch=4, drops=((1, 0.5), (2, 0.1)))
BATCHES, EPOCHS = 7, 3


@dataclass(frozen=True)
class Remembering(Method):
    """Has all that a checkpoint must hold: chance, statistics summed over a period, a memory,
    reports."""

    update_every: Any = None
    # called before each loss
    before: Callable[[Step], None] = dataclasses.field(default=lambda at: None, repr=False)
    # and after it
    after: Callable[[Step], None] = dataclasses.field(default=lambda at: None, repr=False)

    def init_state(self, n_classes: int) -> dict[str, Tensor]:
        return {"weight": torch.ones(n_classes), "updates": torch.zeros((), dtype=torch.int64)}

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: dict[str, Tensor],
             at: Step) -> tuple[Tensor, dict[str, Tensor]]:
        self.before(at)
        logits = model((x + 0.1 * torch.randn(x.shape, generator=at.generator)).clamp(0, 1))
        wrong = F.one_hot(y, 3).T.float() @ (logits.argmax(1) != y).float()
        self.after(at)
        return (F.cross_entropy(logits, y, reduction="none") * state["weight"][y]).mean(), {
            "wrong": wrong,
            "seen": torch.bincount(y, minlength=3),
        }

    def update(self, state: dict[str, Tensor], report: Report | None, at: Step) -> dict[str,
            Tensor]:
        weight = state["weight"] + at.stats["wrong"] / at.stats["seen"].clamp(
            min=1) if at.stats else state["weight"]
        if report is not None:
            weight = weight + torch.tensor(report.rob.by_class, dtype=torch.float32)
        return {"weight": weight / weight.mean() + 0.01 * torch.rand(3, generator=at.generator),
                "updates": state["updates"] + 1}


class Memory:
    """A store in memory: what it was given, as bytes, by step."""

    status = "in memory"

    def __init__(self, saves: dict[int, bytes] | None = None) -> None:
        self.saves = {} if saves is None else saves
        self.opened: list[dict[str, Any]] = []
        self.closed = 0
        self.broken = False

    def open(self, identity: dict[str, Any], environment: dict[str, Any]) -> None:
        self.opened.append(identity)

    def latest(self) -> tuple[int, dict[str, Any]] | None:
        if not self.saves:
            return None
        return max(self.saves), torch.load(io.BytesIO(self.saves[max(self.saves)]),
                                           weights_only=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        if self.broken:
            raise SaveError("the disk is full")
        file = io.BytesIO()
        torch.save(state, file)
        self.saves[step] = file.getvalue()

    def close(self) -> None:
        self.closed += 1


def validate(model: nn.Module, at: Step) -> Report:
    return evaluate(model, VALIDATION, PGD(0.05, 0.05, 1), progress=False)


def train(method: Method | None = None, *, store: Memory | None = None, **words: Any) -> Run:
    words = {"model": Small(), "data": TRAIN, "epochs": EPOCHS, "optim": OPTIM, "seed": 0,
             "progress": False, **words}
    return fit(method=Remembering() if method is None else method, store=store, **words)


def same(a: Run, b: Run) -> bool:
    return same_weights(a.model, b.model) and a.history == b.history


# ------------------------------------------------------------------------------------------ one loop, told by hand


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fit_is_the_plain_loop(name: str) -> None:
    """Natural training against five lines of PyTorch, with the rates written out."""
    optim = Optim(name, 0.05, 4, drops=((1, 0.5),), weight_decay=0.01,
                  **({"momentum": 0.9} if name == "sgd" else {}))
    served: list[tuple[Tensor, Tensor]] = []

    @dataclass(frozen=True)
    class Listening(METHODS["natural"]):
        name = ""

        def loss(self, model: nn.Module, x: Tensor, y: Tensor, state: dict[str, Tensor],
                 at: Step) -> Tensor:
            served.append((x, y))
            assert model.training
            return super().loss(model, x, y, state, at)

    run = train(Listening(), optim=optim, epochs=2)
    hand = Small().train()
    make = torch.optim.Adam if name == "adam" else torch.optim.SGD
    steps = make(hand.parameters(), 0.05, weight_decay=0.01,
                 **({"momentum": 0.9} if name == "sgd" else {}))
    losses = []
    for i, (x, y) in enumerate(served):
        steps.param_groups[0]["lr"] = 0.05 if i < BATCHES else 0.025
        steps.zero_grad()
        loss = F.cross_entropy(hand(x), y)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert len(served) == 2 * BATCHES
    # fused optimisers round otherwise
    torch.testing.assert_close(run.model.state_dict(), hand.state_dict(), rtol=1e-4, atol=1e-5)
    assert [h["loss"] for h in run.history] == pytest.approx([sum(losses[:7]) / 7,
        sum(losses[7:]) / 7])
    for epoch in (served[:BATCHES], served[BATCHES:]):
        assert sorted(v for _, y in epoch for v in y.tolist()) == sorted(TRAIN.y.tolist())
    assert not torch.equal(served[0][0], served[BATCHES][0]), "each epoch has its own order"


def test_history() -> None:
    run = train(Remembering("epoch"), validate=validate)
    assert [h["epoch"] for h in run.history] == [1, 2, 3] and [h["lr"]
        for h in run.history] == pytest.approx([0.05, 0.025, 0.005])
    assert [h["state"]["updates"] for h in run.history] == [1, 2,
                                                            3] and all(len(h["validation"]) == 1
                                                                       for h in run.history)
    assert all(math.isfinite(h["loss"]) for h in run.history) and run.history[-1][
        "loss"] < run.history[0]["loss"]
    row = run.history[1]["validation"][0]
    assert row["batch"] == 0 and Report.from_json(row).classes == THREE


@pytest.mark.parametrize(
    ("every", "at"),
    [(None, []), ("epoch", [(0, 0), (1, 0), (2, 0)]),
     (3, [(e, b) for e in range(3) for b in (0, 3, 6)]), (7, [(e, 0) for e in range(3)])],
)
def test_updates_come_before_the_first_batch_of_their_period(every: Any,
        at: list[tuple[int, int]]) -> None:
    """With the sums of the period that ended there, and with a report."""
    calls: list[tuple[Step, bool]] = []

    @dataclass(frozen=True)
    class Listening(Remembering):
        def update(self, state: dict[str, Tensor], report: Report | None, at: Step) -> dict[str,
                Tensor]:
            calls.append((at, report is not None))
            return super().update(state, report, at)

    train(Listening(every), validate=validate)
    assert [(a.epoch, a.batch) for a, _ in calls] == at and all(reported for _, reported in calls)
    assert all((a.epochs, a.batches) == (EPOCHS, BATCHES) for a, _ in calls)
    seen = [int(a.stats["seen"].sum()) if a.stats else 0 for a, _ in calls]
    period = {None: [], "epoch": [0, 26, 26], 3: [0, 12, 12, 2, 12, 12, 2, 12, 12], 7: [0, 26, 26]}
    assert seen == period[every]


def test_the_reports_schedule() -> None:
    """The rate divided by 3 every 4 epochs of 15."""
    optim = Optim(lr=1e-3, drops=divided(3, every=4, epochs=15))
    assert [optim.rate(e) for e in range(15)] == pytest.approx([1e-3] * 4 + [1e-3 / 3] * 4
        + [1e-3 / 9] * 4 + [1e-3 / 27] * 3)


def test_no_epoch_changes_nothing() -> None:
    run = train(epochs=0)
    assert same_weights(run.model, Small()) and run.history == []


# ------------------------------------------------------------------------------------------ chance


def test_the_seed_is_the_only_source_of_chance() -> None:
    before = random_states()
    first = train()
    assert before == random_states()
    torch.rand(3)
    assert same(first, train()) and not same(first, train(seed=1))


def test_a_data_set_is_trained_on_its_training_part() -> None:
    d = tiny_dataset()
    model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(1024, 3))  # noqa: E731
    torch.manual_seed(0)
    a = model()
    b = model()
    b.load_state_dict(a.state_dict())
    assert same(train(model=a, data=d), train(model=b, data=d.train))


def test_what_the_caller_lent_is_given_back() -> None:
    model = Small()
    model.conv.weight.requires_grad_(False)
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    before = model.conv.weight.clone()
    train(model=model)
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 5
    assert torch.equal(model.conv.weight, before) and handlers == [signal.getsignal(s)
        for s in (signal.SIGINT, signal.SIGTERM)]


# ------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("every", [None, "epoch", 3])
def test_resuming_from_every_batch_gives_the_same_bits(every: Any, name: str) -> None:
    """A killed run leaves one checkpoint or another: whichever it is, the end is the same."""
    optim = dataclasses.replace(OPTIM, name=name, **({"momentum": 0.9} if name == "sgd" else {}))
    words = {"validate": validate, "optim": optim, "method": Remembering(every)}
    whole, all_saves = train(**words), Memory()
    assert same(whole, train(store=all_saves, save_every=0, **words)), "saving must not disturb"
    assert sorted(all_saves.saves) == list(range(1, EPOCHS * BATCHES + 1))
    for step, saved in all_saves.saves.items():
        store = Memory({step: saved})
        assert same(whole, train(model=Small(seed=9), store=store,
                                 **words)), f"resumed after batch {step}"
        assert store.closed == 1 and max(store.saves) == EPOCHS * BATCHES


@pytest.mark.parametrize("stops", [(1,), (2, 3), (7,), (8, 15), (5, 6, 7, 8), (21,)])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_exception_loses_nothing(stops: tuple[int, ...], when: str) -> None:
    """The last whole batch is saved; the broken one leaves no trace, not even in running
    averages."""
    whole, store, calls = train(Remembering(3), validate=validate), Memory(), iter(range(1, 1000))

    def stop(at: Step) -> None:
        if next(calls) in stops:
            raise ArithmeticError("stopped here on purpose")

    for _ in stops:
        model = Small()
        with pytest.raises(ArithmeticError):
            train(Remembering(3, **{when: stop}), store=store, model=model, validate=validate)
        _, state = store.latest()
        assert all(torch.equal(v, state["model"][k]) for k, v in model.state_dict().items())
    assert same(whole, train(Remembering(3), store=store,
                             validate=validate)) and store.closed == len(stops) + 1


@pytest.mark.parametrize("break_at", ["validate", "update"])
def test_an_exception_between_batches_loses_nothing(break_at: str) -> None:
    calls = iter(range(1000))

    def fail_once() -> None:
        if next(calls) == 4:
            raise ArithmeticError("stopped here on purpose")

    def checking(model: nn.Module, at: Step) -> Report:
        if break_at == "validate":
            fail_once()
        return validate(model, at)

    @dataclass(frozen=True)
    class Failing(Remembering):
        def update(self, state: dict[str, Tensor], report: Report | None, at: Step) -> dict[str,
                Tensor]:
            if break_at == "update":
                fail_once()
            return super().update(state, report, at)

    store = Memory()
    with pytest.raises(ArithmeticError):
        train(Failing(3), store=store, validate=checking)
    assert same(train(Remembering(3), validate=validate),
                train(Failing(3), store=store, validate=checking))


def test_a_finished_training_is_not_trained_again() -> None:
    store = Memory()
    first = train(store=store)

    def never(at: Step) -> None:
        pytest.fail("there was nothing to train")

    assert same(first, train(Remembering(before=never), store=store, model=Small(seed=9)))


def test_what_makes_a_training_the_same() -> None:
    """The identity handed to the store differs whenever something that matters does, and never for
    the rest."""
    other_data = dataclasses.replace(TRAIN, classes=("a", "b", "c"))
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"epochs": 4},
        {"data": split(seed=5)},
        {"data": TRAIN.masked(3)},
        {"data": other_data},
        {"optim": Optim(lr=0.06, batch=4)},
        {"method": Remembering("epoch")},
        {"method": METHODS["natural"]()},
        {"method": METHODS["pgd_at"]()},
        {"method": METHODS["pgd_at"](mix=0.5)},
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(36, 3))},
    ]
    identities = []
    for words in [{}, {}, {"model": Small(seed=5)}, {"save_every": 1.0}, *changes]:
        store = Memory()
        train(**{"epochs": 1, **words}, store=store)
        identities.append(repr(store.opened))
    assert len(set(identities[:4])) == 1 and len(set(identities)) == 1 + len(changes)


def test_saving_by_the_clock_and_at_the_end_of_an_epoch() -> None:
    store = Memory()
    train(store=store, save_every=3600)
    assert sorted(store.saves) == [7, 14, 21]


@pytest.mark.parametrize(("cost", "every", "saves"), [
    # batches of 40 s: saved after each minute, and at the end of each epoch of seven
    (0.1, None, [2, 4, 6, 7, 9, 11, 13, 14]),
    (2.0, None, [2, 7, 12, 14]),  # a save of two seconds: not again for 200 s
    (9.0, None, [2, 7, 14]),  # nine seconds: not for ten minutes, instead of fifteen
    (9.0, 60.0, [2, 4, 6, 7, 9, 11, 13, 14]),  # who asks for a minute has it
])
def test_what_saves_slowly_is_saved_less_often(cost: float, every: float | None, saves: list[int],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    class Slow(Memory):
        def save(self, step: int, state: dict[str, Any]) -> None:
            super().save(step, state)
            passes(cost)

    monkeypatch.setattr("course_lib.checkpoints.saver.time", SimpleNamespace(monotonic=lambda: now[0]))
    store = Slow()
    train(Remembering(before=lambda at: passes(40)), store=store, epochs=2, save_every=every)
    assert sorted(store.saves) == saves


def test_a_store_that_fails_warns_and_training_goes_on() -> None:
    store, whole = Memory(), train()
    store.broken = True
    with pytest.warns(UserWarning, match="not saved; training goes on.*the disk is full"):
        assert same(whole, train(store=store))
    assert not store.saves and store.closed == 1


def test_a_store_that_refuses_is_heard() -> None:
    class Foreign(Memory):
        def open(self, identity: dict[str, Any], environment: dict[str, Any]) -> None:
            raise CourseError("these checkpoints are of another training")

    model = Small()
    with pytest.raises(CourseError, match="another training"):
        train(store=Foreign(), model=model)
    assert same_weights(model, Small())


# ------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("batch", [1, 7, 9])
def test_a_signal_waits_for_the_end_of_the_batch(number: signal.Signals, batch: int) -> None:
    whole, store, calls = train(), Memory(), iter(range(1, 1000))
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]

    def ring(at: Step) -> None:
        if next(calls) == batch:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        train(Remembering(before=ring), store=store)
    assert max(store.saves) == batch and handlers == [signal.getsignal(s)
                                                      for s in (signal.SIGINT, signal.SIGTERM)]
    assert same(whole, train(store=store))


def test_a_second_signal_does_not_wait() -> None:
    whole, store, calls = train(), Memory(), iter(range(1, 1000))

    def ring(at: Step) -> None:
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second signal should have ended this batch")

    with pytest.raises(KeyboardInterrupt):
        train(Remembering(before=ring), store=store)
    assert max(store.saves) == 4 and same(whole, train(store=store))


# ------------------------------------------------------------------------------------------ what is shown


def test_progress_says_where_it_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    store = Memory()
    train(store=store, save_every=0)
    assert capfd.readouterr() == ("", "")
    store.saves = {9: store.saves[9]}
    train(store=store, progress=True)
    shown = capfd.readouterr()
    assert "resuming at epoch 2, batch 2 of 7 (43 %, about" in (shown.out
        + shown.err).replace("43%", "43 %") and "21/21" in shown.err
    train(store=store, progress=True)
    assert "already finished: 3 epochs" in "".join(capfd.readouterr())


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"data": split(0)}, "The training split is empty"),
        ({"data": split(1).masked(0)}, "The training split is empty"),
        ({"epochs": -1}, "epochs is -1"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "0"}, "seed is '0'"),
        ({"model": Small(2)}, "2 classes apart, the data has 3 classes"),
        ({"model": Small(4)}, "4 classes apart, the data has 3 classes"),
        ({"data": split(shape=(1, 5, 5))}, r"Small cannot take images of shape \(1, 1, 5, 5\)"),
        ({"data": Split(images(9, (2, 6, 6)), labels(9), THREE)},
         r"Small cannot take images of shape \(1, 2, 6, 6\)"),
    ],
)
@pytest.mark.parametrize("method", ["natural", "pgd_at"])
def test_bad_input(words: dict[str, Any], say: str, method: str) -> None:
    store = Memory()
    words = {"model": Small(), **words}
    with pytest.raises(CourseError, match=say), left_alone(words["model"]):
        train(METHODS[method](), store=store, **words)
    assert not store.saves


@pytest.mark.parametrize(
    ("words", "say"),
    [
        ({"name": "lion"}, "adam, sgd"),
        ({"batch": 0}, "batch size is 0"),
        *[({"lr": v}, "learning rate") for v in (0, -1, float("nan"), float("inf"))],
        ({"momentum": -1}, "momentum"),
        ({"momentum": 1}, "momentum"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"weight_decay": float("nan")}, "weight_decay"),
    ],
)
def test_an_optimiser_that_makes_no_sense(words: dict[str, Any], say: str) -> None:
    with pytest.raises(CourseError, match=say):
        Optim(**words)


def test_a_loss_that_is_no_number_stops_before_it_does_harm() -> None:
    @dataclass(frozen=True)
    class Exploding(Remembering):
        def loss(self, *args: Any) -> tuple[Tensor, dict[str, Tensor]]:
            loss, stats = super().loss(*args)
            return (loss * torch.nan if args[-1].batch == 2 else loss), stats

    store, model = Memory(), Small()
    with (
            pytest.raises(CourseError,
                          match="The loss became nan in epoch 1, batch 3. Try a smaller learning "
                          "rate")):
        train(Exploding(), store=store, model=model)
    assert max(store.saves) == 2 and all(torch.isfinite(v).all()
                                         for v in model.state_dict().values())


def test_a_gpu_is_part_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever resumes on another device is told."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "gpu" not in environment()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "one of some kind")
    assert environment()["gpu"] == "one of some kind"
