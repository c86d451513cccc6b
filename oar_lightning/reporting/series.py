"""The series of figures over steps: runs that are drawn together, and their colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from oar_lightning.common.overrides import short
from oar_lightning.reporting.bands import Band, band, smoothed
from oar_lightning.reporting.factors import Level, show
from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.study import Arm, Study

GREY = "#5b6570"
PALETTE = ("#d9822b", "#4a67c8", "#2a9d6f", "#b5449a", "#8c6d31", "#c0392b", "#17a2b8", "#7d5fff", "#6b8e23", "#444444")
MOST = 10
"""The most series that a reader can distinguish."""

BINS = 5


@dataclass(frozen=True)
class Series:
    """Runs that are drawn as one line with a band."""

    label: str
    color: str
    run_ids: tuple[str, ...]


def arm_colors(study: Study) -> dict[str, str]:
    """A colour for each arm's label, the same in all figures of a study; the baseline is grey."""
    others = [arm.label for arm in study.arms if arm is not study.baseline]
    colors = {name: PALETTE[place % len(PALETTE)] for place, name in enumerate(others)}
    return colors | ({study.baseline.label: GREY} if study.baseline else {})


def study_series(study: Study) -> tuple[list[Series], str]:
    """The series of a study, and a sentence that describes them where they are not its arms.

    Many arms are grouped by the levels of one numeric factor (tau before others), and many levels by bins of about equal size.
    Of many arms without a numeric factor the best are drawn.
    """
    if len(study.arms) <= MOST:
        return [_arm_series(study, arm) for arm in study.arms], ""
    place = leading_factor(study)
    if place is None:
        best = sorted(study.arms, key=lambda arm: -float(np.mean(study.values(arm))))
        chosen = [arm for arm in study.arms if arm is study.baseline or arm in best[: MOST - 1]]
        return [_arm_series(study, arm) for arm in chosen], f"Of {len(study.arms)} arms the best {len(chosen)} are drawn."
    name = short(study.factors[place])
    bins = level_bins([float(level) for level in study.levels(place)])
    colors = sequence_colors(len(bins))
    series = []
    for color, levels in zip(colors, bins, strict=True):
        runs = [run.run_id for arm in study.arms if arm.levels[place] in levels for run in arm.runs]
        shown = show(levels[0]) if len(levels) == 1 else f"{levels[0]:.2g} to {levels[-1]:.2g}"
        series.append(Series(f"{name}={shown}", color, tuple(runs)))
    others = [short(key) for key in study.factors if key != study.factors[place]]
    return series, f"By {name}" + (f", over all {' and '.join(others)}." if others else ".")


def leading_factor(study: Study) -> int | None:
    """The index of the numeric factor by which arms are grouped: tau, else the first."""
    numeric = [place for place in range(len(study.factors)) if study.is_numeric(place)]
    tau = study.place("tau")
    return tau if tau in numeric else next(iter(numeric), None)


def level_bins(levels: Sequence[float]) -> list[list[Level]]:
    """The sorted levels, each in a bin of its own, or in BINS bins of about equal size where there are more than MOST."""
    bins = np.array_split(np.sort(levels), len(levels) if len(levels) <= MOST else BINS)
    return [[float(value) for value in one] for one in bins]


def sequence_colors(count: int) -> list[str]:
    """Colours from dark to light in the order of levels, without the palest ones."""
    return [to_hex(mpl.colormaps["viridis"](place)) for place in np.linspace(0.0, 0.88, count)]


def series_band(series: Series, curves: Mapping[str, Curve]) -> Band | None:
    """The series' band; each run's curve is smoothed over a twentieth of its points."""
    return band([smoothed(curves[run_id]) for run_id in series.run_ids if run_id in curves])


def _arm_series(study: Study, arm: Arm) -> Series:
    return Series(arm.label, arm_colors(study)[arm.label], tuple(run.run_id for run in arm.runs))
