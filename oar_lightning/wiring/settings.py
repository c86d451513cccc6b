"""Config -> settings: objects that cost nothing to build, checked before a model is loaded or a database created."""

from __future__ import annotations

from dataclasses import dataclass

from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.answers.reward import Rewards
from oar_lightning.answers.span import AnswerFormat
from oar_lightning.common.config_check import READS_TRAINING_DATA, ConfigError
from oar_lightning.credit.scorers import as_scorer
from oar_lightning.data.stream import ProblemSource
from oar_lightning.evaluation.evaluate import EvaluationConfig
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.pretrained import PretrainedPolicy
from oar_lightning.rollout import EngineConfig
from oar_lightning.training.callbacks import DivergenceConfig
from oar_lightning.training.method import Method, check_credit
from oar_lightning.training.schedule import Schedule
from oar_lightning.training.supervised import SupervisedConfig
from oar_lightning.wiring.data import build_eval_sets, build_train, check_data_options


@dataclass(frozen=True)
class Settings:
    """Everything that a run is configured with: its method, and what the method is applied to."""

    method: Method
    policy: PretrainedPolicy | FreshPolicy
    engine: EngineConfig
    answer: AnswerFormat
    rewards: Rewards
    schedule: Schedule
    evaluation: EvaluationConfig
    supervised: SupervisedConfig | None
    divergence: DivergenceConfig
    train: ProblemSource | None
    eval_sets: dict[str, ProblemSource]


def build_settings(cfg: DictConfig) -> Settings:
    """Build and check the settings.

    Raises:
        ConfigError: for combinations that cannot work or would silently do something else.
        ValueError: from the settings themselves.
    """
    method = Method(
        scorer=as_scorer(instantiate(cfg.scorer)),
        gate=instantiate(cfg.gate),
        advantage=instantiate(cfg.advantage),
        loss=instantiate(cfg.loss),
        update=instantiate(cfg["update"]),
        sampling=instantiate(cfg.rollout),
    )
    settings = Settings(
        method=method,
        policy=instantiate(cfg.policy),
        engine=instantiate(cfg.engine),
        answer=instantiate(cfg.answer, _convert_="all"),
        rewards=instantiate(cfg.reward, _convert_="all"),
        schedule=instantiate(cfg.schedule),
        evaluation=instantiate(cfg.evaluation),
        supervised=instantiate(cfg.get("supervised")),
        divergence=instantiate(cfg.divergence),
        train=build_train(cfg) if cfg.task in READS_TRAINING_DATA else None,
        eval_sets=build_eval_sets(cfg),
    )
    _check_combinations(settings, cfg)
    return settings


def _check_combinations(settings: Settings, cfg: DictConfig) -> None:
    check_credit(settings.method)
    if settings.method.sampling.temperature == 0 and cfg.task == "train":
        raise ConfigError(
            "rollout.temperature=0 samples the same completion for a whole group, so no advantage is ever non-zero; "
            "set rollout.temperature > 0, e.g. 1.0"
        )
    if cfg.task == "train" and isinstance(settings.policy, FreshPolicy):
        raise ConfigError(
            "policy=fresh is a random policy, which task=train cannot learn from; train it first with "
            "+experiment=warm_start, then pass policy=hf policy.name=<its folder>"
        )
    if settings.method.loss.reduction == "bnpo" and settings.method.update.budget.auto:
        raise ConfigError(
            "update.token_budget=auto divides a step as memory allows, on which loss.reduction=bnpo depends; set "
            "update.token_budget to a number or null, or loss.reduction=dapo, the same mean over the whole step"
        )
    settings.engine.check(settings.method.sampling)
    check_data_options(cfg)
    if cfg.optimizer.get("fused") and "mixed" in str(cfg.trainer.precision) and cfg.trainer.get("gradient_clip_val"):
        raise ConfigError(
            f"optimizer.fused=true with trainer.precision={cfg.trainer.precision} cannot clip gradients in Lightning; set "
            "optimizer.fused=null, trainer.precision=bf16-true or trainer.gradient_clip_val=0"
        )
    if "accumulate_grad_batches" in cfg.trainer:
        raise ConfigError("trainer.accumulate_grad_batches is set by the update plan; use update.microbatches instead")
    if settings.evaluation.problems is not None and not settings.eval_sets:
        raise ConfigError("data.evaluation names no evaluation set; name at least one source, e.g. data.evaluation.test")
    check_accuracy(settings.rewards)


def check_accuracy(rewards: Rewards) -> None:
    if "accuracy" not in rewards.terms:
        raise ConfigError(f"reward.terms must include accuracy (evaluation counts by it), got {sorted(rewards.terms)}")
