"""All comparisons that were asked before their runs, with p values corrected for how many they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from greedy import greedy_runs
from records import Row, endpoint_runs
from rules import (
    AGAIN,
    AGAIN_SEEDS,
    AT_NO_PASS,
    BASELINE,
    BOTH_LEVELS,
    ENDPOINT,
    ENDPOINT_SEEDS,
    GREEDY_SEEDS,
    GREEDY_TASK,
    HALF_ASKED_OF,
    HALF_ASKED_ON,
    HIGHER,
    LASTING,
    OTHER_SEEDS,
    PLACES,
    PROBES,
    SHARPENED,
    TIMELY,
    Comparison,
)
from scipy.stats import ttest_1samp
from tables import changes_at_higher_rate, differences

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import holm, mean_interval

GREEDILY = "greedily"
AT_TUNED_RATES = "grpo_higher, less the lead at the tuned rates"


class Answered(NamedTuple):
    """A comparison: the differences of its pairs in points, the stage of their runs, their two-sided p, and that
    corrected by Holm's rule for all comparisons that were asked."""

    task: str
    arm: str
    other: str
    differences: tuple[float, ...]
    stage: str = "endpoint"
    p: float = math.nan
    corrected: float = math.nan

    @property
    def decoded(self) -> str:
        """`GREEDILY` where the pairs are of greedy decoding."""
        return GREEDILY if self.stage == "greedy" else ""


def answered(rows: Sequence[Row]) -> list[Answered]:
    """The smallest p first."""
    found = [one for one in questions(rows) if one.differences]
    p_values = [float(ttest_1samp(one.differences, 0).pvalue) for one in found]
    told = zip(found, p_values, holm(p_values), strict=True)
    return sorted((one._replace(p=p, corrected=after) for one, p, after in told), key=lambda one: one.p)


def questions(rows: Sequence[Row]) -> Iterator[Answered]:
    """All comparisons that were asked, without their p; no differences where a pair is missing."""
    of_oar_g = [Comparison(task, ENDPOINT[1], (BASELINE,)) for task in HALF_ASKED_ON]
    halves = [Comparison(task, arm, (BASELINE,)) for task in HALF_ASKED_ON for arm in HALF_ASKED_OF]
    asked = [(one, "endpoint", ENDPOINT_SEEDS) for one in of_oar_g]
    asked += [(one, "endpoint", OTHER_SEEDS) for one in (*halves, PROBES, *PLACES, *TIMELY, *LASTING, BOTH_LEVELS)]
    for one, stage, seeds in [*asked, *((again, "again", AGAIN_SEEDS) for again in (AGAIN, AT_NO_PASS))]:
        runs = endpoint_runs(rows, one.task, stage)
        for other in one.others:
            yield Answered(one.task, one.arm, other, all_pairs(runs, one.arm, other, seeds), stage)
    for task in HIGHER:
        pairs, changes = changes_at_higher_rate(rows, task)
        whole = changes if pairs == len(OTHER_SEEDS) else []
        yield Answered(task, "oar_g_higher", AT_TUNED_RATES, tuple(whole))
    decoded = all_pairs(greedy_runs(rows), SHARPENED, BASELINE, GREEDY_SEEDS)
    yield Answered(GREEDY_TASK, SHARPENED, BASELINE, decoded, "greedy")


def all_pairs(runs: Mapping[str, Mapping[int, Row]], arm: str, other: str, seeds: Sequence[int]) -> tuple[float, ...]:
    """Their differences in points; none where a pair is missing."""
    own, base = runs.get(arm, {}), runs.get(other, {})
    return tuple(differences(own, base, seeds)) if own.keys() & base.keys() >= set(seeds) else ()


def asked_table(rows: Sequence[Row]) -> str:
    lines = [["task", "arm", "minus", "points [95 %]", "n", "p", "p, corrected for all of these"]]
    for one in answered(rows):
        lead = mean_interval(list(one.differences), bootstrap_from=math.inf)
        other = f"{one.other}, {one.decoded}" if one.decoded else one.other
        values = [f"{lead:+.1f}", str(len(one.differences)), f"{one.p:.2g}", f"{one.corrected:.2g}"]
        lines.append([f"`{one.task}`", one.arm, other, *values])
    return markdown(lines) if len(lines) > 1 else "No comparison has all its pairs yet."
