import json
import statistics
from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.results import flagged, known, missing, reports, rows, summary, table
from course_lib.zoo import publish
from tests.helpers import THREE, report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two recipes: one with three seeds and two budgets, one with one seed and an attack that no
    column shows."""
    for seed, wrong in enumerate((1, 2, 6)):
        reports = [report(nat=(wrong, 5, 3)).to_json(),
                   report(rob=(8, 9, wrong + 9), eps=16 / 255).to_json()]
        publish("a/many", seed, None, {"reports": reports}, tmp_path)
    publish("b/one", 0, None, {"reports": [report().to_json(),
                                           report(rob=(9, 9, 9), attack="cw20").to_json()]},
            tmp_path)
    return tmp_path


def test_one_row_a_stored_report(root: Path) -> None:
    found = json.loads(json.dumps(rows(root)))
    assert [(r["recipe"], r["seed"], r["attack"], round(255 * r["eps"])) for r in found] == [
        *[("a/many", s, "pgd20", e) for s in range(3) for e in (8, 16)],
        ("b/one", 0, "pgd20", 8),
        ("b/one", 0, "cw20", 8),
    ]
    assert list(found[0]) == ["recipe", "seed", "attack", "eps", "classes", "counts", "nat", "rob"]
    assert found[0]["classes"] == list(THREE) and found[0]["counts"] == [10, 10,
        20] and found[2]["nat"] == [0.2, 0.5, 0.15]


def test_reports_by_seed_are_on_the_same_images(root: Path) -> None:
    """Two seeds have AutoAttack on few images, one of them on more; the few are what most share."""
    few, more = (report(rob=(4, 5, 5), attack="autoattack", counts=c).to_json()
                 for c in ((5, 5, 5), (10, 10, 20)))
    for seed, found in enumerate(([few], [few, more], [])):
        publish("c/examined", seed, None, {"reports": [report().to_json(), *found]}, root)
    strong = {s: r.rob.counts for s, r in reports("c/examined", "autoattack", root=root).items()}
    assert strong == {0: (5, 5, 5), 1: (5, 5, 5)}
    assert list(reports("c/examined", "autoattack", images=40, root=root)) == [1]
    assert list(reports("c/examined", root=root)) == [0, 1, 2] and reports("c/examined",
        eps=1 / 255, root=root) == {}
    for seed in (0, 2):
        publish("c/examined", seed, None, {"reports": [more]}, root)
    assert reports("c/examined", "autoattack", root=root)[1].rob.counts == (10, 10, 20)
    assert reports("no/such", root=root) == {}


def test_what_is_missing_is_told(root: Path, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert not missing("a/many", "b/one", root=root) and not missing("b/one", attack="cw20",
        root=root)
    assert capsys.readouterr().out == ""
    assert missing("a/many", "no/such", root=root) and missing("a/many", attack="cw20", root=root)
    assert capsys.readouterr().out.splitlines() == [
        "no/such is not trained yet: make models WHICH=no/such",
        "a/many is not examined by cw20 yet: make examine WHICH=a/many",
    ]
    assert known(tmp_path / "nowhere") == {} and missing("a/many", root=tmp_path / "nowhere")
    (root / "manifest.json").write_text("{")
    with pytest.raises(CourseError, match="damaged"):
        missing("a/many", root=root)


def test_means_and_spreads_over_seeds(root: Path) -> None:
    many, one = summary(rows(root))
    averages, worst = [9 / 40, 10 / 40, 14 / 40], [0.5, 0.5, 0.6]
    assert many["seeds"] == 3 and one["seeds"] == 1
    for spread, values in zip(many["standard"], (averages, worst), strict=True):
        assert (spread.mean, spread.sd, spread.n) == pytest.approx((statistics.mean(values),
            statistics.stdev(values), 3))
    assert many["robust 8/255"][0].mean == pytest.approx(19
                                                         / 40) and many["robust 16/255"][
                                                             1].mean == pytest.approx(0.9)
    assert one["robust 8/255"][1].mean == 0.9 and "robust 16/255" not in one


def test_table(root: Path) -> None:
    lines = table(rows(root)).splitlines()
    assert len(lines) == 3 and len({len(line.rstrip()) for line in lines[:2]}) == 1
    head = ("model seeds standard avg standard worst robust 8/255 avg robust 8/255 worst robust "
            "16/255 avg robust 16/255 worst")
    many = "a/many 3 27.50 ± 6.61 53.33 ± 5.77 47.50 ± 0.00 90.00 ± 0.00 72.50 ± 6.61 90.00 ± 0.00"
    one = "b/one 1 22.50 50.00 47.50 90.00"
    assert [" ".join(line.split()) for line in lines] == [head, many, one]


def test_markdown(root: Path) -> None:
    lines = table(rows(root), markdown=True).splitlines()
    assert {line.count("|") for line in lines} == {9} and lines[1].startswith(
        "| --- | --- | ---: |")
    assert "| a/many | 3 | 27.50 ± 6.61 | 53.33 ± 5.77 |" in lines[2] and lines[3].endswith(
        "| 90.00 |  |  |")


def test_other_data_have_a_table_of_their_own_with_their_own_columns(root: Path) -> None:
    """Standard errors are the same under any attack; a column in which no row has anything is not
    there."""
    people = {**report(attack="pgd20-adult", eps=10.0).to_json(), "classes": ["x", "y", "z"]}
    publish("people/one", 0, None, {"reports": [people]}, root)
    images, other = table(rows(root)).split("\n\n")
    assert len(images.splitlines()) == 3 and "units" not in images
    head = "model seeds standard avg standard worst robust 10 units avg robust 10 units worst"
    assert [" ".join(line.split()) for line in other.splitlines()] == [head,
        "people/one 1 22.50 50.00 47.50 90.00"]


def test_nothing_stored(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="run `make models`"):
        rows(tmp_path)


def strong(rob: tuple[int, int, int], n: int = 1) -> dict:
    """AutoAttack's report, on n times the images of `report`."""
    row = report(rob=rob, attack="autoattack").to_json()
    return {**row, "counts": [c * n for c in row["counts"]]}


def test_pgd_that_overstates_is_flagged() -> None:
    """PGD-20 finds 19 of 40 wrong, the worst class 8 of 10: AutoAttack may find two more (5 points)
    on average, and no more."""
    weak = report(rob=(4, 8, 7)).to_json()
    assert not flagged([weak]) and not flagged([weak, strong((4, 8, 9))]) and flagged([weak,
        strong((4, 8, 10))])
    assert flagged([weak, strong((4, 9, 7))])  # ten points in the worst class
    assert not flagged([weak, strong((4, 9, 9), n=2)])  # other images: nothing to compare


def test_autoattacks_columns(tmp_path: Path) -> None:
    weak = report(rob=(4, 8, 7)).to_json()
    for seed in range(3):
        reports = [weak, strong((4, 8 + (seed == 2), 8))] + [strong((5, 9, 9), n=3)] * (seed == 0)
        publish("a/many", seed, None, {"reports": reports}, tmp_path)
    publish("b/one", 0, None, {"reports": [weak]}, tmp_path)
    many, one = summary(rows(tmp_path))
    average, worst = many["AutoAttack 8/255"]
    assert (average.n, many["n"], many["flagged"]) == (3, 10, 1) and "AutoAttack 8/255" not in one
    assert average.mean == pytest.approx((20 + 20 + 21) / 120) and worst.mean == pytest.approx((0.8
        + 0.8 + 0.9) / 3)
    head, first, second = table(rows(tmp_path)).splitlines()
    assert head.split()[-1] == "n" and first.endswith("10 × 3 !") and not second.strip().endswith(
        "!")
