"""Figures are drawn for what a study has, and say what its table says."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import optuna
import pytest
from support.fake_sweep import grid_plan, open_study, plan, sweep, value

from oar_lightning.sweep.figures import draw_figures, history, tau_beta
from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.table import results_table
from oar_lightning.sweep.trial import Result

BEST = Objective("objective", "maximize")
GRID = {"gate.tau": [0.2, 0.4, 0.7], "gate.beta": [1, 2]}


def scored(study: object) -> list[dict[str, object]]:
    return results_table(study.trials(), ["objective"])  # type: ignore[attr-defined]


def test_a_searched_study_has_history_and_importance(tmp_path: Path) -> None:
    study = sweep(tmp_path, plan(12))
    files = draw_figures(study.study, scored(study), [BEST], tmp_path)
    assert [f.name for f in files] == ["history.png", "importance.png"]
    for file in files:
        assert matplotlib.image.imread(file).std() > 0.01, "it is not blank"


def test_history_shows_each_trial_and_the_best_so_far() -> None:
    rows = [
        {"trial": i, "objective": v, "objective_low": v - 0.1, "objective_high": v + 0.1} for i, v in enumerate([0.3, 0.5, 0.4])
    ]
    figure = history(rows, BEST)
    assert figure is not None
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines["best so far"] == [0.3, 0.5, 0.5]
    lowest = history(rows, Objective("objective", "minimize"))
    assert lowest is not None
    assert [list(line.get_ydata()) for line in lowest.axes[0].lines if line.get_label() == "best so far"] == [[0.3, 0.3, 0.3]]


def test_the_heat_map_shows_means_over_seeds(tmp_path: Path) -> None:
    def ending(claim: object) -> Result:
        values = claim.values  # type: ignore[attr-defined]
        return Result("complete", {"objective": values["gate.tau"] + values["gate.beta"] + 0.2 * values["seed"]})

    study = sweep(tmp_path, grid_plan({"seed": [0, 1], **GRID}), ending=ending)
    figure = tau_beta(scored(study), BEST)
    assert figure is not None
    axes = figure.axes[0]
    assert axes.images[0].get_array().tolist() == [
        [pytest.approx(tau + beta + 0.1) for tau in GRID["gate.tau"]] for beta in GRID["gate.beta"]
    ]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0.2", "0.4", "0.7"]


def test_two_objectives_have_a_front(tmp_path: Path) -> None:
    both = [BEST, Objective("time/total_s", "minimize")]
    study = sweep(
        tmp_path,
        plan(3, objectives=both, sampler=lambda number, name: optuna.samplers.RandomSampler(seed=number)),
        ending=lambda claim: Result("complete", {"objective": value(claim.values), "time/total_s": float(claim.number)}),
    )
    rows = results_table(study.trials(), [o.metric for o in both])
    assert [row["time/total_s"] for row in rows] == [0.0, 1.0, 2.0]
    assert "pareto.png" in [f.name for f in draw_figures(study.study, rows, both, tmp_path)]


def test_an_empty_study_has_no_figure(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    assert draw_figures(study.study, [], [BEST], tmp_path) == []
