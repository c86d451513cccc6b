"""Scorers that need no pass of their own: they read the states that sampling has left, or count tokens."""

from oar_lightning.credit.scorers.forward_free.baseline import Otb
from oar_lightning.credit.scorers.forward_free.confidence import Probability, Steer, Ucas
from oar_lightning.credit.scorers.forward_free.counting import Ktae
from oar_lightning.credit.scorers.forward_free.entropies import EntropyAdvantage, Gtpo
from oar_lightning.credit.scorers.forward_free.phrases import Hicra
from oar_lightning.credit.scorers.forward_free.shear import Shear

__all__ = ["EntropyAdvantage", "Gtpo", "Hicra", "Ktae", "Otb", "Probability", "Shear", "Steer", "Ucas"]
