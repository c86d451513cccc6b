"""Figures of a study, drawn from its table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import optuna
from matplotlib.figure import Figure
from optuna.trial import TrialState

from oar_lightning.sweep.plan import Objective
from oar_lightning.sweep.table import Row

matplotlib.use("Agg")

TAU, BETA = "gate.tau", "gate.beta"

MIN_TRIALS_FOR_IMPORTANCE = 8
"""With fewer trials a random forest says nothing about the parameters."""


def draw_figures(study: optuna.Study, rows: Sequence[Row], objectives: Sequence[Objective], folder: Path) -> list[Path]:
    """Write the figures that can be drawn from the trials so far; returns their files."""
    complete = [row for row in rows if row["state"] == "complete"]
    figures: dict[str, Figure | None] = {
        "history.png": history(complete, objectives[0]),
        "importance.png": importance(study) if len(objectives) == 1 else None,
        "tau_beta.png": tau_beta(complete, objectives[0]),
        "pareto.png": pareto(study, complete, objectives) if len(objectives) == 2 else None,
    }
    written = []
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=120)
            written.append(folder / name)
    return written


def history(rows: Sequence[Row], objective: Objective) -> Figure | None:
    """Each trial's objective with its interval, and the best objective so far."""
    if not rows:
        return None
    better = max if objective.direction == "maximize" else min
    numbers, values = [row["trial"] for row in rows], [row[objective.metric] for row in rows]
    best = [better(values[: i + 1]) for i in range(len(values))]
    figure, axes = _axes("trial", objective.metric)
    if objective.metric == "objective" and all(row["objective_low"] is not None for row in rows):
        below = [max(0.0, v - row["objective_low"]) for v, row in zip(values, rows, strict=True)]
        above = [max(0.0, row["objective_high"] - v) for v, row in zip(values, rows, strict=True)]
        axes.errorbar(numbers, values, yerr=[below, above], fmt="o", capsize=2, label="trial, 95 % over problems")
    else:
        axes.plot(numbers, values, "o", label="trial")
    axes.step(numbers, best, where="post", label="best so far")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return figure


def importance(study: optuna.Study) -> Figure | None:
    """Mean decrease in impurity by each parameter in a random forest fitted to the trials.

    Not fANOVA, Optuna's default: that of 2.10 does not work with numpy 2.
    """
    done = [t for t in study.get_trials(deepcopy=False) if t.state == TrialState.COMPLETE]
    varied = {name for t in done for name in t.params if len({str(u.params.get(name)) for u in done}) > 1}
    if len(done) < MIN_TRIALS_FOR_IMPORTANCE or len(varied) < 2 or len({t.value for t in done}) < 2:
        return None
    evaluator = optuna.importance.MeanDecreaseImpurityImportanceEvaluator(seed=0)
    importances = optuna.importance.get_param_importances(study, evaluator=evaluator, params=sorted(varied))
    figure, axes = _axes("importance for the objective (mean decrease in impurity)", "")
    names = list(reversed(importances))
    axes.barh(names, [importances[name] for name in names])
    return figure


def tau_beta(rows: Sequence[Row], objective: Objective) -> Figure | None:
    """The objective over tau and beta: a heat-map of means where the trials lie on a grid, else points."""
    cells: Mapping[tuple[float, float], list[float]] = defaultdict(list)
    for row in rows:
        if isinstance(row.get(TAU), int | float) and isinstance(row.get(BETA), int | float):
            cells[row[TAU], row[BETA]].append(row[objective.metric])
    taus, betas = sorted({t for t, _ in cells}), sorted({b for _, b in cells})
    if len(cells) < 2:
        return None
    means = {place: statistics.fmean(values) for place, values in cells.items()}
    figure, axes = _axes(TAU, BETA)
    if len(cells) * 2 > len(taus) * len(betas):
        grid = [[means.get((tau, beta), float("nan")) for tau in taus] for beta in betas]
        shown: Any = axes.imshow(grid, origin="lower", aspect="auto")
        axes.set_xticks(range(len(taus)), [f"{tau:g}" for tau in taus])
        axes.set_yticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        for (tau, beta), mean in means.items():
            place = (taus.index(tau), betas.index(beta))
            axes.annotate(f"{mean:.2f}", place, ha="center", va="center", color="white", fontsize=8)
    else:
        shown = axes.scatter([t for t, _ in means], [b for _, b in means], c=list(means.values()), s=60)
    figure.colorbar(shown, label=objective.metric)
    return figure


def pareto(study: optuna.Study, rows: Sequence[Row], objectives: Sequence[Objective]) -> Figure | None:
    """Both objectives of all trials, with the Pareto front marked."""
    if not rows:
        return None
    first, second = objectives
    best = {t.number for t in study.best_trials}
    figure, axes = _axes(second.metric, first.metric)
    for label, marker, on_front in (("dominated", "o", False), ("Pareto front", "D", True)):
        shown = [row for row in rows if (row["trial"] in best) == on_front]
        axes.plot([row[second.metric] for row in shown], [row[first.metric] for row in shown], marker, label=label)
    axes.legend()
    return figure


def _axes(x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes
