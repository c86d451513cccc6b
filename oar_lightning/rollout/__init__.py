"""Engines that sample completions, and the stage that turns sampled ids into `Rollouts`."""

from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.build import build_stage, check_length, longest_prompt
from oar_lightning.rollout.cached import CachedEngine
from oar_lightning.rollout.choice import AutoEngineConfig, EngineConfig, HFEngineConfig
from oar_lightning.rollout.hf import HFEngine
from oar_lightning.rollout.sampling import Engine, Generation, SamplingConfig
from oar_lightning.rollout.vllm import VllmConfig, VllmEngine

__all__ = [
    "AutoEngineConfig",
    "CachedEngine",
    "Engine",
    "EngineConfig",
    "Generation",
    "HFEngine",
    "HFEngineConfig",
    "RolloutStage",
    "SamplingConfig",
    "VllmConfig",
    "VllmEngine",
    "build_stage",
    "check_length",
    "longest_prompt",
]
