"""Signal, bias and variance of the policy gradient under different credit, on the same completions."""

from oar_lightning.lab.gradients.batch import Coordinates, Weighted, policy_gradients
from oar_lightning.lab.gradients.blocks import Arm, Block, blocks_of, sample_block
from oar_lightning.lab.gradients.quality import Quality, gradient_quality
from oar_lightning.lab.gradients.sums import GradientSums

__all__ = [
    "Arm",
    "Block",
    "Coordinates",
    "GradientSums",
    "Quality",
    "Weighted",
    "blocks_of",
    "gradient_quality",
    "policy_gradients",
    "sample_block",
]
