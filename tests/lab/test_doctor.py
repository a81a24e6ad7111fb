"""The doctor finds what is wrong, says what to do, and harms nothing."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from course_lib import build, data
from course_lib.__main__ import main
from course_lib.lab import doctor
from course_lib.lab.doctor import checkup
from course_lib.lab.publish import publish
from tests.helpers import record, report


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A healthy course: its own models, cache, working folder and two embedded data sets."""
    publish("a/b", 0, build("lenet5", classes=3), record("a/b", 0, report()), tmp_path / "models")
    for name in ("adult", "fashion-mnist"):
        shutil.copytree(data.EMBEDDED / name, tmp_path / "embedded" / name)
    monkeypatch.setattr(data, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setenv("COURSE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(doctor, "torchvision", lambda: "works")  # tests/traps/test_own.py has it
    monkeypatch.setattr(doctor, "LITTLE", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def states():
    return {row["what"]: (row["state"], row["found"]) for row in checkup()}


def test_a_healthy_course_has_nothing_bad(root):
    before = sorted(root.rglob("*"))
    found = states()
    assert {state for state, _ in found.values()} <= {"ok", "warn"}
    assert sorted(root.rglob("*")) == before
    assert {"Python", "torch", "C++ kernel", "cache", "runs"} <= found.keys()
    for what, n in (("stored models", 2), ("embedded adult", 2), ("embedded fashion-mnist", 4)):
        assert found[what] == ("ok", f"{n} files, every hash right")
    (root / WEIGHTS).unlink()  # load_model says how to get them
    assert states()["stored models"] == ("ok", "1 files, every hash right")


WEIGHTS, EMBEDDED = "models/a/b/seed0.safetensors", "embedded/fashion-mnist"
DAMAGE = {  # what is done below the root; the row of the checkup; what it says
    "other weights": (lambda r: (r / WEIGHTS).write_bytes(bytes((r / WEIGHTS).stat().st_size)),
                      "stored models", "seed0.safetensors is damaged.*Restore"),
    "a record gone": (lambda r: (r / "models/a/b/seed0.json").unlink(),
                      "stored models", "seed0.json is missing.*Restore"),
    "no manifest": (lambda r: (r / "models/manifest.json").unlink(),
                    "stored models", "make models"),
    "embedded data": (lambda r: (r / EMBEDDED / "t10k-labels-idx1-ubyte.gz").write_bytes(b"x"),
                      "embedded fashion-mnist", "t10k-labels.*reinstall"),
    "no contents": (lambda r: (r / EMBEDDED / "contents.json").unlink(),
                    "embedded fashion-mnist", "contents.json.*restore"),
    "a file in the way of the runs": (lambda r: (r / "runs").write_text("mine"),
                                      "runs", "Cannot write .*runs.*use another folder")}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_bad_and_has_a_remedy(root, kind):
    damage, what, say = DAMAGE[kind]
    damage(root)
    state, found = states()[what]
    assert state == "bad" and re.search(say, found)


def test_old_and_missing_versions_and_where_the_bounds_stand(monkeypatch, root):
    def distributions(name):
        version = {"torch": "2.5.1", "numpy": "2.1.3+local"}.get(name, "999")
        return [] if name == "gdown" else [SimpleNamespace(version=version)]

    monkeypatch.setattr(doctor.metadata, "distributions", distributions)
    found = states()
    assert found["torch"] == ("bad", "2.5.1: pip install --upgrade 'torch>=2.6'")
    assert found["gdown"] == ("bad", "not installed: pip install --upgrade 'gdown>=5.2'")
    assert found["numpy"][0] == found["tqdm"][0] == found["Python"][0] == "ok"
    monkeypatch.setattr(doctor, "__file__", str(root / "course_lib/lab/doctor.py"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["one>=1", "two; extra == 'a'"])
    assert [*states()][:3] == ["Python", "one", "import torchvision"]  # no requirements.txt there


def test_a_kernel_that_is_off_and_a_full_disk(root, monkeypatch):
    monkeypatch.setenv("COURSE_CACHE", str(root / "cache"))
    monkeypatch.setenv("COURSE_NATIVE", "0")
    monkeypatch.setattr(doctor, "LITTLE", 1 << 60)
    found = states()
    assert "COURSE_NATIVE=0" in found["C++ kernel"][1]
    assert [found[what][0] for what in ("C++ kernel", "cache", "runs")] == ["warn", "bad", "bad"]
    monkeypatch.delenv("COURSE_NATIVE")
    monkeypatch.setenv("CXX", str(root / "no-such-compiler"))
    state, words = states()["C++ kernel"]
    assert state == "warn" and "no C++ compiler" in words and "g++" in words


def test_the_shell_shows_it_and_fails_when_something_is_bad(root, capsys):
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["Python", "ok"] and len(lines) > 12
    DAMAGE["a record gone"][0](root)
    assert main(["doctor", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [list(r) for r in rows] == [["what", "state", "found"]] * len(rows)
    assert [r["what"] for r in rows if r["state"] == "bad"] == ["stored models"]
