"""Exact counterfactual outcomes: masked texts through the model, only what follows the masked place being run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.batching import chunks_by_tokens
from oar_lightning.language_model import can_share_prefixes, hidden_states
from oar_lightning.scoring.prefix import SharedPrefix
from oar_lightning.scoring.probes import Probe
from oar_lightning.scoring.texts import Texts


@dataclass(frozen=True)
class Counterfactuals:
    """How masked texts are made and run.

    Args:
        fill_token_id: what stands in a masked place.
        token_budget: padded tokens of one batch; bounds memory, does not change the numbers.
        block: counterfactuals of this many neighbouring positions share the keys and values of what precedes them; 0
            computes each in full length, as do models whose cache cannot be shared. Does not change the numbers.
    """

    fill_token_id: int
    token_budget: int
    block: int

    def distances(
        self, model: Any, texts: Texts, probe: Probe, wanted: Bool[Tensor, "N S"], span: int = 1
    ) -> tuple[list[Tensor], int]:
        """How far each wanted position's outcome is from the clean one, row by row; and the padded tokens that went through
        the model. `span` reasoning tokens from the position on are masked together."""
        share = self.block > 0 and can_share_prefixes(model)
        result: list[Tensor] = [torch.empty(0)] * len(texts.token_ids)
        tokens = 0
        for chunk in chunks_by_tokens(texts.lengths(), self.token_budget):
            own = torch.tensor(chunk, device=texts.token_ids.device)
            part, rows_wanted = texts.select(own), wanted[own]
            place = probe.locate(part.answer)
            clean, ran = part.clean_outcome(model, probe, place)
            prefix = SharedPrefix(model, part.token_ids) if share else None
            rows, positions = rows_wanted.nonzero(as_tuple=True)
            distances = torch.empty(len(rows), dtype=clean.dtype, device=clean.device)
            tokens += ran
            for start, members in _blocks(positions, self.block if share else 0):
                tokens += prefix.advance(start) if prefix else 0
                lengths = part.attention.sum(1)[rows[members]].tolist()
                for batch in chunks_by_tokens(lengths, self.token_budget):
                    index = members[torch.tensor(batch, device=members.device)]
                    row, at = rows[index], positions[index]
                    columns = torch.arange(start, max(lengths[i] for i in batch), device=members.device)
                    masked = (columns >= at[:, None]) & (columns < at[:, None] + span) & part.reasoning[row[:, None], columns]
                    token_ids = part.token_ids[row[:, None], columns].masked_fill(masked, self.fill_token_id)
                    answer = place.select(row, start)
                    if prefix:
                        hidden = prefix.hidden_after(row, token_ids, answer.read_at)
                    else:
                        attention = part.attention[row[:, None], columns]
                        hidden = hidden_states(model, attention, token_ids, read_at=answer.read_at)
                    distances[index] = probe.distance(clean[row], probe.read(model, hidden, token_ids, answer))
                    tokens += token_ids.numel()
            for i, values in zip(chunk, distances.split(rows_wanted.sum(1).tolist()), strict=True):
                result[i] = values
        return result, tokens


def _blocks(positions: Int[Tensor, " n"], size: int) -> Iterator[tuple[int, Int[Tensor, " m"]]]:
    """(first column, members) of each run of `size` columns that has positions, in order; size 0: all from column 0."""
    if size == 0:
        yield 0, torch.arange(len(positions), device=positions.device)
        return
    starts = positions // size * size
    for start in starts.unique().tolist():
        yield start, (starts == start).nonzero().flatten()
