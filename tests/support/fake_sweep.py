"""Sweeps with the package's own study and loop, whose trials are a few steps of arithmetic with a checkpoint after each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, UniformDistribution
from optuna.samplers import BaseSampler, TPESampler

from oar_lightning.sweep.loop import LauncherFailed, run_sweep
from oar_lightning.sweep.plan import Objective, Plan
from oar_lightning.sweep.samplers import GridPoints, draw_seed
from oar_lightning.sweep.storage import SweepStorage
from oar_lightning.sweep.study import Claim, SweepStudy
from oar_lightning.sweep.table import as_csv, results_table
from oar_lightning.sweep.trial import Result, write_result

optuna.logging.set_verbosity(optuna.logging.ERROR)

STEPS = 4

Ending = Callable[[Claim], Result | None]


def tpe(number: int, parameter: str) -> BaseSampler:
    return TPESampler(seed=draw_seed(0, number, parameter), n_startup_trials=4)


def plan(n_trials: int = 12, **changes: Any) -> Plan:
    """Two parameters searched by TPE after four random trials."""
    settings: dict[str, Any] = {
        "name": "fake",
        "space": {"x": UniformDistribution(0.0, 1.0), "y": UniformDistribution(0.0, 4.0)},
        "settings": ["a=1"],
        "objectives": [Objective("objective", "maximize")],
        "n_trials": n_trials,
        "sampler": tpe,
        "describe": dict,
    }
    return Plan(**(settings | changes))


def grid_plan(choices: Mapping[str, Sequence[Any]], **changes: Any) -> Plan:
    points = GridPoints(choices)
    space = {name: CategoricalDistribution(values) for name, values in choices.items()}
    return plan(len(points), space=space, sampler=lambda number, parameter: points, **changes)


def open_study(folder: Path, some: Plan | None = None) -> SweepStudy:
    return SweepStudy(some or plan(), SweepStorage(folder / "optuna.db"), folder / "trials")


def value(values: Mapping[str, float]) -> float:
    return 1 - (values["x"] - 0.3) ** 2 - (values["y"] - 2) ** 2 / 10


def run_trial(claim: Claim, seconds: float) -> None:
    """STEPS steps, each noted in ``steps`` when it is done; goes on after the last one noted."""
    checkpoint = claim.folder / "checkpoint.json"
    done = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    for step in range(done, STEPS):
        time.sleep(seconds)
        with open(claim.folder / "steps", "a") as file:
            file.write(f"{step}\n")
        aside = checkpoint.with_suffix(".new")
        aside.write_text(json.dumps(step + 1))
        aside.replace(checkpoint)


class Table:
    """Publishes the table alone: figures would take most of the time of such short trials."""

    parent_run_id: str | None = None

    def update(self, study: SweepStudy) -> None:
        pass

    def discard(self) -> None:
        pass

    def close(self, study: SweepStudy, status: str) -> None:
        rows = results_table(study.trials(), ["objective"])
        (study.folder / "table.csv").write_text(as_csv(rows))
        (study.folder / "status").write_text(status)


def sweep(
    folder: Path,
    some: Plan | None = None,
    seconds: float = 0.0,
    ending: Ending = lambda claim: None,
    batch: int = 1,
    is_lost: Callable[[Claim], bool] = lambda claim: False,
) -> SweepStudy:
    """Run the trials that are missing.

    Args:
        folder: of the study.
        some: the plan.
        seconds: of a step.
        ending: claim -> the result to record in place of the trial's own, or None.
        batch: trials that are launched together.
        is_lost: claim -> whether its process is lost; the launcher fails then, as submitit does.
    """
    study = open_study(folder, some)

    def launch(claims: Sequence[Claim]) -> Mapping[int, BaseException]:
        lost = [claim for claim in claims if is_lost(claim)]
        for claim in claims:
            if claim not in lost:
                run_trial(claim, seconds)
                write_result(claim.folder, ending(claim) or Result("complete", {"objective": value(claim.values)}))
        if lost:
            raise LauncherFailed("UncompletedJobError: no result file")
        return {}

    run_sweep(study, launch, Table(), batch)
    return study


def table(study: SweepStudy) -> str:
    """What `Table` has written."""
    return (study.folder / "table.csv").read_text()


def steps(study: SweepStudy) -> list[list[str]]:
    """Trial by trial, the steps that were made."""
    return [(study.trial_folder(t.number) / "steps").read_text().split() for t in study.trials()]
