"""What a lab has found, as tables on the console."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from oar_lightning.common.tables import ConsoleTable
from oar_lightning.lab.comparison import Difference, differences, mean_over
from oar_lightning.lab.reliability import Reliability
from oar_lightning.lab.types import Findings, Measure
from oar_lightning.reporting.statistics import Interval

HEADLINES = ("auroc", "auroc_free", "spearman_free", "direction_free", "hit_1", "right_step")
"""The last parts of the keys of measures that the console shows, of each truth those that it has; of the last two one."""

OF_LABELS = ("auroc", "hit_1", "right_step")
"""Those of truths without values."""


def headlines(findings: Findings) -> list[Measure]:
    """The measures on the console, those of values first."""
    order = sorted(findings.truths, key=lambda truth: truth.values is None)
    known = {m.key: m for m in findings.measures}
    wanted = [
        f"{t.name}.{part}"
        for t in order
        for part in (HEADLINES if t.values is not None else OF_LABELS)
        if part != "right_step" or t.whole_steps
    ]
    return [known[key] for key in wanted if key in known and _is_defined(known[key])]


def _is_defined(measure: Measure) -> bool:
    return any(not math.isnan(v) for values in measure.values.values() for v in values)


def ranking(findings: Findings) -> list[str]:
    """The estimators, the best in the first headline first."""
    shown = headlines(findings)
    names = [e.name for e in findings.estimates]
    if not shown:
        return names
    means = {name: mean_over(shown[0].values[name], findings.studied.problem).mean for name in names}
    return sorted(names, key=lambda name: -means[name] if not math.isnan(means[name]) else math.inf)


def table(findings: Findings) -> ConsoleTable:
    """Means over completions with intervals; correlations with what can be attained behind a slash."""
    shown, problem = headlines(findings), findings.studied.problem
    header = ["estimator", *(f"{m.key.partition('.')[0]}: {m.title}" for m in shown), "seconds", "forward- equivalents"]
    costs = {e.name: [f"{e.seconds:.2f}", number(e.forward_equivalents, 1)] for e in findings.estimates}
    rows = []
    for name in ranking(findings):
        cells = [cell(mean_over(m.values[name], problem)) + _ceiling(m, name) + fewer(m, name) for m in shown]
        rows.append([name, *cells, *costs[name]])
    rows.append(["(chance)", *(number(m.chance) for m in shown), "", ""])
    return ConsoleTable("Agreement with the truth [95 % interval over problems]", header, rows, sections=[len(rows) - 1])


def fewer(measure: Measure, name: str) -> str:
    """The number of completions of an estimator's mean, where others have more: those left out may be the hard ones."""
    counts = {other: int(np.isfinite(values).sum()) for other, values in measure.values.items()}
    return f" (n = {counts[name]})" if 0 < counts[name] < max(counts.values()) else ""


def compared(findings: Findings, baseline: str) -> list[Difference]:
    """The differences to the baseline in all headlines, adjusted for one another."""
    return differences(headlines(findings), baseline, findings.studied.problem)


def difference_table(findings: Findings, found: Sequence[Difference], baseline: str) -> ConsoleTable:
    """The differences with their intervals, marked where they are larger than chance explains."""
    shown = headlines(findings)
    cells = {(d.measure, d.estimator): cell(d.interval, sign=True) + (" *" if d.p_holm < 0.05 else "") for d in found}
    names = [name for name in ranking(findings) if name != baseline]
    header = ["estimator", *(f"{m.key.partition('.')[0]}: {m.title}" for m in shown)]
    rows = [[name, *(cells[m.key, name] for m in shown)] for name in names]
    return ConsoleTable(f"Difference to {baseline} (* p < 0.05 by sign flips, Holm over the table)", header, rows)


def truth_table(findings: Findings, found: Mapping[str, Reliability | None]) -> ConsoleTable:
    """What each truth knows, and how reliable it is."""
    rows = []
    for truth in findings.truths:
        known, own = truth.known, found[truth.name]
        among = findings.studied.free & known
        share = float((truth.decisive & known).sum()) / max(1, int(known.sum()))
        of_free = float((truth.decisive & among).sum()) / max(1, int(among.sum()))
        cells = ["exact", "", ""] if own is None else [number(own.size), number(own.direction), number(own.half_auroc)]
        rows.append([truth.name, str(int(known.any(1).sum())), f"{100 * share:.1f} %", f"{100 * of_free:.1f} %", *cells])
    header = (
        "truth",
        "completions",
        "decisive tokens",
        "of free ones",
        "reliability of sizes",
        "reliability of directions",
        "AUROC of one half against the other",
    )
    return ConsoleTable("Truth", header, rows)


def cell(interval: Interval, sign: bool = False) -> str:
    if math.isnan(interval.mean):
        return "-"
    return f"{interval:+.2f}" if sign else f"{interval:.2f}"


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _ceiling(measure: Measure, name: str) -> str:
    return f" /{number(measure.ceiling[name])}" if name in measure.ceiling else ""
