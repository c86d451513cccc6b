"""Sampling over a growing cache: prompts run once for all their samples, finished completions leave the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from oar_lightning.common.randomness import generator
from oar_lightning.policy.language_model import cached_hidden_states, evaluating, head_logits, new_cache, states_fit
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import (
    Generation,
    SamplingConfig,
    draw_tokens,
    encode_prompts,
    pad_left,
)

LEAVING = 8
"""Finished completions leave the batch once they are 1 of so many: each time copies the cache of those that stay."""


class CachedEngine:
    """Samples with the decoder and its head directly. Needs `can_share_prefixes`.

    Every prompt has a seed and every completion random numbers of its own: which others are in the batch changes nothing
    but rounding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(
        self, model: Any, prompts: Sequence[str], samples: int, config: SamplingConfig, seeds: Sequence[int]
    ) -> Generation:
        encoded = encode_prompts(self.tokenizer, prompts, seeds)
        owners = [prompt for prompt in range(len(encoded)) for _ in range(samples)]
        uniforms = torch.cat([torch.rand(samples, config.max_new_tokens, generator=generator(seed)) for seed in seeds])
        keep_states = _keeps_states(model, len(owners), config.max_new_tokens)

        def sample(batch: list[int]) -> Generation:
            owner = [owners[i] for i in batch]
            chosen = list(dict.fromkeys(owner))
            place = {prompt: i for i, prompt in enumerate(chosen)}
            rows = torch.tensor([place[prompt] for prompt in owner])
            ids = [encoded[i] for i in chosen]
            return self._sample(model, ids, rows, uniforms[batch], config, keep_states)

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
            going = ~ended[live]  # ended rows that are still in the batch run along unheard
            completion[live[going], column] = tokens[going]
            if states is not None:
                states[live[going], column] = hidden[going]
            lengths[live[going]] = column + 1
            ended[live] |= torch.isin(tokens, eos) & going
            going = ~ended[live]
            remaining = int(going.sum())
            if not remaining or column + 1 == config.max_new_tokens:
                break
            if remaining <= len(live) - max(1, len(live) // LEAVING):
                keep = going.nonzero().flatten()
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


def _keeps_states(model: Any, completions: int, tokens: int) -> bool:
    """Whether the states that completions are predicted from are worth keeping.

    A decoding step rounds otherwise than a pass over the whole text. In float32 the log-probabilities of the two agree
    within 1e-4 (a test holds this); in half precision they do not, and a later pass has to make its own.
    """
    weight = model.get_input_embeddings().weight
    exact = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(weight.device.type)
    return exact and states_fit(model, completions * tokens)
