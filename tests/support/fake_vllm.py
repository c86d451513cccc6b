"""A stand-in for vLLM: its public interface over a small Hugging Face model that really samples.

Names, defaults and refusals are those of vLLM 0.19.1 and 0.33 (parameters that both have), and of 0.32 on a CPU, where the
tests that hold for both run over the true one too (true_vllm.py); what is not asked for here is left out. Like the true one
it starts with weights that mean nothing, holds fused projections, keeps a prefix cache that goes stale with the weights,
seeds every global generator, and cannot be given tensors when it runs in another process. In a job of several processes it
joins their process group, which takes all of them at once, and only when told so.
"""

from __future__ import annotations

import copy
import importlib.machinery
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from oar_lightning.rollout import vllm as vllm_engine
from oar_lightning.rollout import vllm_cpu
from oar_lightning.rollout.vllm_cpu import built_for_cpu

ENGINE_ARGS = {
    "distributed_executor_backend",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "enable_sleep_mode",
    "generation_config",
    "load_format",
    "logprobs_mode",
    "max_logprobs",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "model_impl",
}
"""Some of those that `LLM` hands on."""

MAX_BATCHED_TOKENS = 16384
"""In a pass, by default: depends on the hardware."""

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: list[CompletionOutput]
    finished: bool = True


class SamplingParams:
    def __init__(
        self,
        n: int = 1,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: list[int] | None = None,
        ignore_eos: bool = False,
        max_tokens: int | None = 16,
        min_tokens: int = 0,
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        detokenize: bool = True,
        skip_special_tokens: bool = True,
    ) -> None:
        assert isinstance(n, int)
        assert n >= 1
        assert 0 <= temperature <= 2, "0.33 refuses temperatures above 2"
        assert 0 < top_p <= 1
        assert isinstance(top_k, int)
        assert top_k >= -1
        assert max_tokens is not None
        assert max_tokens >= 1
        assert logprobs is None or logprobs >= -1
        assert seed is None or -(2**63) <= seed < 2**63 - n, "kept as int64, and the n-th completion gets seed + n"
        stops = stop_token_ids or []
        assert isinstance(stops, list)
        assert all(isinstance(i, int) for i in stops)
        assert not stop, "no use is made of stop strings"
        if temperature < 1e-5 and n > 1:
            raise ValueError(f"n must be 1 when using greedy sampling, got {n}.")
        self.n, self.temperature, self.top_p, self.top_k = n, temperature, top_p, top_k
        self.seed, self.stop_token_ids, self.ignore_eos = seed, stops, ignore_eos
        self.max_tokens, self.logprobs, self.detokenize = max_tokens, logprobs, detokenize
        if 0 < temperature < 0.01:
            self.temperature = 0.01


class Model:
    """What `apply_model` hands out: a model with its own parameter names, which loads those of a checkpoint."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.tied = bool(inner.config.tie_word_embeddings)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.inner.named_parameters():
            yield fused(name), parameter

    @torch.no_grad()
    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        parameters = dict(self.inner.named_parameters())
        loaded = set()
        for name, tensor in weights:
            if self.tied and name.startswith("lm_head."):
                continue
            if name not in parameters:
                raise ValueError(f"There is no module or parameter named '{name}' in {type(self.inner).__name__}")
            assert parameters[name].shape == tensor.shape
            parameters[name].copy_(tensor)
            loaded.add(fused(name))
        return loaded


def fused(name: str) -> str:
    return ".".join(FUSED.get(part, part) for part in name.split("."))


class LLM:
    """`events` holds the calls that a test asks about; `outputs` the last requests."""

    made: list[LLM] = []  # noqa: RUF012

    def __init__(
        self,
        model: str,
        *,
        tokenizer: str | None = None,
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        seed: int = 0,
        gpu_memory_utilization: float = 0.9,
        enforce_eager: bool = False,
        **kwargs: Any,
    ) -> None:
        if unknown := sorted(set(kwargs) - ENGINE_ARGS):
            raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument '{unknown[0]}'")
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.multiprocessing = bool(int(os.getenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")))
        self.arguments = kwargs | {
            "dtype": dtype,
            "gpu_memory_utilization": gpu_memory_utilization,
            "enforce_eager": enforce_eager,
        }
        self.on_cpu = built_for_cpu()
        if (kwargs.get("max_num_seqs") or 0) > MAX_BATCHED_TOKENS:
            raise ValueError(
                f"max_num_batched_tokens ({MAX_BATCHED_TOKENS}) must be greater than or equal to max_num_seqs "
                f"({kwargs['max_num_seqs']})."
            )
        if self.on_cpu:
            assert not kwargs.get("enable_sleep_mode"), "sleep mode is not supported on current platform"
            assert kwargs.get("enable_chunked_prefill") is False, "CPU Generator does not use offset"
            torch.set_num_threads = lambda threads: None
        self.replicas = self._join(kwargs.get("distributed_executor_backend"))
        self.tokenizer_there = not skip_tokenizer_init
        config = AutoConfig.from_pretrained(model)
        assert config.architectures, "vLLM finds the model's class by its name in the configuration"
        if kwargs.get("generation_config", "auto") == "auto":
            raise AssertionError("the stored defaults would be sampled with")
        self.stored_eos = GenerationConfig.from_model_config(config).eos_token_id
        given = {"auto": config.dtype, "float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        self.model = Model(AutoModelForCausalLM.from_config(config, dtype=given).eval())
        assert type(self.model.inner).__name__ == config.architectures[0]
        assert kwargs.get("load_format", "auto") == "dummy", "there are no weights to load"
        with torch.no_grad():
            for parameter in self.model.inner.parameters():
                parameter.uniform_(-1e-3, 1e-3)
        if self.on_cpu:
            self._dispatch_linear_layers()
        self.limit = kwargs.get("max_model_len") or config.max_position_embeddings
        self.asleep = False
        self.cache: dict[tuple[int, ...], Tensor] = {}
        self.events: list[str] = []
        self.outputs: list[RequestOutput] = []
        self.params: list[SamplingParams] = []
        self.reset_fails = False
        self.last_reason: str | None = None
        LLM.made.append(self)

    def _dispatch_linear_layers(self) -> None:
        """Once the first weights are there, as `UnquantizedLinearMethod.process_weights_after_loading`."""
        from vllm.model_executor.layers import utils

        for layer in self.model.inner.modules():
            if isinstance(layer, torch.nn.Linear):
                utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=layer is not self.model.inner.lm_head)
                layer.forward = lambda x, layer=layer: layer.cpu_linear(x, layer.weight, layer.bias)

    def held(self) -> dict[str, Tensor]:
        """The weights that it holds, under the names of a checkpoint."""
        return dict(self.model.inner.named_parameters())

    def _join(self, backend: str | None) -> int:
        """As `initialize_model_parallel` and `ExecutorWithExternalLauncher.determine_available_memory` do it."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            assert backend is None
            return 1
        assert backend == "external_launcher", "each process would take itself for the first of a job of its own"
        assert not self.multiprocessing
        assert int(os.environ["RANK"]) == dist.get_rank()
        assert int(os.environ["LOCAL_RANK"]) == 0, "the number of the policy's GPU, or of the one CPU"
        everyone = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
        for rank in range(dist.get_world_size()):
            dist.new_group([rank], backend="gloo")
        memory = torch.tensor([1000 + dist.get_rank()])
        dist.all_reduce(memory, dist.ReduceOp.MIN, everyone)
        assert int(memory) == 1000
        return dist.get_world_size()

    def apply_model(self, func: Callable[[Model], Any]) -> list[Any]:
        assert not self.multiprocessing, "func and what it holds would have to be pickled"
        assert not self.asleep, "its weights are not on the GPU"
        self.events.append("apply_model")
        return [func(self.model)]

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.events.append("reset_prefix_cache")
        if self.reset_fails:
            return False
        self.cache.clear()
        return True

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        assert self.arguments.get("enable_sleep_mode")
        assert level == 1, "a deeper sleep would lose the weights"
        assert not self.asleep
        self.events.append("sleep")
        self.asleep = True
        self.cache.clear()

    def wake_up(self, tags: list[str] | None = None) -> bool:
        assert self.asleep
        assert tags is None
        self.events.append("wake_up")
        self.asleep = False
        return True

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[dict[str, Any]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
    ) -> list[RequestOutput]:
        assert not self.asleep
        assert not torch.is_autocast_enabled("cpu")
        assert isinstance(sampling_params, Sequence)
        assert len(prompts) == len(sampling_params)
        self.events.append("generate")
        self.params = list(sampling_params)
        self.outputs = []
        for number, (prompt, params) in enumerate(zip(prompts, sampling_params, strict=True)):
            assert prompt.keys() == {"prompt_token_ids"}
            ids = prompt["prompt_token_ids"]
            assert self.tokenizer_there is False
            assert not params.detokenize
            children = [self._complete(ids, params, index) for index in range(params.n)]
            self.outputs.append(RequestOutput(str(number), None, ids, children))
        return self.outputs

    def _complete(self, prompt: list[int], params: SamplingParams, index: int) -> CompletionOutput:
        rng = None if params.seed is None else torch.Generator().manual_seed(params.seed + index)
        ids: list[int] = []
        logprobs: list[dict[int, Logprob]] = []
        stops = set(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= {self.stored_eos} if isinstance(self.stored_eos, int) else set(self.stored_eos or ())
        reason, stopped_by = None, None
        while reason is None:
            raw = self._logits(prompt, ids)
            processed = nucleus(raw / (params.temperature or 1.0), params.top_p)
            if params.temperature == 0:
                token = int(raw.argmax())
            else:
                token = int(torch.multinomial(processed.softmax(0), 1, generator=rng))
            ids.append(token)
            kept = processed if self.arguments.get("logprobs_mode") == "processed_logprobs" else raw
            scores = kept.log_softmax(0)
            logprobs.append({token: Logprob(float(scores[token]), int((scores > scores[token]).sum()) + 1)})
            if token in stops:
                reason, stopped_by = "stop", token
            elif len(prompt) + len(ids) >= self.limit or len(ids) >= params.max_tokens:
                reason = "length"
        wanted = None if params.logprobs is None else logprobs
        total = None if wanted is None else sum(place[i].logprob for i, place in zip(ids, wanted, strict=True))
        return CompletionOutput(index, "", tuple(ids), total, wanted, self.last_reason or reason, stopped_by)

    def _logits(self, prompt: list[int], completion: list[int]) -> Tensor:
        key = tuple(prompt)
        if not completion and key in self.cache:
            return self.cache[key]
        logits = self.model.inner(input_ids=torch.tensor([prompt + completion])).logits[0, -1].float()
        if not completion:
            self.cache[key] = logits
        return logits


def nucleus(logits: Tensor, top_p: float) -> Tensor:
    if top_p == 1:
        return logits
    p, order = logits.softmax(0).sort(descending=True)
    outside = order[p.cumsum(0) - p >= top_p]
    logits = logits.clone()
    logits[outside] = float("-inf")
    return logits


def install(monkeypatch: pytest.MonkeyPatch, on_cpu: bool = False) -> type[LLM]:
    """`import vllm` finds this until the test ends, in the build for CUDA or the one for CPUs."""
    module = ModuleType("vllm")
    module.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = LLM, SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)
    for place, names in CPU_PARTS.items():
        part = ModuleType(place)
        for name, value in names.items():
            setattr(part, name, value)
        monkeypatch.setitem(sys.modules, place, part)
    for file in (vllm_cpu, vllm_engine, sys.modules[__name__]):
        monkeypatch.setattr(file, "built_for_cpu", lambda: on_cpu)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    monkeypatch.setattr(LLM, "made", [])
    return LLM


def pack(layer: Any, remove_weight: bool) -> None:
    """The CPU backend's own `dispatch_cpu_unquantized_gemm`: computes with a copy, and drops the weight itself."""
    packed = layer.weight.detach().clone()
    layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, packed, bias)
    if remove_weight:
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)


class CPUAttentionBackend:
    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512]


CPU_PARTS: dict[str, dict[str, Any]] = {
    "vllm.model_executor": {},
    "vllm.model_executor.layers": {},
    "vllm.model_executor.layers.utils": {"dispatch_cpu_unquantized_gemm": pack},
    "vllm.v1": {},
    "vllm.v1.attention": {},
    "vllm.v1.attention.backends": {},
    "vllm.v1.attention.backends.cpu_attn": {"CPUAttentionBackend": CPUAttentionBackend},
}
"""Modules of vLLM that the engine asks for on a CPU, and what it takes from them."""


def copy_of(model: Any) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())
