import dataclasses
import io
import math
import signal
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib import PGD, CourseError, evaluate
from course_lib.experiments.exp1 import divided
from course_lib.fairness import Errors, Report
from course_lib.methods import METHODS
from course_lib.training import OPTIMISERS, Averaging, Optim, fit
from tests import helpers
from tests.helpers import THREE, Remembering, Small, left_alone, report, same_weights, split

TRAIN, VALIDATION = split(26), split(12, seed=1)
OPTIM = Optim(lr=0.05, batch=4, drops=((1, 0.5), (2, 0.1)))
BATCHES, EPOCHS = 7, 3
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Memory:
    """A store in memory: what it was given, as bytes, by step."""

    status = "in memory"

    def __init__(self, saves=None):
        self.saves = {} if saves is None else saves
        self.opened = []
        self.closed = 0

    def open(self, identity, environment):
        self.opened.append(identity)

    def latest(self):
        if not self.saves:
            return None
        step = max(self.saves)
        return step, torch.load(io.BytesIO(self.saves[step]), weights_only=True)

    def save(self, step, state):
        file = io.BytesIO()
        torch.save(state, file)
        self.saves[step] = file.getvalue()

    def siblings(self):
        return []

    def close(self):
        self.closed += 1


def validate(model, at):
    return evaluate(model, VALIDATION, PGD(0.05, 0.05, 1), progress=False)


def train(method=None, *, store=None, **words):
    words = {"model": Small(), "data": TRAIN, "epochs": EPOCHS, "optim": OPTIM, "seed": 0,
             "progress": False, **words}
    return fit(method=Remembering() if method is None else method, store=store, **words)


def same(a, b):
    return same_weights(a.model, b.model) and a.history == b.history


def listening(kind, calls):
    """The method, which also notes what each loss is given: images, labels and a draw."""
    class Listening(kind):
        name = ""

        def loss(self, model, x, y, state, at):
            assert model.training
            calls.append((x.clone(), y.clone(), torch.rand((), generator=at.generator).item()))
            return super().loss(model, x, y, state, at)

    return Listening


@pytest.mark.parametrize("name", OPTIMISERS)
def test_fit_is_the_plain_loop(name):
    """Natural training against five lines of PyTorch, with the rates written out."""
    momentum = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    optim = Optim(name, 0.05, 4, drops=((1, 0.5),), weight_decay=0.01, **momentum)
    run = train(listening(METHODS["natural"], calls := [])(), optim=optim, epochs=2)
    hand = Small().train()
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    steps = make(hand.parameters(), 0.05, weight_decay=0.01, **momentum)
    losses = []
    for i, (x, y, _) in enumerate(calls):
        steps.param_groups[0]["lr"] = 0.05 if i < BATCHES else 0.025
        steps.zero_grad()
        loss = F.cross_entropy(hand(x), y)
        loss.backward()
        steps.step()
        losses.append(loss.item())
    assert len(calls) == 2 * BATCHES
    # fused optimisers round otherwise; a bias before a batch norm has no gradient but rounding,
    # which AdamW makes whole steps of
    mine, other = ({k: v for k, v in m.state_dict().items() if name != "adamw" or k not in (
        "conv.bias", "norm.running_mean")} for m in (run.model, hand))
    torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    means = [sum(losses[:7]) / 7, sum(losses[7:]) / 7]
    assert [h["loss"] for h in run.history] == pytest.approx(means)
    for epoch in (calls[:BATCHES], calls[BATCHES:]):
        assert sorted(v for _, y, _ in epoch for v in y.tolist()) == sorted(TRAIN.y.tolist())
    assert not torch.equal(calls[0][0], calls[BATCHES][0]), "each epoch has its own order"


@pytest.mark.parametrize(("every", "at", "counted"), [
    (None, [], []),
    ("epoch", [(0, 0), (1, 0), (2, 0)], [0, 26, 26]),
    (3, [(e, b) for e in range(3) for b in (0, 3, 6)], [0, 12, 12, 2, 12, 12, 2, 12, 12])])
def test_updates_come_before_the_first_batch_of_their_period(every, at, counted):
    """With the sums of the period that ended there."""
    calls = []
    run = train(Remembering(every, first=calls.append), validate=validate)
    assert [(a.epoch, a.batch) for a in calls] == at
    assert all((a.epochs, a.batches) == (EPOCHS, BATCHES) for a in calls)
    assert [int(a.stats["seen"].sum()) if a.stats else 0 for a in calls] == counted
    assert [h["epoch"] for h in run.history] == [1, 2, 3]
    assert [h["lr"] for h in run.history] == pytest.approx([0.05, 0.025, 0.005])
    assert run.history[-1]["state"]["updates"] == len(at)
    rows = [row["batch"] for h in run.history for row in h["validation"]]
    assert rows == [0 if at else BATCHES] * 3


def test_the_rate_of_each_epoch():
    optim = Optim(lr=1.0, drops=divided(3, every=4, epochs=15))  # the report's
    rates = [1.0] * 4 + [1 / 3] * 4 + [1 / 9] * 4 + [1 / 27] * 3
    assert [optim.rate(e) for e in range(15)] == pytest.approx(rates)
    optim, rates = Optim(lr=2.0, cosine=4, drops=((3, 0.5),)), [2.0, 1 + 0.5**0.5, 1.0]
    assert [optim.rate(e) for e in range(6)] == pytest.approx([*rates, (1 - 0.5**0.5) / 2, 0, 0])


def test_the_seed_is_the_only_source_of_chance():
    before, handlers = helpers.random_states(), [signal.getsignal(s) for s in SIGNALS]
    first, calls = train(), list[tuple[int, bool]]()
    assert before == helpers.random_states() and handlers == [signal.getsignal(s) for s in SIGNALS]
    torch.rand(3)
    again = train(callback=lambda r: calls.append((len(r.history), r.model.training)))
    assert same(first, again) and calls == [(1, True), (2, True), (3, True)]
    assert not same(first, train(seed=1))
    (model := Small()).conv.weight.requires_grad_(False)
    assert same_weights(train(epochs=0).model, model)
    train(model=model)
    assert [p.requires_grad for p in model.parameters()] == [False] + [True] * 5
    assert torch.equal(model.conv.weight, Small().conv.weight)


def averaged(*words):
    return dataclasses.replace(OPTIM, averaging=Averaging(*words))


def test_averaging_by_hand():
    """avg = a (a theta_2 + (1 - a) theta_3) + (1 - a) theta_4 from the second epoch on, running
    averages included; counters are the last. The training itself is the same."""
    plain, *states = [train(model=Small(), epochs=e) for e in (4, 2, 3, 4)]
    run = train(optim=averaged(0.75, 1), epochs=4)
    second, third, fourth = (r.model.state_dict() for r in states)
    for key, value in run.model.state_dict().items():
        hand = 0.75 * (0.75 * second[key] + 0.25 * third[key]) + 0.25 * fourth[key]
        torch.testing.assert_close(value, hand if hand.is_floating_point()
                                   and not key.endswith("tracked") else fourth[key])
    assert run.history == plain.history and not same(run, plain)
    for words in ((0.0,), (0.9, 4)):  # without memory, and without an epoch
        assert same(plain, train(optim=averaged(*words), epochs=4)), words


def test_an_average_accepts_epochs_by_the_worst_class_on_validation_data():
    """Of three epochs the second alone is good enough; the method's own reports do not matter."""
    rates, second = iter((3, 0, 3)), train(epochs=2).model

    def check(model, at):
        assert at.batch == BATCHES, "at the end of an epoch"
        rob = Errors((0, next(rates), 0), (4, 4, 4))
        return Report(Errors((0, 0, 0), (4, 4, 4)), rob, THREE)

    run = train(optim=averaged(0.5, 0, 0.5), validate=check)
    assert same_weights(run.model, second) and next(rates, None) is None
    never = train(optim=averaged(0.5, 0, 1.0), validate=lambda model, at: report())
    assert same_weights(never.model, train().model), "no epoch was accepted"
    with pytest.raises(CourseError, match="validate="):
        train(optim=averaged(0.5, 0, 0.5))


@pytest.mark.parametrize(("name", "every"), [("adam", None), ("sgd", "epoch"), ("adamw", 3)])
def test_resuming_from_every_batch_gives_the_same_bits(every, name):
    """A killed run leaves one checkpoint or another: whichever it is, the end is the same."""
    optim = dataclasses.replace(OPTIM, name=name, momentum=0.9 if name == "sgd" else 0.0,
                                averaging=None if every == 3 else Averaging(0.5),
                                augment="crop-flip" if every else "")
    words = {"validate": validate, "optim": optim, "method": Remembering(every)}
    undisturbed, saves = train(model=Small(dropout=0.5), **words), Memory()
    again = train(model=Small(dropout=0.5), store=saves, save_every=0, **words)
    assert same(undisturbed, again), "saving must not disturb"
    assert sorted(saves.saves) == list(range(1, EPOCHS * BATCHES + 1))
    for step, saved in saves.saves.items():
        store = Memory({step: saved})
        torch.rand(1)  # dropout has draws of its own
        again = train(model=Small(seed=9, dropout=0.5), store=store, **words)
        assert same(undisturbed, again), f"resumed after batch {step}"
        assert store.closed == 1 and max(store.saves) == EPOCHS * BATCHES


@pytest.mark.parametrize(("when", "stops"), [
    ("before", (1,)), ("before", (8, 15)), ("after", (5, 6, 7, 8)), ("first", (5, 6))])
def test_an_exception_loses_nothing(stops, when):
    """The last batch is saved; the broken one leaves no trace, not even in running averages."""
    undisturbed, store = train(Remembering(3), validate=validate), Memory()
    method = Remembering(3, **{when: helpers.failing_at(*stops)})
    for _ in stops:
        model = Small()
        with pytest.raises(ArithmeticError):
            train(method, store=store, model=model, validate=validate)
        _, state = store.latest()
        assert all(torch.equal(v, state["model"][k]) for k, v in model.state_dict().items())
    assert same(undisturbed, train(Remembering(3), store=store, validate=validate))
    assert store.closed == len(stops) + 1


def test_a_step_that_is_cut_short_is_not_saved():
    """Its weights have changed, and its batch is not counted yet."""
    store, hook = Memory(), register_optimizer_step_post_hook(helpers.failing_at(9))
    with pytest.raises(ArithmeticError):
        train(store=store)
    hook.remove()
    assert sorted(store.saves) == [7] and same(train(), train(store=store))


@pytest.mark.parametrize(("cost", "every", "saves"), [
    # batches of 40 s: saved after each minute, and at the end of each epoch of seven
    (0.1, None, [2, 4, 6, 7, 9, 11, 13, 14]), (0.1, 3600.0, [7, 14]),
    (2.0, None, [2, 7, 12, 14]),  # a save of two seconds: not again for 200 s
    (9.0, None, [2, 7, 14]),  # nine seconds: not for ten minutes, instead of fifteen
    (9.0, 60.0, [2, 4, 6, 7, 9, 11, 13, 14]),  # who asks for a minute has it
])
def test_what_saves_slowly_is_saved_less_often(cost, every, saves, monkeypatch):
    now, store = [0.0], Memory()
    save = store.save

    def passes(seconds):
        now[0] += seconds

    monkeypatch.setattr(store, "save", lambda *words: (save(*words), passes(cost)))
    monkeypatch.setattr("course_lib.checkpoints.saver.time",
                        SimpleNamespace(monotonic=lambda: now[0]))
    train(Remembering(before=lambda at: passes(40)), store=store, epochs=2, save_every=every)
    assert sorted(store.saves) == saves


@pytest.mark.parametrize(("batch", "times", "saved"), [(7, 1, 7), (5, 2, 4)])
def test_a_signal_waits_for_the_end_of_the_batch_and_a_second_one_does_not(batch, times, saved):
    """Real ones, of either kind, are sent by tests/test_cli.py and tests/faults/."""
    store, handlers = Memory(), [signal.getsignal(s) for s in SIGNALS]

    def ring(at):
        if BATCHES * at.epoch + at.batch + 1 == batch:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            assert times == 1, "the second signal should have ended this batch"

    with pytest.raises(KeyboardInterrupt):
        train(Remembering(before=ring), store=store)
    assert max(store.saves) == saved and handlers == [signal.getsignal(s) for s in SIGNALS]
    assert same(train(), train(store=store))


def test_progress_says_where_it_goes_on(capfd):
    store = Memory()
    first = train(store=store, save_every=0, validate=validate)
    assert capfd.readouterr() == ("", "")
    store.saves = {9: store.saves[9]}
    train(store=store, progress=True, validate=validate)
    (*_, last), shown = first.history, capfd.readouterr().err
    assert "resuming at epoch 2, batch 2 of 7" in shown and "21/21" in shown
    assert "epoch 3/3" in shown and f"loss {last['loss']:.3f}" in shown
    assert f"worst class {max(last['validation'][0]['rob']):.0%}" in shown
    never = Remembering(before=helpers.failing_at(1))
    assert same(first, train(never, store=store, model=Small(seed=9), progress=True,
                             validate=validate))
    assert "already finished: 3 epochs" in capfd.readouterr().err


@pytest.mark.parametrize(("words", "say"), [  # more of them in tests/traps/test_identity.py
    ({"data": split(1).masked(0)}, "The split is empty"),
    ({"epochs": -1}, "epochs is -1"), ({"seed": "0"}, "seed is '0'"),
    ({"model": Small(2)}, "2 outputs, but the data has 3 classes"),
    ({"data": split(9, (2, 6, 6))}, r"Small cannot take images of shape \(1, 2, 6, 6\)")])
def test_bad_input(words, say):
    store, words = Memory(), {"model": Small(), **words}
    with pytest.raises(CourseError, match=say), left_alone(words["model"]):
        train(METHODS["pgd_at"](), store=store, **words)
    assert not store.saves


@pytest.mark.parametrize(("words", "say"), [
    ({"name": "lion"}, "adam, adamw, sgd"), ({"augment": "crop"}, "'crop'"),
    ({"nesterov": True}, "Nesterov needs a momentum; this is adam"),
    ({"cosine": -1}, "cosine is -1"), ({"batch": 0}, "batch is 0"),
    ({"lr": 0}, "lr is 0; Optim takes 0 < lr < inf"), ({"lr": math.nan}, "lr is"),
    ({"lr": math.inf}, "lr is"), ({"momentum": 1}, "momentum is 1; .*momentum < 1"),
    ({"weight_decay": -1}, "weight_decay is -1")])
def test_an_optimiser_that_makes_no_sense(words, say):
    with pytest.raises(CourseError, match=say):
        Optim(**words)
    for bad in ((1.0,), (0.5, -1), (0.5, 0, 2.0)):
        with pytest.raises(CourseError, match="decay is|first is|accept is"):
            Averaging(*bad)


def test_a_loss_that_is_no_number_stops_before_it_does_harm():
    class Exploding(Remembering):
        def loss(self, *args):
            loss, stats = super().loss(*args)
            return (loss * torch.nan if args[-1].batch == 2 else loss), stats

    store, model = Memory(), Small()
    with pytest.raises(CourseError, match="The loss became nan in epoch 1, batch 3. Try a smaller"):
        train(Exploding(), store=store, model=model)
    assert max(store.saves) == 2 and all(v.isfinite().all() for v in model.state_dict().values())
