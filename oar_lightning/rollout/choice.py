"""The choice of an engine: settings of the config group `engine`, checked before the policy is loaded and built after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from oar_lightning.policy.language_model import can_share_prefixes
from oar_lightning.rollout.cached import CachedEngine
from oar_lightning.rollout.hf import HFEngine
from oar_lightning.rollout.sampling import Engine, SamplingConfig


class EngineConfig(Protocol):
    """Settings of an engine."""

    @property
    def max_model_len(self) -> int | None:
        """The most tokens of a prompt and its completion, where the engine has a limit of its own."""
        ...

    def check(self, sampling: SamplingConfig) -> None:
        """Check, without loading anything, that the engine can run here and sample as `sampling` says.

        Raises:
            ValueError: names key, value and remedy.
            ImportError: for a package that is not installed.
        """
        ...

    def build(self, model: Any, tokenizer: Any) -> Engine:
        """The engine for a policy."""
        ...


@dataclass(frozen=True)
class AutoEngineConfig:
    """`CachedEngine` where the model's cache allows it, else `HFEngine`."""

    max_model_len: ClassVar[None] = None

    def check(self, sampling: SamplingConfig) -> None:
        """Nothing to check: both engines sample everywhere."""

    def build(self, model: Any, tokenizer: Any) -> Engine:
        return CachedEngine(tokenizer) if can_share_prefixes(model) else HFEngine(tokenizer)


@dataclass(frozen=True)
class HFEngineConfig:
    """`HFEngine` for every model."""

    max_model_len: ClassVar[None] = None

    def check(self, sampling: SamplingConfig) -> None:
        """Nothing to check: the engine samples everywhere."""

    def build(self, model: Any, tokenizer: Any) -> Engine:
        return HFEngine(tokenizer)
