"""One batch's policy gradient under the token advantages of each estimator."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.randomness import generator
from oar_lightning.objective.loss import Denominators, LossConfig, LossInputs, policy_loss
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.types import Rollouts


class Weighted(Protocol):
    """Token advantages of the batch, and the tokens that count in the loss (None: all of the response)."""

    @property
    def advantages(self) -> Float[Tensor, "B S"]: ...

    @property
    def loss_mask(self) -> Bool[Tensor, "B S"] | None: ...


@dataclass(frozen=True)
class Coordinates:
    """The numbers of a policy of which gradients are taken: `index` of those of all parameters in a row; None for all."""

    parameters: Sequence[Tensor]
    index: Int[Tensor, " P"] | None = None

    @classmethod
    def of(cls, model: Any, most: int | None = None, seed: int = 0) -> Coordinates:
        """All numbers that are trained, or of a frozen policy all; with a bound, so many random ones of its last parameters.

        The last are next to the output, embeddings and head not among them; there are as few as hold so many numbers.
        """
        every = [p for p in model.parameters() if p.is_floating_point()]
        trained = [p for p in every if p.requires_grad] or every
        if most is None or sum(p.numel() for p in trained) <= most:
            return cls(trained)
        ends = {id(part.weight) for part in (model.get_input_embeddings(), base_model(model).get_output_embeddings())}
        chosen: list[Tensor] = []
        for parameter in reversed([p for p in trained if id(p) not in ends] or trained):
            chosen.insert(0, parameter)
            if sum(p.numel() for p in chosen) >= most:
                break
        order = torch.randperm(sum(p.numel() for p in chosen), generator=generator("coordinates", seed))
        return cls(chosen, order[:most].sort().values.to(chosen[0].device))

    def __len__(self) -> int:
        return sum(p.numel() for p in self.parameters) if self.index is None else len(self.index)

    def gradient(self, value: Tensor) -> Float[Tensor, " P"]:
        """The gradient of a value, whose graph is kept."""
        parts = torch.autograd.grad(value, list(self.parameters), retain_graph=True, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, parts, strict=True)]
        whole = torch.cat([g.flatten() for g in flat])
        return (whole if self.index is None else whole[self.index]).float()


def check_reduction(loss: LossConfig) -> None:
    """Raise ConfigError for a loss whose value depends on how a batch is divided into passes, which memory decides here."""
    if loss.reduction == "bnpo":
        raise ConfigError(
            "loss.reduction=bnpo depends on the passes into which a step is divided, and lab.gradients divides as memory "
            "allows; set loss.reduction=dapo, the same mean over the whole step, or lab.gradients=null"
        )


def policy_gradients(
    model: Any,
    rollouts: Rollouts,
    credit: Mapping[str, Weighted],
    loss: LossConfig,
    max_completion_length: int,
    token_budget: TokenBudget,
    coordinates: Coordinates,
) -> Float[Tensor, "M P"]:
    """The gradient of the surrogate at the policy that sampled, a row for each estimator.

    The terms of the loss that credit does not weigh, KL and entropy, are left out. `param.grad` is not touched.

    Raises:
        ConfigError: for `loss.reduction=bnpo`.
    """
    check_reduction(loss)
    surrogate = dataclasses.replace(loss, kl_coef=0.0, entropy_coef=0.0)
    masks = {name: rollouts.response_mask if c.loss_mask is None else c.loss_mask for name, c in credit.items()}
    over = {name: Denominators.of(mask, max_completion_length) for name, mask in masks.items()}
    total = torch.zeros(len(credit), len(coordinates), device=coordinates.parameters[0].device)

    def add(chunk: list[int]) -> Tensor:
        rows = torch.tensor(chunk, device=rollouts.token_ids.device)
        part, columns = rollouts.select(rows), rollouts.columns(rows)
        with torch.enable_grad():
            logprobs = token_logprobs(
                model, part.token_ids, part.attention_mask, part.response_mask, temperature=part.temperature
            )[0]
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
                found.append(coordinates.gradient(policy_loss(inputs, surrogate).loss))
        return torch.stack(found)

    active = torch.stack([c.advantages.ne(0).any(1) for c in credit.values()]).any(0).nonzero().flatten().tolist()
    lengths = rollouts.attention_mask.sum(1)[active].tolist()
    with _with_gradients(coordinates.parameters):
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
