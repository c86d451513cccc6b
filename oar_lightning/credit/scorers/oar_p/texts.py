"""The texts that counterfactual scoring runs: prompt and completion up to the answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.credit.scorers.probes import AnswerPlace, Probe
from oar_lightning.types import Rollouts


class Texts(NamedTuple):
    """Left-padded rows, each ending with the last answer token that the probe asks for: later tokens are not read.

    ``first``: column of each row's first token. ``starts``: the first tokens of the steps of the reasoning; all of its tokens
    where these are scored one by one.
    """

    token_ids: Int[Tensor, "N S"]
    first: Int[Tensor, " N"]
    answer: Bool[Tensor, "N S"]
    reasoning: Bool[Tensor, "N S"]
    starts: Bool[Tensor, "N S"]
    temperature: float
    """At which the tokens were drawn."""

    def lengths(self) -> list[int]:
        return (self.token_ids.shape[1] - self.first).tolist()

    def select(self, rows: Int[Tensor, " n"]) -> Texts:
        """The given rows, cut to the longest of them."""
        cut = int(self.first[rows].min())
        ids, answer, reasoning, starts = (x[rows, cut:] for x in (self.token_ids, self.answer, self.reasoning, self.starts))
        return Texts(ids, self.first[rows] - cut, answer, reasoning, starts, self.temperature)

    def spans(self) -> Int[Tensor, "N S"]:
        """Columns from each column to the next start behind it, or to the end."""
        columns = torch.arange(self.starts.shape[1], device=self.starts.device)
        starts = columns.masked_fill(~self.starts, len(columns))
        following = starts.flip(1).cummin(1).values.flip(1)
        return torch.nn.functional.pad(following[:, 1:], (0, 1), value=len(columns)) - columns

    def scored_from(self, place: AnswerPlace) -> int:
        """The first column that is masked or read in any row: all columns before are the same in all counterfactuals."""
        reads = place.before.masked_fill(~place.valid, self.token_ids.shape[1]).amin(1)
        return int(torch.minimum(reads, self.reasoning.long().argmax(1)).min())


def texts_until_answer(rollouts: Rollouts, probe: Probe, starts: Bool[Tensor, " n"] | None = None) -> Texts:
    """The rollouts' texts up to the answer tokens that the probe reads. Every row must have an answer. `starts`: which of the
    reasoning tokens, row by row, begin a step; None for all."""
    reasoning = rollouts.reasoning_mask
    begins = reasoning if starts is None else torch.zeros_like(reasoning).masked_scatter(reasoning, starts)
    probed = probe.positions(rollouts.answer_mask)
    wanted = rollouts.attention_mask & (probed.long().flip(1).cumsum(1).flip(1) > 0)
    counts = wanted.sum(1)
    # a stable sort puts the wanted columns last, in order
    index = wanted.to(torch.uint8).argsort(dim=1, stable=True)[:, wanted.shape[1] - int(counts.max()) :]
    ids, valid = (x.gather(1, index) for x in (rollouts.token_ids, wanted))
    answer, scored, begun = (x.gather(1, index) & valid for x in (probed, reasoning, begins))
    first = index.shape[1] - counts
    return Texts(ids.masked_fill(~valid, 0), first, answer, scored, begun, rollouts.temperature)
