"""Exact counterfactual outcomes: texts with masked tokens, of which only the part from the mask on is run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.randomness import derive_seed
from oar_lightning.credit.scorers.oar_p.fills import Fill
from oar_lightning.credit.scorers.oar_p.texts import Texts
from oar_lightning.credit.scorers.prefix import PREFIX_DISCOUNT, read_prompts
from oar_lightning.credit.scorers.probes import AnswerPlace, Probe
from oar_lightning.policy.attention import LayerRecord, ReadAt
from oar_lightning.policy.decoder import Decoder, Past, empty_past
from oar_lightning.policy.language_model import embed
from oar_lightning.policy.token_budget import TokenBudget

PADDING = 8
"""The longest suffix of a batch is at most so many tokens longer than the shortest."""


class Clean(NamedTuple):
    """Texts without a mask: the places of their answers, the decoder's past of all columns but the last, their outcomes, the
    fills of masked tokens, and the number of tokens that went through the model."""

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
    """Masks tokens of texts, runs the masked texts, and compares their outcomes with the clean ones.

    Args:
        fill, fill_token_id, seed: what replaces a masked token (`fills`).
        token_budget: padded tokens of one pass; bounds memory, does not change the numbers.
        share_prefixes: run each counterfactual only from the mask on; otherwise in full length.
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
        """Run the texts without a mask. With `records`, the layers' attention is kept from the first column on that is masked
        or read; under `enable_grad` the outcome carries gradient with respect to it."""
        place = self.probe.locate(texts.answer, texts.token_ids)
        states, past, tokens = self.run_clean(texts, place, records)
        outcome = self.probe.read(self.model, states, place)
        return Clean(texts, place, past, outcome, self.fills(texts), tokens + self.fill.tokens(texts))

    def run_clean(
        self, texts: Texts, place: AnswerPlace, records: list[LayerRecord] | None = None
    ) -> tuple[Float[Tensor, "N A H"], Past, int]:
        """The final states before the tokens of `place`, the past of all columns but the last, and the number of tokens that
        went through the model."""
        start = texts.scored_from(place) if self.share_prefixes else 0
        prompts, owner, tokens = read_prompts(
            self.model, self.decoder, texts.token_ids[:, :start], texts.first, self.token_budget
        )
        rows = torch.arange(len(owner), device=owner.device)
        ids = texts.token_ids[:, start:-1]  # the last token's own state is not read
        states, past = self.decoder(
            prompts.select(owner),
            embed(self.model, ids).detach(),
            place.select(rows, start).read_at,
            keep=self.share_prefixes,
            records=records,
        )
        return states, past or empty_past(texts.first), tokens + ids.numel()

    @torch.no_grad()
    def fills(self, texts: Texts, draw: int = 0) -> Float[Tensor, "N S H"]:
        """The embeddings of what replaces masked tokens. Draws after the first have seeds that no other seed's draws have."""
        seed = derive_seed(self.seed, draw) if draw else self.seed
        return self.fill(self.model, self.decoder, texts, self.fill_token_id, seed)

    def masked_states(
        self,
        texts: Texts,
        past: Past,
        fills: Float[Tensor, "M S H"],
        row: Int[Tensor, " n"],
        at: Int[Tensor, "n 1"],
        start: int,
        read_at: ReadAt,
        span: int | Int[Tensor, "M S"] = 1,
    ) -> Float[Tensor, "n A H"]:
        """The final states at `read_at`, counted from `start`, of text `row[i]` with the `span` reasoning tokens from column
        `at[i]` on masked (a tensor: that of each column). The columns from `start` on are run."""
        end = texts.token_ids.shape[1] - 1
        columns = torch.arange(start, end, device=row.device)
        width = span if isinstance(span, int) else span[row[:, None], at]
        masked = (columns >= at) & (columns < at + width) & texts.reasoning[row, start:end]
        embeds = embed(self.model, texts.token_ids[row, start:end])
        copy, column = masked.nonzero(as_tuple=True)
        embeds[copy, column] = fills[row[copy], start + column].to(embeds)
        return self.decoder(past.select(row, start), embeds, read_at)[0]

    def distances(
        self, clean: Clean, wanted: Bool[Tensor, "N S"], span: int | Int[Tensor, "N S"] = 1
    ) -> tuple[Float[Tensor, " n"], int]:
        """The distance of each wanted position's outcome from the clean one, row by row; and the padded tokens that went
        through the model. `span` reasoning tokens from the position on are masked together (see `masked_states`)."""
        texts, place = clean.texts, clean.place
        end = texts.token_ids.shape[1] - 1
        rows, positions = wanted.nonzero(as_tuple=True)
        reads = place.before.masked_fill(~place.valid, end).amin(1)
        widths = end - torch.minimum(positions, reads[rows]) if self.share_prefixes else torch.full_like(rows, end)
        distances = torch.empty(len(rows), dtype=clean.outcome.dtype, device=clean.outcome.device)

        def run(chunk: list[int]) -> int:
            index = torch.tensor(chunk, device=rows.device)
            row, at = rows[index], positions[index, None]
            start = end - int(widths[index].max())
            answer = place.select(row, start)
            states = self.masked_states(texts, clean.past, clean.fills, row, at, start, answer.read_at, span)
            distances[index] = self.probe.distance(clean.outcome[row], self.probe.read(self.model, states, answer))
            return len(row) * (end - start)

        return distances, self.run_each(widths, end, run)

    def run_each(self, widths: Int[Tensor, " n"], end: int, run: Callable[[list[int]], int]) -> int:
        """Call `run` on chunks of counterfactuals that run the last `widths` of `end` columns; the sum of what it returns."""
        sizes = widths.clamp(min=-(-end // PREFIX_DISCOUNT)).tolist()
        return sum(tokens for _, tokens in self.token_budget.run_in_chunks(sizes, run, spread=PADDING))
