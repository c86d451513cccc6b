"""Runs each prompt of an optimizer step once for all its completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.attention import BLOCK
from oar_lightning.policy.decoder import Past, distinct_texts, learning_decoder, read_texts, states_after
from oar_lightning.policy.language_model import align
from oar_lightning.types import Rollouts

LEAST_SAVED = 0.2
"""The least part of an optimizer step's tokens that sharing has to save. It costs copies of keys and values, and a mask of
attention, whose hidden part is computed: of long completions more than what is saved."""
MOST_HELD = 1.25
"""The most tokens that may be held at once, those of the prompts and of one pass, over those of a pass without sharing."""


@dataclass(frozen=True)
class Prompts:
    """The distinct prompts of an optimizer step, but for the last column, whose state predicts a completion's first token.

    Args:
        token_ids: left-padded.
        first: the column of each one's first token.
        owner: which of them a row of the batch has; -1 for rows that are not of this step.
    """

    token_ids: Int[Tensor, "p W"]
    first: Int[Tensor, " p"]
    owner: Int[Tensor, " B"]

    @property
    def tokens(self) -> int:
        """Padded ones."""
        return self.token_ids.numel()


class SharedPrompts:
    """The prompts of an optimizer step, with gradients: their keys and values, and the decoder's weights in the plain form.
    `states` is to be called once for each pass.

    Every pass but the last reads copies of these, which collect the gradients. The last one reads the originals, and its
    backward pass takes the collected gradients along into the prompts and into the policy's own weights.

    Args:
        model: the policy, which has a decoder that learns in the plain form.
        prompts: those of the step.
        passes: how many the step has.
    """

    def __init__(self, model: Any, prompts: Prompts, passes: int) -> None:
        decoder = learning_decoder(model)
        assert decoder is not None
        self.model, self.decoder, self.prompts, self.passes_left = model, decoder, prompts, passes
        past = read_texts(model, decoder, prompts.token_ids, prompts.first)
        self.originals = [*past.keys, *past.values, *decoder.weights]
        self.copies = [original.detach().requires_grad_(original.requires_grad) for original in self.originals]

    def states(self, rollouts: Rollouts, rows: Int[Tensor, " n"]) -> Float[Tensor, "k H"]:
        """The states that predict the response tokens of these rows, row by row; `rollouts` are the rows' own."""
        self.passes_left -= 1
        tensors = self.copies if self.passes_left else _Together.apply(self.copies, *self.originals)
        if not self.passes_left:
            self.copies, self.originals = [], []  # the graph keeps them until the backward pass
        layers, owner = len(self.decoder.layers), self.prompts.owner[rows]
        start = self.prompts.token_ids.shape[1] - shared_width(rollouts)  # before it these rows have padding
        own = [layer[:, :, start:].index_select(0, owner) for layer in tensors[: 2 * layers]]
        past = Past(tuple(own[:layers]), tuple(own[layers:]), self.prompts.first[owner] - start)
        decoder = self.decoder.with_weights(tensors[2 * layers :])
        return states_after(self.model, decoder, past, rollouts.token_ids, rollouts.response_mask)


class _Together(torch.autograd.Function):
    """The originals. Their gradients are those that arrive here and those that copies have collected."""

    @staticmethod
    def forward(ctx: Any, copies: Sequence[Tensor], *originals: Tensor) -> tuple[Tensor, ...]:
        ctx.copies = copies
        ctx.set_materialize_grads(False)
        return tuple(original.view_as(original) for original in originals)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        collected = [copy.grad for copy in ctx.copies]
        pairs = zip(gradients, collected, strict=True)
        return None, *(b if a is None else a if b is None else a + b for a, b in pairs)


def worth_sharing(rollouts: Rollouts, rows: Int[Tensor, " n"], passes: int, token_budget: int | None) -> Prompts | None:
    """The prompts of these rows; None where running them once does not pay, or leaves one of at most so many passes too little
    room."""
    if shared_width(rollouts) < 1 or not len(rows) or align(rollouts.attention_mask[rows]) is None:
        return None
    prompts, responses = distinct_prompts(rollouts, rows), rollouts.response_mask[rows].sum(1)
    once, tokens, completions = prompts.tokens, int(rollouts.attention_mask[rows].sum()), int(responses.sum())
    fits = once * passes + completions <= MOST_HELD * tokens if token_budget is None else 2 * once <= token_budget
    pays = tokens - completions - once >= LEAST_SAVED * tokens and int(responses.max()) < 2 * BLOCK
    return prompts if fits and pays else None


def distinct_prompts(rollouts: Rollouts, rows: Int[Tensor, " n"]) -> Prompts:
    """Those of these rows."""
    first = rollouts.attention_mask[rows].long().argmax(1)
    token_ids, begins, owner = distinct_texts(rollouts.token_ids[rows, : shared_width(rollouts)], first)
    return Prompts(token_ids, begins, torch.full_like(rollouts.token_ids[:, 0], -1).index_put((rows,), owner))


def shared_width(rollouts: Rollouts) -> int:
    """The columns of prompts but the last."""
    return int(rollouts.response_mask.any(0).long().argmax()) - 1
