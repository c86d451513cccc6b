"""What runs cost, in units that do not depend on what else the machine did."""

from __future__ import annotations

from oar_lightning.reporting.bands import last_tenth
from oar_lightning.reporting.runs import Curves, RunRecord
from oar_lightning.reporting.settings import scorer

CPU, PASSES = "time/total_cpu_s", "credit/forward_equivalents"
COSTS = {CPU: "CPU-seconds of a run", PASSES: "passes of scoring"}
"""What a run costs -> its column. Passes are forward passes of a batch, and what else the scorer does counted in them."""

COST_DIGITS = {CPU: ".0f", PASSES: ".2f"}
NO_PASSES = ("uniform", "random", "position", "oracle", "oracle_signed", "hicra", "ktae", "anchor_states", "action_mask")
"""Scorers that do not run the model, and count nothing."""


def cost(run: RunRecord, curves: Curves, metric: str) -> float | None:
    """What a run costs by one of COSTS; None where it was not recorded."""
    if metric == PASSES:
        return 0.0 if scorer(run) in NO_PASSES or judged_by_rules(run) else last_tenth(run, curves, metric)
    return run.metrics.get(metric)


def judged_by_rules(run: RunRecord) -> bool:
    """Whether CAPO's judge was the task's own rules and no model."""
    return scorer(run) == "capo" and run.params.get("scorer.judge._target_", "").endswith(".SpanJudge")
