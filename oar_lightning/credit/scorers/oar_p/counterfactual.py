"""Exact counterfactual outcomes: masked texts through the model, only what follows the masked place being run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.scorers.oar_p.fills import Fill
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.prefix import read_prompts
from oar_lightning.credit.scorers.probes import AnswerPlace, Probe
from oar_lightning.policy.attention import LayerRecord
from oar_lightning.policy.decoder import Decoder, Past, nothing_read
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget

PREFIX_SHARE = 8
"""A counterfactual has a copy of its prefix's keys and values; so many of these tokens count as one in the token budget."""

PADDING = 8
"""The longest suffix of a batch is at most so many tokens longer than the shortest."""


class Clean(NamedTuple):
    """Texts as they are: where their answers stand, what the decoder keeps of all columns but the last, their outcomes, what is
    put in masked places, and the tokens that went through the model."""

    texts: Texts
    place: AnswerPlace
    past: Past
    outcome: Tensor
    fills: Float[Tensor, "N S H"]
    tokens: int

    def detach(self) -> Clean:
        return self._replace(past=self.past.detach(), outcome=self.outcome.detach())


@dataclass(frozen=True)
class Counterfactuals:
    """How masked texts are made, run and compared.

    Args:
        fill, fill_token_id, seed: what stands in a masked place (`fills`).
        token_budget: padded tokens of one batch; bounds memory, does not change the numbers.
        share_prefixes: run only what follows the masked place; otherwise each counterfactual in full length.
    """

    model: Any
    decoder: Decoder
    probe: Probe
    fill: Fill
    fill_token_id: int
    seed: int
    token_budget: TokenBudget
    share_prefixes: bool

    def read(self, texts: Texts, records: list[LayerRecord] | None = None) -> Clean:
        """The texts as they are; with gradient and attention from the first column that is masked or read on, if asked."""
        place = self.probe.locate(texts.answer, texts.token_ids)
        start = texts.scored_from(place) if self.share_prefixes else 0
        prompts, owner, tokens = read_prompts(
            self.model, self.decoder, texts.token_ids[:, :start], texts.first, self.token_budget
        )
        everyone = torch.arange(len(owner), device=owner.device)
        ids = texts.token_ids[:, start:-1]  # nothing is read off the last token itself
        states, past = self.decoder(
            prompts.select(owner),
            embed(self.model, ids).detach(),
            place.select(everyone, start).read_at,
            keep=self.share_prefixes,
            records=records,
        )
        outcome = self.probe.read(self.model, states, place)
        with torch.no_grad():
            fills = self.fill(self.model, self.decoder, texts, self.fill_token_id, self.seed)
        return Clean(texts, place, past or nothing_read(texts.first), outcome, fills, tokens + ids.numel())

    def distances(self, clean: Clean, wanted: Bool[Tensor, "N S"], span: int = 1) -> tuple[Float[Tensor, " n"], int]:
        """How far each wanted position's outcome is from the clean one, row by row; and the padded tokens that went through
        the model. `span` reasoning tokens from the position on are masked together."""
        texts, place = clean.texts, clean.place
        end = texts.token_ids.shape[1] - 1
        rows, positions = wanted.nonzero(as_tuple=True)
        reads = place.before.masked_fill(~place.valid, end).amin(1)
        widths = end - torch.minimum(positions, reads[rows]) if self.share_prefixes else torch.full_like(rows, end)
        distances = torch.empty(len(rows), dtype=clean.outcome.dtype, device=clean.outcome.device)

        def run(batch: list[int]) -> int:
            index = torch.tensor(batch, device=rows.device)
            row, at = rows[index], positions[index, None]
            start = end - int(widths[index].max())
            columns = torch.arange(start, end, device=rows.device)
            masked = (columns >= at) & (columns < at + span) & texts.reasoning[row, start:end]
            embeds = embed(self.model, texts.token_ids[row, start:end])
            copy, column = masked.nonzero(as_tuple=True)
            embeds[copy, column] = clean.fills[row[copy], start + column].to(embeds)
            answer = place.select(row, start)
            states, _ = self.decoder(clean.past.select(row, start), embeds, answer.read_at)
            distances[index] = self.probe.distance(clean.outcome[row], self.probe.read(self.model, states, answer))
            return masked.numel()

        sizes = widths.clamp(min=-(-end // PREFIX_SHARE)).tolist()
        return distances, sum(tokens for _, tokens in self.token_budget.run_in_chunks(sizes, run, spread=PADDING))
