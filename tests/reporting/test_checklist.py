"""The checklist: every scorer has its family, and what was not recorded is called so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.run_records import trial

from oar_lightning.reporting.checklist import FAMILIES, checklist, intervals
from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.settings import NOT_RECORDED, training
from oar_lightning.reporting.study import make_study

SCORERS = Path(__file__).parents[2] / "conf" / "scorer"


def test_every_scorer_has_its_granularity_and_family() -> None:
    assert set(FAMILIES) == {path.stem for path in SCORERS.glob("*.yaml")}


def test_fourteen_items_are_filled_in_from_the_runs() -> None:
    params = {"policy.name": "chain", "data.name": "chain", "data.evaluation.chain.split": "held_out"}
    params |= {"trainer.max_steps": "9", "update.problems": "2", "update.group_size": "4", "data.decontaminate": "False"}
    params |= {"evaluation.problems": "8", "evaluation.samples": "4", "data.max_prompt_tokens": "None"}
    runs = [
        trial(
            0.5, {"scorer": name, "seed": seed}, params=params, tags={"parameters": "1000"}, duration_s=7200.0,
            metrics={"objective": 0.5, "time/total_cpu_s": 1800.0},
        )
        for name in ("uniform", "oar_g", "shuffled") for seed in (0, 1, 2)
    ]  # fmt: skip
    lengths = {run.run_id: Curve(np.arange(10.0), np.full(10, 30.0)) for run in runs}
    rows = dict(checklist(make_study("x", [], runs), {"completions/mean_length": lengths})[1:])
    assert len(rows) == 14
    assert rows["base model and size"] == "chain; 1,000 parameters"
    assert rows["training data, size, filters"] == (
        "chain; 9 updates of 2 problems x 4 completions; longest prompt, tokens: any; decontaminated: no"
    )
    assert rows["granularity"] == "completion (uniform); token (oar_g, shuffled)"
    assert rows["baseline without credit, same base model"] == "`uniform`"
    assert rows["benchmarks and splits"] == "chain (held_out): 8 problems x 4 samples"
    assert rows["processor time in all"] == "4.50 CPU-hours; 18.00 hours of wall time"
    assert rows["mean length of completions, tokens"] == "30"
    assert rows["ablation of the credit"] == "`shuffled`"
    assert rows["cost of credit, forward passes of the batch"] == NOT_RECORDED


def test_nothing_recorded_is_told() -> None:
    rows = dict(checklist(make_study("x", [], [trial(0.5)]), {})[1:])
    assert rows["benchmarks and splits"] == NOT_RECORDED
    assert rows["processor time in all"] == "CPU-hours: not recorded; 0.01 hours of wall time"
    assert rows["baseline without credit, same base model"] == "none"


def test_intervals_are_promised_where_there_are_some() -> None:
    assert intervals([3, 5]) == "95 % intervals over seeds"
    assert intervals([2, 5]) == "95 % intervals over seeds, where there are at least 3"
    assert intervals([1, 2]) == "no intervals: they need at least 3"


def test_a_run_that_went_on_for_longer_has_the_updates_of_its_last_start_and_an_evaluation_none() -> None:
    params = {"trainer.max_steps": "2", "update.problems": "4", "update.group_size": "4"}
    longer = trial(0.5, params=params, tags={"task": "train", "overrides": "+experiment=smoke trainer.max_steps=4"})
    assert training(longer) == "4 updates of 4 problems x 4 completions"
    assert training(trial(0.5, params=params)) == "2 updates of 4 problems x 4 completions"
    evaluated = trial(0.5, params=params, tags={"task": "evaluate"})
    assert training(evaluated) == "none: a policy was evaluated"
    rows = [
        dict(checklist(make_study("x", [], runs), {})[1:])
        for runs in ([evaluated], [longer, trial(0.5, {"seed": 1}, params=params)])
    ]
    assert any(text == "no training: policies were evaluated" for text in rows[0].values())
    assert any(text.startswith("numbers of updates differ") for text in rows[1].values())
