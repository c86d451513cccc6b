"""The series of figures over steps: runs that are drawn together, and their colours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from oar_lightning.common.overrides import short
from oar_lightning.reporting.bands import Band, band, smoothed
from oar_lightning.reporting.method_style import GREY, colors_of
from oar_lightning.reporting.runs import Curve
from oar_lightning.reporting.study import TAU, Arm, Study

PALE = "#b4bfca"
MOST = 10
"""The most series that a reader can distinguish: a colour each, and grey for the baseline."""

RATE, METHOD = "optimizer.lr", ("experiment", "scorer")


@dataclass(frozen=True)
class Series:
    """An arm's runs, which are drawn as one line with a band. `base`: the baseline, or its method at another rate."""

    label: str
    color: str
    run_ids: tuple[str, ...]
    base: bool = False


def arm_colors(study: Study) -> dict[str, str]:
    """A colour for each arm's label, the same in all figures of a study: grey for the baseline, pale for arms that are no
    series of their own."""
    colors = {arm.label: PALE for arm in study.arms}
    return colors | {one.label: one.color for one in study_series(study)[0]}


def study_series(study: Study) -> tuple[list[Series], str]:
    """The series of a study, each an arm, and a sentence that says which arms they are where they are not all.

    A method that has several learning rates is drawn at the best of those with the most runs. Of many arms each level of one
    number (tau before others) is drawn with the best of the others; of many levels, and of many named arms, those with the
    highest means.
    """
    arms, notes = [*study.arms], []
    among = ", of those with the most runs" if len({len(arm.runs) for arm in arms}) > 1 else ""
    rate = study.place(RATE)
    if rate is not None:
        arms = _best(study, arms, lambda arm: (*arm.levels[:rate], *arm.levels[rate + 1 :]))
        notes += [f"Each method at the rate with its highest mean{among}."] if len(arms) < len(study.arms) else []
    place = leading_factor(study)
    if len(arms) > MOST and place is not None:
        arms = _best(study, arms, lambda arm: arm.levels[place])
        notes.append(f"Of each {short(study.factors[place])} the arm with the highest mean{among}.")
    kept = _base(study, arms)
    if len(arms) > MOST:
        best = sorted(arms, key=lambda arm: -_mean(study, arm))
        count = len(arms)
        arms = [arm for arm in arms if arm is kept or arm in best[: MOST - 1]]
        which = f"the baseline and the {len(arms) - 1} others" if kept else f"the {len(arms)}"
        notes.append(f"Of {count} arms {which} with the highest means are drawn.")
    others = [arm for arm in arms if arm is not kept]
    colors = colors_of([_method(study, arm) for arm in others], [GREY] if kept else [])
    color = {arm.label: color for arm, color in zip(others, colors, strict=True)}
    return [
        Series(arm.label, color.get(arm.label, GREY), tuple(run.run_id for run in arm.runs), arm is kept) for arm in arms
    ], " ".join(notes)


def _method(study: Study, arm: Arm) -> str | None:
    """The name of an arm's method, where the study varies it."""
    places = [place for place in map(study.place, METHOD) if place is not None]
    return str(arm.levels[places[0]]) if places else None


def leading_factor(study: Study) -> int | None:
    """The index of the numeric factor by which many arms are grouped: tau, else the first that is no learning rate. None where
    arms have names."""
    if not all(study.is_numeric(place) for place in range(len(study.factors))):
        return None
    numeric = [place for place in range(len(study.factors)) if place != study.place(RATE)]
    tau = study.place(TAU)
    return tau if tau in numeric else next(iter(numeric), None)


def _best(study: Study, arms: Sequence[Arm], group: Callable[[Arm], Hashable]) -> list[Arm]:
    """Of each group of arms the one with the highest mean of those with the most runs, in the order of the groups. Fewer runs
    reach a high mean more easily."""
    groups: dict[Hashable, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(group(arm), []).append(arm)
    return [max(found, key=lambda arm: (len(arm.runs), _mean(study, arm))) for found in groups.values()]


def _base(study: Study, arms: Sequence[Arm]) -> Arm | None:
    """The baseline among the arms, or the arm that differs from it in its learning rate alone."""
    if study.baseline is None:
        return None
    rate = study.place(RATE)
    wanted = [level for place, level in enumerate(study.baseline.levels) if place != rate]
    same = [arm for arm in arms if [level for place, level in enumerate(arm.levels) if place != rate] == wanted]
    return study.baseline if study.baseline in same else next(iter(same), None)


def _mean(study: Study, arm: Arm) -> float:
    return float(np.mean(study.values(arm)))


def sequence_colors(count: int) -> list[str]:
    """Colours from dark to light in the order of levels, without the palest ones."""
    return [to_hex(mpl.colormaps["viridis"](place)) for place in np.linspace(0.0, 0.88, count)]


def series_band(series: Series, curves: Mapping[str, Curve], smooth: bool = True) -> Band | None:
    """The series' band; with `smooth` each run's curve is a running mean over a twentieth of its points."""
    own = [curves[run_id] for run_id in series.run_ids if run_id in curves]
    return band([smoothed(curve) for curve in own] if smooth else own)
