import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib import PGD, RECIPES
from course_lib.__main__ import main
from course_lib.evaluation import NAMED, evaluate, named
from course_lib.lab.commands import OPTIONS, in_shell_words
from course_lib.lab.publish import publish
from course_lib.lab.score import PLANS, Plan, Search
from course_lib.zoo import load_model
from tests.helpers import drop_weights, network, record, report, tiny_dataset


@pytest.fixture(autouse=True)
def stored(tiny, tmp_path):
    """Tiny recipes, one of them stored for two seeds (untrained), and a working folder."""
    tiny.setenv("COURSE_MODELS", str(models := tmp_path / "models"))
    tiny.chdir(tmp_path)
    for seed in (0, 1):
        publish("tiny/first", seed, network(), record("tiny/first", seed, report()), models)


def call(capsys, *argv):
    code = main(argv)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def data(capsys, *argv):
    """What --json prints: one JSON document on standard output, and nothing else."""
    code, out, _ = call(capsys, *argv, "--json")
    assert code == 0 and out.count("\n") == 1
    return json.loads(out)


def test_list(capsys, monkeypatch):
    rows = {r["recipe"]: r for r in data(capsys, "list")}
    assert rows.keys() == RECIPES.keys() and rows["tiny/first"]["stored"] == [0, 1]
    assert [rows["exp1/natural"][k] for k in ("stored", "epochs", "seeds")] == [[], 15, 5]
    drop_weights("tiny/first", 1)
    code, out, err = call(capsys, "list", "TINY", "exp1/pgd*")
    assert (code, err) == (0, "") and "2 of 2 seeds stored, 1 with weights" in out
    assert {line.partition("/")[0] for line in out.splitlines()} == {"tiny", "exp1"}
    assert "is not there" in call(capsys, "list", "tiny", "--models", "nowhere")[2]
    monkeypatch.setenv("COURSE_MODELS", "nowhere")
    assert "is not there" in call(capsys, "list")[2]


def test_evaluate(capsys):
    words = ("evaluate", "tiny/first")
    row = data(capsys, *words, "--seed", "1", "--attack", "pgd10", "--eps", "8/255")
    assert list(row) == ["recipe", "seed", "attack", "eps", "classes", "counts", "nat", "rob"]
    assert [row[k] for k in ("recipe", "seed", "attack")] == ["tiny/first", 1, "pgd10"]
    assert row["eps"] == pytest.approx(8 / 255) and row["classes"] == ["cat", "dog", "frog"]
    assert row["counts"] == [4, 4, 4]
    assert all(0 <= n <= r <= 1 for n, r in zip(row["nat"], row["rob"], strict=True))
    assert data(capsys, *words, "--per-class", "2")["counts"] == [2, 2, 2]
    code, out, _ = call(capsys, *words, "--eps", "0.01")
    assert code == 0 and "Attack: pgd10 0.01." in out
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [
        ["cat", "4"], ["dog", "4"], ["frog", "4"]]
    assert "Attack: pgd10 2/255." in call(capsys, *words)[1]  # its recipe's own
    assert "Attack: pgd20 8/255." in call(capsys, *words, "--attack", "pgd20")[1]
    own = data(capsys, *words, "--attack", "pgd20-fine")
    assert own["eps"] == named("pgd20-fine").eps != 8 / 255


def test_score_luf_and_examine(capsys, monkeypatch, tmp_path):
    searches = tuple(Search(kind, PGD(steps=1), 0.02, 0.05, 0.01)
                     for kind in ("bisection", "increments"))
    monkeypatch.setitem(PLANS, "tiny", Plan(searches))
    rows = data(capsys, "score", "tiny/first", "--seeds", "1", "--jobs", "1")
    assert [r["score"] for r in rows] == ["CAU", "CRU_eps", "CRU_eps", "CRU_s"]
    assert {r["seed"] for r in rows} == {0} and rows[1]["counts"] == [4, 4, 4]
    (row,) = data(capsys, *(words := ("luf", "tiny/first", "--left-out", "2", "--designs", "paired",
                                      "--jobs", "1", "--limit", "20")))
    assert (row["recipe"], row["design"], len(row["flips"])) == ("tiny/first@limit=20", "paired", 2)
    assert (tmp_path / "models" / "luf" / "manifest.json").is_file()
    assert not (tmp_path / "models" / "tiny" / "first@limit=20").exists()
    assert "LUF_t" in call(capsys, *words)[1]
    words = ("examine", "tiny/first", "--attack", "pgd10", "cw20", "--eps", "4/255", "--per-class",
             "2", "--jobs", "1")
    rows = data(capsys, *words, "--seeds", "1")
    assert [(r["seed"], r["attack"], r["counts"]) for r in rows] == [
        (0, attack, [2, 2, 2]) for attack in ("pgd10", "cw20")]
    assert call(capsys, *words)[1].startswith("4 reports are stored")


def test_results(capsys):
    rows = data(capsys, "results")
    assert [(r["recipe"], r["seed"]) for r in rows] == [("tiny/first", 0), ("tiny/first", 1)]
    assert data(capsys, "results", "tiny/f*") == rows and rows[0]["nat"] == [0.1, 0.5, 0.15]
    assert call(capsys, "results")[1].splitlines()[1].split()[:3] == ["tiny/first", "2", "22.50"]


def test_train_and_sweep(capsys, tmp_path):
    """What was trained is evaluated where it is, and nothing is trained twice."""
    out, name, words = tmp_path / "mine", "tiny/first@limit=12@epochs=1", ("--models", "mine")
    train = ("train", "tiny/first", "--seed", "5", "--limit", "12", "--epochs", "1", "--out")
    record = data(capsys, *train, "mine")
    assert (record["recipe"], record["seed"]) == (name, 5)
    assert json.loads((out / "tiny" / name[5:] / "seed5.json").read_text()) == record
    assert data(capsys, *train, "mine") == record
    assert f"{name}, seed 5, in mine; trained on 12 ex" in call(capsys, *train, "mine")[1]
    assert "Unknown model" in call(capsys, "evaluate", name, "--seed", "5")[2]
    row = data(capsys, "evaluate", name, "--seed", "5", *words)
    model, attack = load_model(name, seed=5, root=out), named("pgd10", 2 / 255)
    want = evaluate(model, tiny_dataset().test, attack, progress=False)
    assert row["rob"] == pytest.approx(list(want.rob.by_class))
    assert [r["recipe"] for r in data(capsys, "results", *words)] == [name]
    for _ in range(2):
        (row,) = data(capsys, "sweep", "tiny/f*", "--seeds", "1", "--jobs", "1", *words)
        assert (row["recipe"], row["seed"], list(row)[2:]) == ("tiny/first", 0, ["seconds"])


def test_an_interruption_promises_a_resume_only_where_something_is_saved(capsys, monkeypatch):
    monkeypatch.setattr("course_lib.lab.examine.evaluate", Mock(side_effect=KeyboardInterrupt))
    assert call(capsys, "evaluate", "tiny/first") == (130, "", "Interrupted.\n")
    stop = register_optimizer_step_post_hook(lambda *_: signal.raise_signal(signal.SIGTERM))
    for more, words in (((), "to resume"), (("--fresh",), "without --fresh to resume")):
        code, out, err = call(capsys, "train", "tiny/first", *more)
        assert (code, out) == (130, "") and f"Run the same command {words}" in err
    stop.remove()
    code, out, err = call(capsys, "train", "tiny/first")
    assert code == 0 and "resuming at epoch" in err and out.startswith("finished")


@pytest.mark.parametrize(("argv", "say"), [
    (["evaluate", "exp9/nothing"], "Unknown model 'exp9/nothing'. Known: tiny/first."),
    (["evaluate", "tiny/first", "--seed", "7"], "stored for seeds 0, 1, not for 7"),
    (["evaluate", "tiny/first", "--eps", "8"], "For 8 grey levels of 255 write 8 / 255"),
    (["train", "exp1/naturel"], "Did you mean 'exp1/natural'?"),
    (["train", "exp1/natural", "--data", "nowhere"], "nowhere lacks Fashion-MNIST"),
    (["train", "tiny/second", "--seed", "5"], "needs tiny/first, seed 5"),
    (["sweep", "tiny/first", "--jobs", "0"], "jobs is 0"),
    (["examine", "tiny/first", "--seeds", "-1"], "seeds is -1"),
    (["sweep", "tiny/first", "--jobs", "1", "--models", "models/manifest.json"], "folder")])
def test_errors_go_to_standard_error_alone(argv, say, capsys, tmp_path):
    models = {p: p.read_bytes() for p in (tmp_path / "models").rglob("*") if p.is_file()}
    for more in ((), ("--json",)):
        code, out, err = call(capsys, *argv, *more)
        assert code == 1 and out == "" and say in err and "Traceback" not in err
    assert models == {p: p.read_bytes() for p in (tmp_path / "models").rglob("*") if p.is_file()}


def test_every_option_is_explained_without_torch():
    """The attacks are listed by hand, since evaluation.NAMED needs torch."""
    assert [name for name, row in OPTIONS.items() if not row.get("help")] == []
    assert [name for name in NAMED if name not in OPTIONS["evaluate --attack"]["help"]] == []
    script = ("import sys\nfrom course_lib.__main__ import main\ntry: main(sys.argv[1:])\n"
              "finally: print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])")
    for words in (["--help"], ["--version"], ["evaluate", "--help"]):
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True,
                              text=True, cwd=Path(__file__).parent.parent, check=True)
        assert done.stdout.endswith("[]\n"), words


def test_a_message_is_in_the_words_of_its_command():
    for command, text, words in (
            ("train", "(root=FOLDER), or limit=6000.", "(--data FOLDER), or --limit 6000."),
            ("evaluate", "per_class=5, limit=5", "--per-class 5, limit=5"),
            ("train", "a@limit=9, COURSE_MODELS=x", "a@limit=9, COURSE_MODELS=x")):
        assert in_shell_words(text, command) == words
