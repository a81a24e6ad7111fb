"""Notebook 04: exercises on the boundary pair and on how evenly predictions are spread; the tables
that BAT's authors print; and the measures of its two kinds of fairness."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib import diagnostics as diag
from course_lib.attacks import PGD
from course_lib.data import Split
from course_lib.fairness import Spread
from course_lib.inference import predict
from course_lib.lessons.lesson import Exercise, from_paper
from course_lib.scores import class_means
from course_lib.tables import interval, spread, verdict

THIN = "\u202f"  # a narrow space at which a line does not break
MODELS = {"PGD-AT": "exp4/pgd-at", "TRADES (1)": "exp4/trades-1", "TRADES (6)": "exp4/trades-6",
          "FRL (0.05)": "exp3/reweight-remargin-05", "FRL (0.07)": "exp3/reweight-remargin-07",
          "BAT (code)": "exp4/bat-code", "BAT (paper)": "exp4/bat-paper", "FAT": "exp4/fat",
          "GAIRAT": "exp4/gairat"}

FIGURES = {"Avg.Std": ("nat", "mean"), "Worst Std": ("nat", "worst"), "Avg.Bndy": ("bnd", "mean"),
           "Worst Bndy": ("bnd", "worst"), "Avg.Rob": ("rob", "mean"),
           "Worst Rob": ("rob", "worst")}
PRINTED = from_paper("bat")  # table -> method -> the six FIGURES in percent


def beside(table: str, recipes: Mapping[str, str]) -> Any:
    """One row per method, six errors in percent: each cell is "printed / stored recipe's mean"."""
    import pandas as pd

    rows = {}
    for label, recipe in recipes.items():
        printed = [f"{v:.1f}" for v in PRINTED[table].get(label, ())] or ["–"] * 6
        ours = [f"{100 * spread(recipe, *figure).mean:.1f}" for figure in FIGURES.values()]
        rows[label] = [f"{a}{THIN}/{THIN}{b}" for a, b in zip(printed, ours, strict=True)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=[*FIGURES])


def change(difference: Spread) -> str:
    """A difference with its interval, on one line: +1.6 [+1.3, +1.9]."""
    return interval(difference, sign="+").replace(" ", THIN)


def words(difference: Spread) -> str:
    """The same and its verdict: +1.6 [+1.3, +1.9] higher."""
    return f"{change(difference)} {verdict(difference)}"


def answer(difference: Spread) -> str:
    """What a difference says of the claim that an error is lower."""
    return {"lower": "confirmed", "higher": "reversed"}.get(word := verdict(difference), word)


def claim(error: str, rival: str, recipe: str) -> tuple[str, str, str]:
    """BAT minus a row of Table 1 or 2: in the paper, here, and the answer."""
    printed, k = PRINTED["CIFAR-10"] | PRINTED["Table 2"], [*FIGURES].index(error)
    theirs = printed["BAT (code)"][k] - printed[rival][k]
    ours = spread(MODELS["BAT (code)"], *FIGURES[error], minus=recipe)
    return f"{theirs:+.1f}", change(ours), answer(ours)


def fairness(model: Any, few: Split, many: Split) -> dict[str, float]:
    """Both kinds of fairness of one model; 0 is fair. The grey levels that an image withstands are
    measured without a budget on the `few` images, the confusion matrix on the `many`."""
    free = PGD(eps=1.0, step_size=1 / 255, steps=255, start="clean")
    t, y = diag.steps_to_wrong(model, few, free)
    means = class_means(t, y, len(few.classes))
    predicted = predict(model, diag.QUICK(model, many.images(), many.y))
    matrix = diag.confusion(many.y, predicted, len(many.classes))
    far = 255 * diag.boundary_distance(model, few.images(), few.y)
    between = diag.between_classes(t, far, few.y)
    kept, answers = diag.kept(matrix), (diag.targets(matrix, own=own) for own in (True, False))
    return {"source: grey levels, sd / mean": means.std() / means.mean(),
            "source: diagonal, best − worst": float(kept.max() - kept.min()),
            **dict(zip(("target: all predictions", "target: wrong predictions"),
                       (float(diag.from_uniform(p)) for p in answers), strict=True)),
            "Eq. 4: share between classes": between / diag.constraint(t, far)}


def plane(model: Any, z: Tensor, first: int, size: int = 45) -> tuple[Tensor, ...]:
    """The plane through z_0, x_c and x_a = z_first of a walk z [K + 1, ...]: its two axes, the
    class predicted at each point [size, size], and the walk projected onto it [K + 1, 2]."""
    pair = z[first - 1 : first + 1] - z[0]
    q, r = torch.linalg.qr(pair.flatten(1).T)  # two orthonormal directions
    q = q * r.diagonal().sign()
    walk = (z - z[0]).flatten(1) @ q
    low, high = (walk.amin(0) - 0.15).tolist(), (walk.amax(0) + 0.15).tolist()
    u, v = (torch.linspace(low[k], high[k], size) for k in (0, 1))
    points = (z[0].flatten() + torch.cartesian_prod(u, v) @ q.T).reshape(-1, *z.shape[1:])
    with torch.no_grad():
        return u, v, model(points).argmax(1).reshape(size, size).T, walk


def _pair(right: list[bool], extra: int) -> tuple[int, int]:
    wrong = [t for t, ok in enumerate(right) if not ok]
    first = wrong[0] if wrong else len(right)
    return max(first - 1, 0), wrong[extra] if extra < len(wrong) else len(right)


# crossed once, at the start, at the first step, never, and several times
WALKS = [([c == "1" for c in walk], extra) for walk in (
    "1110000000", "0000000000", "1000000000", "1111111111", "1101010011", "1111111110",
    "0110000000", "1111111100") for extra in (0, 1, 2)]

PAIR = Exercise(_pair, cases=WALKS, mistakes={
    "x_a is too late: with extra = 0 it is the first wrong.": lambda r, e: _pair(r, e + 1),
    "x_a is always the first wrong iterate. Use `extra`.": lambda right, extra: _pair(right, 0),
    "x_c is the iterate before the FIRST wrong one. Later iterates can be right again.":
        lambda right, extra: (
            max((t for t, ok in enumerate(right) if ok), default=0), _pair(right, extra)[1]),
    "`extra` counts wrong iterates only. Skip the right ones in between.":
        lambda right, extra: (_pair(right, 0)[0], min(_pair(right, 0)[1] + extra, len(right))),
    "There is no iterate before z_0. If z_0 is wrong, x_c is z_0 itself.":
        lambda right, extra: (_pair(right, 0)[1] - 1, _pair(right, extra)[1]),
    "If too few iterates are wrong, x_a is the end of the walk, z_K, and K is len(right).":
        lambda right, extra: (_pair(right, 0)[0], min(_pair(right, extra)[1], len(right) - 1)),
})


def _unevenness(matrix: Tensor, columns: Any = lambda m: diag.shares(m).mean(0)) -> float:
    """Half the sum of |columns - 1/C|."""
    return float((columns(matrix) - 1 / len(matrix)).abs().sum() / 2)


# even and uneven columns, classes of different sizes
MATRICES = ([[6, 2, 2], [1, 3, 0], [0, 10, 10]], [[5, 5], [0, 10]],
            [[8, 1, 1, 0], [4, 4, 4, 8], [0, 1, 9, 0], [3, 3, 3, 1]])

COLUMNS = Exercise(_unevenness, cases=[(torch.tensor(m).float(),) for m in MATRICES], mistakes={
    "Return half of this: a surplus and its deficit count twice.": lambda m: 2 * _unevenness(m),
    "These are row sums, which are all equal after normalising. Sum each column.":
        partial(_unevenness, columns=lambda m: diag.shares(m).mean(1)),
    "A class with more images counts more. Divide each row by its sum first.":
        partial(_unevenness, columns=lambda m: m.sum(0) / m.sum()),
    "You left out the right answers. All answers count here, also the diagonal.":
        lambda m: _unevenness(m - torch.diag(m.diagonal()) + 1e-12),
})
