"""The doctor finds what is wrong, says what to do, and harms nothing."""

import hashlib
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
    models = tmp_path / "models"
    record = {"made_from": {"model": "lenet5", "classes": list(THREE)},
              "reports": [report().to_json()]}
    publish("a/b", 0, build("lenet5", classes=3), record, models)
    for name in ("adult", "fashion-mnist"):
        shutil.copytree(data.EMBEDDED / name, tmp_path / "embedded" / name)
    monkeypatch.setattr(data, "EMBEDDED", tmp_path / "embedded")
    monkeypatch.setenv("COURSE_MODELS", str(models))
    monkeypatch.setattr(doctor, "torchvision", list)  # tests/traps/test_own.py has it
    monkeypatch.setattr(doctor, "LITTLE", 0)
    monkeypatch.setattr(doctor, "ENOUGH", 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(what: str) -> Finding:
    return next(f for f in checkup() if f.what == what)


def test_a_healthy_course_has_nothing_bad(root: Path) -> None:
    before = sorted(root.rglob("*"))
    findings = {f.what: f for f in checkup()}
    assert {f.state for f in findings.values()} <= {"ok", "warn"}
    assert sorted(root.rglob("*")) == before
    assert {"Python", "torch", "embedded fashion-mnist", "stored models", "C++ kernel", "cache",
            "runs"} <= findings.keys()
    for what, n in (("stored models", 2), ("embedded adult", 2), ("embedded fashion-mnist", 4)):
        assert findings[what].found == f"{n} files, every hash right"


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


MODELS, EMBEDDED = "models", "embedded/fashion-mnist"
WEIGHTS, LABELS = "models/a/b/seed0.safetensors", "embedded/fashion-mnist/t10k-labels-idx1-ubyte.gz"
UNCHECKED = "cannot be checked"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a bit in a weight": (lambda r: change(r / WEIGHTS, lambda b: b[:-1] + b"x"),
                          "stored models", "a/b/seed0.safet"),
    "a record gone": (lambda r: (r / MODELS / "a/b/seed0.json").unlink(),
                      "stored models", "damaged or missing: a/b/seed0.json"),
    "weights gone": (lambda r: (r / WEIGHTS).unlink(),
                     "stored models", "damaged or missing: a/b/seed0.safetensors"),
    "no manifest": (lambda r: (r / MODELS / "manifest.json").unlink(), "models", UNCHECKED),
    "a manifest cut": (lambda r: change(r / MODELS / "manifest.json", lambda b: b[:-9]),
                       "models", UNCHECKED),
    "a release that is none": (lambda r: (r / WEIGHTS).unlink() or (
        r / MODELS / "release.json").write_text("[]"), "models", UNCHECKED),
    "embedded data": (lambda r: change(r / LABELS, lambda b: b[:99]),
                      "embedded fashion-mnist", "t10k-labels"),
    "embedded data gone": (lambda r: (r / EMBEDDED / "train-labels-idx1-ubyte.gz").unlink(),
                           "embedded fashion-mnist", "train-labels"),
    "no contents": (lambda r: (r / EMBEDDED / "contents.json").unlink(),
                    "embedded data", UNCHECKED),
    "contents without hashes": (lambda r: (r / EMBEDDED / "contents.json").write_text("{}"),
                                "embedded data", UNCHECKED),
    "a file in the way of the runs": (lambda r: (r / "runs").write_text("mine"),
                                      "runs", "Not a directory"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_bad_and_has_a_remedy(root: Path, kind: str) -> None:
    damage, what, say = DAMAGE[kind]
    damage(root)
    finding = found(what)
    assert finding.state == "bad" and say in finding.found and len(finding.do) > 20


def test_models_that_a_release_names_need_not_be_here(root: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    raw = (root / WEIGHTS).read_bytes()
    sha256 = hashlib.sha256(raw).hexdigest()
    release = {"files": {sha256: {"size": len(raw), "url": "https://example.org/a"}}}
    (root / MODELS / "release.json").write_text(json.dumps(release))
    (root / WEIGHTS).unlink()
    monkeypatch.setenv("COURSE_CACHE", str(root / "cache"))
    monkeypatch.setenv("COURSE_NATIVE", "0")
    assert (found("stored models").state, found("models not bundled").state) == ("ok", "warn")
    (root / "cache/models").mkdir(parents=True)
    (root / "cache/models" / sha256).write_bytes(raw)
    assert found("stored models").found == "2 files, every hash right"
    assert "models not bundled" not in {f.what for f in checkup()}


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "gdown":
            raise doctor.metadata.PackageNotFoundError(name)
        return {"torch": "2.5.1", "numpy": "2.1.3+local"}.get(name, "999")

    monkeypatch.setattr(doctor.metadata, "version", version)
    states = {f.what: (f.state, f.found, f.do) for f in doctor.versions()}
    assert states["torch"] == ("bad", "2.5.1", "pip install --upgrade 'torch>=2.6'")
    assert states["gdown"] == ("bad", "not installed", "pip install --upgrade 'gdown>=5.2'")
    assert states["numpy"][0] == states["tqdm"][0] == states["Python"][0] == "ok"


def test_requirements_are_those_of_the_file_or_of_the_installed_package(
        monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    installed = ["one>=1", "two>=1; extra == 'more'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: installed)
    (root / "requirements.txt").write_text("# one\ntorch>=2.6\n")
    for place, names in ((root, ["Python", "torch"]), (root / "nowhere", ["Python", "one"])):
        monkeypatch.setattr(doctor, "__file__", str(place / "course_lib/lab/doctor.py"))
        assert [f.what for f in doctor.versions()] == names


def test_a_kernel_that_is_off_or_cannot_be_built(
        root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_CACHE", str(root / "cache"))
    monkeypatch.setenv("COURSE_NATIVE", "0")
    assert "COURSE_NATIVE=0" in found("C++ kernel").found
    monkeypatch.delenv("COURSE_NATIVE")
    monkeypatch.setenv("CXX", str(root / "no-such-compiler"))
    finding = found("C++ kernel")
    assert finding.state == "warn" and "no C++ compiler" in finding.found and "g++" in finding.do


@pytest.mark.parametrize(("little", "enough", "state"),
                         [(0, 0, "ok"), (0, 1 << 60, "warn"), (1 << 60, 1 << 60, "bad")])
def test_room_on_the_disk(little: int, enough: int, state: str,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE", little)
    monkeypatch.setattr(doctor, "ENOUGH", enough)
    assert [f.state for f in doctor.disk()] == [state] * 3


def test_the_shell_shows_it_and_fails_when_something_is_bad(
        root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["what", "state", "found", "do"] and len(lines) > 12
    assert len({line.index(" ok ") for line in lines if " ok " in line}) == 1
    DAMAGE["weights gone"][0](root)
    assert main(["doctor"]) == 1 and "1 bad" in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [list(r) for r in rows] == [["what", "state", "found", "do"]] * len(rows)
    assert [r["what"] for r in rows if r["state"] == "bad"] == ["stored models"]
