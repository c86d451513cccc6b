"""Small models of several families, and texts of different lengths for scorers."""

from __future__ import annotations

import torch
from support.toy import gpt2, rollouts_of
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def sliding_qwen2() -> Qwen2ForCausalLM:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=6, max_window_layers=1))


FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": gpt2,
}


def texts(seed: int = 0):
    """Five texts of different lengths, one without a conclusion, one whose reasoning starts at once."""
    rng = torch.Generator().manual_seed(seed)
    shapes = [(4, 9, 2, 3), (1, 17, 0, 1), (6, 1, 1, 2), (3, 12, 3, 1), (2, 8, 0, 4)]
    names = ("before", "reasoning", "conclude", "answer")
    draw = lambda n: torch.randint(2, 40, (n,), generator=rng).tolist()  # noqa: E731
    return rollouts_of([dict(zip(names, map(draw, shape), strict=True)) for shape in shapes])
