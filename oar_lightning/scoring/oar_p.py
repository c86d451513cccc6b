"""OAR-P: counterfactual perturbation (arXiv 2601.07408): replace a token, see how far the outcome moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.language_model import can_share_prefixes, evaluating, hidden_states, last_mlp_at
from oar_lightning.scoring.base import Scorer, chunks_by_tokens, distinct_rows, place_rows, scorable_rows
from oar_lightning.scoring.prefix import SharedPrefix
from oar_lightning.scoring.probes import Probe, ProbeSchedule, masked_positions
from oar_lightning.types import Rollouts


class OarP(Scorer):
    """I_t = KL(p || p^(t)), p^(t) = the probe with token t replaced by the fill token; nats.

    Args:
        probe: which outcome is read, and when.
        token_budget: padded tokens of one batch of counterfactuals; bounds memory, does not change the numbers.
        fill_token_id: replaces the masked token and is attended to like any other; None takes the tokenizer's pad token.
        block: counterfactuals of this many neighbouring positions share the keys and values of what precedes them; 0
            computes each in full length, as do models whose cache cannot be shared. Does not change the numbers.
    """

    def __init__(
        self,
        probe: ProbeSchedule = ProbeSchedule(),
        token_budget: int = 4096,
        fill_token_id: int | None = None,
        block: int = 8,
    ) -> None:
        super().__init__()
        if token_budget < 1:
            raise ValueError(f"scorer.token_budget is a number of tokens and must be >= 1, got {token_budget}")
        if block < 0:
            raise ValueError(f"scorer.block is a number of positions and must be >= 0 (0: no sharing), got {block}")
        self.probe = probe
        self.token_budget = token_budget
        self.fill_token_id = fill_token_id
        self.block = block

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        probe = self.probe.at(rollouts.step)
        rows = scorable_rows(rollouts)
        first, twin = distinct_rows(rollouts, rows)
        with evaluating(model):
            part = rollouts.select(rows[first])
            scores, tokens = counterfactual_scores(model, part, probe, fill, self.token_budget, self.block)
        self.metrics = {"forward_equivalents": tokens / max(1, rollouts.token_ids.numel())}
        return place_rows([scores[i] for i in twin], rollouts.reasoning_mask, rows)


def counterfactual_scores(
    model: Any, rollouts: Rollouts, probe: Probe, fill_token_id: int, token_budget: int, block: int = 0
) -> tuple[list[Float[Tensor, " R"]], int]:
    """One score for each reasoning token of each row, and the padded tokens that went through the model.

    Every row must have an answer. What follows the answer is cut off: no probe reads it.
    """
    texts = _left_aligned_until_answer(rollouts)
    share = block > 0 and can_share_prefixes(model)
    scores: list[Tensor] = [torch.empty(0)] * len(rollouts)
    tokens = 0
    for chunk in chunks_by_tokens(texts.lengths(), token_budget):
        own = torch.tensor(chunk, device=texts.token_ids.device)
        part = texts.select(own)
        place = probe.locate(part.answer)
        if rollouts.prediction_states is not None:
            there = probe.locate(rollouts.answer_mask[own])
            clean = probe.read_predictions(model, rollouts.prediction_states[own], rollouts.token_ids[own], there)
        else:
            with last_mlp_at(model, place.before, place.valid):
                clean = probe.read(model, hidden_states(model, part.attention, part.token_ids), part.token_ids, place)
            tokens += part.token_ids.numel()
        prefix = SharedPrefix(model, part.token_ids) if share else None
        rows, positions = part.reasoning.nonzero(as_tuple=True)
        distances = torch.empty(len(rows), dtype=clean.dtype, device=clean.device)
        for start, members in _blocks(positions, block if share else 0):
            tokens += prefix.advance(start) if prefix else 0
            lengths = part.attention.sum(1)[rows[members]].tolist()
            for batch in chunks_by_tokens(lengths, token_budget):
                index = members[torch.tensor(batch, device=members.device)]
                row, at = rows[index], positions[index]
                end = max(lengths[i] for i in batch)
                token_ids = part.token_ids[row, start:end].scatter(1, at[:, None] - start, fill_token_id)
                answer = place.select(row, start)
                with last_mlp_at(model, answer.before, answer.valid):
                    if prefix:
                        hidden = prefix.hidden_after(row, token_ids)
                    else:
                        hidden = hidden_states(model, part.attention[row, :end], token_ids)
                distances[index] = probe.distance(clean[row], probe.read(model, hidden, token_ids, answer))
                tokens += token_ids.numel()
        for i, values in zip(chunk, distances.split(part.reasoning.sum(1).tolist()), strict=True):
            scores[i] = values
    return scores, tokens


def _blocks(positions: Int[Tensor, " n"], size: int) -> Iterator[tuple[int, Int[Tensor, " m"]]]:
    """(first column, members) of each run of `size` columns that has positions, in order; size 0: all from column 0."""
    if size == 0:
        yield 0, torch.arange(len(positions), device=positions.device)
        return
    starts = positions // size * size
    for start in starts.unique().tolist():
        yield start, (starts == start).nonzero().flatten()


class _Texts(NamedTuple):
    """Rows with padding on the right, each ending with its answer."""

    token_ids: Int[Tensor, "N S"]
    attention: Bool[Tensor, "N S"]
    answer: Bool[Tensor, "N S"]
    reasoning: Bool[Tensor, "N S"]

    def lengths(self) -> list[int]:
        return self.attention.sum(1).tolist()

    def select(self, rows: Int[Tensor, " n"]) -> _Texts:
        width = int(self.attention[rows].sum(1).max())
        return _Texts(*(x[rows, :width] for x in self))


def _left_aligned_until_answer(rollouts: Rollouts) -> _Texts:
    wanted = rollouts.attention_mask & (rollouts.answer_mask.long().flip(1).cumsum(1).flip(1) > 0)
    index, valid = masked_positions(wanted)
    gathered = [x.gather(1, index) for x in (rollouts.token_ids, rollouts.answer_mask, rollouts.reasoning_mask)]
    return _Texts(gathered[0], valid, gathered[1] & valid, gathered[2] & valid)
