"""Numbers of the distributions that tokens were drawn from, by the states that sampling has kept or else one forward pass."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.credit.component import Region, region_mask
from oar_lightning.credit.scorers.base import Scorer
from oar_lightning.policy.language_model import evaluating, head_logits, hidden_states
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts

TOKENS = 4096
"""The start of `auto`, unless a memory plan gives another."""

LOGITS_BYTES = 64 * 2**20
"""Logits alive at any time."""


class Predictions(NamedTuple):
    """Of each token, 0 outside the region: log-probability and entropy in nats, the sum of squared probabilities, the token's
    logit, and the self-certainty logsumexp - mean logit of its distribution (up to a constant the divergence of the uniform
    distribution from it)."""

    logprobs: Float[Tensor, "B S"]
    entropy: Float[Tensor, "B S"]
    collision: Float[Tensor, "B S"]
    logits: Float[Tensor, "B S"]
    certainty: Float[Tensor, "B S"]


class PredictionScorer(Scorer):
    """Base of scorers that read `Predictions`.

    Args:
        token_budget: padded tokens of one pass where no states are kept, or `auto`; bounds memory, does not change the numbers.
        region: the tokens that are scored.
    """

    def __init__(self, token_budget: int | Literal["auto"] = TOKENS, region: Region = "response") -> None:
        super().__init__()
        self.covers = region
        self.token_budget = TokenBudget("scorer.token_budget", token_budget, TOKENS)

    @torch.no_grad()
    def predictions(self, model: Any, rollouts: Rollouts) -> Predictions:
        """The numbers of all tokens of the region."""
        mask = region_mask(rollouts, self.covers)
        found: Float[Tensor, "F B S"] | None = None

        def read(chunk: list[int]) -> tuple[Tensor, Tensor, Tensor]:
            rows = torch.tensor(chunk, device=mask.device)
            part = rollouts.select(rows)
            inside = region_mask(part, self.covers)
            row, column = inside.nonzero(as_tuple=True)
            states = part.prediction_states
            if states is None:
                hidden = hidden_states(model, part.attention_mask, part.token_ids)[row, column - 1]
            else:
                hidden = states[row, column]
            numbers = read_predictions(model, hidden, part.token_ids[row, column])
            return rows[row], column + rollouts.columns(rows).start, numbers

        with evaluating(model):
            for _, (row, column, numbers) in self.token_budget.run_in_chunks(rollouts.attention_mask.sum(1).tolist(), read):
                if found is None:
                    found = numbers.new_zeros(len(Predictions._fields), *mask.shape)
                found[:, row, column] = numbers.T
        assert found is not None, "a scorer is called with rows"
        self.metrics = {"forward_equivalents": 1.0 if rollouts.prediction_states is None else 0.0}
        return Predictions(*found)


def read_predictions(model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n F"]:
    """The numbers of `Predictions` for some states, a bounded number of logits at a time."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    parts = []
    for h, y in zip(*(x.split(max(1, LOGITS_BYTES // (4 * vocabulary))) for x in (hidden, targets)), strict=True):
        logits = head_logits(model, h)
        total = logits.logsumexp(-1)
        log_p = logits - total[:, None]
        p = log_p.exp()
        chosen = logits.gather(-1, y[:, None])[:, 0]
        parts.append(
            torch.stack([chosen - total, -(p * log_p).sum(-1), p.square().sum(-1), chosen, total - logits.mean(-1)], -1)
        )
    return torch.cat(parts)


def signs(rollouts: Rollouts) -> Float[Tensor, "B 1"]:
    """The signs of the group advantages as a column."""
    assert rollouts.advantages is not None, "assign_credit is given rollouts with their advantages"
    return rollouts.advantages.sign()[:, None]


def groups(mask: Bool[Tensor, "B S"], group_size: int) -> list[slice]:
    """The rows of each group."""
    return [slice(start, start + group_size) for start in range(0, len(mask), group_size)]


def aligned(values: Float[Tensor, "B S"], mask: Bool[Tensor, "B S"]) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Each row's masked values moved to the front, so that column t holds its t-th token; and which are there."""
    counts = mask.sum(1)
    there = torch.arange(int(counts.max()) if len(counts) else 0, device=mask.device) < counts[:, None]
    out = values.new_zeros(there.shape)
    out[there] = values[mask]
    return out, there


def placed(values: Float[Tensor, "B T"], there: Bool[Tensor, "B T"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B S"]:
    """The inverse of `aligned`, 0 elsewhere."""
    out = values.new_zeros(mask.shape)
    out[mask] = values[there]
    return out
