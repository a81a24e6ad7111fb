"""Notebook 08: the methods with their controls, what their papers print, an interval for a worst
class, heads of equal norms, and exercises on fronts, controls and FAAL's inner problem."""

import copy
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from course_lib import plots
from course_lib.fairness import Report, Spread, undominated
from course_lib.files import parse_json, read_bytes
from course_lib.lessons.bat import THIN, answer, change
from course_lib.lessons.lesson import Exercise, from_paper
from course_lib.tables import spread, verdict
from course_lib.zoo import columns, load_reports, models_dir, stored_models

# data set -> label: stored recipe, the label of its control ("" for a control), year of the method
TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENTRIES, CIFAR = TABLE["fashion-mnist"], TABLE["cifar10"]
PAPERS = from_paper("contest")  # our label, clean and robust accuracy, how they are known
MINUTES = "contest/minutes.json"  # in serialized_models, from `python -m benchmarks.minutes`
HEADS = "contest/heads.json"  # from `make heads`: recipe -> seed -> kind -> scale, report
WORDS = {0.0: "none", np.inf: "free"}
ATTACKS = {"standard": ("pgd20", "nat"), "PGD-20": ("pgd20", "rob"),
           "AutoAttack": ("autoattack", "rob")}  # the reports, and the error in them


def errors(kind: str, images: int | None = None, entries: Any = ENTRIES) -> Any:
    """One row per method and seed: average and worst class's error in percent, standard or under an
    attack at 8/255, on the images that most methods share, or on `images`, without the others."""
    labels = {name: label for label, (name, *_) in entries.items()}
    attack, error = ATTACKS[kind]
    models = {(m.name, m.seed): m.reports for m in stored_models(None, *labels)}
    same = next(iter(columns(models, attack, 8 / 255, images)), {})
    of_model = {model: getattr(report, error) for model, report in same.items()}
    return pd.DataFrame([
        {"seed": seed, "average": 100 * e.mean, "worst": 100 * e.worst, "method": labels[name]}
        for (name, seed), e in of_model.items()])


def draw(kind: str) -> Any:
    """Average against worst class: a small dot per seed, a named dot per mean, controls hollow; the
    line joins the means that no other mean dominates. A method far to the right is only named."""
    table = errors(kind)
    means = table[table["method"] != "natural"].groupby("method", sort=False)[
        ["average", "worst"]].mean()
    far = means[means["average"] > 1.25 * means["average"].median()]
    means = means.drop(far.index)
    table, ax = table[table["method"].isin(means.index)], plots.axes(None, 7.6, 4.2)
    ax.plot(table["average"], table["worst"], ".", ms=3, color="0.55")
    title = f"average {kind} error" if kind == "standard" else f"average error under {kind}"
    ax.set(xlabel=f"{title} (%)" + "".join(f"; outside: {m}, {a:.1f} / {b:.1f}" for m, a, b in
                                           far.itertuples()), ylabel="worst class's error (%)")
    best = means[undominated([*means.itertuples(index=False, name=None)])].sort_values("average")
    ax.plot(best["average"], best["worst"], color=plots.COLOURS[5], lw=1, ls="--", zorder=1)
    ax = plots.class_scatter(means["average"].to_numpy(), means["worst"].to_numpy(),
                             [*means.index], ax)
    hollow = means[[not ENTRIES[m][1] for m in means.index]]
    ax.plot(hollow["average"], hollow["worst"], "o", ms=5, mfc="white", mec="black", zorder=4)
    return ax


def leaderboard(entries: Any = ENTRIES) -> Any:
    """One row per method, means over seeds in percent: average / worst class; and the class that is
    worst most often. CPU-min: one training. Seeds: in brackets those of AutoAttack, where fewer."""
    minutes = parse_json(read_bytes(path := models_dir() / MINUTES), path)
    shown = {kind: dict(iter(errors(kind, None, entries).groupby("method"))) for kind in ATTACKS}
    rows: dict[str, dict[str, Any]] = {}
    for label, (name, _, year) in entries.items():
        worst = [r.worst_class for r in load_reports(name)]
        rows[label] = {"year": year or "", "seeds": len(worst), "CPU-min": round(minutes[name], 1)}
        for kind, table in ((k, tables[label]) for k, tables in shown.items() if label in tables):
            pair = f"{table['average'].mean():.1f} / {table['worst'].mean():.1f}"
            rows[label][kind] = pair.replace(" ", THIN)
            if len(table) != len(worst):
                rows[label]["seeds"] = f"{len(worst)} ({len(table)})"
        rows[label]["worst class"] = max(worst, key=worst.count)
    table = pd.DataFrame.from_dict(rows, orient="index").fillna("")
    return table[["year", "seeds", "CPU-min", *ATTACKS, "worst class"]]


def differences(entries: Any = ENTRIES) -> dict[str, tuple[Spread, Spread, float]]:
    """Each method minus its control under PGD-20, paired by seed: the worst class's error, the
    average, and what the first gains for a point lost in the second: 0 where the gain may be
    chance, infinite where nothing is lost."""
    found = {}
    for label, (name, control, _) in entries.items():
        if control:
            worst, mean = (spread(name, "rob", which, minus=entries[control][0])
                           for which in ("worst", "mean"))
            gained = worst.mean < 0 and verdict(worst) in ("lower", "one seed")
            ratio = -worst.mean / mean.mean if mean.mean > 0 else np.inf
            found[label] = worst, mean, ratio if gained else 0.0
    return found


def gains(entries: Any = ENTRIES) -> Any:
    """`differences` in points, the points gained per point lost, and a word on the claim that the
    method lowers the worst class's error."""
    rows = {label: {"control": entries[label][1], "seeds": worst.n,
                    "worst class": change(worst), "average": change(mean),
                    "gained per point lost": WORDS.get(gained, f"{gained:.1f}"),
                    "verdict": answer(worst)}
            for label, (worst, mean, gained) in differences(entries).items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def bargains() -> Any:
    """Points that the worst class gains over the control for each point of average lost, as bars;
    without methods that lose nothing."""
    paid = {label: gained for label, (*_, gained) in differences().items() if gained < np.inf}
    order = sorted(paid, key=paid.__getitem__)
    return plots.bars({"gained": [paid[label] for label in order]}, order,
                      plots.axes(None, 7.6, 2.3), scale=1, ylabel="gained per point lost")


def claims() -> Any:
    """The papers' gain of the worst class over their own baseline on CIFAR-10, in points of robust
    accuracy, beside ours over the control."""
    table, base = gains(), PAPERS["TRADES, best"][4]
    theirs = {label: f"{base - worst:+.1f}" for label, *_, worst, _ in PAPERS.values()}
    table["papers, minus TRADES"] = [theirs.get(label, "–") for label in table.index]
    return table[["control", "papers, minus TRADES", "worst class", "average", "verdict"]]


def papers() -> Any:
    """PAPERS as errors, beside ours under AutoAttack: average / worst class."""
    here = errors("AutoAttack").groupby("method")[["average", "worst"]].mean()
    rows = {label: {"paper, clean": f"{100 - a:.1f} / {100 - b:.1f}",
                    "paper, AutoAttack": f"{100 - c:.1f} / {100 - d:.1f}",
                    "here, AutoAttack": " / ".join(f"{v:.1f}" for v in here.loc[ours])
                    if ours in here.index else "", "known from": source}
            for label, (ours, a, b, c, d, source) in PAPERS.items()}
    return pd.DataFrame.from_dict(rows, orient="index")


def missed() -> Any:
    """AutoAttack's errors minus PGD-20's on the same 200 images per class, in points: mean over
    seeds of the average and of the worst class."""
    strong, weak = (errors(kind, 2000).set_index(["method", "seed"]) for kind in
                    ("AutoAttack", "PGD-20"))
    return (strong - weak).dropna().groupby("method").mean().round(1).rename_axis(None)


def worst_draws(reports: Sequence[Report], times: int = 2000) -> np.ndarray:
    """The worst class's robust error, mean over seeds, when seeds and images are drawn again."""
    rng, errors = np.random.default_rng(0), np.array([r.rob.by_class for r in reports])
    counts = np.array([r.rob.counts for r in reports])
    seeds = rng.integers(len(errors), size=(times, len(errors)))
    # wrong_c ~ Binomial(n_c, err_c) in each seed drawn; then the maximum over the classes
    return (rng.binomial(counts[seeds], errors[seeds]) / counts[seeds]).max(2).mean(1)


def with_rows(model: nn.Module, scale: float, equal: bool = True) -> nn.Module:
    """A copy with the rows of its last layer `scale` times as long as they are, or, if they are to
    be `equal`, as their mean."""
    model = copy.deepcopy(model)
    head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    length = head.weight.data.norm(dim=1, keepdim=True)
    # W_k <- s l W_k / ||W_k||, or s W_k
    head.weight.data *= scale * (length.mean() / length if equal else 1)
    return model


def heads(entries: Any = ENTRIES) -> Any:
    """Errors under CW-20, as trained and with other last layers, average / worst class; means over
    the seeds whose weights are stored, and the median of the scales."""
    stored, rows = parse_json(read_bytes(path := models_dir() / HEADS), path), dict[str, Any]()
    for label, (name, *_) in entries.items():
        rows[label] = {"seeds": len(seeds := [*stored[name].values()])}
        for kind in ("as trained", "equal rows", "own rows"):
            errors = [Report.from_json(row[kind]["report"]).rob for row in seeds]
            mean, worst = 100 * np.mean([(e.mean, e.worst) for e in errors], axis=0)
            rows[label][kind] = f"{mean:.1f} / {worst:.1f}".replace(" ", THIN)
            rows[label][f"s, {kind}"] = np.median([row[kind]["scale"] for row in seeds])
    return pd.DataFrame.from_dict(rows, orient="index").drop(columns="s, as trained")


POINTS = [([(20.0, 63.0), (20.5, 59.0), (21.5, 43.0), (21.3, 38.0), (31.0, 74.0)],),
          ([(1.0, 2.0), (1.0, 2.0), (1.0, 3.0)],), ([(3.0, 1.0), (4.0, 1.0)],)]
FRONT = Exercise(undominated, cases=POINTS, mistakes={
    "You ask whether a method is best in one of the errors. Undominated means: no other method is "
    "at least as good in both and better in one.":
        lambda p: [a == min(x for x, _ in p) or b == min(y for _, y in p) for a, b in p],
    "Two equal points do not dominate each other: one error must be smaller.":
        lambda p: [sum(x <= a and y <= b for x, y in p) == 1 for a, b in p],
    "This marks the dominated ones.": lambda p: [not kept for kept in undominated(p)],
})

CONTROL = Exercise(lambda base, control, method: (method - control) / (method - base),
                   cases=[(21.7, 24.2, 26.5), (0.4, 0.5, 0.45)], mistakes={
    "This is the control's share. Return the rest.":
        lambda base, control, method: (control - base) / (method - base),
    "This is the whole gain over the baseline.": lambda base, control, method: method - base,
    "These are points. Divide by the whole gain.": lambda base, control, method: method - control,
})

CASES = [(np.array([-0.9, -0.2, 0.3]), 0.5), (np.array([-0.5, -0.4, -0.6, 0.1]), 3.0)]
INNER = Exercise(lambda a, mu: (1 / (mu - a)) / (1 / (mu - a)).sum(), cases=CASES, mistakes={
    "These do not sum to one.": lambda a, mu: 1 / (mu - a),
    "This is the solution for the ball KL(w || U), a softmax. FAAL's ball is KL(U || w).":
        lambda a, mu: np.exp(a / mu) / np.exp(a / mu).sum(),
    "The sign of a is wrong: mu lies above every a_c.":
        lambda a, mu: (1 / (mu + a)) / (1 / (mu + a)).sum(),
})
