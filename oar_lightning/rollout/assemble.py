"""From problems to `Rollouts`: prompts, sampled ids, answer spans, regions and rewards."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oar_lightning.answers.reward import Completion, Rewards
from oar_lightning.answers.span import AnswerFormat, Region, find_answer, token_regions
from oar_lightning.common.activity import activity
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.objective.advantage import combine_rewards
from oar_lightning.policy.token_text import TokenBytes, encodable
from oar_lightning.rollout.sampling import Engine, Generation, SamplingConfig
from oar_lightning.types import MathProblem, Rollouts


@dataclass(frozen=True)
class RolloutStage:
    """Samples completions of problems, judges them and marks their regions."""

    engine: Engine
    token_bytes: TokenBytes
    prompt: PromptTemplate
    answer_format: AnswerFormat
    rewards: Rewards
    pad_token_id: int

    def start(self, model: Any, sampling: SamplingConfig) -> None:
        """Start an engine that must start on all ranks together (see `VllmEngine.start`); no effect on other engines.

        All ranks must call this before any code that not every rank runs.
        """
        start = getattr(self.engine, "start", None)
        if start is not None:
            start(model, sampling)

    def __call__(
        self,
        model: Any,
        problems: Sequence[MathProblem],
        samples: int,
        sampling: SamplingConfig,
        seeds: Sequence[int],
        step: int = 0,
    ) -> Rollouts:
        """`samples` judged completions of each problem, in consecutive rows, drawn from the problem's seed. ``stats`` gets the
        seconds of sampling and of judging."""
        start = time.perf_counter()
        with activity("rollout"):
            generation = self.engine(model, [self.prompt.render(p) for p in problems], samples, sampling, seeds)
        generated = time.perf_counter()
        with activity("rewards"):
            judged = self.judge(generation, [p for p in problems for _ in range(samples)], samples, step)
        rollouts = drawn_at(sampling.temperature, judged)
        rollouts.stats["time/generate_s"] = generated - start
        rollouts.stats["time/reward_s"] = time.perf_counter() - generated
        return rollouts

    def judge(self, generation: Generation, problems: Sequence[MathProblem], group_size: int, step: int) -> Rollouts:
        """Locate each completion's answer on its own ids, mark its regions, and compute its reward."""
        response, lengths = generation.response_mask, generation.response_mask.sum(1).tolist()
        ids = iter(generation.token_ids[response].tolist())
        completions: list[Completion] = []
        token_spans = []
        regions: list[Region] = []
        for length, truncated in zip(lengths, generation.truncated.tolist(), strict=True):
            decoded = self.token_bytes.decode(list(itertools.islice(ids, length)))
            span = find_answer(decoded.text, self.answer_format, complete=not truncated)
            text = None if span is None else decoded.text[span.start : span.end]
            token_spans.append(decoded.spans)
            completions.append(Completion(encodable(decoded.text), text and encodable(text), truncated, length))
            if span is not None:
                regions += token_regions(decoded.spans, span)
            elif self.answer_format.no_span == "last_token" and length > 1:
                regions += [*[Region.REASONING] * (length - 1), Region.ANSWER]
            else:
                regions += [Region.TAIL] * length
        marked = torch.zeros_like(generation.token_ids)
        marked[response] = torch.tensor(regions, dtype=marked.dtype, device=marked.device)
        rewards, stats = self.rewards(problems, completions)
        device = generation.token_ids.device
        return Rollouts(
            token_ids=generation.token_ids,
            attention_mask=generation.attention_mask,
            response_mask=response,
            reasoning_mask=response & (marked == Region.REASONING),
            answer_mask=response & (marked == Region.ANSWER),
            reward_terms=rewards.to(device),
            rewards=combine_rewards(rewards, self.rewards.weight_vector()).to(device),
            group_size=group_size,
            pad_token_id=self.pad_token_id,
            step=step,
            truncated=generation.truncated,
            prediction_states=generation.prediction_states,
            sampler_logprobs=generation.sampler_logprobs,
            problems=tuple(problems),
            completions=tuple(c.text for c in completions),
            token_spans=tuple(token_spans),
            answers=tuple(c.answer for c in completions),
            stats=stats,
        )


def drawn_at(temperature: float, rollouts: Rollouts) -> Rollouts:
    """The rollouts as drawn at a temperature. Greedy ones (temperature 0) are read as those at 1."""
    return dataclasses.replace(rollouts, temperature=temperature or 1.0)
