"""The workload of a benchmark: the configured policy on its data, or a random policy of a given shape on random tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval

from oar_lightning.common.randomness import derive_seed, generator
from oar_lightning.common.ranges import NonNegativeInt, PositiveInt, Rule, checked
from oar_lightning.data.stream import ProblemStream
from oar_lightning.policy.pretrained import DTYPES, Policy
from oar_lightning.rollout import CachedEngine, Generation, RolloutStage, SamplingConfig
from oar_lightning.types import AFTER_WARMUP, MathProblem, Rollouts


class Workload(ABC):
    """A policy, and batches of completions that depend on the round's number alone."""

    policy: Policy
    sampling: SamplingConfig
    precision: AbstractContextManager[Any] = nullcontext()
    """A block for passes of the policy; it can be entered again."""

    @property
    def dtype(self) -> torch.dtype:
        """In which passes multiply."""
        with self.precision:
            if torch.is_autocast_enabled(self.device.type):
                return torch.get_autocast_dtype(self.device.type)
        return next(self.policy.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """That of the policy."""
        return self.policy.model.get_input_embeddings().weight.device

    @abstractmethod
    def sample(self, round_number: int) -> Generation: ...

    @abstractmethod
    def judge(self, generation: Generation, round_number: int) -> Rollouts: ...


class ConfiguredWorkload(Workload):
    """The configured policy, data and rewards, as in a training step of this config."""

    def __init__(
        self,
        policy: Policy,
        stage: RolloutStage,
        stream: ProblemStream,
        prompts: int,
        samples: int,
        sampling: SamplingConfig,
        precision: AbstractContextManager[Any] = nullcontext(),
    ) -> None:
        self.policy = policy
        self.precision = precision
        self.stage = stage
        self.sampling = sampling
        self.samples = samples
        self._stream = stream
        self._prompts = prompts
        self._rounds: list[list[MathProblem]] = []

    def _problems(self, round_number: int) -> list[MathProblem]:
        while len(self._rounds) <= round_number:
            self._rounds.append(self._stream.take(self._prompts))
        return self._rounds[round_number]

    def sample(self, round_number: int) -> Generation:
        problems = self._problems(round_number)
        seeds = [derive_seed("benchmark", round_number, i) for i in range(len(problems))]
        prompts = [self.stage.prompt.render(p) for p in problems]
        return self.stage.engine(self.policy.model, prompts, self.samples, self.sampling, seeds)

    def judge(self, generation: Generation, round_number: int) -> Rollouts:
        rows = [p for p in self._problems(round_number) for _ in range(self.samples)]
        return self.stage.judge(generation, rows, self.samples, AFTER_WARMUP)


@checked(
    "benchmark.shape",
    Rule(
        lambda completion, conclusion, answer: completion > conclusion + answer,
        "benchmark.shape.completion={completion} leaves no reasoning beside conclusion={conclusion} and answer={answer}; raise "
        "it",
    ),
    Rule(
        lambda heads, kv_heads: heads % kv_heads == 0,
        "benchmark.shape.kv_heads={kv_heads} must divide heads={heads}; change one of them",
    ),
    Rule(
        lambda hidden_size, heads: hidden_size % (2 * heads) == 0,
        "benchmark.shape.heads={heads}: hidden_size={hidden_size} does not give them an even size each; change one of them",
    ),
)
@dataclass(frozen=True)
class RandomShape:
    """The shape of a Qwen2 policy with random weights and of its completions, which have a fixed length (no EOS).

    A completion is reasoning, then `conclusion` and `answer` tokens. Half of each group is rewarded.
    """

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    layers: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    vocab_size: Annotated[int, Interval(ge=2)]
    prompt: PositiveInt
    completion: PositiveInt
    prompts: PositiveInt
    group_size: Annotated[int, Interval(ge=2)]
    conclusion: NonNegativeInt = 8
    answer: PositiveInt = 8
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    tied: bool = True


class RandomWorkload(Workload):
    """Random weights, random prompts, completions sampled to their full length."""

    def __init__(self, shape: RandomShape, device: torch.device) -> None:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.prompt + shape.completion + 8,
            tie_word_embeddings=shape.tied,
            bos_token_id=None,
            eos_token_id=None,
        )
        with torch.random.fork_rng(), torch.device(device):
            torch.manual_seed(0)
            model = Qwen2ForCausalLM(config).to(DTYPES[shape.dtype]).eval()
        self.shape = shape
        self.policy = Policy(model, _NumberTokenizer())
        self.sampling = SamplingConfig(max_new_tokens=shape.completion)
        self._engine = CachedEngine(self.policy.tokenizer)

    def sample(self, round_number: int) -> Generation:
        shape = self.shape
        rng = generator("benchmark", round_number)
        ids = torch.randint(1, shape.vocab_size, (shape.prompts, shape.prompt), generator=rng)
        prompts = [" ".join(map(str, row)) for row in ids.tolist()]
        seeds = [derive_seed("benchmark", round_number, i) for i in range(shape.prompts)]
        return self._engine(self.policy.model, prompts, shape.group_size, self.sampling, seeds)

    def judge(self, generation: Generation, round_number: int) -> Rollouts:
        shape = self.shape
        column = torch.arange(generation.token_ids.shape[1], device=generation.token_ids.device)
        answer = (column >= len(column) - shape.answer).expand_as(generation.response_mask)
        reasoning = generation.response_mask & (column < len(column) - shape.answer - shape.conclusion)
        rewards = (torch.arange(len(generation.token_ids), device=column.device) % 2).float()
        return Rollouts(
            token_ids=generation.token_ids,
            attention_mask=generation.attention_mask,
            response_mask=generation.response_mask,
            reasoning_mask=reasoning,
            answer_mask=answer,
            reward_terms=rewards[:, None],
            rewards=rewards,
            group_size=shape.group_size,
            step=AFTER_WARMUP,
            truncated=generation.truncated,
            prediction_states=generation.prediction_states,
        )


class _NumberTokenizer:
    """A tokenizer of texts of token ids; no token ends a completion."""

    pad_token_id = 0
    eos_token_id = -1

    def __call__(self, texts: list[str], add_special_tokens: bool) -> Any:
        return SimpleNamespace(input_ids=[[int(t) for t in text.split()] for text in texts])
