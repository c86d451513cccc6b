"""Sampling with a key-value cache: each prompt runs once for all its samples, and finished completions leave the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.activity import within
from oar_lightning.common.randomness import generator
from oar_lightning.policy.language_model import cached_hidden_states, evaluating, head_logits, new_cache, states_fit
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import (
    Generation,
    Prompt,
    SamplingConfig,
    draw_tokens,
    encode_prompts,
    pad_left,
)

LEAVE_ONE_IN = 8
"""Finished completions leave the batch when they are one in so many of its rows: the remaining rows' cache is then copied."""


class CachedEngine:
    """Samples with the policy's decoder and head. Needs `can_share_prefixes`.

    Every prompt has its own seed and every completion its own random numbers: the other rows of a batch change only rounding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(
        self,
        model: Any,
        prompts: Sequence[Prompt],
        samples: int,
        config: SamplingConfig,
        seeds: Sequence[int],
        limits: Sequence[int] | None = None,
    ) -> Generation:
        encoded = encode_prompts(self.tokenizer, prompts, seeds)
        owners = [prompt for prompt in range(len(encoded)) for _ in range(samples)]
        limits = limits or [config.max_new_tokens] * len(encoded)
        config = dataclasses.replace(config, max_new_tokens=max(limits))
        draws = [torch.rand(samples, limit, generator=generator(seed)) for seed, limit in zip(seeds, limits, strict=True)]
        # a number below 0 stands beyond a completion's limit
        uniforms = torch.cat([torch.nn.functional.pad(d, (0, max(limits) - d.shape[1]), value=-1.0) for d in draws])
        keep_states = config.keep_states and keeps_states(model, len(owners), config.max_new_tokens)

        def sample(batch: list[int]) -> Generation:
            batch_prompts = list(dict.fromkeys(owners[i] for i in batch))
            index_of = {prompt: index for index, prompt in enumerate(batch_prompts)}
            owner = torch.tensor([index_of[owners[i]] for i in batch])
            ids = [encoded[prompt] for prompt in batch_prompts]
            return self._sample(model, ids, owner, uniforms[batch], config, keep_states)

        lengths = [len(encoded[prompt]) for prompt in owners]
        with evaluating(model):
            return config.sample_in_batches(lengths, sample, self.tokenizer.pad_token_id)

    def _sample(
        self,
        model: Any,
        prompts: list[list[int]],
        owner: Int[Tensor, " B"],
        uniforms: Float[Tensor, "B T"],
        config: SamplingConfig,
        keep_states: bool,
    ) -> Generation:
        device = model.get_input_embeddings().weight.device
        owner, uniforms = owner.to(device), uniforms.to(device)
        limits = (uniforms >= 0).sum(1)
        eos = torch.tensor(eos_token_ids(model, self.tokenizer), device=device)
        ids, attention = pad_left(prompts, self.tokenizer.pad_token_id, device)
        cache = new_cache(model)
        hidden = cached_hidden_states(model, cache, attention, ids)[:, -1]
        cache.batch_select_indices(owner)
        ids, prompt_mask, hidden = ids[owner], attention[owner], hidden[owner]

        completion = torch.full(uniforms.shape, self.tokenizer.pad_token_id, device=device)
        lengths = torch.zeros(len(owner), dtype=torch.long, device=device)
        ended = torch.zeros(len(owner), dtype=torch.bool, device=device)
        live, attention = torch.arange(len(owner), device=device), prompt_mask
        states = hidden.new_zeros(*uniforms.shape, hidden.shape[1]) if keep_states else None
        for column in range(config.max_new_tokens):
            tokens = draw_tokens(head_logits(model, hidden), uniforms[live, column], config)
            running = ~ended[live] & (column < limits[live])  # tokens of finished rows still in the batch are ignored
            completion[live[running], column] = tokens[running]
            if states is not None:
                states[live[running], column] = hidden[running]
            lengths[live[running]] = column + 1
            ended[live] |= torch.isin(tokens, eos) & running
            running = ~ended[live] & (lengths[live] < limits[live])
            remaining = int(running.sum())
            within(len(owner) - remaining, f"token {column + 1}/{config.max_new_tokens}")
            if not remaining or column + 1 == config.max_new_tokens:
                break
            if remaining <= len(live) - max(1, len(live) // LEAVE_ONE_IN):
                keep = running.nonzero().flatten()
                cache.batch_select_indices(keep)
                live, tokens, attention = live[keep], tokens[keep], attention[keep]
            attention = torch.cat([attention, torch.ones_like(attention[:, :1])], 1)
            hidden = cached_hidden_states(model, cache, attention, tokens[:, None])[:, -1]
        width = int(lengths.max())
        response: Bool[Tensor, "B W"] = torch.arange(width, device=device) < lengths[:, None]
        if states is not None:
            states = torch.nn.functional.pad(states[:, :width], (0, 0, ids.shape[1], 0))
        return Generation(
            torch.cat([ids, completion[:, :width]], 1),
            torch.cat([prompt_mask, response], 1),
            torch.cat([torch.zeros_like(prompt_mask), response], 1),
            ~ended,
            states,
        )


def keeps_states(model: Any, completions: int, tokens: int) -> bool:
    """Whether the states from which completions are predicted are exact and small enough to be kept.

    A decoding step rounds differently from a pass over the whole text. In float32 the log-probabilities of the two agree
    within 1e-4 (a test checks this); in half precision they do not, and later stages compute their own states.
    """
    weight = model.get_input_embeddings().weight
    exact = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(weight.device.type)
    return exact and states_fit(model, completions * tokens)
