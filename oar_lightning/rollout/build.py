"""Puts the stage together that samples and judges, and holds its lengths against the policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from oar_lightning.answers.reward import Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.choice import AutoEngineConfig, EngineConfig
from oar_lightning.rollout.hf import eos_token_ids
from oar_lightning.rollout.sampling import SamplingConfig, read_prompts, text_bounds
from oar_lightning.types import MathProblem


def build_stage(
    policy: Policy,
    prompt: PromptTemplate,
    answer: AnswerFormat,
    rewards: Rewards,
    engine: EngineConfig = AutoEngineConfig(),
) -> RolloutStage:
    return RolloutStage(
        engine=engine.build(policy.model, policy.tokenizer),
        token_bytes=TokenBytes(policy.tokenizer, eos_token_ids(policy.model, policy.tokenizer)),
        prompt=prompt,
        answer_format=answer,
        rewards=rewards,
        pad_token_id=policy.tokenizer.pad_token_id,
    )


def longest_prompt(model: Any, sampling: SamplingConfig, engine: EngineConfig) -> int | None:
    """The most tokens of a prompt that leave room for a completion; None where nothing bounds them."""
    bounds = text_bounds(model, engine.max_model_len).values()
    return min(bounds) - sampling.max_new_tokens if bounds else None


def check_length(
    policy: Policy,
    prompt: PromptTemplate,
    problems: Iterable[MathProblem],
    sampling: SamplingConfig,
    engine: EngineConfig = AutoEngineConfig(),
) -> None:
    """Hold the prompts of `problems` and the limit of completions against the policy and the engine, before long work.

    Raises:
        ConfigError: where they are too long together, or a prompt has no tokens.
    """
    texts = [prompt.render(problem) for problem in problems]
    try:
        read_prompts(policy.model, policy.tokenizer, texts, range(len(texts)), sampling, max_model_len=engine.max_model_len)
    except ValueError as error:
        raise ConfigError(str(error)) from error
