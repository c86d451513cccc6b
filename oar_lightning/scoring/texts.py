"""Completions as counterfactual scoring reads them: whole texts from their first token to their answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.language_model import at_columns, hidden_states
from oar_lightning.scoring.probes import AnswerPlace, Probe, masked_positions
from oar_lightning.types import Rollouts


class Texts(NamedTuple):
    """Rows with padding on the right, each ending with its answer: what follows is cut off, for no probe reads it."""

    token_ids: Int[Tensor, "N S"]
    attention: Bool[Tensor, "N S"]
    answer: Bool[Tensor, "N S"]
    reasoning: Bool[Tensor, "N S"]
    prediction_states: Float[Tensor, "N S H"] | None

    def lengths(self) -> list[int]:
        return self.attention.sum(1).tolist()

    def select(self, rows: Int[Tensor, " n"]) -> Texts:
        """The given rows, cut to the longest of them."""
        width = int(self.attention[rows].sum(1).max())
        states = None if self.prediction_states is None else self.prediction_states[rows, :width]
        ids, attention, answer, reasoning = (x[rows, :width] for x in self[:4])
        return Texts(ids, attention, answer, reasoning, states)

    def clean_outcome(self, model: Any, probe: Probe, place: AnswerPlace) -> tuple[Tensor, int]:
        """The outcome of the texts as they are, and the tokens that this ran through the model."""
        if self.prediction_states is not None:
            return probe.read_predictions(model, self.prediction_states, self.token_ids, place), 0
        hidden = hidden_states(model, self.attention, self.token_ids, read_at=place.read_at)
        return probe.read(model, hidden, self.token_ids, place), self.token_ids.numel()


def texts_until_answer(rollouts: Rollouts) -> Texts:
    """Every row must have an answer."""
    wanted = rollouts.attention_mask & (rollouts.answer_mask.long().flip(1).cumsum(1).flip(1) > 0)
    index, valid = masked_positions(wanted)
    ids, answer, reasoning = (x.gather(1, index) for x in (rollouts.token_ids, rollouts.answer_mask, rollouts.reasoning_mask))
    states = None if rollouts.prediction_states is None else at_columns(rollouts.prediction_states, index)
    return Texts(ids, valid, answer & valid, reasoning & valid, states)
