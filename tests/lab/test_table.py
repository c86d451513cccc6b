"""The order of the estimators, what stands in a cell, and what is starred."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
from support.console import rendered
from support.lab_findings import findings

from oar_lightning.lab.comparison import mean_over
from oar_lightning.lab.table import compared, difference_table, headlines, ranking, table, truth_table
from oar_lightning.lab.types import Findings

NAMES = ("nothing", "little", "more", "much")


@pytest.fixture(scope="module")
def found() -> Findings:
    return findings(NAMES, problems=10)


def test_the_best_stands_first(found: Findings) -> None:
    assert headlines(found)[0].key == "monte_carlo.auroc"
    means = [mean_over(headlines(found)[0].values[name], found.studied.problem).mean for name in ranking(found)]
    assert means == sorted(means, reverse=True)
    assert ranking(found)[-1] == "nothing"


def test_of_a_source_of_steps_the_hit_on_the_step_is_shown(found: Findings) -> None:
    exact, drawn = found.truths
    keys = [m.key for m in headlines(found)]
    assert keys[-2:] == ["first_wrong_step.auroc", "first_wrong_step.hit_1"]
    of_steps = dataclasses.replace(
        found,
        truths=(dataclasses.replace(exact, whole_steps=True), drawn),
        measures=tuple(m for m in found.measures if m.key != "first_wrong_step.hit_1"),
    )
    assert [m.key for m in headlines(of_steps)] == [*keys[:-1], "first_wrong_step.right_step"]


def test_a_cell_has_mean_interval_and_ceiling(found: Findings) -> None:
    rows = {row[0]: row for row in table(found).rows}
    shown = headlines(found)
    column = [m.key for m in shown].index("monte_carlo.spearman_free")
    interval = mean_over(shown[column].values["much"], found.studied.problem)
    ceiling = shown[column].ceiling["much"]
    assert rows["much"][1 + column] == f"{interval.mean:.2f} [{interval.low:.2f}, {interval.high:.2f}] /{ceiling:.2f}"
    assert rows["much"][-2:] == ["12345.68", "123.4"]
    assert rows["nothing"][-1] == "", "it does not count its work"
    assert rows["(chance)"][1:3] == ["0.50", "0.50"]
    assert any("0.50" in line for line in rendered(table(found)))


def test_an_estimator_that_was_not_defined_everywhere_is_shown_with_its_number_of_completions(found: Findings) -> None:
    measure = headlines(found)[0]
    partly = dict(measure.values) | {"much": (math.nan, *measure.values["much"][1:])}
    changed = [dataclasses.replace(m, values=partly) if m.key == measure.key else m for m in found.measures]
    rows = {row[0]: row[1] for row in table(dataclasses.replace(found, measures=tuple(changed))).rows}
    assert rows["much"].endswith(f" (n = {sum(not math.isnan(value) for value in partly['much'])})")
    assert not any("n =" in cell for name, cell in rows.items() if name != "much")


def test_stars_are_for_what_holm_leaves(found: Findings) -> None:
    differences = compared(found, "nothing")
    rows = {row[0]: row for row in difference_table(found, differences, "nothing").rows}
    assert set(rows) == set(NAMES[1:])
    for d in differences:
        column = [m.key for m in headlines(found)].index(d.measure)
        cell = rows[d.estimator][1 + column]
        assert cell.endswith("*") == (d.p_holm < 0.05)
        assert re.match(r"[+-]\d\.\d\d \[", cell)
    assert {bool(d.p_holm < 0.05) for d in differences} == {True, False}


def test_truths_say_how_reliable_they_are(found: Findings) -> None:
    drawn, exact = found.truths[1], found.truths[0]
    rows = truth_table(found, {exact.name: None, drawn.name: None}).rows
    share = float(drawn.decisive.sum()) / float(drawn.known.sum())
    assert rows[1][:3] == ["monte_carlo", "20", f"{100 * share:.1f} %"]


def test_without_a_truth_there_are_costs(found: Findings) -> None:
    bare = dataclasses.replace(found, truths=(), measures=())
    assert ranking(bare) == list(NAMES)
    assert table(bare).header == ["estimator", "seconds", "forward- equivalents"]
    assert compared(bare, "nothing") == []
