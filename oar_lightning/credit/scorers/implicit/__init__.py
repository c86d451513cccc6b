"""Scorers that train a model of their own, by outcomes, whose log-ratios are process rewards."""

from oar_lightning.credit.scorers.implicit.base import ImplicitRewards
from oar_lightning.credit.scorers.implicit.istar import IStar
from oar_lightning.credit.scorers.implicit.prime import Prime

__all__ = ["IStar", "ImplicitRewards", "Prime"]
