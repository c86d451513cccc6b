"""Total effect: the effect of a token on the answer through the later tokens that it would have changed."""

from oar_lightning.credit.scorers.total_effect.exact import TotalEffect

__all__ = ["TotalEffect"]
