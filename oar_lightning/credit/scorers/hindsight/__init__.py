"""Scorers by hindsight: how a prompt that tells more changes the probability of tokens that are there already."""

from oar_lightning.credit.scorers.hindsight.actions import ActionMask
from oar_lightning.credit.scorers.hindsight.contrast import Contrast
from oar_lightning.credit.scorers.hindsight.rlsd import Rlsd, Serl

__all__ = ["ActionMask", "Contrast", "Rlsd", "Serl"]
