"""The doctor finds what is wrong, says what to do, and harms nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_lib import data
from course_lib.__main__ import main
from course_lib.lab import doctor
from course_lib.lab.doctor import Finding, checkup
from course_lib.lab.publish import publish
from course_lib.models import build
from tests.helpers import THREE, report


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy course: its own models, cache, working folder and two embedded data sets."""
    record = {"made_from": {"model": "lenet5", "classes": list(THREE)},
              "reports": [report().to_json()]}
    publish("a/b", 0, build("lenet5", classes=3), record, tmp_path / "models")
    for name in ("adult", "fashion-mnist"):
        shutil.copytree(data.EMBEDDED / name, tmp_path / "embedded" / name)
    monkeypatch.setattr(data, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setenv("COURSE_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(doctor, "torchvision", list)  # tests/traps/test_own.py has it
    monkeypatch.setattr(doctor, "LITTLE", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(what: str) -> Finding:
    return next(f for f in checkup() if f.what == what)


def test_a_healthy_course_has_nothing_bad(root: Path) -> None:
    before = sorted(root.rglob("*"))
    findings = {f.what: f for f in checkup()}
    assert {f.state for f in findings.values()} <= {"ok", "warn"}
    assert sorted(root.rglob("*")) == before
    assert {"Python", "torch", "C++ kernel", "cache", "runs"} <= findings.keys()
    for what, n in (("stored models", 2), ("embedded adult", 2), ("embedded fashion-mnist", 4)):
        assert findings[what].found == f"{n} files, every hash right"
    (root / WEIGHTS).unlink()  # load_model says how to get them
    assert found("stored models").found == "1 files, every hash right"


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


WEIGHTS, EMBEDDED = "models/a/b/seed0.safetensors", "embedded/fashion-mnist"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str, str]] = {
    "a bit in a weight": (lambda r: change(r / WEIGHTS, lambda b: b[:-1] + b"x"),
                          "stored models", "1 of 2 files", "seed0.safetensors is damaged"),
    "a record gone": (lambda r: (r / "models/a/b/seed0.json").unlink(),
                      "stored models", "1 of 2 files", "seed0.json is missing"),
    "no manifest": (lambda r: (r / "models/manifest.json").unlink(), "models", "cannot", "make"),
    "a release that is none": (lambda r: (r / WEIGHTS).unlink() or (
        r / "models/release.json").write_text("[]"), "models", "cannot be checked", "release"),
    "embedded data": (lambda r: change(r / EMBEDDED / "t10k-labels-idx1-ubyte.gz", lambda b: b[:9]),
                      "embedded fashion-mnist", "1 of 4 files", "t10k-labels.*reinstall"),
    "no contents": (lambda r: (r / EMBEDDED / "contents.json").unlink(),
                    "embedded_data", "cannot be checked", "contents.json"),
    "a file in the way of the runs": (lambda r: (r / "runs").write_text("mine"),
                                      "runs", "Not a directory", "choose a folder")}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_bad_and_has_a_remedy(root: Path, kind: str) -> None:
    damage, what, say, do = DAMAGE[kind]
    damage(root)
    finding = found(what)
    assert finding.state == "bad" and say in finding.found
    assert all(words in finding.do for words in do.split(".*"))


def test_old_and_missing_versions_and_where_the_bounds_stand(
        monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    def version(name: str) -> str:
        if name == "gdown":
            raise doctor.metadata.PackageNotFoundError(name)
        return {"torch": "2.5.1", "numpy": "2.1.3+local"}.get(name, "999")

    monkeypatch.setattr(doctor.metadata, "version", version)
    states = {f.what: (f.state, f.found, f.do) for f in doctor.versions()}
    assert states["torch"] == ("bad", "2.5.1", "pip install --upgrade 'torch>=2.6'")
    assert states["gdown"] == ("bad", "not installed", "pip install --upgrade 'gdown>=5.2'")
    assert states["numpy"][0] == states["tqdm"][0] == states["Python"][0] == "ok"
    monkeypatch.setattr(doctor, "__file__", str(root / "course_lib/lab/doctor.py"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["one>=1", "two; extra == 'a'"])
    assert [f.what for f in doctor.versions()] == ["Python", "one"]  # no requirements.txt there


def test_a_kernel_that_is_off_and_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(root / "cache"))
    monkeypatch.setenv("COURSE_NATIVE", "0")
    monkeypatch.setattr(doctor, "LITTLE", 1 << 60)
    assert "COURSE_NATIVE=0" in found("C++ kernel").found
    assert [f.state for f in doctor.machine()] == ["warn", "bad", "bad"]
    monkeypatch.delenv("COURSE_NATIVE")
    monkeypatch.setenv("CXX", str(root / "no-such-compiler"))
    finding = found("C++ kernel")
    assert finding.state == "warn" and "no C++ compiler" in finding.found and "g++" in finding.do


def test_the_shell_shows_it_and_fails_when_something_is_bad(
        root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["what", "state", "found", "do"] and len(lines) > 12
    DAMAGE["a record gone"][0](root)
    assert main(["doctor", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [list(r) for r in rows] == [["what", "state", "found", "do"]] * len(rows)
    assert [r["what"] for r in rows if r["state"] == "bad"] == ["stored models"]
