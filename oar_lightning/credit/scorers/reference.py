"""OAR-P and OAR-G by their definitions: one completion at a time, whole sequences, full float32 logits.

Tests and the benchmark compare the fast scorers with these slow ones, which no run should use.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.ranges import NonNegativeFloat, checked
from oar_lightning.credit.scorers.base import Scorer, place_rows, row_generator, scorable_rows
from oar_lightning.credit.scorers.probes import Probe, ProbeSchedule
from oar_lightning.policy.attention import masked_positions
from oar_lightning.policy.language_model import base_model, embed, evaluating
from oar_lightning.types import Rollouts


class ReferenceOarP(Scorer):
    """All counterfactuals of a completion in one batch of full length, logits of every position."""

    def __init__(self, probe: ProbeSchedule = ProbeSchedule(), fill_token_id: int | None = None) -> None:
        self.probe = probe
        self.fill_token_id = fill_token_id

    @torch.no_grad()
    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        fill = rollouts.pad_token_id if self.fill_token_id is None else self.fill_token_id
        probe, rows = self.probe.at(rollouts.step), scorable_rows(rollouts)
        scores, tokens = [], 0
        with evaluating(model):
            for row in rows.tolist():
                ids, answer, reasoning = _unpadded(rollouts, row)
                positions = reasoning.nonzero().flatten()
                masked = ids.repeat(len(positions) + 1, 1)
                masked[torch.arange(len(positions)), positions] = fill  # the last row stays clean
                outcome = _read(probe, base_model(model)(input_ids=masked).logits, masked, answer)
                scores.append(probe.distance(outcome[-1:].expand_as(outcome[:-1]), outcome[:-1]))
                tokens += masked.numel()
        self.metrics = {"forward_equivalents": tokens / max(1, int(rollouts.attention_mask.sum()))}
        return place_rows(scores, rollouts.reasoning_mask, rows)


@checked("scorer")
class ReferenceOarG(Scorer):
    """A clean and a noisy pass over each completion, one gradient with respect to the noisy embeddings.

    The noise is that of `OarG` with the same seed.
    """

    def __init__(self, probe: ProbeSchedule = ProbeSchedule(), noise_std: NonNegativeFloat = 1e-3, seed: int = 0) -> None:
        self.probe = probe
        self.noise_std = noise_std
        self.seed = seed

    def __call__(self, model: Any, rollouts: Rollouts) -> Float[Tensor, "B S"]:
        probe, rows = self.probe.at(rollouts.step), scorable_rows(rollouts)
        scores = []
        with evaluating(model), torch.enable_grad():
            for row in rows.tolist():
                ids, answer, reasoning = _unpadded(rollouts, row)
                clean_embeddings = embed(model, ids[None]).detach()
                rng = row_generator(rollouts, row, self.seed, 0)
                noise = torch.zeros_like(clean_embeddings)
                drawn = torch.randn(int(reasoning.sum()), noise.shape[-1], generator=rng)
                noise[0, reasoning] = (self.noise_std * drawn).to(noise)
                with torch.no_grad():
                    clean = _read(probe, base_model(model)(inputs_embeds=clean_embeddings).logits, ids[None], answer)
                noisy = (clean_embeddings + noise).requires_grad_()
                outcome = _read(probe, base_model(model)(inputs_embeds=noisy).logits, ids[None], answer)
                (gradient,) = torch.autograd.grad(probe.gap(clean, outcome).sum(), noisy)
                scores.append((gradient * clean_embeddings).sum(-1).abs()[0, reasoning])
        self.metrics = {"forward_equivalents": 4.0 * len(rows) / len(rollouts)}
        return place_rows(scores, rollouts.reasoning_mask, rows)


def _unpadded(rollouts: Rollouts, row: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, answer mask and reasoning mask of one row without its padding."""
    real = rollouts.attention_mask[row]
    return rollouts.token_ids[row, real], rollouts.answer_mask[row, real], rollouts.reasoning_mask[row, real]


def _read(probe: Probe, logits: Tensor, ids: Tensor, answer: Tensor) -> Tensor:
    """The outcome from logits of all positions."""
    mask = probe.positions(answer.expand(len(ids), -1))
    index, valid = masked_positions(mask)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    chosen = logits.gather(1, (index - 1)[..., None].expand(-1, -1, logits.shape[-1]))
    return probe.outcome(chosen, ids.gather(1, index), valid)
