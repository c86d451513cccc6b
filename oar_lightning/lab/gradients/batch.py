"""One batch's policy gradient under the token advantages of each estimator."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.objective.loss import Denominators, LossConfig, LossInputs, policy_loss
from oar_lightning.policy.language_model import token_logprobs
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts


class Weighted(Protocol):
    """Token advantages of the batch, and the tokens that count in the loss (None: all of the response)."""

    @property
    def advantages(self) -> Float[Tensor, "B S"]: ...

    @property
    def loss_mask(self) -> Bool[Tensor, "B S"] | None: ...


def whole_tensors(model: Any, coordinates: int | None = None) -> list[Tensor]:
    """The trained parameters, or all of a frozen policy's; with a bound, as many of the last ones as have at most so many
    numbers together.

    The last are nearest to the output. There is always at least one.
    """
    chosen: list[Tensor] = []
    every = [p for p in model.parameters() if p.is_floating_point()]
    for parameter in reversed([p for p in every if p.requires_grad] or every):
        if chosen and coordinates is not None and sum(p.numel() for p in chosen) + parameter.numel() > coordinates:
            break
        chosen.append(parameter)
    return chosen[::-1]


def policy_gradients(
    model: Any,
    rollouts: Rollouts,
    credit: Mapping[str, Weighted],
    loss: LossConfig,
    max_completion_length: int,
    token_budget: TokenBudget,
    parameters: Sequence[Tensor],
) -> Float[Tensor, "M P"]:
    """The gradient of the surrogate at the policy that sampled, a row for each estimator; P are the numbers in `parameters`.

    The terms of the loss that credit does not weigh, KL and entropy, are left out. `param.grad` is not touched.
    """
    surrogate = dataclasses.replace(loss, kl_coef=0.0, entropy_coef=0.0)
    masks = {name: rollouts.response_mask if c.loss_mask is None else c.loss_mask for name, c in credit.items()}
    over = {name: Denominators.of(mask, max_completion_length) for name, mask in masks.items()}
    total = torch.zeros(len(credit), sum(p.numel() for p in parameters), device=parameters[0].device)

    def add(chunk: list[int]) -> Tensor:
        rows = torch.tensor(chunk, device=rollouts.token_ids.device)
        part, columns = rollouts.select(rows), rollouts.columns(rows)
        with torch.enable_grad():
            logprobs = token_logprobs(model, part.token_ids, part.attention_mask, part.response_mask)[0]
            found = []
            for name, weighted in credit.items():
                inputs = LossInputs(
                    logprobs,
                    logprobs.detach(),
                    weighted.advantages[rows, columns].to(logprobs),
                    masks[name][rows, columns],
                    over[name],
                    sampler_logprobs=part.sampler_logprobs,
                )
                value = policy_loss(inputs, surrogate).loss
                parts = torch.autograd.grad(value, list(parameters), retain_graph=True, allow_unused=True)
                flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, parts, strict=True)]
                found.append(torch.cat([g.flatten() for g in flat]).to(total))
        return torch.stack(found)

    active = torch.stack([c.advantages.ne(0).any(1) for c in credit.values()]).any(0).nonzero().flatten().tolist()
    lengths = rollouts.attention_mask.sum(1)[active].tolist()
    with _with_gradients(parameters):
        for _, gradients in token_budget.run_in_chunks(lengths, lambda chunk: add([active[i] for i in chunk])):
            total += gradients
    return total


@contextlib.contextmanager
def _with_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """The parameters require a gradient inside the block, also those of a frozen policy."""
    frozen = [p for p in parameters if not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
