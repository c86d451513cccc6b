"""OAR-P: counterfactual perturbation (arXiv 2601.07408): replace a token, see how far the outcome moves."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.language_model import evaluating, hidden_states
from oar_lightning.scoring.base import Scorer, chunks_by_tokens, place_rows, scorable_rows
from oar_lightning.scoring.probes import Probe, ProbeSchedule, masked_positions
from oar_lightning.types import Rollouts


class OarP(Scorer):
    """I_t = KL(p || p^(t)), p^(t) = the probe with token t replaced by the fill token; nats.

    Args:
        probe: which outcome is read, and when.
        token_budget: padded tokens of one batch of counterfactuals; bounds memory, does not change the numbers.
        fill_token_id: replaces the masked token and is attended to like any other; None takes the tokenizer's pad token.
    """

    def __init__(
        self, probe: ProbeSchedule = ProbeSchedule(), token_budget: int = 16384, fill_token_id: int | None = None
    ) -> None:
        super().__init__()
        if token_budget < 1:
            raise ValueError(f"scorer.token_budget is a number of tokens and must be >= 1, got {token_budget}")
        self.probe = probe
        self.token_budget = token_budget
        self.fill_token_id = fill_token_id

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        probe = self.probe.at(rollouts.step)
        rows = scorable_rows(rollouts)
        with evaluating(model):
            scores, padded_tokens = counterfactual_scores(model, rollouts.select(rows), probe, fill, self.token_budget)
        self.metrics = {"forward_equivalents": padded_tokens / max(1, rollouts.token_ids.numel())}
        return place_rows(scores, rollouts.reasoning_mask, rows)


def counterfactual_scores(
    model: Any, rollouts: Rollouts, probe: Probe, fill_token_id: int, token_budget: int
) -> tuple[list[Float[Tensor, " R"]], int]:
    """One score for each reasoning token of each row, and the padded tokens that went through the model.

    Every row must have an answer. What follows the answer is cut off: no probe reads it.
    """
    ids, attention, answer, reasoning = _left_aligned_until_answer(rollouts)
    lengths = attention.sum(1).tolist()
    tokens_run = 0

    def outcomes(rows: Tensor, positions: Tensor | None) -> Tensor:
        """Probe outcomes of the rows, with the token at each position replaced, or of the clean text; in one batch."""
        nonlocal tokens_run
        columns = slice(0, int(attention[rows].sum(1).max()))
        token_ids = ids[rows, columns]
        if positions is not None:
            token_ids = token_ids.scatter(1, positions[:, None], fill_token_id)
        tokens_run += token_ids.numel()
        hidden = hidden_states(model, attention[rows, columns], token_ids)
        return probe.read(model, hidden, token_ids, answer[rows, columns])

    clean: dict[int, Tensor] = {}
    for chunk in chunks_by_tokens(lengths, token_budget):
        clean.update(zip(chunk, outcomes(torch.tensor(chunk, device=ids.device), None), strict=True))
    rows, positions = reasoning.nonzero(as_tuple=True)
    scores: list[Tensor] = [torch.empty(0)] * len(rows)
    for chunk in chunks_by_tokens([lengths[row] for row in rows.tolist()], token_budget):
        batch, at = rows[chunk], positions[chunk]
        distance = probe.distance(torch.stack([clean[row] for row in batch.tolist()]), outcomes(batch, at))
        for index, score in zip(chunk, distance, strict=True):
            scores[index] = score
    counts = reasoning.sum(1).tolist()
    return [torch.stack(part) for part in _split(scores, counts)], tokens_run


def _left_aligned_until_answer(rollouts: Rollouts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, attention, answer and reasoning masks with each row's padding moved to the right, cut after its answer."""
    wanted = rollouts.attention_mask & (rollouts.answer_mask.long().flip(1).cumsum(1).flip(1) > 0)
    index, valid = masked_positions(wanted)
    ids = rollouts.token_ids.gather(1, index)
    return ids, valid, rollouts.answer_mask.gather(1, index) & valid, rollouts.reasoning_mask.gather(1, index) & valid


def _split(items: list[Tensor], counts: list[int]) -> list[list[Tensor]]:
    parts, start = [], 0
    for count in counts:
        parts.append(items[start : start + count])
        start += count
    return parts
