"""Engines that sample completions, and the step from sampled ids to `Rollouts`."""

from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.hf import Generation, HFEngine, SamplingConfig

__all__ = ["Generation", "HFEngine", "RolloutStage", "SamplingConfig"]
