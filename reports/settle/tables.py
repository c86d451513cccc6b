"""What the runs say: tables of README.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

from records import Row, best, endpoint_runs
from rules import (
    ARMS,
    BASELINE,
    ENDPOINT,
    ENDPOINT_SEEDS,
    HALF_ASKED_OF,
    HALF_ASKED_ON,
    HIGHER,
    LASTING,
    MARGIN,
    MOST_TIME,
    OTHER_SEEDS,
    PERFECT,
    RATES,
    TIMED_SEEDS,
    TIMELY,
    Comparison,
    Setting,
    falls_verdict,
    same_verdict,
    seeds_of,
    settings_of,
    tuning_seeds,
    updates,
    verdict,
)
from scipy.stats import ttest_1samp

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import Interval, mean_interval, ratio_interval

NOT_YET = "not settled yet"


def tuning_table(rows: Sequence[Row], task: str) -> str:
    lines = [["arm", "gate's beta, or the entropy's coefficient", *RATES[task]]]
    for arm in ARMS:
        chosen = best(rows, task, arm)
        for beta in dict.fromkeys(setting.beta for setting in settings_of(task, arm)):
            cells = []
            for lr in RATES[task]:
                values = {r.seed: r.accuracy for r in rows if r[:5] == (task, "tune", arm, lr, beta)}
                text = f"{100 * mean(values.values()):.1f}" if values else "-"
                if 0 < len(values) < len(tuning_seeds(arm)):
                    text += f" (n = {len(values)})"
                cells.append(f"**{text}**" if chosen == Setting(lr, beta) else text)
            if any(cell != "-" for cell in cells):
                lines.append([arm, beta or "-", *cells])
    return markdown(lines) if len(lines) > 1 else "No runs yet."


EQUAL_TIME = "grpo_more"
ENDS_SHOWN = {
    "gradient's norm": ("grad_norm", ".2f"),
    "entropy, nats": ("entropy", ".2f"),
    "ESS-ratio": ("ess_ratio", ".2f"),
    "tokens a completion": ("mean_length", ".0f"),
    "passes of scoring": ("forward_equivalents", ".2f"),
}
"""Heading -> column and digits, of what a run was at its end."""
HEADER = [
    *("arm", "updates", "rate", "beta or coefficient", "n", "accuracy %", "minus GRPO, points [95 %]"),
    *("minus GRPO with more completions", "given up", "CPU s a run", *ENDS_SHOWN, "verdict"),
]


def endpoint_table(rows: Sequence[Row], task: str) -> str:
    results = endpoint_runs(rows, task)
    base, more = results.get(BASELINE, {}), results.get(EQUAL_TIME, {})
    lines = [HEADER]
    for arm in ARMS:
        found = results.get(arm, {})
        if not found:
            continue
        own = list(found.values())
        accuracy = 100 * mean(row.accuracy for row in own)
        difference, word = paired(arm, found, base)
        against_more = "-" if arm == EQUAL_TIME else paired(arm, found, more)[0]
        given_up = sum(row.state != "complete" for row in own)
        ends = [shown(mean(getattr(row, column) for row in own), digits) for column, digits in ENDS_SHOWN.values()]
        setting = [str(updates(task, arm)), own[0].lr, own[0].beta or "-"]
        found_of = [str(len(own)), f"{accuracy:.1f}", difference, against_more]
        spent = [str(given_up), f"{mean(row.cpu_s for row in own):.0f}"]
        lines.append([arm, *setting, *found_of, *spent, *ends, word])
    return markdown(lines) if len(lines) > 1 else "No runs yet."


def mean(values: Iterable[float]) -> float:
    """Of those that were recorded; NaN where none was."""
    recorded = [value for value in values if not math.isnan(value)]
    return sum(recorded) / len(recorded) if recorded else math.nan


def shown(value: float, digits: str) -> str:
    return "-" if math.isnan(value) else f"{value:{digits}}"


def paired(arm: str, found: Mapping[int, Row], base: Mapping[int, Row]) -> tuple[str, str]:
    """The difference from `base`, of GRPO, over pairs with the same seed, and the verdict once all pairs of the endpoint are
    there."""
    pairs, interval = lead(found, base)
    if arm == BASELINE or interval is None:
        return "-", "-"
    whole = arm in ENDPOINT and pairs == len(ENDPOINT_SEEDS)
    return f"{interval:+.1f}", verdict(interval.low, interval.high) if whole else "-"


def differences(found: Mapping[int, Row], base: Mapping[int, Row], seeds: Iterable[int]) -> list[float]:
    """In points, of the pairs with these seeds."""
    return [100 * (found[seed].accuracy - base[seed].accuracy) for seed in seeds]


def lead(found: Mapping[int, Row], base: Mapping[int, Row]) -> tuple[int, Interval | None]:
    """How many pairs with the same seed there are, and by how many points they differ; None of fewer than two."""
    pairs = differences(found, base, sorted(found.keys() & base.keys()))
    return len(pairs), mean_interval(pairs, bootstrap_from=math.inf) if len(pairs) > 1 else None


class Half(NamedTuple):
    """An estimate's mean lead over GRPO and perfect credit's, in points, over the same seeds; the share of the second that the
    first is; the two-sided p of its own, by the t test of its pairs; the time of its runs, of the same without scoring, that
    of their steps alone, and that of the steps since continuations copy (NaN where it was not recorded); and whether that
    answers the question with yes."""

    lead: float
    perfect: float
    share: Interval
    p: float
    time: float
    step_time: float
    copying_time: float
    reached: bool


def half(rows: Sequence[Row], task: str, arm: str) -> Half | None:
    """None as long as a pair is missing, or the time of enough runs."""
    runs, times = endpoint_runs(rows, task), times_of(rows, task, arm)
    three = [runs.get(name, {}) for name in (arm, PERFECT, BASELINE)]
    if any(seed not in found for found in three for seed in OTHER_SEEDS) or len(times) < len(TIMED_SEEDS):
        return None
    own, perfect, base = three
    leads, wholes = (differences(found, base, OTHER_SEEDS) for found in (own, perfect))
    lead, whole = mean(leads), mean(wholes)
    p = float(ttest_1samp(leads, 0).pvalue)
    time = mean(times)
    reached = 0 < whole / 2 <= lead and p < HALF_ASKED_OF[arm] and time <= MOST_TIME
    steps, copying = mean(times_of(rows, task, arm, "step_s")), mean(times_of(rows, task, arm, "step_s", ("copying",)))
    return Half(lead, whole, ratio_interval(leads, wholes), p, time, steps, copying, reached)


def times_of(
    rows: Iterable[Row],
    task: str,
    arm: str,
    part: Literal["total_s", "step_s"] = "total_s",
    stages: Collection[str] = ("endpoint", "time"),
) -> list[float]:
    """The time of each run whose scoring was timed, in multiples of the run without it: what GRPO does, on the same machine at
    the same time. On another day the same work took up to 2.6 times as long. `step_s`: of the steps alone, without evaluations
    and what else a run does before and after them."""
    timed = [row for row in rows if (row.task, row.arm) == (task, arm) and row.stage in stages]
    seconds = [(getattr(row, part), row.score_s) for row in timed]
    return [whole / (whole - scoring) for whole, scoring in seconds if not math.isnan(whole - scoring)]


def step_price(rows: Iterable[Row], task: str, arm: str, stages: Collection[str] = ("endpoint", "copying")) -> float:
    """The time of an arm's steps, of the same without their scoring; NaN where it was not recorded."""
    prices = times_of(rows, task, arm, "step_s", stages)
    return median(prices) if prices else math.nan  # a run that something else held up has a price of its own


def half_table(rows: Sequence[Row]) -> str:
    lines = [
        [
            "task",
            "estimate",
            "its lead",
            "p",
            "asked",
            "perfect credit's",
            "% [95 %]",
            "time of a run, of itself without scoring",
            "of its steps alone",
            "of these, copying",
            "verdict",
        ]
    ]
    for task in HALF_ASKED_ON:
        for arm, asked in HALF_ASKED_OF.items():
            found = half(rows, task, arm)
            if found is None:
                run = arm in endpoint_runs(rows, task)
                lines.append([f"`{task}`", arm, *["-"] * 8, NOT_YET if run else "not run"])
                continue
            share = found.share
            percent = dataclasses.replace(share, mean=100 * share.mean, low=100 * share.low, high=100 * share.high)
            figures = [
                f"{found.lead:+.1f}",
                f"{found.p:.3g}",
                f"< {asked}",
                f"{found.perfect:+.1f}",
                f"{percent:.0f}" if found.perfect > 0 else "-",
                f"{found.time:.2f}",
                shown(found.step_time, ".2f"),
                shown(found.copying_time, ".2f"),
            ]
            lines.append([f"`{task}`", arm, *figures, "yes" if found.reached else "no"])
    return markdown(lines)


class AskedLead(NamedTuple):
    """By how many points an arm leads another; over how many pairs; the verdict once all are there."""

    lead: str
    pairs: int
    verdict: str


def asked_leads(
    rows: Sequence[Row], asked: Comparison, stage: str = "endpoint", says: Callable[[float, float], str] = verdict
) -> dict[str, AskedLead]:
    """Of each of the others. `says`: the verdict of an interval's ends."""
    runs = endpoint_runs(rows, asked.task, stage)
    seeds = OTHER_SEEDS if stage == "endpoint" else seeds_of(stage, (asked.arm, *asked.others))
    own = {seed: row for seed, row in runs.get(asked.arm, {}).items() if seed in seeds}
    return {other: _asked_lead(own, runs.get(other, {}), len(seeds), says) for other in asked.others}


def _asked_lead(own: Mapping[int, Row], other: Mapping[int, Row], asked: int, says: Callable[[float, float], str]) -> AskedLead:
    """`asked`: how many pairs the verdict is of."""
    pairs, interval = lead(own, other)
    if interval is None:
        return AskedLead("-", pairs, NOT_YET)
    word = says(interval.low, interval.high) if pairs == asked else NOT_YET
    return AskedLead(f"{interval:+.1f}", pairs, word)


def comparison_table(rows: Sequence[Row], asked: Comparison, name: str, stage: str = "endpoint") -> str:
    """`name`: of the arm, in words."""
    lines = [[f"{name}, minus", "points [95 %]", "n", "verdict"]]
    lines += [[arm, *map(str, found)] for arm, found in asked_leads(rows, asked, stage).items()]
    return markdown(lines)


def leads_asked(rows: Sequence[Row], questions: Iterable[Comparison]) -> dict[tuple[str, str, str], AskedLead]:
    """(Task, arm, other) -> the arm's lead over the other."""
    return {(asked.task, asked.arm, other): lead for asked in questions for other, lead in asked_leads(rows, asked).items()}


def same_table(rows: Sequence[Row], asked: Comparison) -> str:
    """Of arms that are asked to end within `MARGIN` of each other."""
    lines = [[f"`{asked.arm}`, minus", "points [95 %]", "n", f"within {MARGIN:g} points"]]
    lines += [[other, *map(str, found)] for other, found in asked_leads(rows, asked, says=same_verdict).items()]
    return markdown(lines)


def changes_at_higher_rate(rows: Sequence[Row], task: str) -> tuple[int, list[float]]:
    """How many seeds have all four runs, and how OAR-G's lead over GRPO changes from the tuned rates to the higher one: seed by
    seed, in points."""
    runs = endpoint_runs(rows, task)
    own, base, own_higher, base_higher = (runs.get(arm, {}) for arm in ("oar_g", BASELINE, "oar_g_higher", "grpo_higher"))
    seeds = sorted(set(OTHER_SEEDS).intersection(own, base, own_higher, base_higher))
    leads = differences(own, base, seeds), differences(own_higher, base_higher, seeds)
    change = [after - before for before, after in zip(*leads, strict=True)]
    return len(seeds), change


def lead_at_higher_rate(rows: Sequence[Row], task: str) -> AskedLead:
    """How OAR-G's lead over GRPO changes there, and whether it is smaller."""
    pairs, changes = changes_at_higher_rate(rows, task)
    if pairs < 2:
        return AskedLead("-", pairs, NOT_YET)
    change = mean_interval(changes, bootstrap_from=math.inf)
    return AskedLead(f"{change:+.1f}", pairs, falls_verdict(change.low, change.high) if pairs == len(OTHER_SEEDS) else NOT_YET)


def higher_rate_table(rows: Sequence[Row]) -> str:
    lines = [["task", "higher rate", "change of OAR-G's lead over GRPO, points [95 %]", "n", "smaller at the higher rate"]]
    lines += [[f"`{task}`", rate, *map(str, lead_at_higher_rate(rows, task))] for task, rate in HIGHER.items()]
    return markdown(lines)


def lasting_table(rows: Sequence[Row]) -> str:
    """Of arms that train on as long as the other one."""
    lines = [["task", "arm", "minus", "updates of both", "points [95 %]", "n", "verdict"]]
    for (task, arm, other), found in leads_asked(rows, LASTING).items():
        lines.append([f"`{task}`", arm, other, str(updates(task, arm)), *map(str, found)])
    return markdown(lines)


def equal_time_table(rows: Sequence[Row]) -> str:
    """Of arms that are compared in equal time: the lead, and the time of the arm's steps in that of the other's, as they were
    made and, where that was measured, since greedy continuations copy from each other."""
    lines = [["task", "arm", "updates", "minus", "its updates", "points [95 %]", "n", "verdict", "time, in the other's"]]
    for (task, arm, other), found in leads_asked(rows, TIMELY).items():
        own, its = updates(task, arm), updates(task, other)
        counts = [arm, str(own), other, str(its)]
        made, copying = (step_price(rows, task, arm, of) * own / its for of in (("endpoint", "time"), ("copying",)))
        now = "" if math.isnan(copying) else f"; copying {copying:.2f}"
        lines.append([f"`{task}`", *counts, *map(str, found), shown(made, ".2f") + now])
    return markdown(lines)
