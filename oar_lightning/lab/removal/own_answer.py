"""The policy's log-probability of a completion's own answer, with tokens of its reasoning replaced and the rest as written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.activity import activity
from oar_lightning.credit.scorers.oar_p.fills import FILLS, FillName
from oar_lightning.credit.scorers.oar_p.texts import Texts, texts_until_answer
from oar_lightning.credit.scorers.prefix import PREFIX_DISCOUNT, read_prompts
from oar_lightning.credit.scorers.probes import PROBES
from oar_lightning.lab.removal.sets import Sets
from oar_lightning.policy.attention import masked_positions
from oar_lightning.policy.decoder import Decoder, choose_decoder
from oar_lightning.policy.language_model import can_share_prefixes, embed, scoring_mode
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

PROBE = PROBES["answer_joint"]


@dataclass(frozen=True)
class OwnAnswer:
    """log p(own answer | text with the set replaced), summed over the answer's tokens; nats. The direct effect is its fall.

    Args:
        token_budget: padded tokens of one pass; bounds memory, does not change the numbers.
        seed: of the fills that are drawn (see `credit.scorers.oar_p.fills`).
    """

    model: Any
    rollouts: Rollouts
    token_budget: TokenBudget
    seed: int = 0

    @torch.no_grad()
    def __call__(self, sets: Sets, fill: FillName) -> Float[Tensor, " n"]:
        rows, text_of_set = sets.row.unique(return_inverse=True)
        values = torch.full((len(sets.row),), torch.nan, dtype=torch.float64, device=sets.row.device)
        if not len(rows):
            return values
        texts = texts_until_answer(self.rollouts.select(rows), PROBE)
        with scoring_mode(self.model), activity(f"removal, {fill}", len(sets.row)) as advance:
            decoder = choose_decoder(self.model)

            def run(chunk: list[int]) -> tuple[Tensor, Tensor]:
                member = torch.full((len(rows),), -1, device=rows.device)
                member[chunk] = torch.arange(len(chunk), device=rows.device)
                own = (member[text_of_set] >= 0).nonzero().flatten()
                part = Sets(member[text_of_set[own]], sets.removed[own])
                return own, self._of_texts(decoder, texts.select(torch.tensor(chunk, device=rows.device)), part, fill)

            for _, (own, found) in self.token_budget.run_in_chunks(texts.lengths(), run):
                values[own] = found.double()
                advance(len(own))
        return values

    def _of_texts(self, decoder: Decoder, texts: Texts, sets: Sets, fill: FillName) -> Float[Tensor, " n"]:
        """The outcomes of sets of some texts, all of which are run from the first reasoning token of any on."""
        model, end = self.model, texts.token_ids.shape[1] - 1
        place = PROBE.locate(texts.answer, texts.token_ids)
        start = texts.scored_from(place) if can_share_prefixes(model) else 0
        fills = FILLS[fill](model, decoder, texts, self.rollouts.pad_token_id, self.seed)
        prompts, owner, _ = read_prompts(model, decoder, texts.token_ids[:, :start], texts.first, self.token_budget)
        columns, valid = masked_positions(texts.reasoning)
        removed = sets.removed[:, : columns.shape[1]] & valid[sets.row]
        values = torch.empty(len(sets.row), device=owner.device)

        def run(chunk: list[int]) -> Tensor:
            index = torch.tensor(chunk, device=owner.device)
            row = sets.row[index]
            copy, order = removed[index].nonzero(as_tuple=True)
            column = columns[row[copy], order]
            embeds = embed(model, texts.token_ids[row, start:end])
            embeds[copy, column - start] = fills[row[copy], column].to(embeds)
            answer = place.select(row, start)
            states, _ = decoder(prompts.select(owner[row]), embeds, answer.read_at)
            return PROBE.read(model, states, answer) * answer.valid.sum(1)

        sizes = [max(end - start, -(-end // PREFIX_DISCOUNT))] * len(sets.row)
        for chunk, found in self.token_budget.run_in_chunks(sizes, run):
            values = values.to(found.dtype)
            values[chunk] = found
        return values
