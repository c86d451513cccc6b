"""Config -> the policy, its reference model, and the stage that samples and judges."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.answers.reward import Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.outputs import output_folder
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import ProblemSource, sample_texts
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.language_model import base_model, check_head
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout import AutoEngineConfig, EngineConfig, RolloutStage, SamplingConfig
from oar_lightning.types import MathProblem
from oar_lightning.wiring.data import build_train
from oar_lightning.wiring.settings import Settings


def bare_policy(cfg: DictConfig, train: ProblemSource | None = None) -> Policy:
    """The policy at the start of a run. `train`: the training problems, if they are built already."""
    spec: PretrainedPolicy | FreshPolicy = instantiate(cfg.policy)
    if not isinstance(spec, FreshPolicy):
        return spec.load()
    render = instantiate(cfg.data.prompt).render
    problems = build_train(cfg) if train is None else train
    return spec.build(sample_texts(problems, render, int(cfg.supervised.tokenizer_problems)))


def load_policy(spec: PretrainedPolicy | FreshPolicy, task: str, device: torch.device) -> Policy:
    """The policy of a task that does not train, in eval mode on its device.

    Raises:
        ConfigError: for a fresh policy, whose weights are random.
    """
    if isinstance(spec, FreshPolicy):
        raise ConfigError(
            f"policy=fresh is a random policy, which says nothing in task={task}; train it first with "
            "+experiment=warm_start, then pass policy=hf policy.name=<its folder>"
        )
    policy = spec.load()
    check_head(policy.model)
    policy.model.to(device).requires_grad_(False)
    return policy


def export_folder(cfg: DictConfig, run_dir: Path) -> Path:
    """Where the policy is exported to, a folder that can be written."""
    return output_folder(str(cfg.export_to), "export_to") if cfg.export_to else run_dir / "policy"


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


def reference_model(settings: Settings) -> Any:
    """The frozen reference model of a KL term; None without one, and with LoRA (the policy without its adapters serves)."""
    if not settings.method.loss.kl_coef or settings.policy.lora is not None:
        return None
    assert isinstance(settings.policy, PretrainedPolicy), "a fresh policy is refused before"
    return settings.policy.load().model.requires_grad_(False)
