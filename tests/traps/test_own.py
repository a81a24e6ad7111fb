"""What people do with networks of their own: save and load them, hold them beside the stored ones,
put them into the explorer. Findings B5, B6 and D of issue 19."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import course_lib
from course_lib import MODELS, RECIPES, benchmark, build, evaluate, load, plots, save_model
from course_lib.checkpoints import Store
from course_lib.errors import CourseError, CourseWarning
from course_lib.evaluation import NAMED
from course_lib.explorer.curves import from_folder
from course_lib.explorer.views import Choice, Explorer
from course_lib.lab import doctor
from course_lib.tables import MISSED
from course_lib.zoo import load_model, load_report, model_files
from tests.helpers import Linear, QuickJudge, Small, same_weights
from tests.traps.test_judge import Around

FASHION_DATA = load("fashion-mnist", limit=100)
FASHION = FASHION_DATA.test
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(1024, 10))  # which `build` does not make


SHAPES = {
    "lenet5": {"classes": st.integers(2, 5), "channels": st.integers(1, 3)},
    "small_cnn": {"classes": st.integers(2, 5), "size": st.sampled_from([8, 16])},
    "table_mlp": {"features": st.integers(1, 9), "width": st.integers(1, 9)},
    "preact_resnet_s": {"classes": st.integers(2, 3)}}


@settings(max_examples=20)
@given(data=st.data())
def test_b5_what_build_makes_comes_back_by_its_path_alone(tmp_path_factory, data):
    name = data.draw(st.sampled_from([*SHAPES]))
    shape = {word: data.draw(values) for word, values in SHAPES[name].items()}
    model = build(name, seed=data.draw(st.integers(0, 9)), **shape)
    path = data.draw(st.sampled_from(["a", "a b", "☃", "x.y/z", "a·1@"]))
    folder = save_model(model, tmp_path_factory.getbasetemp() / "drawn" / path)
    again = load_model(folder)
    assert type(again) is type(model) and same_weights(again, model) and not again.training
    assert same_weights(load_model(str(folder), model=build(name, seed=10, **shape)), model)


class Tied(nn.Module):
    """Two names for one tensor, and a buffer of whole numbers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("n", torch.tensor([7]))


def changed(model, **parts):
    for name, part in parts.items():
        setattr(model, name, part)
    return model


@pytest.mark.parametrize("make", [
    Linear, Small, Tied, lambda: nn.Linear(2, 2).half(), lambda: nn.Linear(2, 2).bfloat16(),
    lambda: nn.Sequential(nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)),
    lambda: changed(build("lenet5"), fc2=nn.Linear(84, 3)),  # no longer what build makes
    lambda: changed(build("table_mlp"), forward=lambda x: x)])
def test_b5_a_network_of_ones_own_comes_back_into_another(make, tmp_path):
    model, other = make(), make()
    for p in model.parameters():
        p.data.add_(1)
    save_model(model, tmp_path / "mine")
    with pytest.raises(CourseError, match=r"names no network that `build` makes.*model=my_network"):
        load_model(tmp_path / "mine")
    assert load_model(tmp_path / "mine", model=other) is other and same_weights(other, model)


def test_b5_a_saved_model_goes_through_every_door(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODELS, "mine", lambda width=4: Linear((1, 6, 6), width))
    save_model(build("mine", width=3), "runs/own")
    monkeypatch.setenv("HOME", str(tmp_path))
    for own in ("runs/own", "~/runs/own", Path("~/runs/own")):
        assert load_model(own).weight.shape == (3, 36)
    monkeypatch.chdir("runs/own")
    with pytest.raises(CourseError):
        load_model(5)  # is no name of the folder that we are in
    monkeypatch.chdir(tmp_path)
    assert Store("~/here", "~/there").dir == tmp_path / "here"
    model = load_model("exp1/pgd-at")
    save_model(build("lenet5"), "runs/mine")
    assert next(iter(from_folder("runs").values())).classes == FASHION.classes  # which it fits
    save_model(model, "runs/mine", recipe="exp1/pgd-at", classes=FASHION.classes)  # in its place
    part = FASHION.per_class(2)
    assert evaluate("runs/mine", part, "pgd20").rob == evaluate(model, part, "pgd20").rob
    (source,) = from_folder("runs/mine").values()
    assert source.classes == FASHION.classes and same_weights(source.model, model)
    assert source.record["made_from"]["recipe"]["epochs"] == RECIPES["exp1/pgd-at"].epochs
    Path("exp1/pgd-at").mkdir(parents=True)
    save_model(build("lenet5"), "exp1/pgd-at")  # a stored model's name stays that model's
    assert same_weights(load_model("exp1/pgd-at"), model)
    assert same_weights(load_model(Path("exp1/pgd-at")), build("lenet5"))


BAD = {  # a call with a free path, and what the error says
    "no network": (lambda p: save_model(3, p), "Give a torch.nn.Module"),
    "no weights": (lambda p: save_model(nn.Flatten(), p), "no weights"),
    "lazy": (lambda p: save_model(nn.LazyLinear(3), p), "Nothing was saved"),
    "NaN": (lambda p: save_model(changed(nn.Linear(1, 1), bias=nn.Parameter(
        torch.tensor([torch.nan]))), p), "bias of Linear holds NaN"),
    "nul": (lambda p: save_model(FLAT, "a\0b"), "null byte"),
    "a store": (lambda p: Store("a\0b"), "null byte.*Choose a folder that you may write to"),
    "a file": (lambda p: save_model(FLAT, __file__), "Cannot write"),
    "the root": (lambda p: save_model(FLAT, "/proc/self/nowhere"), "Cannot write"),
    "others": (lambda p: save_model(FLAT, model_files().folder), "holds other models"),
    "a recipe": (lambda p: save_model(FLAT, p, recipe="pgd-at"), "Did you mean 'exp1/pgd-at'"),
    "nothing there": (lambda p: load_model(p / "x"), "a folder with 0 models"),
    "no name": (lambda p: load_model(str(p / "x")), "Unknown model"),
    "many": (lambda p: load_model(model_files().folder), "Give the folder that save_model"),
    "another network": (lambda p: load_model(save_model(FLAT, p), model=build("lenet5")),
                        "do not fit LeNet5"),
    "a class to load": (lambda p: load_model(save_model(FLAT, p), model=Small), "give a network"),
    "another type": (lambda p: load_model(save_model(FLAT.double(), p), model=FLAT.float()),
                     "differ in name, shape or type")}


@pytest.mark.parametrize("what", BAD)
def test_b5_what_cannot_be_saved_or_loaded_is_said(what, tmp_path):
    call, message = BAD[what]
    with pytest.raises(CourseError, match=message):
        call(tmp_path / "mine")


@pytest.mark.parametrize("end", ["safetensors", "json"])
def test_b5_damage_is_noticed(tmp_path, end):
    file = save_model(build("lenet5"), tmp_path / "m") / "m" / f"seed0.{end}"
    raw = file.read_bytes()
    for bad in (raw[:-1], raw[:-2] + b"x}", b"", None):
        file.unlink() if bad is None else file.write_bytes(bad)
        says = r"missing.*Save it again" if bad is None else "damaged.*Save it again with save_mo"
        with pytest.raises(CourseError, match=says):
            load_model(tmp_path / "m")


def test_a_benchmark_shows_the_stored_reports_of_the_same_images():
    """On all images only stored reports are shown; where there is none, there is no number."""
    table = benchmark(load_model("exp1/natural"), FASHION_DATA, progress=False)
    rows = table.set_index("model")
    both = ["standard", "pgd20 worst"]
    assert [*rows.loc["mine", both]] == pytest.approx([*rows.loc["exp1/natural", both]], abs=0.2)
    for name in ("exp4/pgd-at", "exp4/gairat", "exp2/control"):
        stored = load_report(name)
        assert rows.loc[name, "pgd20 worst"] == pytest.approx(100 * stored.rob.worst)
        assert rows.loc[name, "standard"] == pytest.approx(100 * stored.nat.mean)
    assert rows["cw20"].notna().sum() == 5 and rows.index[0] == "mine"
    assert rows.index[-1] == "exp4/gairat" and MISSED in rows.loc["exp4/gairat", "warnings"]
    assert table["pgd20 worst"][1:-1].is_monotonic_increasing
    assert len(table.shown().columns) <= 7 and "10,000 images" in repr(table)
    assert table.by_class(beside=1)["mine"].mean() == pytest.approx(rows.loc["mine", "pgd20"])
    ax = table.plot(beside=1)
    assert len(ax.containers) >= 2 and list(table.by_class(beside=0)) == ["class", "mine"]
    plots.plt.close(ax.figure)
    with pytest.raises(CourseError, match="Unknown attack of this benchmark 'autoattack'"):
        table.plot(attack="autoattack")
    own = benchmark(load_model("exp1/natural"), (FASHION.x[:40], FASHION.y[:40]), progress=False)
    assert len(own) == 1 and "Data: your own." in repr(own)


def test_a_quick_benchmark_attacks_the_stored_ones_and_is_judged(monkeypatch):
    monkeypatch.setitem(NAMED, "autoattack", QuickJudge(attacks=("apgd-dlr",)))
    blind = Around(load_model("exp1/natural"), lambda f: 1e4 * f)  # rounds the gradient away
    with pytest.warns(CourseWarning, match="gradient"):
        table = benchmark(blind, "fashion-mnist", per_class=2, autoattack=1, name="blind",
                          progress=False)
    rows = table.set_index("model")
    assert "gradient" in rows.loc["blind", "warnings"] and rows["cw20"].notna().all()
    assert rows["autoattack"].notna().sum() == 1, "AutoAttack was run on one image per class"
    assert MISSED in rows.loc["blind", "warnings"] and "! " in repr(table)
    expected = evaluate("exp2/control", FASHION.per_class(2), "cw20", progress=False)
    assert rows.loc["exp2/control", "cw20"] == pytest.approx(100 * expected.rob.mean)


def test_d_a_network_in_hand_stands_beside_stored_ones_of_its_classes():
    x = Explorer({"mine": build("lenet5"), "exp1/natural": load_model("exp1/pgd-at")})
    assert list(x.models)[:2] == ["mine", "exp1/natural"] and x.source("exp1/natural").name == ""
    assert all(s.classes == FASHION.classes for s in x.models.values()) and len(x.models) > 20
    choice = Choice("errors", ("mine", "exp1/pgd-at"), "pgd10", per_class=2)
    assert [s.label for s in x.waiting(choice)] == ["mine", "exp1/pgd-at"]
    with pytest.raises(CourseError, match="Attack now"):
        x.draw(Choice("errors", ("mine",)))
    assert {"airplane"} <= set(next(iter(Explorer(build("small_cnn")).models.values())).classes)
    for bad in ({"a": 3}, {"a": build("lenet5", classes=3)}, {"a": nn.Flatten()}):
        with pytest.raises(CourseError, match="a is .* none of the embedded images"):
            Explorer(bad)


def test_d_the_panel_attacks_it_at_once_and_offers_only_what_does_something():
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of no kernel
        panel = course_lib.explore({"mine": build("lenet5")})
        note = re.sub("<[^>]*>", "", panel.part.note.value)
        assert "mine: average 90.0 %" in note
        assert not panel.part.attack_now.disabled, "it may be trained further in another cell"
        panel.part.words.value = "nothing like it"
        assert "mine" in panel.part.two.options
        panel.close()
        one = course_lib.explore("exp1/natural")
        assert one.choice().models == ("exp1/natural",) and one.part.picture.value
        one.close()


def test_d_tab_offers_public_names_only():
    assert dir(plots) == sorted(plots.__all__) and "class_bars" in plots.__all__
    assert {"Any", "Bbox", "cast", "plt", "torch", "COLOURS", "_finish"}.isdisjoint(dir(plots))
    assert {*dir(course_lib)} - {*course_lib.__all__} == {"__doc__", "__version__"}


def test_b6_the_doctor_imports_torchvision_as_a_user_would(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(CourseWarning, match="::nms does not exist.*works all the same.*built for"):
        doctor.torchvision()
    (tmp_path / "torchvision.py").write_text("")
    assert doctor.torchvision() == "works"
