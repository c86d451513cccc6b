"""Scorers where no answer is marked: other scorers' views of such texts, and an outcome that is a hidden state."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.scorers.base import Scorer, Wrapper
from oar_lightning.credit.scorers.oar_p.exact import OarP
from oar_lightning.credit.scorers.probes import AnswerPlace, LastProbe, Probe
from oar_lightning.types import Rollouts


class Unmarked(Wrapper):
    """Another scorer's scores of completions whose answer it does not know: the `last` tokens stand for it, the end included.

    `last=1` is what `answer.no_span=last_token` makes of a completion without an answer.
    """

    def __init__(self, inner: Scorer, last: int = 1) -> None:
        super().__init__(inner)
        self.last = last

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        response = rollouts.response_mask
        until_end = response.long().flip(1).cumsum(1).flip(1)
        answer = response & (until_end <= self.last)
        hidden = dataclasses.replace(
            rollouts, reasoning_mask=response & ~answer, answer_mask=answer, answers=(None,) * len(rollouts)
        )
        scores = self.inner(model, hidden)
        self.measured_by_inner()
        return scores


class HiddenStates(LastProbe):
    """The final hidden states before the answer tokens; distance: 1 - the cosine of clean and other state, mean over them."""

    def positions(self, answer_mask: Bool[Tensor, "N S"]) -> Bool[Tensor, "N S"]:
        return answer_mask

    def read(self, model: Any, states: Float[Tensor, "N A H"], place: AnswerPlace) -> Float[Tensor, "N A H"]:
        unit: Tensor = states / states.norm(dim=-1, keepdim=True)
        return unit * place.valid[..., None] / place.valid.sum(1)[:, None, None].sqrt()

    def distance(self, clean: Float[Tensor, "N A H"], other: Float[Tensor, "N A H"]) -> Float[Tensor, " N"]:
        return (clean - other).square().sum((1, 2)) / 2


class OarPHidden(OarP):
    """OAR-P with the answer's hidden states for its outcome."""

    def probe_at(self, step: int) -> Probe:
        return HiddenStates()
