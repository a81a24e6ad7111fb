"""What an evaluation may be given, and where its figures deserve a warning or an error."""

import re
import warnings
from functools import partial

import hypothesis.strategies as some
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.nn import functional as F

from course_lib import PGD, RECIPES, AutoAttack, Report, build, evaluate, load_model
from course_lib import __main__ as shell
from course_lib.data import Dataset, Split, load
from course_lib.errors import CourseError, CourseWarning
from course_lib.evaluation import named
from course_lib.inference import predict
from course_lib.lab import examine
from tests.helpers import THREE, Linear, Small, images, labels, left_alone, split
from tests.test_evaluation import CLEAN, TRUTH, Reader, written

X, Y = images(12), labels(12)


@pytest.fixture(scope="module")
def test():
    return load("fashion-mnist").test.take(slice(0, 200))


class Around(nn.Module):
    """A model with something before or after it."""

    def __init__(self, model, after, before=lambda x: x):
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x):
        return self.after(self.model(self.before(x)))


def quiet(*given, **words):
    """A report, its warnings unsaid."""
    with warnings.catch_warnings(action="ignore", category=CourseWarning):
        return evaluate(*given, progress=False, **words)


def stored(name="exp1/natural"):
    return load_model(name)


# --- doubtful figures: the warning in Python is the report's, and goes through JSON


DOUBTFUL = {  # the model, the attack, and what the warning says
    "a6 reach below budget": (stored, PGD(64 / 255), "Weak attack: its 20 steps of 0.00784 reach "
                              "0.157 at most, and the budget is 0.251"),
    "no steps": (stored, PGD(steps=0), "Weak attack: its 0 steps"),
    "a6 saturated logits": (lambda: Around(stored(), lambda f: 1e4 * f), PGD(),
                            r"on \d+% of the images .* gives a robust error of 5\d.\d% instead"),
    "gradients of zero": (lambda: Around(stored(), lambda f: f, lambda x: (9 * x).round() / 9),
                          "cw20", "gradient of the attack's loss is zero"),
    "the same for another's attack": (lambda: Around(stored(), lambda f: 1e4 * f),
                                      lambda x, y: (x + 0.01).clamp(0, 1), "The margin loss"),
    "infinite logits": (lambda: Around(stored(), lambda f: f.masked_fill(f < 0, -torch.inf)),
                        AutoAttack(attacks=("square",)), "Some logits are infinite"),
    "random logits": (lambda: Around(stored(), F.dropout), PGD(steps=5), "from pass to pass"),
    "neighbours count": (lambda: Around(stored(), lambda f: f - f[:1].detach()), PGD(steps=5),
                         "or with the other images in a batch"),
    "bfloat16": (lambda: build("preact_resnet_s", channels=1), PGD(steps=5, bf16=True), "bfloat16"),
    "a10 outside its ball": (stored, "claims 8/255", "claims eps = 0.03137 and changes inputs by "
                             "up to 0.1")}


class Shift:
    """Another library's attack, bound to a model; `eps` is what it claims."""

    def __init__(self, by, **claims):
        self.by = by
        self.__dict__ |= claims

    def __call__(self, inputs, labels=None, *more, **words):
        return (inputs + self.by).clamp(0, 1)


@pytest.mark.parametrize("what", DOUBTFUL)
def test_a6_a10_h12_h18_a_doubtful_figure_says_so(what, test):
    make, attack, words = DOUBTFUL[what]
    attack = Shift(0.1, eps="8/255") if attack == "claims 8/255" else attack
    part = test.take(slice(0, 20)) if isinstance(attack, AutoAttack) else test
    with pytest.warns(CourseWarning) as said:
        report = evaluate(make(), part, attack, progress=False)
    assert re.search(words, " ".join(report.warnings))
    assert report.warnings == tuple(str(w.message) for w in said) and said[0].filename == __file__
    assert Report.from_json(report.to_json()) == report


def test_robust_below_standard_says_so():
    s = Split(written(CLEAN), TRUTH, THREE)
    with pytest.warns(CourseWarning, match="Robust error is below standard error"):
        evaluate(Reader(), s, lambda x, y: written(y.tolist()), count_clean=False, progress=False)


@pytest.mark.parametrize(("name", "attack"), [
    *((n, None) for n in ("exp1/natural", "exp1/pgd-at", "exp4/bat-code", "exp4/gairat",
                          "scores/adult-standard", "scores/adult-robust")),
    ("exp1/natural", named("pgd20", 16 / 255)), ("exp1/pgd-at", named("pgd20", 64 / 255)),
    ("exp1/natural", "cw20"), ("exp1/natural", AutoAttack(attacks=("apgd-ce",))),
    ("cifar10/natural", PGD(steps=5)), ("cifar10/bat", PGD(steps=5)),
    ("scores/cifar10-static", "pgd20-fine")])
def test_stored_models_under_the_courses_attacks_raise_no_alarm(name, attack):
    part = (load("cifar10", limit=1000).test.per_class(10) if "cifar10" in name
            else examine.examined_images(name, 10))
    with warnings.catch_warnings(action="error"):
        report = evaluate(name, part, attack, progress=False)
    assert not report.warnings and "warnings" not in report.to_json()


def test_h18_at_keeps_its_reach(test):
    weak, strong = (quiet("exp1/pgd-at", test, attack).rob.mean
                    for attack in (PGD(64 / 255), PGD().at(64 / 255)))
    assert strong > weak + 0.05 and PGD().at("16/255") == PGD(16 / 255)
    assert PGD().at(64 / 255).step_size == pytest.approx(16 / 255)
    assert PGD(1 / 255).at(1.0).step_size == 1.0 and PGD(0).at(0.9).step_size == PGD().step_size


# --- A11: a stored model's own attack


def test_a11_a_table_is_attacked_in_its_own_units(capsys):
    name = "scores/adult-robust"
    assert shell.main(["evaluate", name, "--per-class", "50"]) == 0
    assert "Attack: pgd20-adult 10 units" in capsys.readouterr().out
    report = evaluate(name, examine.examined_images(name, 50), progress=False)
    assert (report.attack, report.eps) == ("pgd20-adult", 10)
    with warnings.catch_warnings(action="always"):
        assert shell.main(["evaluate", name, "--per-class", "50", "--attack", "pgd20"]) == 0
    assert "Warning: A table was attacked in the units of images" in capsys.readouterr().err


def test_a11_examine_takes_the_recipes_own_attacks(tmp_path, monkeypatch):
    planned = []
    monkeypatch.setattr(examine, "examine_all", lambda cases, *_, **__: planned.extend(cases))
    monkeypatch.setattr(examine.Case, "stored", lambda case: None)
    models = examine.load_model.__globals__["models_dir"]()
    examine.examine_stored(["scores/adult-robust", "exp1/natural"], seeds=1, models=models)
    assert {(c.name, c.attack, c.examiner.eps) for c in planned} == {
        *(("scores/adult-robust", *pair) for pair in RECIPES["scores/adult-robust"].examination),
        *(("exp1/natural", a, 8 / 255) for a in ("pgd20", "cw20", "autoattack"))}


# --- doors


def test_c_whatever_people_give(test):
    model, want = stored(), quiet(stored(), test, PGD())
    data = Dataset("mine", test.classes, test, lambda: (test, test))
    for given_ in [(model, test, "pgd20"), (model, test, 8 / 255), (model, test, PGD),
                   (model, test, np.float32(8 / 255)), (model, data),
                   (model, (test.images(), test.y)), ("exp1/natural", test),
                   (model, test, PGD(eps="8/255")),
                   (model, test, lambda model, x, y: PGD()(model, x, y, generator=0))]:
        report = quiet(*given_)
        assert report.nat == want.nat and abs(report.rob.mean - want.rob.mean) <= 0.02, given_[1:]
    assert PGD(eps=" 8/255", step_size="2/255") == PGD()
    x, y = test.images(slice(0, 5)), test.y[:5]
    assert torch.equal(PGD()(model, x, y, generator=0), PGD()(model, x, y))


@pytest.mark.parametrize(("attack", "eps"), [
    (Shift(0.1), pytest.approx(0.1)), (Shift(0.1, eps=0.1), 0.1),
    (Shift(0.03, eps="8/255"), 8 / 255), (Shift(0.1, epsilon=0.1), 0.1),
    (Shift(0.1, eps="large"), pytest.approx(0.1)),
    (lambda x, y: ((x + 0.1).clamp(0, 1), 0.5), pytest.approx(0.1)),
    (lambda model, x, y, generator: (x + 0.1 * torch.rand(x.shape, generator=generator)).clamp(
        0, 1), pytest.approx(0.1, abs=1e-3))])
def test_a10_anothers_attack_is_measured(attack, eps, test):
    model = stored()
    with left_alone(model):
        assert evaluate(model, test, attack, progress=False).eps == eps


@pytest.mark.parametrize("library", ["torchattacks", "foolbox"])
def test_c_anothers_attack_goes_in_as_it_is(library, test):
    theirs = pytest.importorskip(library, reason=f"`make test` installs {library}")
    model = stored().train(library == "torchattacks")
    with left_alone(model):
        if library == "torchattacks":
            attack = theirs.PGD(model, eps=8 / 255, steps=20)
        else:
            without_budget = theirs.attacks.LinfPGD(steps=20, rel_stepsize=1 / 4)
            with pytest.raises(CourseError, match="needs its budget"):
                evaluate(model, test, without_budget)
            attack = partial(without_budget, epsilons=8 / 255)
        report = evaluate(model, test, attack, progress=False)
    assert report.eps == 8 / 255 and abs(report.rob.mean - quiet(model, test).rob.mean) <= 0.02


BROKEN = Small()
BROKEN.head.bias.data[0] = torch.nan
REFUSED = {  # a call, and what the error says
    "h12 NaN": (lambda: quiet(BROKEN, split()), "Small gives NaN for 26 of 26 images"),
    "a tuple": (lambda: quiet(Around(Small(), lambda f: (f, f)), split()), "gives a tuple"),
    "no gradient": (lambda: quiet(Around(Small(), lambda f: f.detach()), split()), "a gradient"),
    "a class without images": (lambda: quiet(Small(), split().take([0, 3, 6])),
                               "no image of dog, frog"),
    "classes": (lambda: quiet(Small(4), split()), "4 outputs, but the data has 3 classes"),
    "no model": (lambda: quiet(len, split()), "give a torch.nn.Module or the name"),
    "no such model": (lambda: quiet("exp9/no", split()), "Unknown model"),
    "no such attack": (lambda: quiet(Small(), split(), "pgd30"), "Unknown attack 'pgd30'"),
    "a strange attack": (lambda: quiet(Small(), split(), [1]), "The attack is list; give a name"),
    "another's class": (lambda: quiet(Small(), split(), Shift), "The attack is Shift; give"),
    "double in PGD": (lambda: PGD()(Small(), X.double(), Y), r"images.float\(\) makes them"),
    "generator": (lambda: PGD()(Small(), X, Y, generator="one"), "generator is 'one'"),
    "eps": (lambda: PGD(eps="8:255"), "eps is '8:255'; give a number, 8 / 255 or '8/255'"),
    "eps none": (lambda: PGD(eps=None), "eps is None"),
    "eps by zero": (lambda: PGD(eps="8/0"), "eps is '8/0'"),
    "seed": (lambda: quiet(Small(), split(), seed=-1), "seed is -1"),
    "outside the box": (lambda: quiet(Small(), split(), lambda x, y: x - 1), r"in \[0, 1\]; given"),
    "above the box": (lambda: quiet(Small(), split(), lambda x, y: x + 1), r"in \[0, 1\]; given"),
    "no images": (lambda: quiet(Small(), split(), lambda x, y: None), "The attack gave NoneType"),
    "fewer images": (lambda: quiet(Small(), split(), lambda x, y: x[:1]), "of shape")}


@pytest.mark.parametrize("what", REFUSED)
def test_c_h12_what_cannot_be_is_a_sentence(what):
    call, words = REFUSED[what]
    with pytest.raises(CourseError, match=words):
        call()


# --- anything at all: a result, a warning or a CourseError


ANY = [None, 0, -1, 0.5, 1e9, float("nan"), "", "8/255", "pgd20", (), [], {}, (X, Y), (X, -Y),
       [X, Y], (X[:, :, :3], Y), (X.double(), Y), (X, Y + 9), (X, Y.float()), X, X[:0], X.half(), Y,
       X - 2, X.flatten(1), X[0], X.numpy(), torch.tensor(0.3), torch.full((12,), 0.1), PGD,
       PGD(0.1), PGD(0.1, scale=(1.0,) * 36), AutoAttack(attacks=("apgd-ce",)), split(),
       split(shape=(36,)),
       split(0), object(), len, lambda x, y: x, lambda x, y: y, lambda *a: a[0], Small(), Linear,
       lambda model, x, y, generator: x * torch.nan, np.float64(0.1), torch.Generator(), True,
       Linear((1, 6, 6), 3, dtype=torch.float32), Small(2), Small().double(), Small(dropout=0.5),
       Around(Small(), lambda f: 1e30 * f), Around(Small(), lambda f: f * torch.nan), b"x", 10**400,
       Around(Small(), lambda f: None), Around(Small(), lambda f: f[0]), BROKEN]
anything = some.sampled_from(ANY)
mostly = {"model": Small(), "part": split(), "x": X, "y": Y, "attack": PGD(0.1, 0.05, 2)}


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(*(some.just(usual) | anything for usual in mostly.values()))
def test_any_call_gives_a_result_a_warning_or_a_sentence(model, part, x, y, attack):
    for call in (lambda: quiet(model, part, attack), lambda: predict(model, x, y),
                 lambda: mostly["attack"](model, x, y)):
        try:
            call()
        except CourseError as e:
            assert len(str(e)) > 20
