"""Scorers that compare the policy with its past in training, given that past."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from oar_lightning.credit.component import Tools
from oar_lightning.credit.predictions import response_logprobs
from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.base import Wrapper
from oar_lightning.policy.token_budget import unset_budget
from oar_lightning.types import Rollouts


class WithPast(Wrapper):
    """A scorer as it would score in the step that comes after a checkpoint. Nothing is learnt.

    The policy that sampled is the model that it is called with, also where that one is changed (`lab.stability`).

    Args:
        inner: the scorer.
        start: the policy that training began with; one that learns goes on from a copy of it.
        state: what the scorer had learnt.
        source: where these are from, for messages.
    """

    def __init__(self, inner: Scorer, start: Any, state: Mapping[str, Any], source: str) -> None:
        super().__init__(inner, configured=False)
        self.needs_old = self.needs_reference = False  # of the lab
        self.start = start
        self.state = state
        self.source = source
        self.temperature = 1.0

    @property
    def name(self) -> str:
        return self.inner.name

    def use(self, tools: Tools) -> None:
        """Raises: ValueError: for a state that does not fit."""
        super().use(tools)
        self.temperature = tools.temperature
        if not self.learns:
            return
        try:
            self.inner.load_state_dict(dict(self.state))
            self.inner.begin(self.start)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{self.source}: what its scorer has learnt does not fit ({error})") from error

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        budget = unset_budget("an earlier policy")
        models = model if self.inner.needs_old else None, self.start if self.inner.needs_reference else None
        old, ref = (None if m is None else response_logprobs(m, rollouts, self.temperature, budget) for m in models)
        scores = self.inner(model, dataclasses.replace(rollouts, old_logprobs=old, ref_logprobs=ref))
        self.measured_by_inner()
        return scores
