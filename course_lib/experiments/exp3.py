"""Experiment 3 (Claim 4): FRL's class margins, alone and with class weights.

The authors' code of 2022 has no Remargin alone. exp3/remargin-* has the rates, clip and beta that
this code gives to both together; exp3/remargin-2021 has the constants of their code of 2021.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from course_lib.attacks import PGD
from course_lib.experiments.exp2 import (
    EPS,
    TOLERANCES,
    frl,
    from_hot_start,
    report_scheme,
    trades_attack,
    trials,
)
from course_lib.methods import METHODS
from course_lib.methods.frl import FRL
from course_lib.recipes import Recipe

VARIANTS = {"exp3/remargin": "rm", "exp3/reweight-remargin": "rmrw"}

RECIPES: dict[str, Recipe] = {
    f"{name}-{100 * tau:02.0f}": from_hot_start(f"FRL ({variant}), tolerance {tau}",
                                                frl(variant, tau))
    for name, variant in VARIANTS.items() for tau in TOLERANCES}
RECIPES["exp3/remargin-2021"] = from_hot_start(
    "FRL (rm) with the constants of the authors' code of 2021, tolerance 0.1",
    FRL.preset("authors_2021", "rm", attack=trades_attack(EPS)), weights=False)
TRIALS: dict[str, Recipe] = trials("rmrw")

REPORTS: dict[str, Any] = {"variant": "rm", "rates": (1.0, 0.0, 10.0),
                           "attack": PGD(eps=8 / 255, step_size=1 / 255, steps=20)}
REPORT: dict[str, Recipe] = {
    "exp3/report-remargin": report_scheme(
        "The report's Remargin 1:10 as it described it", METHODS["frl_report"](**REPORTS),
        epochs=10),
    "exp3/report-remargin-mended": dataclasses.replace(
        report_scheme("The report's Remargin 1:10 without the slip, a check every 20 batches",
                      METHODS["frl_report_mended"](**REPORTS, update_every=20), epochs=10),
        validation=PGD(eps=16 / 255, step_size=1 / 255), weights=False)}
