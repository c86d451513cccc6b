"""Runs each prompt of an optimizer step once for all its completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from oar_lightning.policy.attention import BLOCK
from oar_lightning.policy.decoder import Past, empty_past, learning_decoder, states_after
from oar_lightning.policy.language_model import align, embed
from oar_lightning.types import Rollouts

LEAST_SAVED = 0.2
"""The least part of an optimizer step's tokens that sharing has to save. It costs copies of keys and values, and a mask of
attention, whose hidden part is computed: of long completions more than what is saved."""
MOST_HELD = 1.25
"""The most tokens that may be held at once, those of the prompts and of one pass, over those of a pass without sharing."""


class SharedPrompts:
    """The prompts of an optimizer step, with gradients: their keys and values, and the decoder's weights in the plain form.
    `states` is to be called once for each pass.

    Every pass but the last reads copies of these, which collect the gradients. The last one reads the originals, and its
    backward pass takes the collected gradients along into the prompts and into the policy's own weights.

    Args:
        model: the policy, which has a decoder that learns in the plain form.
        rollouts: the batch whose rows the passes take.
        rows: those of the optimizer step.
        passes: how many there are.
    """

    def __init__(self, model: Any, rollouts: Rollouts, rows: Int[Tensor, " n"], passes: int) -> None:
        self.model = model
        self.passes_left = passes
        self.width = shared_width(rollouts)
        prompts, owner = distinct_prompts(rollouts, rows)
        self.owner = torch.full_like(rollouts.token_ids[:, 0], -1).index_put((rows,), owner)
        self.first, token_ids = prompts[:, 0], prompts[:, 1:]
        read_at = torch.zeros_like(token_ids[:, :1]), torch.ones_like(token_ids[:, :1], dtype=torch.bool)  # not used
        decoder = learning_decoder(model)
        assert decoder is not None
        self.decoder = decoder
        past = decoder(empty_past(self.first), embed(model, token_ids), read_at, keep=True)[1]
        assert past is not None
        self.originals = [*past.keys, *past.values, *decoder.weights]
        self.copies = [original.detach().requires_grad_(original.requires_grad) for original in self.originals]

    def states(self, rollouts: Rollouts, rows: Int[Tensor, " n"]) -> Float[Tensor, "k H"]:
        """The states that predict the response tokens of these rows, row by row; `rollouts` are the rows' own."""
        self.passes_left -= 1
        tensors = self.copies if self.passes_left else _Together.apply(self.copies, *self.originals)
        if not self.passes_left:
            self.copies, self.originals = [], []  # the graph keeps them until the backward pass
        layers, owner = len(self.decoder.layers), self.owner[rows]
        start = self.width - shared_width(rollouts)  # before it these rows have padding
        own = [layer[:, :, start:].index_select(0, owner) for layer in tensors[: 2 * layers]]
        past = Past(tuple(own[:layers]), tuple(own[layers:]), self.first[owner] - start)
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


def shared_tokens(rollouts: Rollouts, rows: Int[Tensor, " n"], passes: int, token_budget: int | None) -> int:
    """The padded tokens of these rows' prompts, run once; 0 where that does not pay, or leaves one of at most so many passes
    too little room."""
    if shared_width(rollouts) < 1 or not len(rows) or align(rollouts.attention_mask[rows]) is None:
        return 0
    responses = rollouts.response_mask[rows].sum(1)
    tokens, completions = int(rollouts.attention_mask[rows].sum()), int(responses.sum())
    once = distinct_prompts(rollouts, rows)[0][:, 1:].numel()
    fits = once * passes + completions <= MOST_HELD * tokens if token_budget is None else 2 * once <= token_budget
    pays = tokens - completions - once >= LEAST_SAVED * tokens and int(responses.max()) < 2 * BLOCK
    return once if fits and pays else 0


def shared_width(rollouts: Rollouts) -> int:
    """The columns of the prompts that are run once: all but the last, whose state predicts a completion's first token."""
    return int(rollouts.response_mask.any(0).long().argmax()) - 1


def distinct_prompts(rollouts: Rollouts, rows: Int[Tensor, " n"]) -> tuple[Int[Tensor, "p W"], Int[Tensor, " n"]]:
    """The first token's column and the shared columns of each distinct prompt, and which of them each row has."""
    first = rollouts.attention_mask[rows].long().argmax(1)
    described = torch.cat([first[:, None], rollouts.token_ids[rows, : shared_width(rollouts)]], 1)
    return described.unique(dim=0, return_inverse=True)
