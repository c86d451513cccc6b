"""Small models of the families that the plain decoder serves."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, rope_parameters=LLAMA3)),
    "llama-yarn": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 4}, rope_parameters=YARN)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, tie_word_embeddings=True)),
}


def random_model(family: str, dtype: torch.dtype) -> Any:
    """Random weights, norms and biases included."""
    torch.manual_seed(0)
    model = FAMILIES[family]().to(dtype).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model
