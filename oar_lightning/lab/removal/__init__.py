"""Whether the tokens that an estimator ranks first are those that the outcome depends on: they are removed."""

from oar_lightning.lab.removal.curves import RemovalConfig, Removals, direct_removal, normalized, total_removal
from oar_lightning.lab.removal.infidelity import infidelity
from oar_lightning.lab.removal.kept_reward import KeptReward
from oar_lightning.lab.removal.orders import toward_outcome
from oar_lightning.lab.removal.own_answer import OwnAnswer

__all__ = [
    "KeptReward",
    "OwnAnswer",
    "RemovalConfig",
    "Removals",
    "direct_removal",
    "infidelity",
    "normalized",
    "total_removal",
    "toward_outcome",
]
