import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from course_lib.__main__ import main
from course_lib.attacks import PGD
from course_lib.evaluation import NAMED, evaluate, named
from course_lib.experiments import RECIPES
from course_lib.lab.commands import COMMANDS, OPTIONS, in_shell_words
from course_lib.lab.publish import publish
from course_lib.lab.score import PLANS, Plan, Search
from course_lib.zoo import load_model
from tests.helpers import drop_weights, network_of, report, tiny_dataset, with_tiny_recipes


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tiny recipes, one of them stored for two seeds (untrained), and a working folder of its
    own."""
    with_tiny_recipes(monkeypatch)
    monkeypatch.setenv("COURSE_MODELS", str(tmp_path / "models"))
    monkeypatch.chdir(tmp_path)
    made = {"model": "lenet5", "classes": ["cat", "dog", "frog"]}
    for seed in (0, 1):
        record = {"recipe": "tiny/first", "seed": seed, "made_from": made,
                  "reports": [report().to_json()]}
        publish("tiny/first", seed, network_of(RECIPES["tiny/first"]), record, tmp_path / "models")


Capture = pytest.CaptureFixture[str]


def call(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def data(capsys: Capture, *argv: str) -> Any:
    """What --json prints: one JSON document on standard output, and nothing else."""
    code, out, _ = call(capsys, *argv, "--json")
    assert code == 0 and out.count("\n") == 1
    return json.loads(out)


def test_list(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {r["recipe"]: r for r in data(capsys, "list")}
    assert rows.keys() == RECIPES.keys() and rows["tiny/first"]["stored"] == [0, 1]
    natural = rows["exp1/natural"]
    assert (natural["stored"], natural["epochs"], natural["seeds"]) == ([], 15, 5)
    code, out, err = call(capsys, "list", "TINY", "exp1/pgd*")
    assert (code, err) == (0, "") and "2 of 2 seeds stored, 2 with weights" in out
    assert {line.partition("/")[0] for line in out.splitlines()} == {"tiny", "exp1"}
    assert all(r["stored"] == [] for r in data(capsys, "list", "tiny", "--models", "nowhere"))
    drop_weights("tiny/first", 1)
    assert next(r for r in data(capsys, "list") if r["recipe"] == "tiny/first")["weights"] == [0]
    monkeypatch.setenv("COURSE_MODELS", "nowhere")
    assert all(r["stored"] == [] for r in data(capsys, "list"))


def test_evaluate(capsys: Capture) -> None:
    words = ("evaluate", "tiny/first")
    row = data(capsys, *words, "--seed", "1", "--attack", "pgd10", "--eps", "8/255")
    assert list(row) == ["recipe", "seed", "attack", "eps", "classes", "counts", "nat", "rob"]
    assert [row[k] for k in ("recipe", "seed", "attack")] == ["tiny/first", 1, "pgd10"]
    assert row["eps"] == pytest.approx(8 / 255) and row["classes"] == ["cat", "dog", "frog"]
    assert row["counts"] == [4, 4, 4]
    assert all(0 <= n <= r <= 1 for n, r in zip(row["nat"], row["rob"], strict=True))
    assert data(capsys, *words, "--per-class", "2")["counts"] == [2, 2, 2]
    code, out, _ = call(capsys, *words, "--eps", "0.01")
    assert code == 0 and len(out.splitlines()) == 4
    assert out.startswith("errors on 12 test images; pgd10 with a budget of 0.01\ncat  ")
    assert "pgd10 with a budget of 2/255\n" in call(capsys, *words)[1]  # its recipe's own
    assert "pgd20 with a budget of 8/255\n" in call(capsys, *words, "--attack", "pgd20")[1]
    own = data(capsys, *words, "--attack", "pgd20-fine")
    assert own["eps"] == named("pgd20-fine").eps != 8 / 255


def test_score(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = tuple(Search(kind, PGD(steps=1), 0.02, 0.05, 0.01)
                     for kind in ("bisection", "increments"))
    monkeypatch.setitem(PLANS, "tiny", Plan((("pgd10", 2 / 255),), searches))
    rows = data(capsys, "score", "tiny/first", "--seeds", "1", "--jobs", "1", "--per-class", "2")
    assert [r["score"] for r in rows] == ["CAU", "CRU_eps", "CRU_eps", "CRU_s"]
    assert {r["seed"] for r in rows} == {0} and rows[1]["counts"] == [2, 2, 2]
    code, out, _ = call(capsys, "score", "tiny/first", "--jobs", "1")
    assert code == 0 and out.strip() == "8 scores are stored"


def test_luf(capsys: Capture, tmp_path: Path) -> None:
    words = ("luf", "tiny/first", "--left-out", "2", "--designs", "paired", "--jobs", "1",
             "--epochs", "1")
    (row,) = data(capsys, *words)
    assert (row["recipe"], row["design"], len(row["flips"])) == ("tiny/first@epochs=1", "paired", 2)
    assert (tmp_path / "models" / "luf" / "manifest.json").is_file()
    assert not (tmp_path / "models" / "tiny" / "first@epochs=1").exists()
    code, out, _ = call(capsys, *words)
    assert code == 0 and out.startswith("tiny/first@epochs=1") and "LUF_t" in out


def test_examine(capsys: Capture) -> None:
    words = ("examine", "tiny/first", "--attack", "pgd10", "cw20", "--eps", "4/255", "--per-class",
             "2", "--jobs", "1")
    found = data(capsys, *words, "--seeds", "1")
    assert [(r["recipe"], r["seed"], r["attack"], r["counts"]) for r in found] == [
        ("tiny/first", 0, attack, [2, 2, 2]) for attack in ("pgd10", "cw20")]
    code, out, _ = call(capsys, *words)
    assert code == 0 and out.startswith("4 reports are stored")


def test_results(capsys: Capture) -> None:
    assert data(capsys, "results", "tiny/f*") == data(capsys, "results") != []
    rows = data(capsys, "results")
    assert [(r["recipe"], r["seed"]) for r in rows] == [("tiny/first", 0), ("tiny/first", 1)]
    assert list(rows[0]) == ["recipe", "seed", "attack", "eps", "classes", "counts", "nat", "rob"]
    assert rows[0]["nat"] == [0.1, 0.5, 0.15]
    assert call(capsys, "results")[1].splitlines()[1].split()[:3] == ["tiny/first", "2", "22.50"]
    assert call(capsys, "results", "--markdown")[1].startswith("| model | seeds |")


def test_what_was_trained_is_evaluated_where_it_is(capsys: Capture, tmp_path: Path) -> None:
    out, words = str(tmp_path / "mine"), ("evaluate", "tiny/first@epochs=1", "--seed", "5")
    assert call(capsys, "train", "tiny/first", "--seed", "5", "--epochs", "1", "--out", out)[0] == 0
    code, _, err = call(capsys, *words)
    assert code == 1 and "Unknown model" in err
    row = data(capsys, *words, "--models", out)
    model = load_model("tiny/first@epochs=1", seed=5, root=tmp_path / "mine")
    want = evaluate(model, tiny_dataset().test, named("pgd10", 2 / 255), progress=False)
    assert row["rob"] == pytest.approx(list(want.rob.by_class))
    rows = data(capsys, "results", "--models", out)
    assert [r["recipe"] for r in rows] == ["tiny/first@epochs=1"]


def test_train_and_train_again(capsys: Capture, tmp_path: Path) -> None:
    record = data(capsys, "train", "tiny/first", "--seed", "1", "--out", "mine")
    assert (record["recipe"], record["seed"]) == ("tiny/first", 1)
    assert record["made_from"]["training_examples"] == 24
    assert "trained on 24 examples" in call(capsys, "train", "tiny/first", "--seed", "1", "--out",
                                            "mine")[1]
    assert json.loads((tmp_path / "mine" / "tiny" / "first" / "seed1.json").read_text()) == record
    assert data(capsys, "train", "tiny/first", "--seed", "1", "--out", "mine") == record
    code, out, _ = call(capsys, "train", "tiny/first", "--limit", "12", "--epochs", "1")
    assert code == 0 and "tiny/first@limit=12@epochs=1, seed 0, in runs" in out
    assert (tmp_path / "runs" / "tiny" / "first@limit=12@epochs=1" / "seed0.safetensors").is_file()


def test_sweep(capsys: Capture, tmp_path: Path) -> None:
    for _ in range(2):
        (row,) = data(capsys, "sweep", "tiny/f*", "--seeds", "1", "--jobs", "1", "--models", "new")
        assert (row["recipe"], row["seed"], list(row)[2:]) == ("tiny/first", 0, ["seconds"])
        assert (tmp_path / "new" / "manifest.json").is_file()


def test_interrupted(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("course_lib.lab.sweep.run", interrupt)
    code, out, err = call(capsys, "train", "tiny/first")
    assert code == 130 and out == "" and "goes on from there" in err
    monkeypatch.setattr("course_lib.lab.examine.evaluate", interrupt)
    assert call(capsys, "evaluate", "tiny/first") == (130, "", "Interrupted.\n")


@pytest.mark.parametrize(
    ("argv", "say"),
    [
        (["evaluate", "exp9/nothing"], "Unknown model 'exp9/nothing'. There is: tiny/first."),
        (["evaluate", "tiny/first", "--seed", "7"], "stored for seeds 0, 1, not for 7"),
        (["evaluate", "tiny/first", "--attack", "fgsm"], "Unknown attack 'fgsm'"),
        (["evaluate", "tiny/first", "--eps", "8"], "For 8 grey levels of 255 write 8 / 255"),
        (["evaluate", "tiny/first", "--eps=-1/255"], "eps is -0.0039"),
        (["evaluate", "tiny/first", "--per-class", "0"], "per-class is 0"),
        (["evaluate", "tiny/first", "--seed", "-1"], "seed is -1"),
        (["evaluate", "tiny/first", "--models", "nowhere"], "nowhere"),
        (["train", "exp1/naturel"], "Did you mean 'exp1/natural'?"),
        (["train", "tiny/first", "--seed", "-1"], "seed is -1"),
        (["train", "exp1/natural", "--limit", "0"], "limit is 0"),
        (["train", "tiny/first", "--epochs", "-1"], "epochs is -1"),
        (["train", "exp1/natural", "--data", "nowhere"], "nowhere lacks train-images"),
        (["train", "tiny/first", "--out", "models/manifest.json"], "choose a folder"),
        (["train", "tiny/second", "--seed", "5"], "needs tiny/first, seed 5"),
        (["sweep", "tony"], "Nothing is called tony"),
        (["score", "tony"], "Nothing is called tony"),
        (["luf", "tiny/second"], "Meant for it: luf"),
        (["examine", "tiny/first", "--attack", "pgd30"], "autoattack"),
        (["sweep", "tiny/first", "tony"], "Nothing is called tony"),
        (["examine", "tiny/first", "tiny/fist"], "Nothing is called tiny/fist"),
        (["sweep", "tiny/first", "--jobs", "0"], "jobs is 0"),
        (["luf", "tiny/first", "--left-out", "2", "--jobs", "0"], "jobs is 0"),
        (["sweep", "tiny/first", "--seeds", "0"], "seeds is 0"),
        (["examine", "tiny/first", "--seeds", "-1"], "seeds is -1"),
        (["sweep", "tiny/first", "--jobs", "1", "--models", "models/manifest.json"], "folder"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_errors_go_to_standard_error_alone(argv: list[str], say: str, as_json: bool,
                                           capsys: Capture, tmp_path: Path) -> None:
    models = {p: p.read_bytes() for p in (tmp_path / "models").rglob("*") if p.is_file()}
    code, out, err = call(capsys, *argv, *["--json"] * as_json)
    assert code == 1 and out == "" and say in err and "Traceback" not in err
    assert models == {p: p.read_bytes() for p in (tmp_path / "models").rglob("*") if p.is_file()}


@pytest.mark.parametrize("argv", [["results"], ["evaluate", "exp1/natural"]])
def test_a_damaged_manifest(argv: list[str], capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "models" / "manifest.json").write_text("{")
    code, out, err = call(capsys, *argv)
    assert code == 1 and out == "" and "manifest.json is damaged" in err and "Restore it" in err


@pytest.mark.parametrize("argv", [
    [], ["fly"], ["train"], ["evaluate", "tiny/first", "--eps", "eight"],
    ["evaluate", "tiny/first", "--eps", "1/0"], ["train", "tiny/first", "--seed", "x"]])
def test_a_command_line_that_cannot_be_read(argv: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    shown = capsys.readouterr()
    assert caught.value.code == 2 and shown.out == "" and "usage: python -m course_lib" in shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0 and "--json" in capsys.readouterr().out


def test_every_option_is_explained_without_torch() -> None:
    """The attacks are listed by hand, since evaluation.NAMED needs torch."""
    assert [name for name, row in OPTIONS.items() if not row.get("help")] == []
    assert [name for name in NAMED if name not in OPTIONS["evaluate --attack"]["help"]] == []
    script = ("import sys\nfrom course_lib.__main__ import main\ntry: main(sys.argv[1:])\n"
              "finally: print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])")
    for words in (["--help"], ["--version"], ["evaluate", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True,
                              text=True, cwd=Path(__file__).parent.parent, check=True)
        assert done.stdout.endswith("[]\n"), words


def test_completion(capsys: Capture) -> None:
    line = call(capsys, "completion")[1]
    for begun, rest in (("eval", "evaluate"), ("--per", "--per-class"), ("exp1/n", "exp1/natural")):
        words = line[line.index("-W '") + 4:].partition("'")[0]
        done = subprocess.run(["bash", "-c", f"{line}\ncompgen -W '{words}' -- {begun}"],
                              capture_output=True, text=True, check=True)
        assert done.stdout.split() == [rest]


@pytest.mark.parametrize(("command", "text", "shown"), [
    ("train", "(root=FOLDER), or limit=6000.", "(--data FOLDER), or --limit 6000."),
    ("evaluate", "per_class=5, limit=5", "--per-class 5, limit=5"),
    ("train", "exp1/natural@limit=100@epochs=1", "exp1/natural@limit=100@epochs=1"),
    ("results", "set COURSE_MODELS=runs", "set COURSE_MODELS=runs")])
def test_a_message_is_in_the_words_of_its_command(command: str, text: str, shown: str) -> None:
    assert in_shell_words(text, command) == shown


def test_as_a_program() -> None:
    """python -m course_lib passes arguments and exit code on."""
    done = subprocess.run([sys.executable, "-m", "course_lib", "evaluate", "no such", "--json"],
                          cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unknown model 'no such'. There is: tiny/first." in done.stderr


def train(out: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "course_lib", "train", "exp1/natural", "--limit", "6000",
               "--epochs", "5", "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def weights_of(out: Path) -> str:
    (seeds,) = json.loads((out / "manifest.json").read_text())["models"].values()
    return seeds["0"]["weights"]["sha256"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_saves_and_the_same_command_ends_with_the_same_weights(
        tmp_path: Path, number: int) -> None:
    """Exit code 130, then 0; and a third call says that it is finished."""
    assert train(tmp_path / "whole").communicate(timeout=120)
    stopped = train(tmp_path / "stopped")
    while not list((tmp_path / "stopped").rglob("ckpt-*")):  # the first epoch is over
        assert stopped.poll() is None
        time.sleep(0.01)
    stopped.send_signal(number)
    _, err = stopped.communicate(timeout=120)
    assert stopped.returncode == 130 and "goes on from there" in err
    resumed = train(tmp_path / "stopped", "--json")
    out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0 and "resuming at epoch" in err
    assert json.loads(out)["recipe"] == "exp1/natural@limit=6000@epochs=5"
    assert weights_of(tmp_path / "stopped") == weights_of(tmp_path / "whole")
    again, _ = train(tmp_path / "stopped").communicate(timeout=120)
    assert "finished" in again
