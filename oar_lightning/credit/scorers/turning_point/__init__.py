"""Where a completion turned from what greedy decoding comes to."""

from oar_lightning.credit.scorers.turning_point.scorer import TurningPoint

__all__ = ["TurningPoint"]
