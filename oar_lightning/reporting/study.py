"""Makes a study from runs: groups them into arms, drops those that do not count, and finds the baseline."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ordering import natural
from oar_lightning.reporting.factors import ABSENT, Level, full_label, label, level, ordered, varied
from oar_lightning.reporting.runs import LARGEST, RunRecord
from oar_lightning.tracking.history import FORKED_AT
from oar_lightning.tracking.renamed import current_name

UNIFORM_CREDIT = {"experiment": "grpo", "scorer": "uniform", "gate.mode": "off"}
"""Levels at which every token gets the same credit, which make an arm the baseline of token-level credit."""

ACCURACY = re.compile(r"eval/[^/]+/avg_at_\d+")
TAU, BETA = "gate.tau", "gate.beta"


@dataclass(frozen=True)
class Arm:
    """Runs that differ only in their seeds, one for each seed; `levels` has a value for each of the study's factors."""

    label: str
    levels: tuple[Level, ...]
    runs: tuple[RunRecord, ...]


@dataclass(frozen=True)
class Study:
    """The content of a report without curves. `uncounted`: runs without a result that counts, with their state and reason."""

    name: str
    metric: str
    factors: tuple[str, ...]
    arms: tuple[Arm, ...]
    baseline: Arm | None
    uncounted: tuple[RunRecord, ...]
    parents: tuple[RunRecord, ...]

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        return tuple(run for arm in self.arms for run in arm.runs)

    @property
    def all_runs(self) -> tuple[RunRecord, ...]:
        return self.runs + self.uncounted

    @property
    def date(self) -> str:
        """The day (UTC) on which the first run started, which does not change when runs are added."""
        started = min(run.started for run in (*self.parents, *self.all_runs))
        return datetime.fromtimestamp(started / 1000, UTC).strftime("%Y-%m-%d")

    @property
    def seeds(self) -> list[str]:
        return sorted({run.seed for run in self.runs}, key=natural)

    def given_up(self, arm: Arm) -> int:
        """How many seeds of the arm have runs of its settings that fell apart, and none with a result."""
        fell = {run.seed for run in self.uncounted if run.given_up and set(varied((*arm.runs, run))) <= {"seed"}}
        return len(fell - {run.seed for run in arm.runs})

    def values(self, arm: Arm) -> list[float]:
        return [run.metrics[self.metric] for run in arm.runs]

    def differences(self, arm: Arm) -> list[float]:
        """The arm's results minus the baseline's, one for each seed that both have; none without a baseline."""
        base = {run.seed: run.metrics[self.metric] for run in self.baseline.runs} if self.baseline else {}
        return [run.metrics[self.metric] - base[run.seed] for run in arm.runs if run.seed in base]

    @property
    def of_accuracy(self) -> bool:
        """Whether runs are compared by a number of which more is better."""
        return self.metric == "objective" or bool(re.fullmatch(r"eval/[^/]+/((avg|pass|maj)_at_\d+|greedy)", self.metric))

    def place(self, key: str) -> int | None:
        """The index of a factor; None where the study does not vary it."""
        return self.factors.index(key) if key in self.factors else None

    def levels(self, place: int) -> list[Level]:
        return ordered(arm.levels[place] for arm in self.arms)

    def is_numeric(self, place: int) -> bool:
        return all(isinstance(value, float) for value in self.levels(place))


def make_study(
    name: str, parents: Sequence[RunRecord], runs: Sequence[RunRecord], metric: str | None = None, baseline: str | None = None
) -> Study:
    """The study of runs that are sorted by their start.

    Raises:
        ConfigError: where no run is finished, none has the metric, or no arm has the baseline's label.
    """
    complete = [run for run in runs if run.state == "complete"]
    if not complete:
        states = ", ".join(f"{sum(r.state == s for r in runs)} {s}" for s in sorted({r.state for r in runs}))
        raise ConfigError(f"{name} has no finished run ({states}); let it end, or repeat its command to run what is missing")
    metric = choose_metric(name, complete, metric)
    usable, uncounted = _split(runs, metric)
    factors = varied(usable)
    arms = _arms(usable, factors)
    kept = {run.run_id for arm in arms for run in arm.runs}
    reason = "a newer run of the same settings and seed counts"
    uncounted += [dataclasses.replace(r, state="repeated", reason=reason) for r in usable if r.run_id not in kept]
    base = find_baseline(arms, factors, baseline)
    arms.sort(key=lambda arm: arm is not base)  # the baseline first; the sort is stable for the others
    uncounted.sort(key=lambda r: (r.started, r.run_id))
    return Study(name, metric, factors, tuple(arms), base, tuple(uncounted), tuple(parents))


def choose_metric(name: str, complete: Sequence[RunRecord], wanted: str | None) -> str:
    """`wanted`; without it `objective`, else the sampled accuracy on the evaluation set that is the first by name. A complete
    run must have it."""
    present = {key for run in complete for key in run.metrics}
    for choice in [current_name(wanted)] if wanted else ["objective", *accuracies(complete)]:
        if choice in present:
            return choice
    known = ", ".join(sorted(present)) or "none"
    wanted = wanted or "null (objective or eval/*/avg_at_*)"
    raise ConfigError(f"report.metric={wanted}: no finished run of {name} has it; the metrics are: {known}")


def accuracies(runs: Sequence[RunRecord]) -> list[str]:
    """Names of the runs' sampled accuracies, one for each evaluation set."""
    return sorted({key for run in runs for key in run.metrics if ACCURACY.fullmatch(key)}, key=natural)


def find_baseline(arms: Sequence[Arm], factors: Sequence[str], wanted: str | None) -> Arm | None:
    """The arm with the label `wanted`; without it the only arm with uniform credit, if there is exactly one.

    Raises:
        ConfigError: where no arm has the label.
    """
    if wanted is not None:
        named = [arm for arm in arms if arm.label == wanted]
        if len(named) > 1:
            raise ConfigError(
                f"report.baseline={wanted}: {len(named)} arms have this label; leave some runs out by report.filter"
            )
        baseline = next(iter(named), None)
        if baseline is None:
            raise ConfigError(f"report.baseline={wanted}: no such arm; the arms are: {', '.join(arm.label for arm in arms)}")
        return baseline
    told_apart = UNIFORM_CREDIT.keys() & set(factors)
    uniform = [arm for arm in arms if _is_uniform(factors, arm)] if told_apart else []
    return uniform[0] if len(uniform) == 1 else None


def is_uniform(study: Study, arm: Arm) -> bool:
    """Whether all tokens of a completion of the arm get the same credit."""
    return _is_uniform(study.factors, arm)


def _is_uniform(factors: Sequence[str], arm: Arm) -> bool:
    """By its scorer, where that is known: an arm of experiment=grpo may have another one."""
    levels: dict[str, Level | None] = {"scorer": arm.runs[0].tags.get("scorer")}
    levels |= {key: level for key, level in zip(factors, arm.levels, strict=True) if level != ABSENT}
    telling = "scorer" if levels["scorer"] else "experiment"
    return any(levels.get(key) == UNIFORM_CREDIT[key] for key in ("gate.mode", telling))


def _split(runs: Sequence[RunRecord], metric: str) -> tuple[list[RunRecord], list[RunRecord]]:
    """Runs with a usable result, and the others with their state and reason."""
    judged = [(run, _not_counted(run, metric)) for run in runs]
    usable, uncounted = [run for run, other in judged if other is None], [other for _, other in judged if other is not None]
    if usable:
        return usable, uncounted
    if any(run.state == "forked" for run in uncounted):
        raise ConfigError(
            f"report.metric={metric}: every finished run that could have it began with another run's state "
            "(resume_changed=true) and does not count; add runs from scratch, or start them from that state's policy: "
            "task=export, then policy=hf policy.name=<folder>"
        )
    raise ConfigError(f"report.metric={metric} is not finite in any finished run; choose another metric")


def _not_counted(run: RunRecord, metric: str) -> RunRecord | None:
    """The run with the state and reason for which it does not count; None where it counts."""
    if run.state != "complete":
        return run
    if FORKED_AT in run.tags:  # its last settings are not those of all its steps
        reason = f"it began with the state of another run at step {run.tags[FORKED_AT]} (resume_changed=true)"
        return dataclasses.replace(run, state="forked", reason=reason)
    value = run.metrics.get(metric, np.nan)
    if np.isfinite(value) and abs(value) < LARGEST:
        return None
    return dataclasses.replace(run, state="without result", reason=f"{metric} is missing or not finite")


def _arms(runs: Sequence[RunRecord], factors: Sequence[str]) -> list[Arm]:
    """The arms sorted by their levels, each with the newest run of each seed."""
    groups: dict[tuple[Level, ...], dict[str, RunRecord]] = {}
    for run in runs:
        groups.setdefault(tuple(level(run, key) for key in factors), {})[run.seed] = run
    order = [ordered(levels[place] for levels in groups) for place in range(len(factors))]
    arms = []
    for levels in sorted(groups, key=lambda levels: [values.index(v) for values, v in zip(order, levels, strict=True)]):
        group = groups[levels]
        newest = tuple(group[seed] for seed in sorted(group, key=natural))
        arms.append(Arm(label(factors, levels) or newest[0].tags.get("experiment", "all runs"), levels, newest))
    count = Counter(arm.label for arm in arms)
    return [arm if count[arm.label] == 1 else dataclasses.replace(arm, label=full_label(factors, arm.levels)) for arm in arms]
