"""Config -> settings, checked before a model is loaded or a database created."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType

from hydra.utils import instantiate
from omegaconf import DictConfig

from oar_lightning.common.config_check import READS_TRAINING_DATA, ConfigError
from oar_lightning.common.ranges import hints_of, kinds
from oar_lightning.credit.scorers import as_scorer
from oar_lightning.policy.casting import MIXED, precision_name
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.training.method import Method
from oar_lightning.training.precision import check_update_dtype
from oar_lightning.training.settings import Settings
from oar_lightning.wiring.data import build_eval_sets, build_train

OF_SETTINGS = (
    *("schedule", "answer", "reward", "evaluation", "supervised", "divergence", "alarms", "curriculum"),
    "checkpoints",
)
OF_METHOD = ("advantage", "loss", "update", "rollout", "entropy")
FIELDS = {"reward": "rewards", "rollout": "sampling"}
"""Keys of a config whose objects have another name."""


def build_settings(cfg: DictConfig) -> Settings:
    """Build and check the settings.

    Raises:
        ConfigError: for combinations that cannot work or would silently do something else.
        ValueError: from the settings themselves.
    """
    if "prompt" not in cfg.data:
        raise ConfigError("data.prompt is missing; leave out ~data.prompt, or give it anew: '+data.prompt={_target_: ...}'")
    settings = Settings(
        method=build_method(cfg),
        policy=instantiate(cfg.policy),
        optimizer=instantiate(cfg.optimizer),
        prompt=instantiate(cfg.data.prompt, _partial_=True),
        engine=instantiate(cfg.engine),
        answer=instantiate(cfg.answer, _convert_="all"),
        rewards=instantiate(cfg.reward, _convert_="all"),
        schedule=instantiate(cfg.schedule),
        evaluation=instantiate(cfg.evaluation),
        supervised=instantiate(cfg.get("supervised")),
        divergence=instantiate(cfg.divergence),
        alarms=instantiate(cfg.alarms, _convert_="all"),
        curriculum=instantiate(cfg.curriculum),
        train=build_train(cfg) if cfg.task in READS_TRAINING_DATA else None,
        eval_sets=build_eval_sets(cfg),
        seed=int(cfg.seed),
        decontaminate=cfg.data.get("decontaminate", False),
        max_prompt_tokens=cfg.data.get("max_prompt_tokens"),
        checkpoint_every_n_steps=int(cfg.checkpoint_every_n_steps),
        checkpoints=instantiate(cfg.checkpoints),
    )
    if not isinstance(settings.policy, FreshPolicy) and not callable(getattr(settings.policy, "load", None)):
        raise ConfigError(
            f"policy._target_={cfg.policy.get('_target_')} makes a {type(settings.policy).__name__}, which has no load(); "
            "choose a policy by policy=..."
        )
    _check_classes(cfg, settings, OF_SETTINGS)
    _check_classes(cfg, settings.method, OF_METHOD)
    settings.check()
    if cfg.task in ("train", "benchmark"):
        check_update_dtype(settings.method.update, cfg.trainer.get("precision"))
    if cfg.task == "train":
        settings.check_rl()
    _check_trainer(cfg)
    return settings


def build_method(cfg: DictConfig) -> Method:
    return Method(
        scorer=as_scorer(instantiate(cfg.scorer)),
        gate=instantiate(cfg.gate),
        advantage=instantiate(cfg.advantage),
        loss=instantiate(cfg.loss),
        update=instantiate(cfg["update"]),
        sampling=instantiate(cfg.rollout),
        entropy=instantiate(cfg.entropy),
    )


def _check_classes(cfg: DictConfig, owner: object, keys: Iterable[str]) -> None:
    """Hold what the blocks of these keys make against the annotations of the object that has them."""
    hints = hints_of(type(owner))
    for key in keys:
        field = FIELDS.get(key, key)
        made, classes = getattr(owner, field), [kind.type for kind in kinds(hints[field])]
        if not isinstance(made, tuple(classes)):
            names = " or ".join(one.__name__ for one in classes if one is not NoneType)
            raise ConfigError(
                f"{key}._target_={cfg[key].get('_target_')} makes a {type(made).__name__}, and {key} is a {names}; subclass "
                "it, or leave _target_ as it is"
            )


def _check_trainer(cfg: DictConfig) -> None:
    if cfg.optimizer.get("fused") and precision_name(cfg.trainer.precision) in MIXED and cfg.trainer.get("gradient_clip_val"):
        raise ConfigError(
            f"optimizer.fused=true with trainer.precision={cfg.trainer.precision} cannot clip gradients in Lightning; set "
            "optimizer.fused=null, trainer.precision=bf16-true or trainer.gradient_clip_val=0"
        )
