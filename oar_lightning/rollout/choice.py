"""Which engine samples: the settings of the config group `engine`, checked before and built after the policy is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from oar_lightning.policy.language_model import can_share_prefixes
from oar_lightning.rollout.cached import CachedEngine
from oar_lightning.rollout.hf import HFEngine
from oar_lightning.rollout.sampling import Engine, SamplingConfig


class EngineConfig(Protocol):
    """Settings of an engine."""

    def check(self, sampling: SamplingConfig) -> None:
        """Whether it can run here and sample so; costs nothing.

        Raises:
            ValueError: names key, value and remedy.
            ImportError: for a package that is not installed.
        """
        ...

    def build(self, model: Any, tokenizer: Any) -> Engine:
        """The engine of a policy."""
        ...


@dataclass(frozen=True)
class AutoEngineConfig:
    """`CachedEngine` where the model's cache allows it, else `HFEngine`."""

    def check(self, sampling: SamplingConfig) -> None:
        """Both sample everywhere."""

    def build(self, model: Any, tokenizer: Any) -> Engine:
        return CachedEngine(tokenizer) if can_share_prefixes(model) else HFEngine(tokenizer)


@dataclass(frozen=True)
class HFEngineConfig:
    """`HFEngine` for every model."""

    def check(self, sampling: SamplingConfig) -> None:
        """It samples everywhere."""

    def build(self, model: Any, tokenizer: Any) -> Engine:
        return HFEngine(tokenizer)
