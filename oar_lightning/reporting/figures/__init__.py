"""The figures of a report: functions (study, curves) -> `Drawing`, or `LeftOut` with the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable

from oar_lightning.reporting.figures.comparison import arm_bars, pareto
from oar_lightning.reporting.figures.drawing import Drawing, LeftOut, save
from oar_lightning.reporting.figures.over_steps import credit_shape, entropy, learning_curves
from oar_lightning.reporting.figures.settings import responses, tau_beta
from oar_lightning.reporting.runs import Curves
from oar_lightning.reporting.study import Study

FIGURES: dict[str, Callable[[Study, Curves], Drawing | LeftOut]] = {
    "learning_curves": learning_curves,
    "arms": arm_bars,
    "tau_beta": tau_beta,
    "responses": responses,
    "pareto": pareto,
    "credit_shape": credit_shape,
    "entropy": entropy,
}
"""File name -> figure, in the page's order."""

__all__ = ["FIGURES", "Curves", "Drawing", "LeftOut", "save"]
