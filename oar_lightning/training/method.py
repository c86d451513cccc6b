"""The settings by which one algorithm differs from another."""

from __future__ import annotations

from dataclasses import dataclass, field

from oar_lightning.credit.gate import GateConfig
from oar_lightning.credit.scorers import Scorer, Uniform, as_scorer
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.rollout import SamplingConfig
from oar_lightning.training.slots import UpdatePlan


@dataclass(frozen=True)
class Method:
    """An algorithm: who gets the advantage, its loss, and how a batch of rollouts is sampled and used."""

    scorer: Scorer = field(default_factory=Uniform)
    gate: GateConfig = GateConfig()
    advantage: AdvantageConfig = AdvantageConfig()
    loss: LossConfig = LossConfig()
    update: UpdatePlan = field(default_factory=lambda: UpdatePlan(microbatches=4))
    sampling: SamplingConfig = field(default_factory=SamplingConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scorer", as_scorer(self.scorer))  # a plain function is one too
