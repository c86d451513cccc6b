"""First-order estimates of counterfactual outcomes: all tokens of a text for the price of a few passes over it.

Attribution patching with exact attention (AtP with the QK fix, arXiv 2403.00745): a masked token acts on later ones only
through the keys and values that they attend to. What its replacement does to every attention output is computed exactly, layer
by layer; what those changes do to the outcome is taken from the outcome's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.attention import LayerRecord, recorded_attention
from oar_lightning.batching import chunks_by_tokens
from oar_lightning.language_model import base_model, replacements_after
from oar_lightning.scoring.counterfactual import Counterfactuals
from oar_lightning.scoring.prefix import SharedPrefix
from oar_lightning.scoring.probes import Probe, masked_positions
from oar_lightning.scoring.texts import Texts

PAIRS = 2**22
"""Attention weights alive at any time in one layer's estimate."""


@dataclass(frozen=True)
class Attribution:
    """A coarse stage of approximate OAR-P: every token's score to first order.

    Args:
        directions: leading directions of the outcome's Fisher matrix, each of which costs a backward pass; a probe that is one
            number has one.
    """

    directions: int = 4

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise ValueError(f"scorer.coarse.directions must be >= 1, got {self.directions}")

    def estimate(self, model: Any, texts: Texts, probe: Probe, masking: Counterfactuals) -> tuple[list[Tensor], list[int], int]:
        """A score for each reasoning token of each text [R], the tokens that each text costs by itself (a backward pass to
        hidden states counts as one forward), and those that the padded batches ran. Needs `can_share_prefixes`."""
        scores: list[Tensor] = [torch.empty(0)] * len(texts.token_ids)
        costs, tokens = [0] * len(scores), 0
        with recorded_attention(base_model(model)) as records:
            for chunk in chunks_by_tokens(texts.lengths(), masking.token_budget):
                part = texts.select(torch.tensor(chunk, device=texts.token_ids.device))
                shifts, ran = self._shifts(model, part, probe, masking.fill_token_id, records)
                estimates = probe.distance_of_shift(shifts)
                tokens += ran
                passes = 1 + shifts.shape[1]
                for i, row in enumerate(chunk):
                    masked = part.reasoning[i].nonzero().flatten()
                    scores[row] = estimates[i, : len(masked)]
                    first, length = int(masked[0]), int(part.attention[i].sum())
                    costs[row] = first + passes * (length - first) + len(masked)
        return scores, costs, tokens

    def _shifts(
        self, model: Any, texts: Texts, probe: Probe, fill: int, records: list[LayerRecord]
    ) -> tuple[Float[Tensor, "n M R"], int]:
        """How far masking each reasoning token moves each reading of the outcome; and the tokens that the batch ran."""
        positions, valid = masked_positions(texts.reasoning)
        start = int(texts.reasoning.any(0).long().argmax())
        prefix = SharedPrefix(model, texts.token_ids)
        ran = prefix.advance(start)
        everyone = torch.arange(len(texts.token_ids), device=positions.device)
        ids = texts.token_ids[:, start:]
        place = probe.locate(texts.answer).select(everyone, start)
        records.clear()
        with torch.enable_grad():
            hidden, cache = prefix.continued(everyone, ids, place.read_at)
            outcome = probe.read(model, hidden, ids, place)
            readings = probe.readings(outcome.detach(), outcome, self.directions)
            clean = list(records)
            outs = [record.out for record in clean]
            gradients = [
                torch.autograd.grad(readings[:, m].sum(), outs, retain_graph=m + 1 < readings.shape[1])
                for m in range(readings.shape[1])
            ]
        clean = [record.detached() for record in clean]
        records.clear()
        replacements_after(model, cache, torch.full_like(positions, fill), positions)
        shift = torch.zeros(*readings.shape, positions.shape[1], dtype=readings.dtype, device=positions.device)
        for layer, (record, replaced) in enumerate(zip(clean, records, strict=True)):
            gradient = torch.stack([g[layer] for g in gradients])
            shift += _outcome_shift(record, gradient, replaced, positions, start)
        ran += (1 + readings.shape[1]) * ids.numel() + positions.numel()
        return shift.masked_fill(~valid[:, None], 0.0), ran


def _outcome_shift(
    clean: LayerRecord,
    gradient: Float[Tensor, "M n W h d"],
    replaced: LayerRecord,
    positions: Int[Tensor, "n R"],
    start: int,
) -> Float[Tensor, "n M R"]:
    """What replacing each position's key and value in one layer does to the readings, through all later queries.

    With weights p of the clean text and p' = exp(score of the replaced key) under the clean normaliser, a query's output
    changes by (p' (v' - o) - p (v - o)) / (1 - p + p'), exactly.
    """
    dtype = torch.promote_types(clean.query.dtype, torch.float32)
    heads = clean.query.shape[1]
    count = positions.shape[1]

    def spread(x: Tensor) -> Float[Tensor, "n h T d"]:
        return x.to(dtype).repeat_interleave(heads // x.shape[1], 1)

    keys, new_keys, new_values = spread(clean.key), spread(replaced.key[:, :, -count:]), spread(replaced.value[:, :, -count:])
    at = positions[:, None, :, None].expand(-1, heads, -1, keys.shape[-1])
    values = spread(clean.value).gather(2, at)
    total = torch.zeros(len(positions), len(gradient), count, dtype=dtype, device=positions.device)
    last_key = torch.arange(keys.shape[2], device=positions.device)
    step = max(1, PAIRS // (len(positions) * heads * keys.shape[2]))
    for first in range(0, clean.query.shape[2], step):
        queries = clean.query[:, :, first : first + step].to(dtype) * clean.scaling
        column = torch.arange(first, first + queries.shape[2], device=positions.device) + start
        scores = (queries @ keys.mT).masked_fill(last_key > column[:, None], -torch.inf)
        normaliser = scores.logsumexp(-1, keepdim=True)
        later: Bool[Tensor, "n W R"] = column[:, None] > positions[:, None]
        old = scores.gather(3, positions[:, None, None].expand(-1, heads, queries.shape[2], -1)).sub_(normaliser).exp_()
        new = (queries @ new_keys.mT).sub_(normaliser).clamp_(max=60).exp_()  # beyond, it has all the weight anyway
        weight = later[:, None] / (1 - old + new).clamp(min=torch.finfo(torch.float32).eps)
        new.mul_(weight)
        old.mul_(weight)
        out = clean.out[:, first : first + step].transpose(1, 2).to(dtype)
        for m, g in enumerate(gradient[:, :, first : first + step].transpose(2, 3).to(dtype)):
            level = (g * out).sum(-1, keepdim=True)
            change = new * (g @ new_values.mT - level) - old * (g @ values.mT - level)
            total[:, m] += change.sum((1, 2))
    return total
