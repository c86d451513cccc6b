"""Numbers of the distributions that tokens were drawn from, by the states that sampling has kept or else one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.policy.language_model import evaluating, hidden_states
from oar_lightning.policy.lm_head import head_logits, rows_per_chunk, token_logprobs
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts


class Predictions(NamedTuple):
    """Of each token, 0 outside the region: log-probability and entropy in nats, the sum of squared probabilities, the token's
    logit, and the self-certainty logsumexp - mean logit of its distribution (up to a constant the divergence of the uniform
    distribution from it)."""

    logprobs: Float[Tensor, "B S"]
    entropy: Float[Tensor, "B S"]
    collision: Float[Tensor, "B S"]
    logits: Float[Tensor, "B S"]
    certainty: Float[Tensor, "B S"]


def passes(rollouts: Rollouts) -> float:
    """The forward passes of a batch that reading its predictions takes: 0 where sampling kept its states."""
    return float(rollouts.prediction_states is None)


def predictions(model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"], token_budget: TokenBudget) -> Predictions:
    """The numbers of the masked tokens, from kept states or a forward pass."""
    read = partial(read_predictions, temperature=rollouts.temperature)
    return Predictions(*read_states(model, rollouts, mask, token_budget, read))


Read = Callable[[Any, Float[Tensor, "n H"], Int[Tensor, " n"]], Float[Tensor, "n F"]]
"""(model, states from which tokens were predicted, the tokens) -> numbers of each."""


@torch.no_grad()
def read_states(
    model: Any, rollouts: Rollouts, mask: Bool[Tensor, "B S"], token_budget: TokenBudget, numbers_of: Read
) -> Float[Tensor, "F B S"]:
    """What `numbers_of` says of each masked token, 0 elsewhere."""
    found: Float[Tensor, "F B S"] | None = None

    def read(chunk: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.tensor(chunk, device=mask.device)
        part = rollouts.select(rows)
        start = rollouts.columns(rows).start
        row, column = mask[rows][:, start : start + part.token_ids.shape[1]].nonzero(as_tuple=True)
        if part.prediction_states is None:
            hidden = hidden_states(model, part.attention_mask, part.token_ids)[row, column - 1]
        else:
            hidden = part.prediction_states[row, column]
        return rows[row], column + start, in_chunks(numbers_of, model, hidden, part.token_ids[row, column])

    with evaluating(model):
        for _, (row, column, numbers) in token_budget.run_in_chunks(rollouts.attention_mask.sum(1).tolist(), read):
            if found is None:
                found = numbers.new_zeros(numbers.shape[1], *mask.shape)
            found[:, row, column] = numbers.T
    assert found is not None, "a scorer is called with rows"
    return found


def in_chunks(numbers_of: Read, model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"]) -> Float[Tensor, "n F"]:
    """`numbers_of` all states, which is asked for a bounded number of logits at a time."""
    size = rows_per_chunk(model.get_output_embeddings().weight.shape[0])
    return torch.cat([numbers_of(model, h, y) for h, y in zip(hidden.split(size), targets.split(size), strict=True)])


def read_predictions(
    model: Any, hidden: Float[Tensor, "n H"], targets: Int[Tensor, " n"], temperature: float = 1.0
) -> Float[Tensor, "n F"]:
    """The numbers of `Predictions` for some states, at a temperature."""
    logits = head_logits(model, hidden) / temperature
    total = logits.logsumexp(-1)
    log_p = logits - total[:, None]
    p = log_p.exp()
    chosen = logits.gather(-1, targets[:, None])[:, 0]
    return torch.stack([chosen - total, -(p * log_p).sum(-1), p.square().sum(-1), chosen, total - logits.mean(-1)], -1)


@torch.no_grad()
def response_logprobs(model: Any, rollouts: Rollouts, temperature: float, token_budget: TokenBudget) -> Float[Tensor, "B S"]:
    """Log-probabilities of the response tokens under a model at a temperature, 0 elsewhere."""
    out = torch.zeros(rollouts.token_ids.shape, device=rollouts.token_ids.device)
    lengths = rollouts.attention_mask.sum(1).tolist()
    with evaluating(model):
        for chunk, found in token_budget.run_in_chunks(
            lengths, lambda chunk: logprobs_of_rows(model, rollouts, chunk, temperature)
        ):
            out = out.to(found.dtype)
            out[torch.tensor(chunk, device=out.device)] = found
    return out


def logprobs_of_rows(model: Any, rollouts: Rollouts, chunk: list[int], temperature: float) -> Float[Tensor, "n S"]:
    """The log-probabilities of some rows' response tokens, in the columns of all rows; with gradient where it is enabled."""
    rows = torch.tensor(chunk, device=rollouts.token_ids.device)
    part, columns = rollouts.select(rows), rollouts.columns(rows)
    found = token_logprobs(
        model, part.token_ids, part.attention_mask, part.response_mask, temperature=temperature, entropy_grad=None
    )[0]
    return torch.nn.functional.pad(found, (columns.start, rollouts.token_ids.shape[1] - columns.stop))
