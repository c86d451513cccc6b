"""Counts the peak memory of the package's own passes, run with tensors without values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from oar_lightning.credit.scorers import Scorer
from oar_lightning.planning.empty import peak_bytes
from oar_lightning.policy.decoder import GrowingTexts, growing_texts
from oar_lightning.policy.language_model import evaluating
from oar_lightning.policy.lm_head import token_logprobs
from oar_lightning.rollout.drawing import draw_tokens
from oar_lightning.rollout.sampling import SamplingConfig
from oar_lightning.types import AFTER_WARMUP, Rollouts


def completions(rows: int, group_size: int, prompt: int, completion: int, answer: int = 1, conclusion: int = 0) -> Rollouts:
    """`rows` different completions of `completion` tokens after prompts of `prompt` tokens, ending in conclusion and answer."""
    ids = torch.zeros(rows, prompt + completion, dtype=torch.long)
    ids[:, 0] = torch.arange(rows) // group_size
    ids[:, -1] = torch.arange(rows) % group_size
    column = torch.arange(prompt + completion).expand_as(ids)
    rewards = torch.zeros(rows)
    return Rollouts(
        token_ids=ids,
        attention_mask=column >= 0,
        response_mask=column >= prompt,
        reasoning_mask=(column >= prompt) & (column < prompt + completion - answer - conclusion),
        answer_mask=column >= prompt + completion - answer,
        reward_terms=rewards[:, None],
        rewards=rewards,
        group_size=group_size,
        step=AFTER_WARMUP,
    )


@contextlib.contextmanager
def _updating(model: Any) -> Iterator[None]:
    """Training mode with allocated gradients, as in the second pass of an optimizer step."""
    model.train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        model.zero_grad(set_to_none=True)
        model.eval()


def update_bytes(model: Any, texts: Rollouts, autocast: torch.dtype | None = None, entropy_grad: bool = False) -> int:
    """Peak bytes of an update's forward-backward pass beyond weights and their gradients: activations, logits, and the
    gradients of these."""

    def work() -> None:
        with _mixed(autocast):
            logprobs, entropy = token_logprobs(
                model, texts.token_ids, texts.attention_mask, texts.response_mask, entropy_grad=entropy_grad
            )
            loss = logprobs.sum() + (entropy.sum() if entropy_grad else 0.0)
        loss.backward()

    with _updating(model):
        return peak_bytes(work)


@torch.no_grad()
def logprobs_bytes(model: Any, texts: Rollouts, autocast: torch.dtype | None = None) -> int:
    """Peak bytes of a pass for log-probabilities without gradient."""

    def work() -> None:
        with _mixed(autocast):
            token_logprobs(model, texts.token_ids, texts.attention_mask, texts.response_mask)

    return peak_bytes(work)


def scoring_bytes(model: Any, scorer: Scorer, texts: Rollouts, autocast: torch.dtype | None = None) -> int:
    """Peak bytes of scoring some completions."""

    def work() -> None:
        with _mixed(autocast):
            scorer(model, texts)

    return peak_bytes(work)


@torch.no_grad()
def generation_bytes(
    model: Any, texts: Rollouts, sampling: SamplingConfig, keep_states: bool, autocast: torch.dtype | None = None
) -> int:
    """Peak bytes of a batch of `CachedEngine`: the pass over its prompts, its last token, and the kept states' layout."""
    completion = int(texts.response_mask[0].sum())
    prompts, prompt = texts.token_ids[:: texts.group_size, :-completion], texts.token_ids.shape[1] - completion
    rows, owner = len(texts), torch.arange(len(texts)) // texts.group_size
    first = texts.attention_mask[:: texts.group_size].long().argmax(1)

    def work() -> None:
        with _mixed(autocast), evaluating(model):
            grown = growing_texts(model, first, prompt + completion)
            hidden = grown(prompts)[:, -1][owner]
            grown.select(owner)
            states = hidden.new_zeros(rows, prompt + completion, hidden.shape[1]) if keep_states else None
            _lengthen(grown, prompt + completion - 2)
            tokens = draw_tokens(grown.logits(hidden), torch.zeros(rows), sampling)
            hidden = grown(tokens[:, None])[:, -1]
            del states

    return peak_bytes(work)


def _lengthen(texts: GrowingTexts, width: int) -> None:
    """Let the cache grow to `width` columns as it does token by token."""
    while texts.width < width:
        columns = min(width - texts.width, max(1, texts.cache.layers[0].room))
        for layer in texts.cache.layers:
            keys, values = (x[:, :, :1].clone().expand(-1, -1, columns, -1) for x in (layer.keys, layer.values))
            layer.update(keys, values)
        texts.width += columns


def _mixed(dtype: torch.dtype | None) -> Any:
    return torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
