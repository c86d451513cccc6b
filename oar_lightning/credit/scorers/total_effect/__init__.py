"""Total effect: the effect of a token on the answer through the later tokens that it would have changed."""

from oar_lightning.credit.scorers.total_effect.exact import TotalEffect
from oar_lightning.credit.scorers.total_effect.fast import TotalEffectFast

__all__ = ["TotalEffect", "TotalEffectFast"]
