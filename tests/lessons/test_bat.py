"""What notebook 04 shows beside the paper of BAT: its printed tables, and slices of a walk."""

import pytest
import torch

from course_lib import PGD, load, load_model
from course_lib.lessons import bat
from course_lib.tables import spread


def test_e1_printed_rows_add_up_but_for_three_slips_of_the_paper() -> None:
    """Robust error is standard plus boundary error, so a mistyped average shows."""
    rows = {(table, label): row for table, rows in bat.PRINTED.items()
            for label, row in rows.items()}
    assert len(rows) == 28
    assert {key for key, row in rows.items() if abs(row[0] + row[2] - row[4]) > 0.02} == {
        ("CIFAR-100", "FRL (0.05)"), ("CIFAR-100", "BAT (code)"), ("Table 2", "1: pair alone")}


def test_a_cell_is_the_printed_figure_and_ours() -> None:
    table = bat.beside("CIFAR-10", {"FRL (0.05)": bat.MODELS["FRL (0.05)"],
                                    "BAT (paper)": bat.MODELS["BAT (paper)"]})
    ours = f"{100 * spread(bat.MODELS['FRL (0.05)'], 'bnd', 'worst').mean:.1f}"
    assert table["Worst Bndy"]["FRL (0.05)"].split(bat.THIN) == ["53.7", "/", ours]
    assert set(table.loc["BAT (paper)"].str[0]) == {"–"} and len(table.columns) == 6


@pytest.mark.parametrize(("error", "rival", "papers", "answer"), [
    ("Worst Rob", "PGD-AT", "-10.9", "confirmed"), ("Worst Rob", "FRL (0.05)", "-10.3", "reversed"),
    ("Worst Std", "TRADES (6)", "-10.4", "confirmed"), ("Avg.Rob", "PGD-AT", "-8.4", "reversed")])
def test_e1_a_claim_is_held_against_our_interval(error: str, rival: str, papers: str,
                                                 answer: str) -> None:
    row = bat.claim(error, rival, bat.MODELS[rival])
    assert (row[0], row[2]) == (papers, answer)
    # against itself BAT differs by nothing, whatever the paper prints
    assert bat.claim(error, rival, bat.MODELS["BAT (code)"])[2] == "no difference"


def test_a_slice_holds_the_pair_on_both_sides_of_the_boundary() -> None:
    model, split = load_model("exp4/bat-paper"), load("fashion-mnist").test.per_class(10)
    attack = PGD(steps=10, objective="kl", start="gaussian")
    z = torch.stack([z for z, _ in attack.path(model, split.images(), split.y)])
    t = attack.walk(model, split.images(), split.y).t_wrong
    i = int(((t > 2) & (t < 9)).nonzero()[0])
    u, v, predicted, walk = bat.plane(model, z[:, i], int(t[i]), size=121)
    for step in (0, int(t[i]) - 1, int(t[i])):  # these lie in the plane: distances stay
        assert walk[step].norm() == pytest.approx(float((z[step, i] - z[0, i]).norm()), abs=1e-4)
        column, row = (int((axis - walk[step, k]).abs().argmin()) for k, axis in enumerate((u, v)))
        near = predicted[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2]
        assert model(z[step, i][None]).argmax() in near
