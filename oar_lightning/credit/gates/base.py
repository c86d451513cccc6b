"""The definition of a gate, and helpers that gates use.

A gate is a callable ``(scores, rollouts) -> Credit``: it turns a scorer's scores into token advantages. ``rollouts.advantages``
are the group advantages.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from oar_lightning.credit.component import Component, Region, group_advantages_of
from oar_lightning.objective.metric_sums import Sums
from oar_lightning.types import Credit, Rollouts

Mass = Literal["kept", "free", "any"]


class Gate(Component, ABC):
    """Base of the built-in gates; a plug-in subclasses it.

    A gate is called by all ranks at every step, each with its whole batch, so it may communicate. (A scorer may not: it is
    called where there is something to score.)

    `region`: the tokens that get credit. `signed`: whether it reads scores with a sign; the others read scores >= 0.
    `reads_all_rows`: whether it reads the scores of groups without a signal too.
    """

    region: Region = "reasoning"
    signed = False
    reads_all_rows = False

    @property
    def reads_groups(self) -> bool:
        """Whether a completion's advantages depend on the scores of the others of its group."""
        return False

    @property
    def reads_step(self) -> bool:
        """Whether they depend on the scores of all others of the step."""
        return False

    @property
    def uniform(self) -> bool:
        """Whether all tokens of a completion get the same advantage, whatever the scores."""
        return False

    @property
    def mass(self) -> Mass:
        """What becomes of the sum of a completion's weights: it is kept, free but meant to be near, or has no meaning."""
        return "any"

    @property
    def replaces(self) -> bool:
        """Whether the scores are the advantages, whatever the group's are."""
        return False

    @property
    def masks_loss(self) -> bool:
        """Whether it leaves tokens out of the loss."""
        return False

    @property
    def clips(self) -> bool:
        """Whether it sets bounds of the ratio."""
        return False

    @property
    def averages_tokens(self) -> bool:
        """Whether its advantages have their meaning in a mean over the tokens of the optimizer step."""
        return False

    @abstractmethod
    def __call__(self, scores: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit: ...

    def metrics(self, credit: Credit, mask: Bool[Tensor, "B S"]) -> Sums:
        """The gate's own metrics of some completions; `mask`: their tokens in the region."""
        return {}


def weighted(importance: Float[Tensor, "B S"], weights: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
    """Credit A_it = A_i w_it."""
    advantages = group_advantages_of(rollouts)[:, None]
    weights = weights.to(advantages.dtype)
    return Credit((advantages * weights).masked_fill(~rollouts.response_mask, 0.0), importance, weights)


def shaped(scores: Float[Tensor, "B S"], token_advantages: Float[Tensor, "B S"], rollouts: Rollouts) -> Credit:
    """Credit of token advantages that are no multiple of the group advantage; weights are their ratio, 0 where A_i = 0."""
    advantages = group_advantages_of(rollouts)[:, None]
    token_advantages = token_advantages.to(advantages.dtype).masked_fill(~rollouts.response_mask, 0.0)
    weights = torch.where(advantages != 0, token_advantages / advantages, torch.zeros_like(token_advantages))
    return Credit(token_advantages, scores, weights)


def checked_credit(credit: Any, rollouts: Rollouts, name: str) -> Credit:
    """A gate's result, checked for type, shapes, gradient, and numbers that training cannot use. `name`: the gate's.

    Raises:
        ValueError: names the gate, what it returned, and what to return.
    """
    shape, told = tuple(rollouts.token_ids.shape), f"gate {name} returned"
    if not isinstance(credit, Credit):
        raise ValueError(f"{told} a {type(credit).__name__}; return oar_lightning.types.Credit, e.g. by weighted(...)")
    for field in dataclasses.fields(credit):
        value, optional = getattr(credit, field.name), field.default is None
        if value is None and optional:
            continue
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            what = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"that is a {type(value).__name__}"
            raise ValueError(f"{told} {field.name} {what}; return a tensor [B S] = {shape}")
        if field.name == "loss_mask" and value.dtype != torch.bool:
            raise ValueError(f"{told} a loss_mask of {value.dtype}; return booleans")
        if field.name != "loss_mask" and not value.is_floating_point():
            raise ValueError(f"{told} {field.name} of {value.dtype}; return floating-point numbers")
        if value.requires_grad:
            raise ValueError(f"{told} {field.name} with gradient; return it detached")
    advantages = credit.advantages
    if not bool((advantages.isfinite() | ~rollouts.response_mask).all()):
        raise ValueError(f"{told} advantages that are not finite; give tokens whose scores are not usable the group advantage")
    if bool(advantages.masked_fill(rollouts.response_mask, 0.0).ne(0).any()):
        raise ValueError(f"{told} advantages outside of completions; set them to zero where ~rollouts.response_mask")
    return credit
