"""Importance strategies: ``(model, rollouts) -> importance [B S]``."""

from oar_lightning.scoring.attribution import Attribution
from oar_lightning.scoring.base import FunctionScorer, Scorer, as_scorer, checked_importance
from oar_lightning.scoring.baselines import Entropy, Inverted, Position, Random, Shuffled, Uniform
from oar_lightning.scoring.coarse import Spans
from oar_lightning.scoring.oar_g import OarG
from oar_lightning.scoring.oar_p import OarP
from oar_lightning.scoring.oar_p_approximate import OarPApproximate
from oar_lightning.scoring.oracle import Oracle
from oar_lightning.scoring.probes import ProbeSchedule

__all__ = [
    "Attribution",
    "Entropy",
    "FunctionScorer",
    "Inverted",
    "OarG",
    "OarP",
    "OarPApproximate",
    "Oracle",
    "Position",
    "ProbeSchedule",
    "Random",
    "Scorer",
    "Shuffled",
    "Spans",
    "Uniform",
    "as_scorer",
    "checked_importance",
]
