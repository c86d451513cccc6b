"""Scorers of token importance: ``(model, rollouts) -> importance [B S]``."""

from oar_lightning.credit.scorers.anchor_states import AnchorStates
from oar_lightning.credit.scorers.base import FunctionScorer, Scorer, as_scorer, checked_scores
from oar_lightning.credit.scorers.baselines import Entropy, Inverted, Position, Random, Shuffled, Uniform
from oar_lightning.credit.scorers.capo import Capo
from oar_lightning.credit.scorers.implicit import IStar, Prime
from oar_lightning.credit.scorers.information_gain import InformationGain
from oar_lightning.credit.scorers.monte_carlo import MonteCarlo
from oar_lightning.credit.scorers.oar_g import OarG
from oar_lightning.credit.scorers.oar_p.approximate import OarPApproximate
from oar_lightning.credit.scorers.oar_p.attribution import Attribution
from oar_lightning.credit.scorers.oar_p.coarse import Spans
from oar_lightning.credit.scorers.oar_p.exact import OarP
from oar_lightning.credit.scorers.oar_p.steps import OarPSteps
from oar_lightning.credit.scorers.oracle import Oracle
from oar_lightning.credit.scorers.probes import ProbeSchedule
from oar_lightning.credit.scorers.spae import Spae
from oar_lightning.credit.scorers.spro import Spro
from oar_lightning.credit.scorers.steps import MinForm, StepScorer
from oar_lightning.credit.scorers.total_effect import TotalEffect, TotalEffectFast
from oar_lightning.credit.scorers.turning_point import TurningPoint

__all__ = [
    "AnchorStates",
    "Attribution",
    "Capo",
    "Entropy",
    "FunctionScorer",
    "IStar",
    "InformationGain",
    "Inverted",
    "MinForm",
    "MonteCarlo",
    "OarG",
    "OarP",
    "OarPApproximate",
    "OarPSteps",
    "Oracle",
    "Position",
    "Prime",
    "ProbeSchedule",
    "Random",
    "Scorer",
    "Shuffled",
    "Spae",
    "Spans",
    "Spro",
    "StepScorer",
    "TotalEffect",
    "TotalEffectFast",
    "TurningPoint",
    "Uniform",
    "as_scorer",
    "checked_scores",
]
