"""Sampling with Hugging Face `generate`; token ids are kept exactly as generated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from oar_lightning.language_model import base_model, evaluating


class Generation(NamedTuple):
    """Prompts and sampled completions; rows of one prompt are consecutive. ``truncated``: stopped by the token limit."""

    token_ids: Int[Tensor, "B S"]
    attention_mask: Bool[Tensor, "B S"]
    response_mask: Bool[Tensor, "B S"]
    truncated: Bool[Tensor, " B"]


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are drawn.

    Args:
        max_new_tokens: limit of a completion, EOS included.
        temperature: divides the logits; 0 decodes greedily.
        top_p: nucleus; 1 keeps the whole distribution, which on-policy training needs.
        max_batch: completions generated at once; None for all.
    """

    max_new_tokens: int = 80
    temperature: float = 1.0
    top_p: float = 1.0
    max_batch: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"rollout.max_new_tokens must be >= 1, got {self.max_new_tokens}")
        if self.temperature < 0:
            raise ValueError(f"rollout.temperature must be >= 0 (0 is greedy), got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"rollout.top_p must be in (0, 1], got {self.top_p}")
        if self.max_batch is not None and self.max_batch < 1:
            raise ValueError(f"rollout.max_batch must be >= 1 or null, got {self.max_batch}")


@contextlib.contextmanager
def stored_defaults_off(model: Any) -> Iterator[None]:
    """Leaves of the model's `generation_config` only the EOS ids; `generate` takes all it is not told from there."""
    from transformers import GenerationConfig

    stored = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=stored.eos_token_id)
    try:
        yield
    finally:
        model.generation_config = stored


class HFEngine:
    """`generate` with the model's stored defaults switched off: what is sampled is the policy's own distribution."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(self, model: Any, prompts: list[str], samples: int, config: SamplingConfig) -> Generation:
        """`samples` completions for each prompt, from the global RNG."""
        encoded = self.tokenizer(prompts, add_special_tokens=False).input_ids
        if empty := [i for i, ids in enumerate(encoded) if not ids]:
            raise ValueError(f"data.prompt: {len(empty)} of {len(prompts)} prompts have no tokens (first: number {empty[0]})")
        repeated = [ids for ids in encoded for _ in range(samples)]
        size = config.max_batch or len(repeated)
        # a peft wrapper's generate() would leave other defaults in the model inside; its adapters are active there too
        model = base_model(model)
        with evaluating(model), stored_defaults_off(model):
            parts = [self._generate(model, repeated[i : i + size], config) for i in range(0, len(repeated), size)]
        return self._join(parts)

    def eos_token_ids(self, model: Any) -> list[int]:
        own = getattr(model.generation_config, "eos_token_id", None)
        listed = own if isinstance(own, list) else [] if own is None else [own]
        return sorted({self.tokenizer.eos_token_id, *listed})

    def _generate(self, model: Any, prompts: list[list[int]], config: SamplingConfig) -> Generation:
        device = model.get_input_embeddings().weight.device
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + p for p in prompts], device=device)
        attention = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        eos = self.eos_token_ids(model)
        sampling: dict[str, Any] = {"do_sample": False}
        if config.temperature > 0:
            # generate() would apply top_k=50 unless told otherwise
            sampling = {"do_sample": True, "temperature": config.temperature, "top_p": config.top_p, "top_k": 0}
        token_ids = model.generate(
            input_ids=ids,
            attention_mask=attention.long(),
            max_new_tokens=config.max_new_tokens,
            eos_token_id=eos,
            pad_token_id=pad,
            use_cache=True,
            **sampling,
        )
        completion = token_ids[:, width:]
        ended = torch.isin(completion, torch.tensor(eos, device=device))
        response = ended.long().cumsum(1) - ended.long() == 0  # up to and including the first EOS
        response_mask = torch.cat([torch.zeros_like(attention), response], 1)
        return Generation(token_ids, torch.cat([attention, response], 1), response_mask, ~ended.any(1))

    def _join(self, parts: list[Generation]) -> Generation:
        """Generations of different prompt and completion lengths as one, padded on the outer sides."""
        if len(parts) == 1:
            return parts[0]
        prompt = [int(p.response_mask.long().argmax(1).max()) for p in parts]
        left = max(prompt)
        right = max(p.token_ids.shape[1] - n for p, n in zip(parts, prompt, strict=True))

        def padded(x: Tensor, n: int, value: int | bool) -> Tensor:
            return torch.nn.functional.pad(x, (left - n, right - (x.shape[1] - n)), value=value)

        pad = self.tokenizer.pad_token_id
        return Generation(
            torch.cat([padded(p.token_ids, n, pad) for p, n in zip(parts, prompt, strict=True)]),
            torch.cat([padded(p.attention_mask, n, False) for p, n in zip(parts, prompt, strict=True)]),
            torch.cat([padded(p.response_mask, n, False) for p, n in zip(parts, prompt, strict=True)]),
            torch.cat([p.truncated for p in parts]),
        )
