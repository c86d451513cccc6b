"""What a lab has measured beside agreement with a truth, as tables on the console."""

from __future__ import annotations

import math

from oar_lightning.common.tables import ConsoleTable
from oar_lightning.lab.comparison import mean_over
from oar_lightning.lab.gradients.study import UNWEIGHTED
from oar_lightning.lab.table import cell, ranking
from oar_lightning.lab.types import Findings, Measure
from oar_lightning.reporting.statistics import Interval

REMOVAL = "comprehensiveness"

SHORT = {
    "stability.sensitivity": "change of scores, embeddings moved",
    "stability.rank_sensitivity": "1 - Spearman, embeddings moved",
    "stability.randomized_layers": "Spearman, all layers shuffled",
}

STATISTICS = {
    "raw": "signal share, %",
    "adam": "signal share in Adam's scale, %",
    "variance": "variance over {}",
    "same_batch": "cosine with {} in the same batch",
    "adam_cosine": "cosine of means with {}, Adam's scale",
}
"""The statistics of gradients on the console, of those with a reference the first part of the key."""


def measure_tables(findings: Findings) -> list[ConsoleTable]:
    """A table for each kind of measures that there are."""
    removal = [m for m in findings.measures if m.key.endswith(f".{REMOVAL}")]
    stability = [m for m in findings.measures if m.key in SHORT]
    tables = []
    if removal:
        title = "Fall of the outcome without the tokens that rank first (direct: nats of the own answer; total: probability)"
        tables.append(_table(findings, f"{title} [95 % interval over problems]", removal))
    if stability:
        tables.append(_table(findings, "Stability [95 % interval over problems]", stability))
    if findings.gradients:
        tables.append(gradient_table(findings))
    return tables


def _table(findings: Findings, title: str, measures: list[Measure]) -> ConsoleTable:
    problem = findings.studied.problem
    header = ["estimator", *(_name(m) for m in measures)]
    rows = [[name, *(cell(mean_over(m.values[name], problem)) for m in measures)] for name in ranking(findings)]
    return ConsoleTable(title, header, rows)


def _name(measure: Measure) -> str:
    kind, fill, *_ = measure.key.split(".")
    return SHORT.get(measure.key, f"{kind.replace('_', ' ')}, {fill}")


def gradient_table(findings: Findings) -> ConsoleTable:
    """The statistics of the policy gradients, those of the controls first."""
    controls = [name for name in findings.gradients if name not in {e.name for e in findings.estimates}]
    names = [*controls, *(name for name in ranking(findings) if name in findings.gradients)]
    keys = [key for key in findings.gradients[names[0]] if _shown(key)]
    header = ["credit", *(STATISTICS[key.partition("/")[0]].format(key.partition("/")[2]) for key in keys)]
    rows = [[name, *(_number(key, findings.gradients[name][key]) for key in keys)] for name in names]
    return ConsoleTable("Policy gradient of one problem's completions [95 % interval, jackknife]", header, rows)


def _shown(key: str) -> bool:
    kind, _, reference = key.partition("/")
    return kind in STATISTICS and (kind != "variance" or reference == UNWEIGHTED)


def _number(key: str, interval: Interval) -> str:
    if key in ("raw", "adam") and not math.isnan(interval.low):
        return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return cell(interval)
