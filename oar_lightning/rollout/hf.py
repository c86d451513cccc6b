"""Sampling with Hugging Face `generate`, for policies whose cache `CachedEngine` cannot handle."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.policy.language_model import base_model, evaluating, positions_of
from oar_lightning.rollout.drawing import draw_tokens, uniform_draws
from oar_lightning.rollout.sampling import (
    Generation,
    Prompt,
    SamplingConfig,
    cut,
    join_generations,
    pad_left,
    read_prompts,
)


@contextlib.contextmanager
def stored_defaults_off(model: Any) -> Iterator[None]:
    """Reduce the model's `generation_config` to the EOS ids for a block: `generate` takes defaults from it."""
    from transformers import GenerationConfig

    stored = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=stored.eos_token_id)
    try:
        yield
    finally:
        model.generation_config = stored


def eos_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """All ids that end a completion: the tokenizer's EOS and those stored with the model."""
    stored = getattr(base_model(model).generation_config, "eos_token_id", None)
    if not isinstance(stored, list):
        stored = [] if stored is None else [stored]
    return sorted({tokenizer.eos_token_id, *stored})


def together(lengths: Sequence[int], limits: Sequence[int], longest: int | None) -> Iterator[tuple[int, list[int]]]:
    """(new tokens, prompts that are completed by so many), in as few parts as `longest` allows: `generate` reads on in rows
    that are at their limit, and no text may grow beyond what the policy reads."""
    left = list(range(len(lengths)))
    while left:
        most = max(limits[i] for i in left)
        yield most, [i for i in left if longest is None or lengths[i] + most <= longest]
        left = [i for i in left if longest is not None and lengths[i] + most > longest]


class HFEngine:
    """Samples with `generate`, without the model's stored defaults: from the policy's own distribution, with the random numbers
    of `CachedEngine`, so that it draws the same completions up to rounding."""

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
        encoded, limits = read_prompts(model, self.tokenizer, prompts, seeds, config, limits)
        repeated = [ids for ids in encoded for _ in range(samples)]
        repeated_limits = [limit for limit in limits for _ in range(samples)]
        uniforms = uniform_draws(samples, seeds, limits)
        # a peft wrapper's generate() would change defaults of the inner model, in which the adapters are active, too
        model = base_model(model)
        lengths, pad = [len(ids) for ids in repeated], self.tokenizer.pad_token_id

        def sample(rows: list[int], config: SamplingConfig) -> Generation:
            def of_batch(batch: list[int]) -> Generation:
                chosen = [rows[i] for i in batch]
                return self._generate(model, [repeated[i] for i in chosen], uniforms[chosen], config)

            return config.sample_in_batches([lengths[i] for i in rows], of_batch, pad)

        parts = list(together(lengths, repeated_limits, positions_of(model)))
        with evaluating(model), stored_defaults_off(model):
            sampled = [sample(rows, dataclasses.replace(config, max_new_tokens=limit)) for limit, rows in parts]
        return cut(join_generations(sampled, pad, [rows for _, rows in parts]), repeated_limits)

    def _generate(
        self, model: Any, prompts: list[list[int]], uniforms: Float[Tensor, "B T"], config: SamplingConfig
    ) -> Generation:
        from transformers import LogitsProcessorList

        device = model.get_input_embeddings().weight.device
        pad = self.tokenizer.pad_token_id
        ids, attention = pad_left(prompts, pad, device)
        width = ids.shape[1]
        eos = eos_token_ids(model, self.tokenizer)
        uniforms = uniforms.to(device)

        def drawn(token_ids: Tensor, logits: Tensor) -> Tensor:
            """Logits of which the largest is that of the drawn token; `generate` calls it as a logits processor."""
            tokens = draw_tokens(logits, uniforms[:, token_ids.shape[1] - width], config)
            return torch.full_like(logits, -torch.inf).scatter_(1, tokens[:, None], 0.0)

        token_ids = model.generate(
            input_ids=ids,
            attention_mask=attention.long(),
            max_new_tokens=config.max_new_tokens,
            eos_token_id=eos,
            pad_token_id=pad,
            use_cache=True,
            do_sample=False,
            logits_processor=LogitsProcessorList([drawn]),
        )
        completion = token_ids[:, width:]
        ended = torch.isin(completion, torch.tensor(eos, device=device))
        response = ended.long().cumsum(1) - ended.long() == 0  # up to and including the first EOS
        response_mask = torch.cat([torch.zeros_like(attention), response], 1)
        return Generation(token_ids, torch.cat([attention, response], 1), response_mask, ~ended.any(1))
