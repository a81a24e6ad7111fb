"""Experiment 3 (Claim 4): FRL's class margins, alone and with class weights.

Our Remargin has the rates, clip and beta of the authors' code of 2022 for both together, since
that code has no Remargin alone.
"""

from __future__ import annotations

from course_lib.attacks import PGD
from course_lib.experiments.exp2 import TOLERANCES, frl, from_hot_start, report_scheme, trials
from course_lib.methods import METHODS
from course_lib.recipes import Recipe

VARIANTS = {"exp3/remargin": "rm", "exp3/reweight-remargin": "rmrw"}

RECIPES: dict[str, Recipe] = {
    f"{name}-{100 * tau:02.0f}": from_hot_start(f"FRL ({variant}), tolerance {tau}",
                                                frl(variant, tau))
    for name, variant in VARIANTS.items() for tau in TOLERANCES}
TRIALS: dict[str, Recipe] = trials("rmrw")
REPORT: dict[str, Recipe] = {"exp3/report-remargin": report_scheme(
    "The report's Remargin 1:10 as it described it",
    METHODS["frl_report"](variant="rm", rates=(1.0, 0.0, 10.0),
                          attack=PGD(eps=8 / 255, step_size=1 / 255, steps=20)), epochs=10)}
