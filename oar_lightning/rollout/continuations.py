"""Other endings of completions, other prompts before them, and other texts: what some scorers ask of the policy."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from oar_lightning.common.randomness import derive_seed
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.token_budget import TokenBudget
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.cached import CachedEngine
from oar_lightning.rollout.drafts import KnownTexts
from oar_lightning.rollout.sampling import Generation, SamplingConfig, encode_prompts, pad_left
from oar_lightning.types import Continued, MathProblem, Prefix, Rollouts

LEAST_TOKENS = 8192
"""The prompt and completion tokens that a batch of continuations may hold at least."""
LEAST_BYTES = 2**27
"""What the tokens of a batch may hold at least in hidden states, two for each layer (the keys and values of as many heads):
decoding a token with a small policy costs little more for hundreds of rows than for a few."""


def batch_tokens(model: Any, of_rollouts: int) -> int:
    """The tokens of a batch of continuations where no setting bounds them and the rollouts held `of_rollouts`."""
    config = base_model(model).config.get_text_config()
    of_token = 2 * config.num_hidden_layers * config.hidden_size * model.get_input_embeddings().weight.element_size()
    return max(of_rollouts, LEAST_TOKENS, LEAST_BYTES // of_token)


class GreedyMemory:
    """What greedy decoding came to after the problems of the newest rollouts."""

    def __init__(self) -> None:
        self._rollouts: Callable[[], Rollouts | None] = lambda: None
        self._known: dict[MathProblem, KnownTexts] = {}

    def of(self, rollouts: Rollouts, problems: Sequence[MathProblem]) -> list[KnownTexts]:
        """The texts of each problem, to which others can be added; none yet if the last call was of other rollouts."""
        if self._rollouts() is not rollouts:
            known: dict[MathProblem, KnownTexts] = {}
            self._rollouts, self._known = weakref.ref(rollouts, lambda _: known.clear()), known
        return [self._known.setdefault(problem, KnownTexts()) for problem in problems]


@dataclass(frozen=True)
class Continuer:
    """Completes prefixes of completions and judges the results, with the run's engine, settings and rewards."""

    stage: RolloutStage
    sampling: SamplingConfig
    memory: GreedyMemory = field(default_factory=GreedyMemory, compare=False)

    def __call__(
        self, model: Any, rollouts: Rollouts, prefixes: Sequence[Prefix], samples: int, seed: int, greedy: bool = False
    ) -> Continued:
        """`samples` continuations of each prefix, all in one call of the engine. Equal ones with equal limits are sampled once.

        `rollout.max_batch` and `rollout.token_budget` bound their batches. Where neither does, a batch holds no more tokens
        than the rollouts, which have fitted into memory, or than `batch_tokens`. Prefixes of like length share one.

        The draws depend on the prefix's tokens, how many may follow it, and `seed` alone; with `greedy` each token is the most
        probable one. A prefix that holds the whole completion gets the completion's own reward. A continuation ends at its
        row's `token_limit`.
        """
        rewards = torch.empty(len(prefixes), samples, dtype=rollouts.rewards.dtype, device=rollouts.rewards.device)
        places: dict[tuple[MathProblem, tuple[int, ...], int], list[int]] = {}
        responses: dict[tuple[MathProblem, tuple[int, ...], int], int] = {}
        ends = _ends(rollouts.response_mask)
        for place, (row, column) in enumerate(prefixes):
            if column >= ends[row]:
                rewards[place] = rollouts.rewards[row]
                continue
            before = rollouts.attention_mask[row, :column]
            begun = int(rollouts.response_mask[row, :column].sum())
            left = token_limit(rollouts, row, self.sampling.max_new_tokens) - begun
            key = rollouts.problems[row], tuple(rollouts.token_ids[row, :column][before].tolist()), left
            places.setdefault(key, []).append(place)
            responses[key] = begun
        if not places:
            return Continued(rewards, 0, 0)
        keys = sorted(places, key=lambda key: len(key[1]))  # the engine takes its batches in order
        problems, own_limits = [problem for problem, _, _ in keys], [limit for _, _, limit in keys]
        seeds = [derive_seed(seed, "continuation", *ids) for _, ids, _ in keys]
        engine, prompts = self.stage.engine, [list(ids) for _, ids, _ in keys]
        known = self.memory.of(rollouts, problems) if greedy and samples == 1 else []
        with self._bounded(batch_tokens(model, rollouts.token_ids.numel())) as sampling:
            if greedy:
                sampling = dataclasses.replace(sampling, temperature=0.0)
            if isinstance(engine, CachedEngine):
                sampled = engine(model, prompts, samples, sampling, seeds, own_limits, known if any(known) else None)
                for ids, row, mask, texts in zip(prompts, sampled.token_ids, sampled.response_mask, known, strict=False):
                    texts.add(ids + row[mask].tolist())
            else:
                sampled = engine(model, prompts, samples, sampling, seeds, own_limits)
        whole = _completions(sampled, [responses[key] for key in keys for _ in range(samples)])
        judged = self.stage.judge(whole, [problem for problem in problems for _ in range(samples)], samples, rollouts.step)
        for key, values in zip(keys, judged.rewards.view(-1, samples), strict=True):
            rewards[places[key]] = values.to(rewards)
        read = sum(map(len, prompts))
        return Continued(rewards, len(keys) * samples, read + int(sampled.response_mask.sum()))

    @contextlib.contextmanager
    def _bounded(self, tokens: int) -> Iterator[SamplingConfig]:
        """The settings of sampling, with batches of at most so many tokens unless they have a bound of their own."""
        sampling, budget = dataclasses.replace(self.sampling, keep_states=False), self.sampling.budget
        if sampling.max_batch is not None or budget.tokens is not None:
            yield sampling
            return
        bound = TokenBudget(budget.key, "auto" if budget.auto else tokens, tokens)
        yield dataclasses.replace(sampling, token_budget=bound)
        if bound.tokens != tokens:  # memory ran out, as it would again
            budget.set_start(bound.tokens)


def token_limit(rollouts: Rollouts, row: int, max_new_tokens: int) -> int:
    """The most tokens of completions that begin as a row's does: its own length, where it is longer (of a file).

    It is the row's alone, whatever other rows begin alike, so that all of its prefixes have the same limit: their values are
    held against each other.
    """
    return max(int(rollouts.response_mask[row].sum()), max_new_tokens)


def _ends(mask: Tensor) -> list[int]:
    """The column after each row's last masked one."""
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (columns * mask).amax(1).tolist()


def _completions(continuations: Generation, begun: Sequence[int]) -> Generation:
    """Continuations as completions of which so many tokens, the last ones of their prompts, were there before."""
    device = continuations.token_ids.device
    columns = torch.arange(continuations.token_ids.shape[1], device=device)
    width = int(continuations.response_mask.any(0).long().argmax())  # prompts end here, whatever their length
    before = (columns < width) & (columns >= width - torch.tensor(begun, device=device)[:, None])
    return continuations._replace(
        response_mask=continuations.response_mask | before, prediction_states=None, sampler_logprobs=None
    )


@dataclass(frozen=True)
class Reprompter:
    """Puts other prompts before completions that are there already."""

    stage: RolloutStage

    def __call__(self, rollouts: Rollouts, questions: Sequence[str]) -> Rollouts:
        """The rollouts with each row's problem asked as ``questions[row]``; completions and their regions stay."""
        problems = [dataclasses.replace(p, question=q) for p, q in zip(rollouts.problems, questions, strict=True)]
        tokenizer = self.stage.token_bytes.tokenizer
        encoded = encode_prompts(tokenizer, [self.stage.prompt.render(p) for p in problems], range(len(problems)))
        ids, attention = pad_left(encoded, self.stage.pad_token_id, rollouts.token_ids.device)
        start = int(rollouts.response_mask.any(0).long().argmax())

        def replaced(before: Tensor, values: Tensor) -> Tensor:
            return torch.cat([before.to(values.dtype), values[:, start:]], 1)

        nothing = torch.zeros_like(attention)
        return dataclasses.replace(
            rollouts,
            token_ids=replaced(ids, rollouts.token_ids),
            attention_mask=replaced(attention, rollouts.attention_mask & _from(start, rollouts.attention_mask)),
            response_mask=replaced(nothing, rollouts.response_mask),
            reasoning_mask=replaced(nothing, rollouts.reasoning_mask),
            answer_mask=replaced(nothing, rollouts.answer_mask),
            old_logprobs=None,
            ref_logprobs=None,
            prediction_states=None,
            sampler_logprobs=None,
        )


@dataclass(frozen=True)
class Encoder:
    """Writes texts in the policy's tokens."""

    stage: RolloutStage

    def __call__(self, before: str, text: str) -> tuple[list[int], list[int]]:
        """The tokens of ``before + text``: those before `text`, and those that overlap it."""
        return self.stage.token_bytes.encode(before, text)


@dataclass(frozen=True)
class RolloutTools:
    """What a run lends to scorers and gates (`credit.component.Tools`)."""

    stage: RolloutStage
    sampling: SamplingConfig

    @property
    def continuations(self) -> Continuer:
        return Continuer(self.stage, self.sampling)

    @property
    def reprompt(self) -> Reprompter:
        return Reprompter(self.stage)

    @property
    def encode(self) -> Encoder:
        return Encoder(self.stage)

    @property
    def tokenizer(self) -> Any:
        return self.stage.token_bytes.tokenizer

    @property
    def temperature(self) -> float:
        return self.sampling.temperature


def _from(start: int, like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device) >= start
