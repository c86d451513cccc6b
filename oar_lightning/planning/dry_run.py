"""Counts the peak memory of the package's own passes, run with tensors without values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from oar_lightning.credit.scorers import Scorer
from oar_lightning.credit.scorers.probes import AFTER_WARMUP
from oar_lightning.planning.empty import peak_bytes
from oar_lightning.policy.language_model import cached_hidden_states, evaluating, head_logits, new_cache, token_logprobs
from oar_lightning.rollout.sampling import SamplingConfig, draw_tokens
from oar_lightning.types import Rollouts


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
    seen = texts.attention_mask

    def work() -> None:
        with _mixed(autocast), evaluating(model):
            cache = new_cache(model)
            hidden = cached_hidden_states(model, cache, seen[:: texts.group_size, :prompt], prompts)[:, -1]
            cache.batch_select_indices(owner)
            hidden = hidden[owner]
            states = hidden.new_zeros(rows, completion, hidden.shape[1]) if keep_states else None
            for layer in cache.layers:  # all columns but the last two, at once
                shape = (rows, layer.keys.shape[1], max(0, completion - 2), -1)
                layer.update(layer.keys[:, :, :1].expand(shape), layer.values[:, :, :1].expand(shape))
            tokens = draw_tokens(head_logits(model, hidden), torch.zeros(rows), sampling)
            hidden = cached_hidden_states(model, cache, seen[:, :-1], tokens[:, None])[:, -1]
            if states is not None:
                torch.nn.functional.pad(states, (0, 0, prompt, 0))

    return peak_bytes(work)


def _mixed(dtype: torch.dtype | None) -> Any:
    return torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None)
