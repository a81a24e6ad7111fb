"""The panel without a browser: every control redraws the picture, and an error is a sentence."""

import base64
import re
import threading
import warnings
from pathlib import Path

import pytest

from course_lib import build, explore, save_model
from course_lib.explorer.views import VIEWS
from tools.execute import PICTURE

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # without a kernel
    from course_lib.explorer.widgets import NONE

MODELS = ("exp1/natural", "exp1/pgd-at", "exp3/remargin-05")
ROOM = Path(__file__).parents[2] / "course_lib"


@pytest.fixture
def panel():
    made = explore(MODELS)
    yield made
    made.close()


def words(panel):
    return re.sub("<[^>]*>", "", panel.part.note.value)


def picture(panel):
    """As the stored notebook finds it."""
    ((_, data),) = PICTURE.findall(panel.part.picture.value)
    return base64.b64decode(data)


def visible(panel, *names):
    return [n for n in names if getattr(panel.part, n).layout.display != "none"]


def test_it_opens_with_two_models_and_each_control_draws_anew(panel):
    assert words(panel).startswith("Errors by class")
    assert f'alt="{words(panel)}"' in panel.part.picture.value
    assert panel.choice().models == ("exp1/natural", "exp1/pgd-at")
    for control, value, shows in (
            ("eps", 12, "12/255"), ("one", "exp3/remargin-05", "exp3/remargin-05: average"),
            ("two", NONE, "Errors by class"), ("view", "budgets", "against the budget")):
        before = picture(panel)
        getattr(panel.part, control).value = value
        assert before.startswith(b"\x89PNG") and picture(panel) != before and shows in words(panel)


def test_every_view_opens_with_the_controls_that_it_uses(panel):
    parts = ["attack_now", "per_class", "eps", "score", "row", "matrix"]
    drawn, in_cell = set(), ["eps", "row"]
    for view, controls in {
            "errors": ["eps"], "budgets": ["eps"], "confusion": [*in_cell, "matrix"],
            "cell": in_cell, "image": in_cell, "fairness": ["per_class", "eps"],
            "scores": ["score"]}.items():
        panel.show(view)
        drawn.add(panel.part.picture.value)
        assert "cannot be shown" not in words(panel) and len(panel.part.picture.value) > 1_000
        assert visible(panel, *parts) == controls
    assert len(drawn) == len(VIEWS)
    panel.part.attack.value = "pgd10"
    assert not visible(panel, "attack_now"), "scores need no attack"
    panel.show("errors")
    assert visible(panel, "attack_now") and "press Attack now" in words(panel)


def test_from_the_matrix_to_an_image(panel):
    panel.show("confusion")
    assert "Sneaker are taken for Sandal" in words(panel), "the most frequent mistake"
    panel.part.row.value, panel.part.column.value = 6, 0
    n = int(re.findall(r"(\d+) images of Shirt are taken for T-shirt/top", words(panel))[0])
    panel.show("cell")
    assert panel.part.number.max == n
    panel.part.number.value = 13
    assert "Shown: 13 to 24" in words(panel)
    panel.show("image")
    assert words(panel).startswith("Test image")
    for _ in range(2):  # a click on the same cell twice
        panel.show("confusion")
        panel.part.matrix.value = (2, 4)
        assert panel.part.view.value == "cell" and panel.part.number.value == 1
        assert "images of Pullover are taken for Coat" in words(panel)


def test_opening_a_folder(panel, tmp_path):
    save_model(build("lenet5"), tmp_path / "runs" / "mine")
    for folder, says in (("none", "There is no folder"), ("runs", "1 of your own are among the")):
        panel.part.folder.value = str(tmp_path / folder)
        panel.part.open_folder.click()
        assert says in words(panel)
    assert panel.part.one.options[-1].endswith("mine")


def test_models_are_found_by_data_set_and_method(panel):
    for found, name in (("FASHION-MNIST pgd_at", "exp1/pgd-at"), ("frl", "exp3/remargin-05")):
        panel.part.words.value = found
        assert panel.part.one.options == (name,)
    panel.part.words.value = "nothing of the kind"
    assert "No model has all of these words" in words(panel)


def test_an_error_is_a_sentence(panel, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(panel.explorer, "draw", lambda _: {}["a <file> nobody foresaw"])
        panel.part.eps.value = 20
    assert "cannot be shown (KeyError: &#x27;a &lt;file&gt; nobody" in panel.part.note.value
    assert panel.part.picture.value == ""
    panel.part.eps.value = 22
    assert panel.part.picture.value


def test_only_one_file_knows_ipywidgets_and_only_its_core():
    """Without 7.7's gaps: titles=, threads, custom widgets. The door imports nothing of it."""
    assert [p.name for p in ROOM.rglob("*.py")
            if re.search(r"^\s*(import|from) ipywidgets", p.read_text(), re.M)] == ["widgets.py"]
    source = (ROOM / "explorer" / "widgets.py").read_text()
    assert not re.search(r"[(, ](titles|tooltips)=|Thread\(|Output\(|ipympl|FileUpload", source)
    door = (ROOM / "explorer" / "__init__.py").read_text()
    assert not re.search(r"^from .*widgets", door, re.M)  # only inside of `explore`


def test_two_messages_at_once_are_answered_one_after_the_other(panel, monkeypatch):
    """JupyterLab gives each control a thread of the kernel. A message that comes while a figure is
    drawn must not be lost."""
    drawing, free, draw = threading.Event(), threading.Event(), panel.explorer.draw

    def slow(choice):
        drawing.set()
        assert free.wait(10)
        return draw(choice)

    monkeypatch.setattr(panel.explorer, "draw", slow)
    first = threading.Thread(target=setattr, args=(panel.part.eps, "value", 14))
    second = threading.Thread(target=setattr, args=(panel.part.view, "value", "budgets"))
    first.start()
    assert drawing.wait(10)
    second.start()
    second.join(0.2)
    free.set()
    for thread in (first, second):
        thread.join(10)
    assert words(panel).startswith("Robust error of each class") and "at 14/255" in words(panel)
