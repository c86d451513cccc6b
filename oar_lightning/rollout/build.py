"""Puts the stage together that samples and judges."""

from __future__ import annotations

from oar_lightning.answers.reward import Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.policy.pretrained import Policy
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout.assemble import RolloutStage
from oar_lightning.rollout.choice import AutoEngineConfig, EngineConfig


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
