"""How far each method ended above another, from the runs of the study `families`."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t, ttest_1samp

from oar_lightning.reporting.statistics import Interval, holm, mean_interval

REPORTS = Path(__file__).parents[1]


@functools.cache
def script(study: str, name: str = "measure") -> ModuleType:
    """The script of another study; folders of studies are no packages."""
    spec = importlib.util.spec_from_file_location(f"{study}_{name}", REPORTS / study / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(REPORTS / study))  # it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(REPORTS / study))
    return module


families = script("families")
TOLD = families.TOLD
Results = Mapping[tuple[str, float], Mapping[int, float]]
Key = TypeVar("Key", bound=Hashable)


class Lead(NamedTuple):
    """A method minus another, in points, each at its best rate by seeds 0 and 1, over pairs with the same seed."""

    method: str
    task: str
    unused: Interval
    """Of the seeds that chose no rate."""
    every: Interval
    """Of all five."""
    p: float
    """Student's, two-sided, of all five."""


@functools.cache
def results_of(task: str) -> Results:
    found: dict[tuple[str, float], dict[int, float]] = {}
    for row in families.read_csv(REPORTS / "families" / "runs.csv"):
        if row.variant == task:
            found.setdefault((row.method, row.lr), {})[row.seed] = 100 * row.accuracy
    return found


FEWEST_RATES = 3
"""Learning rates that a method must have been tried at, for its best to be compared."""


def lead(results: Results, task: str, method: str, over: str) -> Lead | None:
    """None where one of the ten runs is missing, or where a rate was hardly looked for."""
    best = families.best_rates(results)
    if any(name not in best or len({lr for own, lr in results if own == name}) < FEWEST_RATES for name in (method, over)):
        return None
    own, base = results[method, best[method]], results[over, best[over]]
    everything = (*families.TUNING, *families.REPORTED)
    if not own.keys() & base.keys() >= set(everything):
        return None
    differences = [own[seed] - base[seed] for seed in everything]
    unused = [own[seed] - base[seed] for seed in families.REPORTED]
    return Lead(method, task, mean_interval(unused), mean_interval(differences), float(ttest_1samp(differences, 0).pvalue))


def leads_over_grpo() -> dict[tuple[str, str], Lead]:
    """(Task, method) -> lead, of all that were run to the end."""
    found = {}
    for task in families.TASKS:
        results = results_of(task)
        for method in sorted({name for name, _ in results} - {families.BASELINE}):
            if one := lead(results, task, method, families.BASELINE):
                found[task, method] = one
    return found


def side(interval: Interval) -> int:
    """1 or -1 where the interval lies wholly above or below 0."""
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def verdict(one: Lead, adjusted: float) -> str:
    """By the rule that VERDICT.md states."""
    sides = {side(one.unused), side(one.every)}
    if adjusted < 0.05 and len(sides) == 1 and sides != {0}:
        return "above" if sides == {1} else "below"
    sides -= {0}
    if len(sides) == 1:
        return "sign of a lead" if sides == {1} else "sign of a deficit"
    return "not shown"


def decided_by(one: Lead) -> str:
    """The interval that makes a sign of a lead or deficit, where it is not that of all five seeds, which is shown."""
    return "" if side(one.every) or not side(one.unused) else f" (seeds 2 to 4: {one.unused:+.1f})"


def verdicts(leads: Mapping[Key, Lead]) -> dict[Key, str]:
    """With Holm's correction for all of these leads."""
    adjusted = holm([one.p for one in leads.values()])
    return {key: verdict(one, p) for (key, one), p in zip(leads.items(), adjusted, strict=True)}


def chance(draws: int = 200_000) -> float:
    """How often a comparison has a sign or more where there is no difference, by the rule of `verdict`: pairs are drawn from a
    normal distribution."""
    pairs = np.random.default_rng(0).normal(size=(draws, len(families.TUNING) + len(families.REPORTED)))
    sides = [_sides(pairs), _sides(pairs[:, len(families.TUNING) :])]
    return float(np.mean(sides[0] + sides[1] != 0))


def _sides(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """`side` of the interval of each row."""
    n = pairs.shape[1]
    size = t.ppf(0.975, n - 1) * pairs.std(1, ddof=1) / n**0.5
    signs: NDArray[np.float64] = np.sign(pairs.mean(1)) * (np.abs(pairs.mean(1)) > size)
    return signs


def by_rate(task: str, method: str) -> dict[float, dict[int, float]]:
    """Rate -> seed -> the method minus GRPO at the same rate."""
    results = results_of(task)
    found: dict[float, dict[int, float]] = {}
    for lr in sorted({lr for name, lr in results if name == method}):
        own, base = results[method, lr], results.get((families.BASELINE, lr), {})
        if pairs := {seed: own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())}:
            found[lr] = pairs
    return found


def missing(task: str, method: str) -> str:
    """Why a method has no lead on a task."""
    return "not run to the end" if any(name == method for name, _ in results_of(task)) else "not run"


def tasks_of(leads: Mapping[tuple[str, str], Lead]) -> list[str]:
    """The tasks on which any method has a lead, in the order of `families`."""
    return [task for task in families.TASKS if any(own == task for own, _ in leads)]


def mean_over(leads: Mapping[tuple[str, str], Lead], method: str) -> float:
    return float(np.mean([one.every.mean for (_, name), one in leads.items() if name == method]))
