"""Small policies and jobs shared by the tests of the training loop."""

from __future__ import annotations

import functools
from typing import Any

import lightning as L
import torch

from oar_lightning.answers.reward import Accuracy, Completion, Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.credit.gates import BilevelGate, Gate
from oar_lightning.credit.scorers import Scorer, Uniform
from oar_lightning.data.chain.task import ChainProblems, ChainTask
from oar_lightning.data.curriculum import Curriculum, EveryProblem
from oar_lightning.data.prompts import PlainPrompt
from oar_lightning.data.stream import sample_texts
from oar_lightning.objective.advantage import AdvantageConfig
from oar_lightning.objective.entropy import EntropyControl, Unadapted
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.policy.token_text import TokenBytes
from oar_lightning.rollout import CachedEngine, RolloutStage, SamplingConfig
from oar_lightning.training.datamodule import MathDataModule
from oar_lightning.training.method import Method
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.training.supervised import SupervisedConfig, SupervisedWarmStart
from oar_lightning.types import MathProblem

TASK = ChainTask(min_steps=1, max_steps=2)


def built_in_policy() -> Policy:
    return PretrainedPolicy("chain").load()


@functools.cache
def _tiny_tokenizer_policy(seed: int, head_size: int) -> Policy:
    texts = sample_texts(ChainProblems(TASK), PlainPrompt().render, 50)
    sizes = {"hidden_size": 4 * head_size, "num_layers": 2, "intermediate_size": 64, "vocab_size": 400}
    return FreshPolicy(seed=seed, **sizes).build(texts)


def tiny_policy(seed: int = 0, head_size: int = 8) -> Policy:
    """A random two-layer policy; its tokenizer is shared, its model is the caller's own."""
    import copy

    policy = _tiny_tokenizer_policy(seed, head_size)
    return Policy(copy.deepcopy(policy.model), policy.tokenizer)


class LengthReward:
    """Rewards that vary within a group of untrained completions: a fixed function of the text."""

    def __call__(self, problems: list[MathProblem], completions: list[Completion]) -> list[float]:
        return [float(sum(map(ord, c.text)) % 3) for c in completions]


class ConstantReward:
    def __call__(self, problems: list[MathProblem], completions: list[Completion]) -> list[float]:
        return [1.0 for _ in completions]


def make_stage(policy: Policy, reward: Any = None, answer: AnswerFormat | None = None) -> RolloutStage:
    terms = {"accuracy": reward or Accuracy()}
    return RolloutStage(
        CachedEngine(policy.tokenizer),
        TokenBytes(policy.tokenizer),
        PlainPrompt(),
        answer or AnswerFormat(no_span="last_token"),
        Rewards(terms),
        policy.tokenizer.pad_token_id,
    )


def make_module(
    policy: Policy,
    scorer: Scorer | None = None,
    reward: Any = None,
    update: UpdatePlan | None = None,
    loss: LossConfig | None = None,
    gate: Gate | None = None,
    reference: Any = None,
    lr: float = 1e-3,
    answer: AnswerFormat | None = None,
    temperature: float = 1.0,
    entropy: EntropyControl | None = None,
) -> PolicyOptimization:
    method = Method(
        scorer or Uniform(),
        gate or BilevelGate(),
        AdvantageConfig(),
        loss or LossConfig(),
        update or UpdatePlan(problems=2, group_size=4),
        SamplingConfig(max_new_tokens=12, temperature=temperature),
        entropy or Unadapted(),
    )
    optimizer = functools.partial(torch.optim.AdamW, lr=lr, weight_decay=0.0)
    module = PolicyOptimization(
        policy, make_stage(policy, reward or LengthReward(), answer), method, optimizer, Schedule(warmup_steps=2), 0, reference
    )
    module.train()
    return module


class Recorder(L.pytorch.loggers.logger.DummyLogger):
    """Keeps what was logged: step -> metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[int, dict[str, float]] = {}

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.rows.setdefault(step, {}).update(metrics)


def make_warm_start(policy: Policy, batch_size: int = 4, max_tokens: int = 512, lr: float = 1e-3) -> SupervisedWarmStart:
    config = SupervisedConfig(batch_size=batch_size, max_tokens=max_tokens)
    optimizer = functools.partial(torch.optim.AdamW, lr=lr, weight_decay=0.0)
    module = SupervisedWarmStart(policy, PlainPrompt(), config, optimizer, Schedule(warmup_steps=2))
    module.train()
    return module


def fit(
    module: PolicyOptimization | SupervisedWarmStart,
    steps: int,
    callbacks: list[L.Callback] | None = None,
    ckpt_path: str | None = None,
    clip: float | None = 1.0,
    curriculum: Curriculum = EveryProblem(),
    **trainer_settings: Any,
) -> Recorder:
    recorder = Recorder()
    plan = module.method.update if isinstance(module, PolicyOptimization) else module.config
    trainer = L.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        logger=[recorder],
        callbacks=callbacks or [],
        gradient_clip_val=clip,
        accumulate_grad_batches=plan.microbatches,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, L.pytorch.callbacks.Checkpoint) for c in callbacks or []),
        use_distributed_sampler=False,
        **trainer_settings,
    )
    data = MathDataModule(ChainProblems(TASK), 0, steps, plan, curriculum=curriculum)
    trainer.fit(module, data, ckpt_path=ckpt_path, weights_only=True)
    return recorder


def weights(module: L.LightningModule) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.model.named_parameters()}
