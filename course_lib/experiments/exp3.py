"""Experiment 3 (Claim 4): FRL's class margins, alone and with class weights.

The authors' code of 2022 has no Remargin alone. exp3/remargin-* has the rates, clip and beta that
this code gives to both together; exp3/remargin-2021 has the constants of their code of 2021.
"""

import dataclasses
from typing import Any

from course_lib.attacks import PGD
from course_lib.experiments import exp2
from course_lib.methods import METHODS
from course_lib.methods.frl import FRL
from course_lib.recipes import Recipe

RECIPES: dict[str, Recipe] = {
    **exp2.tolerances("exp3/remargin", "rm"), **exp2.tolerances("exp3/reweight-remargin", "rmrw"),
    "exp3/remargin-2021": exp2.from_hot_start(
        "FRL (rm) with the constants of the authors' code of 2021, tolerance 0.1",
        FRL.preset("authors_2021", "rm", attack=exp2.trades_attack(exp2.EPS)), weights=False)}

REPORTS: dict[str, Any] = {"variant": "rm", "rates": (1.0, 0.0, 10.0),
                           "attack": PGD(eps=8 / 255, step_size=1 / 255, steps=20)}
REPORT: dict[str, Recipe] = {
    "exp3/report-remargin": exp2.report_scheme(
        "The report's Remargin 1:10 as it described it", METHODS["frl_report"](**REPORTS),
        epochs=10),
    "exp3/report-remargin-every-20": exp2.report_scheme(
        "The report's Remargin 1:10 as it described it, a check every 20 batches",
        METHODS["frl_report"](**REPORTS, update_every=20), seeds=5, epochs=10, weights=False),
    "exp3/report-remargin-mended": dataclasses.replace(
        exp2.report_scheme("The report's Remargin 1:10 without the slip, a check every 20 batches",
                           METHODS["frl_report_mended"](**REPORTS, update_every=20), seeds=5,
                           epochs=10),
        validation=PGD(eps=16 / 255, step_size=1 / 255), weights=False)}
