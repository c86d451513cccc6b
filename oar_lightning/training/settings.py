"""What a run is configured with: objects that cost nothing to build, checked before a model is loaded."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Annotated

import torch

from oar_lightning.answers.reward import Accuracy, Rewards, check_accuracy
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.ranges import NonNegativeInt, PositiveInt, checked
from oar_lightning.credit.scorers.oracle import check_known
from oar_lightning.data.curriculum import Curriculum, EveryProblem
from oar_lightning.data.mixture import examples, parts
from oar_lightning.data.prompts import PlainPrompt, PromptTemplate
from oar_lightning.data.stream import ProblemSource, is_endless
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.objective.loss import LossConfig
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import AutoEngineConfig, EngineConfig, HFEngineConfig
from oar_lightning.training.callbacks import AlarmConfig, DivergenceConfig
from oar_lightning.training.callbacks.kept import KeepConfig
from oar_lightning.training.method import Method, check_method
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.supervised import SupervisedConfig

log = logging.getLogger(__name__)


@checked("")
@dataclass(frozen=True)
class Settings:
    """Everything that a run is configured with, but for Lightning's Trainer. Its method, and what the method is applied to.

    Args:
        policy: the model at the start.
        train: the training problems; None for a task that reads none.
        eval_sets: the evaluation sets by name; the first one's accuracy is what runs are compared by.
        method: scorer, gate, advantage, loss, sampling, and how a batch of rollouts is used.
        optimizer: makes the optimizer of the given parameters.
        prompt: makes the prompt template, given the policy's `tokenizer`.
        supervised: how demonstrations are batched, for a warm start; None trains by RL.
        seed: of the data order, of what is sampled, and of everything else that is drawn.
        curriculum: which training problems are taken, by how often their kind was solved.
        decontaminate: drop and count training problems that an evaluation set has too.
        max_prompt_tokens: longer prompts are dropped and counted; None for no limit.
        checkpoint_every_n_steps: 0: only at the end and when interrupted.
        checkpoints: which of them stay beside the last two.
    """

    policy: PretrainedPolicy | FreshPolicy
    train: ProblemSource | None
    eval_sets: Mapping[str, ProblemSource]
    _: KW_ONLY
    method: Method = field(default_factory=Method)
    optimizer: Callable[..., torch.optim.Optimizer] = functools.partial(
        torch.optim.AdamW, lr=6e-4, betas=(0.95, 0.99), weight_decay=0.0
    )
    schedule: Schedule = Schedule("linear", warmup_steps=20)
    prompt: Callable[..., PromptTemplate] = PlainPrompt
    answer: AnswerFormat = AnswerFormat()
    rewards: Rewards = field(default_factory=lambda: Rewards({"accuracy": Accuracy()}))
    engine: EngineConfig = AutoEngineConfig()
    evaluation: EvaluationConfig = EvaluationConfig(every_n_steps=40)
    divergence: DivergenceConfig = DivergenceConfig()
    alarms: AlarmConfig = AlarmConfig()
    supervised: SupervisedConfig | None = None
    seed: NonNegativeInt = 0
    curriculum: Curriculum = EveryProblem()
    decontaminate: bool = False
    max_prompt_tokens: PositiveInt | Annotated[None, "no limit"] = None
    checkpoint_every_n_steps: NonNegativeInt = 20
    checkpoints: KeepConfig = KeepConfig()

    def __post_init__(self) -> None:
        if isinstance(self.policy, str):
            raise ConfigError(f"policy is the text {self.policy!r}; give PretrainedPolicy({self.policy!r})")
        if not isinstance(self.eval_sets, Mapping):
            raise ConfigError(f"eval_sets is a {type(self.eval_sets).__name__}; give sources by name, e.g. {{'test': source}}")
        sources = {"train": self.train, **{f"eval_sets[{name!r}]": source for name, source in self.eval_sets.items()}}
        for key, source in sources.items():
            if not isinstance(source, ProblemSource) and not (key == "train" and source is None):
                raise ConfigError(
                    f"{key} is a {type(source).__name__} and no source of problems; give ListedProblems([MathProblem(...)])"
                )
        for key in ("optimizer", "prompt"):
            if not callable(getattr(self, key)):
                raise ConfigError(
                    f"{key} is {getattr(self, key)!r}; give what makes it, e.g. functools.partial(PlainPrompt, '{{question}}')"
                )
        if not isinstance(self.decontaminate, bool):
            raise ConfigError(f"data.decontaminate must be true or false, got {self.decontaminate!r}")

    def check(self) -> None:
        """Refuse combinations that cannot work or would silently do something else.

        Raises:
            ConfigError: names key, value and remedy.
        """
        check_method(self.method)
        if self.method.loss.reduction == "bnpo" and self.method.update.budget.auto:
            raise ConfigError(
                "update.token_budget=auto divides a step as memory allows, on which loss.reduction=bnpo depends; set "
                "update.token_budget to a number or null, or loss.reduction=dapo, the same mean over the whole step"
            )
        self.engine.check(self.method.sampling)
        cap = self.method.loss.sampler_ratio_cap
        if isinstance(self.engine, AutoEngineConfig | HFEngineConfig) and cap != LossConfig.sampler_ratio_cap:
            log.warning(
                "loss.sampler_ratio_cap=%s: without effect, since the policy's own code samples; engine=vllm reads it",
                cap,
            )
        if not self.eval_sets:
            raise ConfigError("data.evaluation names no evaluation set; name at least one source, e.g. data.evaluation.test")
        check_accuracy(self.rewards)
        if self.curriculum.active and self.supervised is not None:
            raise ConfigError(
                f"curriculum: {type(self.curriculum).__name__} goes by how often problems are solved, which a warm start "
                "does not try; set curriculum=none"
            )
        if self.train is not None and self.supervised is None:
            for part in parts(self.train):
                check_known(self.method.scorer, islice(part, 1) if is_endless(part) else part, "data.train")
        sources = [part for source in (self.train, *self.eval_sets.values()) if source is not None for part in parts(source)]
        self.rewards.try_out(*(islice(source, 1) if is_endless(source) else source for source in sources))
        if self.train is not None:
            for problem in examples(self.train):
                self.curriculum.check(problem, is_endless(self.train))

    def check_rl(self) -> None:
        """Refuse what RL cannot learn from.

        Raises:
            ConfigError: names key, value and remedy.
        """
        if self.method.sampling.temperature == 0:
            raise ConfigError(
                "rollout.temperature=0 samples the same completion for a whole group, so no advantage is ever non-zero; "
                "set rollout.temperature > 0, e.g. 1.0"
            )
        learns_otherwise = self.method.gate.signed or self.method.entropy_teaches or self.method.loss.kl_coef
        if not self.rewards.weight_vector().any() and not learns_otherwise:
            raise ConfigError(
                f"reward.weights are 0 for all of {sorted(self.rewards.terms)}, so that no completion has a reward to learn "
                "from; give one of them another weight"
            )
        if self.method.sampling.top_p < 1:
            log.warning(
                "rollout.top_p=%s: completions are drawn from the nucleus, and ratios, KL term and entropy are those of "
                "the whole distribution; set rollout.top_p=1 to train on-policy",
                self.method.sampling.top_p,
            )
        if isinstance(self.policy, FreshPolicy):
            raise ConfigError(
                "policy=fresh is a random policy, which task=train cannot learn from; train it first with "
                "+experiment=warm_start, then pass policy=hf policy.name=<its folder>"
            )
