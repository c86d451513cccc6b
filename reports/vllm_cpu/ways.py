"""What is sampled, and the ways to sample it: a process of measure.py, which gives it a turn for each call."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_SDPA_FORCE_GQA", "1")  # as `python -m oar_lightning` sets them
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmark_trl"))

import torch
import transformers
from turns import Turns

from oar_lightning.benchmark import RandomShape, RandomWorkload
from oar_lightning.common.randomness import derive_seed, generator
from oar_lightning.policy.pretrained import Policy
from oar_lightning.rollout import CachedEngine, SamplingConfig, VllmConfig, VllmEngine
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.wiring.device import set_threads

SAMPLES = 8
"""Completions of a prompt, where there is more than one row."""

CACHE_BYTES = 3 * 2**29
"""vLLM's keys and values: 256 completions of the largest shape at once."""


@dataclass(frozen=True)
class Setting:
    """A policy and its batches.

    Args:
        tokens: the most of a completion.
        shape: of a random policy; None: the built-in one of `graph`.
        dtype: of the policy, and of vLLM with it.
    """

    title: str
    tokens: int
    shape: RandomShape | None = None
    dtype: torch.dtype = torch.float32


WIDE = RandomShape(
    hidden_size=256,
    intermediate_size=1024,
    layers=4,
    heads=8,
    kv_heads=2,
    vocab_size=32000,
    prompt=128,
    completion=32,
    prompts=1,
    group_size=SAMPLES,
)
LARGE = replace(WIDE, hidden_size=768, intermediate_size=2048, layers=12, heads=12, kv_heads=4, prompt=32)
SETTINGS = {
    "graph": Setting(
        "The built-in policy and prompts of `+variant=graph`: completions of at most 200 tokens, ended by EOS", 200
    ),
    "wide": Setting(
        "Random weights in the shape of `conf/benchmark/wide.yaml`: prompts of 128 tokens, completions of 32", 32, WIDE
    ),
    "large": Setting("Random weights, 12 layers of width 768: prompts of 32 tokens, completions of 16", 16, LARGE),
    "large_bfloat16": Setting("The shape of `large` in bfloat16, policy and vLLM", 16, LARGE, torch.bfloat16),
}


@dataclass(frozen=True)
class Ids:
    """In place of a tokenizer where prompts are ids. EOS is one of 32,000 tokens, all about as likely: hardly ever drawn."""

    pad_token_id: int = 0
    eos_token_id: int = 1


class Batches:
    """The policy of a setting, and prompts: the same in every process that is asked for the same numbers of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._texts: Any = None
        if setting.shape is None:
            self.policy, self._texts = _graph()
        else:
            self.policy = Policy(RandomWorkload(setting.shape, torch.device("cpu")).policy.model, Ids())
        self.policy.model.to(setting.dtype)
        self.sampling = SamplingConfig(max_new_tokens=setting.tokens)

    def prompts(self, count: int, call: int) -> list[list[int]]:
        shape = self.setting.shape
        if shape is None:
            texts = self._texts(count)
            return list(self.policy.tokenizer(texts, add_special_tokens=False).input_ids)
        return torch.randint(1, shape.vocab_size, (count, shape.prompt), generator=generator("vllm_cpu", call)).tolist()


def _graph() -> tuple[Policy, Callable[[int], list[str]]]:
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from oar_lightning.common.paths import conf_dir
    from oar_lightning.data.stream import ProblemStream
    from oar_lightning.policy.pretrained import PretrainedPolicy
    from oar_lightning.wiring.settings import build_settings

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("config", overrides=["+variant=graph"])
    settings = build_settings(cfg)
    assert isinstance(settings.policy, PretrainedPolicy)
    assert settings.train is not None
    policy, stream = settings.policy.load(), ProblemStream(settings.train, 0)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    return policy, lambda count: [prompt.render(p) for p in stream.take(count)]


@dataclass
class Call:
    """Completion tokens of a call, and the seconds of it in which vLLM was given the policy's weights."""

    tokens: int
    weights: float = 0.0


Way = Callable[[list[list[int]], int, list[int]], Call]
"""Prompts, samples and seeds -> what was sampled."""


def own(batches: Batches) -> Way:
    engine, model = CachedEngine(batches.policy.tokenizer), batches.policy.model

    def call(prompts: list[list[int]], samples: int, seeds: list[int]) -> Call:
        return Call(int(engine(model, prompts, samples, batches.sampling, seeds).response_mask.sum()))

    return call


def engine(batches: Batches, eager: bool) -> Way:
    """`engine=vllm`, which is given the weights before each call, as after an optimizer step."""
    import vllm

    spent = {"weights": 0.0}

    class Timed(vllm.LLM):
        """With a cache of a fixed size; notes how long it takes in weights."""

        def __init__(self, model: str, **arguments: Any) -> None:
            super().__init__(model, **arguments, kv_cache_memory_bytes=CACHE_BYTES)

        def apply_model(self, func: Any) -> Any:
            return self._noted(super().apply_model, func)

        def reset_prefix_cache(self, *arguments: Any, **named: Any) -> Any:
            return self._noted(super().reset_prefix_cache, *arguments, **named)

        def _noted(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = method(*arguments, **named)
            spent["weights"] += time.perf_counter() - started
            return result

    vllm.LLM = Timed
    policy = batches.policy
    engine = VllmEngine(policy.tokenizer, VllmConfig(enforce_eager=eager))

    def call(prompts: list[list[int]], samples: int, seeds: list[int]) -> Call:
        with torch.no_grad():
            next(policy.model.parameters()).add_(0.0)  # the values stay, and the engine sees new ones
        spent["weights"] = 0.0
        generation = engine(policy.model, prompts, samples, batches.sampling, seeds)
        return Call(int(generation.response_mask.sum()), spent["weights"])

    return call


def alone(batches: Batches) -> Way:
    """`vllm.LLM` with its own defaults: weights that stay, packed; no log-probabilities, no seeds."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    made: list[Any] = []
    model = batches.policy.model
    eos = eos_token_ids(model, batches.policy.tokenizer)

    def call(prompts: list[list[int]], samples: int, seeds: list[int]) -> Call:
        from vllm import LLM, SamplingParams

        if not made:
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                dtype = str(model.dtype).removeprefix("torch.")
                made.append(LLM(folder, skip_tokenizer_init=True, dtype=dtype, kv_cache_memory_bytes=CACHE_BYTES))
        params = SamplingParams(
            n=samples,
            temperature=1.0,
            top_p=1.0,
            max_tokens=batches.sampling.max_new_tokens,
            ignore_eos=True,
            stop_token_ids=eos,
            detokenize=False,
        )
        outputs = made[0].generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return Call(sum(len(completion.token_ids) for request in outputs for completion in request.outputs))

    return call


WAYS: dict[str, Callable[[Batches], Way]] = {
    "own": own,
    "engine_eager": lambda batches: engine(batches, eager=True),
    "engine": lambda batches: engine(batches, eager=False),
    "alone": alone,
}


def main(name: str, setting: str, threads: int) -> None:
    set_threads(threads)
    turns = Turns()
    batches = Batches(SETTINGS[setting])
    way = WAYS[name](batches)
    turns.ready(
        title=batches.setting.title,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        vllm=version("vllm-cpu"),
        parameters=batches.policy.model.num_parameters(),
    )
    found: list[Call] = []
    number, began = 0, 0.0

    def facts() -> dict[str, Any]:
        return {
            "tokens": sum(call.tokens for call in found),
            "weights": [call.weights for call in found],
            "cpu": time.process_time() - began,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }

    while True:
        order = json.loads(turns.step_begins(facts))
        found.clear()
        began = time.process_time()
        for _ in range(order["calls"]):
            number += 1
            samples = min(SAMPLES, order["rows"])
            count = order["rows"] // samples
            prompts = batches.prompts(count, number)
            found.append(way(prompts, samples, [derive_seed("vllm_cpu", number, i) for i in range(count)]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
