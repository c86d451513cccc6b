"""The settings by which one algorithm differs from another."""

from __future__ import annotations

from dataclasses import dataclass

from oar_lightning.credit.gate import GateConfig
from oar_lightning.credit.scorers import Scorer
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.slots import UpdatePlan


@dataclass(frozen=True)
class Method:
    """An algorithm: who gets the advantage, its loss, and how a batch of rollouts is sampled and used."""

    scorer: Scorer
    gate: GateConfig
    advantage: AdvantageConfig
    loss: LossConfig
    update: UpdatePlan
    sampling: SamplingConfig
