"""Sampling with vLLM in each process that trains, on its GPU; its weights follow the policy's.

What vLLM draws from differs a little from the policy (other kernels, other rounding, often another dtype), so its own
log-probabilities are kept: the loss corrects for the difference (`loss.sampler_correction`). Written against the public API
of vLLM 0.19.1 to 0.33; it imports vLLM only when it first samples.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.randomness import derive_seed, global_rng_kept
from oar_lightning.common.scopes import environment
from oar_lightning.distributed.ranks import rank, world_size
from oar_lightning.policy.language_model import base_model
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import Generation, SamplingConfig, encode_prompts, lay_out
from oar_lightning.rollout.weights import checkpoint_weights, count_optimizer_steps, save_architecture

TEMPERATURES = (0.01, 2.0)
"""Above 0, vLLM raises lower temperatures to the first, with a warning, and refuses those above the second."""


@dataclass(frozen=True)
class VllmConfig:
    """vLLM beside the policy, one on the GPU of each rank (extra `vllm`).

    Args:
        gpu_memory_utilization: share of the GPU's memory for vLLM: its weights, activations and cache.
        max_model_len: longest prompt + completion; None takes the model's own, for which the cache must have room.
        tensor_parallel_size: 1; others are refused.
        sleep: move vLLM's weights to the host and free its cache while it does not sample (vLLM's sleep mode, level 1).
        dtype: of vLLM's weights; `auto` takes the policy's, bfloat16 or float16 for a float32 policy.
        enforce_eager: no CUDA graphs: starts sooner, samples more slowly.
    """

    gpu_memory_utilization: float = 0.3
    max_model_len: int | None = None
    tensor_parallel_size: int = 1
    sleep: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"engine.gpu_memory_utilization is a share and must be in (0, 1], got {self.gpu_memory_utilization}"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(f"engine.max_model_len must be >= 2 (a prompt and a completion) or null, got {self.max_model_len}")
        if self.tensor_parallel_size != 1:
            raise ValueError(
                f"engine.tensor_parallel_size must be 1, got {self.tensor_parallel_size}: every rank samples its own problems "
                "with a whole policy on its own GPU; for one that does not fit use engine=auto"
            )

    def check(self, sampling: SamplingConfig) -> None:
        """Whether vLLM is installed, finds a GPU and can sample so.

        Raises:
            ImportError: where it is not installed.
            ValueError: without CUDA, or for a temperature or a length that it does not take.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ImportError(
                "engine=vllm needs the optional extra: pip install 'oar-lightning[vllm]' (CUDA only); "
                "engine=auto samples without it"
            )
        if not torch.cuda.is_available():
            raise ValueError("engine=vllm runs on CUDA and torch finds no GPU here; use engine=auto")
        low, high = TEMPERATURES
        if sampling.temperature and not low <= sampling.temperature <= high:
            raise ValueError(
                f"rollout.temperature must be 0 or in [{low}, {high}] with engine=vllm, got {sampling.temperature}; "
                "engine=auto takes others"
            )
        if self.max_model_len is not None and self.max_model_len <= sampling.max_new_tokens:
            raise ValueError(
                f"engine.max_model_len={self.max_model_len} counts prompt and completion and must exceed "
                f"rollout.max_new_tokens={sampling.max_new_tokens}"
            )

    def build(self, model: Any, tokenizer: Any) -> VllmEngine:
        return VllmEngine(tokenizer, self)


class VllmEngine:
    """Samples with a `vllm.LLM` that is made at the first call and gets the policy's weights whenever they have changed.

    One engine serves one policy's architecture. Every prompt has a seed of its own; what else is in the batch changes nothing
    but rounding. vLLM bounds its memory itself; `rollout.max_batch` of the first call becomes its `max_num_seqs`.

    With several ranks each has its own and they sample independently; only starting is a thing they do together (`start`).
    """

    def __init__(self, tokenizer: Any, config: VllmConfig = VllmConfig()) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self._llm: Any = None
        self._asleep = False
        self._folder = tempfile.TemporaryDirectory(prefix="oar_lightning_vllm_")
        self._held: object = None  # the state of the weights that vLLM has
        self._optimizer_steps = count_optimizer_steps(self)

    @torch.no_grad()
    def __call__(
        self, model: Any, prompts: Sequence[str], samples: int, config: SamplingConfig, seeds: Sequence[int]
    ) -> Generation:
        encoded = encode_prompts(self.tokenizer, prompts, seeds)
        device = model.get_input_embeddings().weight.device
        eos = eos_token_ids(model, self.tokenizer)
        with apart(model):
            completions = self._complete(model, encoded, samples, config, seeds, eos)
        ids = [list(completion.token_ids) for completion in completions]
        generation = lay_out(
            [prompt for prompt in encoded for _ in range(samples)],
            ids,
            [is_truncated(completion, eos) for completion in completions],
            self.tokenizer.pad_token_id,
            device,
        )
        if config.temperature == 0:
            return generation  # nothing is drawn
        logprobs = torch.zeros(generation.token_ids.shape, device=device)
        # row-major, as the completions come
        logprobs[generation.response_mask] = torch.cat([chosen_logprobs(c) for c in completions]).to(device)
        return generation._replace(sampler_logprobs=logprobs)

    def _complete(
        self,
        model: Any,
        prompts: list[list[int]],
        samples: int,
        config: SamplingConfig,
        seeds: Sequence[int],
        eos: list[int],
    ) -> list[Any]:
        """vLLM's `CompletionOutput`s, `samples` for each prompt in consecutive places."""
        self.start(model, config)
        self._refresh(model)
        from vllm import SamplingParams

        greedy = config.temperature == 0  # takes no n > 1
        requests = [
            SamplingParams(
                n=1 if greedy else samples,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=0,
                max_tokens=config.max_new_tokens,
                # these ids and no others end a completion; vLLM would add those of the stored configuration
                ignore_eos=True,
                stop_token_ids=eos,
                logprobs=None if greedy else 0,  # 0: of the sampled token only
                # the n completions get seed, seed + 1, ...: hashed, so that neighbouring seeds share none; within 63 bits
                seed=derive_seed("vllm", seed) >> 1,
                detokenize=False,
            )
            for seed in seeds
        ]
        outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], requests, use_tqdm=False)
        if self.config.sleep:
            self._llm.sleep(level=1)
            self._asleep = True
        copies = samples if greedy else 1
        return [c for request in outputs for c in sorted(request.outputs, key=lambda c: c.index) for _ in range(copies)]

    def start(self, model: Any, config: SamplingConfig) -> None:
        """Make vLLM where there is none yet. Of several ranks all have to call it together before any of them samples: vLLM
        makes process groups of its own, and settles on the smallest of their caches.

        Raises:
            ValueError, ImportError: where it cannot run here.
        """
        if self._llm is None:
            with apart(model):
                self._llm = self._made(model, config)

    def _refresh(self, model: Any) -> None:
        """vLLM awake and with the policy's weights."""
        if self._asleep:
            torch.cuda.empty_cache()  # what torch keeps from the update is room that vLLM needs
            self._llm.wake_up()
            self._asleep = False
        state = (self._optimizer_steps[0], *((p.data_ptr(), p._version) for p in model.parameters()))
        if state != self._held:
            self._send_weights(model)
            self._held = state

    def _made(self, model: Any, config: SamplingConfig) -> Any:
        """A `vllm.LLM` of the policy's architecture, with weights that mean nothing yet."""
        self.config.check(config)
        device = model.get_input_embeddings().weight.device
        if world_size() == 1 and device.index:
            raise ValueError(
                f"engine=vllm uses the first visible GPU and the policy is on {device}; set CUDA_VISIBLE_DEVICES={device.index}"
            )
        from vllm import LLM

        torch.cuda.empty_cache()
        save_architecture(model, self._folder.name)
        arguments: dict[str, Any] = {} if config.max_batch is None else {"max_num_seqs": config.max_batch}
        # in a process of its own vLLM's model could not be given tensors
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        variables: dict[str, str] = {}
        if world_size() > 1:
            # vLLM joins the trainer's process group: every rank a replica that schedules for itself
            arguments["distributed_executor_backend"] = "external_launcher"
            variables = {"RANK": str(rank()), "LOCAL_RANK": str(device.index or 0), "WORLD_SIZE": str(world_size())}
        with environment(variables):
            return LLM(
                model=self._folder.name,
                load_format="dummy",
                skip_tokenizer_init=True,  # ids in, ids out
                generation_config="vllm",
                logprobs_mode="processed_logprobs",  # of the distribution drawn from: temperature and top_p applied
                gpu_memory_utilization=self.config.gpu_memory_utilization,
                max_model_len=self.config.max_model_len,
                tensor_parallel_size=self.config.tensor_parallel_size,
                enable_sleep_mode=self.config.sleep,
                dtype=self.config.dtype,
                enforce_eager=self.config.enforce_eager,
                **arguments,
            )

    def _send_weights(self, model: Any) -> None:
        """Give vLLM's model the policy's weights and forget the keys and values computed with the old ones.

        Raises:
            ValueError: where a parameter of vLLM's model got no value.
            RuntimeError: where vLLM keeps its cache.
        """

        def load(inner: Any) -> list[str]:
            loaded = inner.load_weights(checkpoint_weights(model))
            names = {name for name, _ in inner.named_parameters()}
            return sorted(names - loaded) if loaded is not None else []

        (missing,) = self._llm.apply_model(load)
        if missing:
            raise ValueError(
                f"engine=vllm: {len(missing)} parameters of vLLM's {type(base_model(model)).__name__} are none of the policy's "
                f"and got no value, e.g. {missing[0]}; use engine=auto"
            )
        if self._llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not reset its prefix cache after a change of the weights: a request is still running")


def is_truncated(completion: Any, eos: list[int]) -> bool:
    """Whether a `CompletionOutput` was stopped by its length.

    Raises:
        RuntimeError: where it neither was nor ended with one of `eos`.
    """
    if completion.finish_reason == "length":
        return True
    if completion.finish_reason != "stop" or completion.token_ids[-1] not in eos:
        raise RuntimeError(
            f"vLLM ended a completion for another reason than its length or an EOS token: {completion.finish_reason} "
            f"({completion.stop_reason}) after {len(completion.token_ids)} tokens"
        )
    return False


def chosen_logprobs(completion: Any) -> Float[Tensor, " n"]:
    """Log-probabilities (nats) of a `CompletionOutput`'s own tokens.

    Raises:
        RuntimeError: where one is not finite: the loss would be neither.
    """
    places = zip(completion.token_ids, completion.logprobs, strict=True)
    logprobs = torch.tensor([place[token].logprob for token, place in places], dtype=torch.float32)
    if not logprobs.isfinite().all():
        raise RuntimeError("vLLM gave a sampled token a log-probability that is not finite; try engine.dtype=bfloat16")
    return logprobs


@contextlib.contextmanager
def apart(model: Any) -> Iterator[None]:
    """vLLM runs in this process: it must neither see the trainer's autocast nor reseed the trainer's generators."""
    with torch.autocast(model.get_input_embeddings().weight.device.type, enabled=False), global_rng_kept():
        yield
