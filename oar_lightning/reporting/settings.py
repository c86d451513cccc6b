"""The settings of runs that a page states: what was trained, on what, and what it was measured on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from oar_lightning.reporting.factors import ABSENT, level, overrides
from oar_lightning.reporting.runs import RunRecord

SETTINGS = (
    *("policy.name", "data.name", "data.max_prompt_tokens", "data.decontaminate", "trainer.max_steps", "update.problems"),
    *("update.group_size", "rollout.max_new_tokens", "optimizer.lr", "evaluation.problems", "evaluation.samples"),
    "scorer.judge._target_",
)
"""Parameters of a run that runs.csv keeps."""

ENDS = {
    "credit/ess_ratio": "ESS-ratio",
    "credit/top10_mass": "top-10 % mass",
    "entropy": "entropy, nats",
    "grad_norm": "gradient norm",
}
"""Metrics whose mean over the last tenth of training is shown."""

KEPT = (
    *("reward", *ENDS, "learning_rate", "credit/forward_equivalents"),
    *("completions/min_length", "completions/mean_length", "completions/max_length"),
)
"""Metrics whose curves are read and kept, beside the accuracies."""

EVALUATED_ON = "evaluated_on"
"""A column of runs.csv: the evaluation sets with their splits."""

AS_TRAINED = "drawn as in training"
NOT_RECORDED = "not recorded"
_SPLIT = re.compile(r"data\.evaluation\.([^.]+)\.split")


def scorer(run: RunRecord) -> str:
    """The run's scorer; without a record of it, what its experiment is named after."""
    found = str(level(run, "scorer"))
    named = run.tags.get("experiment", NOT_RECORDED)
    return found if found != ABSENT else {"grpo": "uniform"}.get(named, named)


def evaluated_on(run: RunRecord) -> str:
    """The evaluation sets with their splits, as runs.csv kept it or from the run's parameters; "" where neither has any."""
    if EVALUATED_ON in run.tags:
        return run.tags[EVALUATED_ON]
    sets = []
    for key, split in run.params.items():
        if found := _SPLIT.fullmatch(key):
            name = found[1]
            parts = ("_target_", "split", "path", "name", "paths")
            same = all(run.params.get(f"data.evaluation.{name}.{p}") == run.params.get(f"data.train.{p}") for p in parts)
            sets.append(f"{name} ({split}{', ' + AS_TRAINED if same else ''})")
    return ", ".join(sets)


def distinct(runs: Sequence[RunRecord], value: Callable[[RunRecord], str | None]) -> str:
    """What the runs' values are; several are listed with the number of runs that have each."""
    counts = Counter(value(run) or NOT_RECORDED for run in runs)
    values = sorted(counts, key=lambda one: (-counts[one], one))
    return values[0] if len(values) == 1 else ", ".join(f"{one} ({counts[one]} runs)" for one in values)


def accuracy_in_words(runs: Sequence[RunRecord]) -> str:
    """What the runs' accuracy is of, for a figure's axis."""
    sets = {evaluated_on(run) for run in runs}
    if sets == {""}:
        return "sampled accuracy"
    trained = sum(AS_TRAINED in one for one in sets)
    which = "as in training" if trained == len(sets) else "some as in training" if trained else "new"
    return "accuracy on new problems" if which == "new" else f"accuracy on problems {which}"


def evaluation(run: RunRecord) -> str | None:
    """Sets, splits and size of a run's evaluation; None where none of it was recorded."""
    sets, problems, samples = evaluated_on(run), run.params.get("evaluation.problems"), run.params.get("evaluation.samples")
    size = f"{problems} problems x {samples} samples" if problems and samples else ""
    return ": ".join(part for part in (sets, size) if part) or None


def is_trained(run: RunRecord) -> bool:
    """Whether the run has trained a policy, and not only evaluated one."""
    return run.tags.get("task") != "evaluate"


def updates(run: RunRecord) -> str | None:
    """How many updates a run was to make when it was last started. MLflow keeps the first number as a parameter."""
    return overrides(run).get("trainer.max_steps", run.params.get("trainer.max_steps"))


def training(run: RunRecord) -> str | None:
    """Updates and the size of their batches; None where it was not recorded."""
    if not is_trained(run):
        return "none: a policy was evaluated"
    found = [updates(run), *(run.params.get(key) for key in ("update.problems", "update.group_size"))]
    return "{} updates of {} problems x {} completions".format(*found) if all(found) else None
