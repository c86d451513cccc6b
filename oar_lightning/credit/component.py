"""What scorers and gates have in common: tools that a run lends them, and a state that its checkpoints keep."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.types import Continued, Prefix, Rollouts

Region = Literal["reasoning", "response"]
"""The tokens that get credit: those before the answer, or all of a completion."""


def region_mask(rollouts: Rollouts, region: Region) -> Bool[Tensor, "B S"]:
    """The tokens of a region."""
    return rollouts.reasoning_mask if region == "reasoning" else rollouts.response_mask


@runtime_checkable
class Continuations(Protocol):
    """Completes prefixes with the policy, on the run's own engine and under its sampling settings, and judges the results."""

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        """`samples` continuations of each prefix. The draws depend on the prefix's tokens and `seed` alone; with `greedy` each
        token is the most probable one.

        Equal prefixes are sampled once for each limit of what may follow. A prefix that holds the whole completion gets the
        completion's own reward.
        """
        ...


@runtime_checkable
class Reprompt(Protocol):
    """Puts other prompts before completions that are there already."""

    def __call__(self, rollouts: Rollouts, questions: Sequence[str]) -> Rollouts:
        """The rollouts with each row's problem asked as ``questions[row]``; completions and their regions stay."""
        ...


@runtime_checkable
class Encode(Protocol):
    """Writes texts in the policy's tokens."""

    def __call__(self, before: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens of ``before + text``: those before `text`, and those that overlap it."""
        ...


@runtime_checkable
class Tools(Protocol):
    """What a run lends to scorers and gates, before its first step; `rollout.continuations.RolloutTools` has all of it."""

    @property
    def continuations(self) -> Continuations: ...

    @property
    def reprompt(self) -> Reprompt: ...

    @property
    def encode(self) -> Encode: ...

    @property
    def tokenizer(self) -> Any:
        """The policy's."""
        ...

    @property
    def temperature(self) -> float:
        """At which completions are sampled, and their log-probabilities taken."""
        ...


def group_advantages_of(rollouts: Rollouts) -> Float[Tensor, " B"]:
    """The group advantages that `assign_credit` has to be given with the rollouts."""
    assert rollouts.advantages is not None, "give the rollouts their advantages"
    return rollouts.advantages


class Component:
    """Base of scorers and gates."""

    @property
    def idle(self) -> Mapping[str, str]:
        """Settings without effect, "key=value" -> the setting that makes them so, of those that are not the defaults."""
        return {}

    def use(self, tools: Tools) -> None:
        """Take what the component needs of the run's tools; called once, before the first step. Most need nothing."""

    def looked_at(self) -> AbstractContextManager[None]:
        """Inside the block, calls are of somebody who looks on: they leave no trace in what the component has learnt."""
        return contextlib.nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know: plain containers and tensors, equal on all ranks. Empty for most."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        if state:
            raise ValueError(
                f"{type(self).__name__} keeps no state, and the checkpoint holds some: {', '.join(state)}; resume with the "
                "scorer and the gate that the run began with"
            )
