"""Puts the stage together that samples and judges, and holds its lengths against the policy."""

from __future__ import annotations

from collections.abc import Iterable

from oar_lightning.answers.reward import Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.policy.language_model import base_model
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.choice import AutoEngineConfig, EngineConfig
from oar_lightning.rollout.sampling import SamplingConfig
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
        token_bytes=TokenBytes(policy.tokenizer),
        prompt=prompt,
        answer_format=answer,
        rewards=rewards,
        pad_token_id=policy.tokenizer.pad_token_id,
    )


def check_length(policy: Policy, prompt: PromptTemplate, problems: Iterable[MathProblem], sampling: SamplingConfig) -> None:
    """Hold the longest prompt of `problems` and the limit of completions against the positions of the policy.

    Raises:
        ConfigError: where they are too long together.
    """
    positions = getattr(base_model(policy.model).config.get_text_config(), "max_position_embeddings", None)
    if positions is None:
        return
    longest = max(len(ids) for ids in policy.tokenizer([prompt.render(p) for p in problems]).input_ids)
    if longest + sampling.max_new_tokens > positions:
        raise ConfigError(
            f"rollout.max_new_tokens={sampling.max_new_tokens} and the longest prompt of data.evaluation ({longest} tokens) "
            f"are beyond the {positions} positions of the policy; set rollout.max_new_tokens to at most "
            f"{max(positions - longest, 0)}, or choose another policy"
        )
