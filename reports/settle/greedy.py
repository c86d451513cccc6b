"""The table of policies that decode greedily, too: are they better, or only surer of themselves?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from records import Row, endpoint_runs
from rules import BASELINE, GREEDY_ARMS, GREEDY_SEEDS, GREEDY_TASK, SHARPENED, verdict
from tables import lead, mean, paired, shown

from oar_lightning.common.markdown import markdown
from oar_lightning.reporting.statistics import Interval


def greedy_lead(rows: Sequence[Row]) -> tuple[int, Interval | None]:
    """Of the policies that `SHARPENED` trains over GRPO's, in points of accuracy with greedy decoding."""
    runs = greedy_runs(rows)
    return lead(runs.get(SHARPENED, {}), runs.get(BASELINE, {}))


def greedy_runs(rows: Sequence[Row]) -> dict[str, dict[int, Row]]:
    """Runs that were evaluated with greedy decoding, which is the accuracy of these."""
    runs = endpoint_runs(rows, GREEDY_TASK, "greedy")
    return {arm: {seed: row._replace(accuracy=row.greedy) for seed, row in found.items()} for arm, found in runs.items()}


def greedy_table(rows: Sequence[Row]) -> str:
    sampled, greedy = endpoint_runs(rows, GREEDY_TASK, "greedy"), greedy_runs(rows)
    lines = [
        [
            *("arm", "rate", "coefficient or beta", "n", "entropy, nats", "at temperature 1, %", "minus GRPO, points [95 %]"),
            *("greedily, %", "minus GRPO greedily", f"{SHARPENED} minus it", "greedily", "given up", "CPU s a run", "verdict"),
        ]
    ]
    pairs, interval = greedy_lead(rows)
    for arm, name, found in _with_and_without_given_up(sampled):
        own, decoded = list(found.values()), {seed: greedy[arm][seed] for seed in found}
        settled = arm == SHARPENED and interval is not None and pairs == len(GREEDY_SEEDS)
        above = [
            lead(runs.get(SHARPENED, {}), its)[1] if arm not in (SHARPENED, BASELINE) else None
            for runs, its in ((sampled, found), (greedy, decoded))
        ]
        lines.append(
            [
                *(name, own[0].lr, own[0].beta or "-", str(len(own)), shown(mean(row.entropy for row in own), ".2f")),
                *(f"{100 * mean(row.accuracy for row in own):.1f}", paired(arm, found, sampled.get(BASELINE, {}))[0]),
                *(f"{100 * mean(row.greedy for row in own):.1f}", paired(arm, decoded, greedy.get(BASELINE, {}))[0]),
                *("-" if between is None else f"{between:+.1f}" for between in above),
                *(str(sum(row.state != "complete" for row in own)), f"{mean(row.cpu_s for row in own):.0f}"),
                verdict(interval.low, interval.high) if settled and interval else "-",
            ]
        )
    return markdown(lines) if len(lines) > 1 else "No runs yet."


def _with_and_without_given_up(runs: Mapping[str, Mapping[int, Row]]) -> Iterator[tuple[str, str, Mapping[int, Row]]]:
    """Arm, what its row is called, and runs: all, and below them those that were not given up where some were."""
    for arm in (arm for arm in GREEDY_ARMS if runs.get(arm)):
        yield arm, arm, runs[arm]
        ended = {seed: row for seed, row in runs[arm].items() if row.state == "complete"}
        if 0 < len(ended) < len(runs[arm]):
            yield arm, f"{arm}, those not given up", ended
