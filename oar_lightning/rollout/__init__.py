"""Engines that sample completions, and the step from sampled ids to `Rollouts`."""

from typing import Any

from oar_lightning.language_model import can_share_prefixes
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.cached import CachedEngine
from oar_lightning.rollout.hf import HFEngine
from oar_lightning.rollout.sampling import Engine, Generation, SamplingConfig

__all__ = ["CachedEngine", "Engine", "Generation", "HFEngine", "RolloutStage", "SamplingConfig", "choose_engine"]


def choose_engine(model: Any, tokenizer: Any) -> Engine:
    """The fast engine where the model's cache allows it, else `generate`."""
    return CachedEngine(tokenizer) if can_share_prefixes(model) else HFEngine(tokenizer)
