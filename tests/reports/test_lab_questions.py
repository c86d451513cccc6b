"""The study of the OAR paper's open questions: its command and its tables, by hand."""

from __future__ import annotations

import math

import pytest
from support.composing import checked
from support.study_scripts import load_script

measure = load_script("lab_questions")


@pytest.mark.usefixtures("hydra_conf")
def test_the_lab_has_an_estimator_of_each_row() -> None:
    for overrides in measure.VARIANTS.values():
        composed = checked("task=lab", *overrides, *measure.SETTINGS)
        assert {*measure.FILL_ROWS, *measure.PROXY_ROWS} <= {*composed.lab.estimators}
        fills = [composed.lab.estimators[f"oar_p_{fill}"].scorer.fill for fill in measure.FILLS]
        assert fills == list(measure.FILLS)


def test_a_column_may_hold_right_completions_or_wrong_ones() -> None:
    values = {"oar_g": [0.2, 0.4, None, 1.0], "random": [None, None, None, math.nan]}
    results = {
        "completions": [{"problem": p, "correct": c} for p, c in [(0, True), (1, True), (1, True), (2, False)]],
        "measures": {"monte_carlo.auroc": {"values": values}},
    }
    columns = [("all", "auroc", None), ("right", "auroc", True), ("wrong", "auroc", False)]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in measure.table(results, [*values], columns).splitlines()
    ]
    assert rows[0] == ["estimator", "all", "right", "wrong"]
    name, everything, right, wrong = rows[2]
    assert (name, everything[:4]) == ("oar_g", "0.53")
    assert right == "0.30 [0.20, 0.40]", "two problems, each drawn alone or both"
    assert wrong.startswith("1.00")
    assert rows[3] == ["random", "-", "-", "-"]
