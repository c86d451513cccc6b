"""Ranges of settings that no class of this package has: plain keys, Lightning's Trainer, torch's optimizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Interval, Predicate
from omegaconf import DictConfig, OmegaConf

from oar_lightning.common.config_check import ConfigError, check_value
from oar_lightning.common.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt

Unlimited = Annotated[None, "no limit"]
Precision = Literal["32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true", "64-true"]
ShortPrecision = Literal["bf16", "16", "32", "64", 16, 32, 64, "transformer-engine", "transformer-engine-float16"]


def are_decays(values: Sequence[float]) -> bool:
    """two numbers in [0, 1), e.g. [0.9,0.999]"""
    return len(values) == 2 and all(isinstance(value, int | float) and 0 <= value < 1 for value in values)


def is_text(value: object) -> bool:
    """a text"""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


Text = Annotated[object, Predicate(is_text)]
"""YAML reads one of digits, such as `name=5`, as a number."""

PLAIN = {
    "name": Text,
    "output_root": Text,
    "export_to": Text | None,
    "ckpt_path": Text | None,
    "seed": Annotated[int, Interval(ge=0, lt=2**32)],
    "num_threads": PositiveInt | Annotated[None, "torch's default"],
    "checkpoint_every_n_steps": NonNegativeInt,
    "ckpt_fallback": bool,
    "resume": Annotated[bool, "a switch (a path goes to ckpt_path)"],
    "resume_changed": bool,
    "data.decontaminate": bool,
    "data.max_prompt_tokens": PositiveInt | Unlimited,
    "data.first_problems": PositiveInt | Unlimited,
    "trainer.max_steps": Annotated[PositiveInt, "a number of optimizer steps"],
    "trainer.fast_dev_run": bool | NonNegativeInt,
    "trainer.precision": Precision | ShortPrecision | None,
    "trainer.devices": PositiveInt | list[int] | list[str] | Literal["auto"] | None,
    "trainer.num_nodes": PositiveInt,
    "trainer.gradient_clip_val": NonNegativeFloat | Annotated[None, "none"],
}
"""Key -> the values that it takes."""

OF_OPTIMIZERS = {
    "lr": NonNegativeFloat,
    "betas": Annotated[Sequence[float], Predicate(are_decays)],
    "eps": NonNegativeFloat,
    "weight_decay": NonNegativeFloat,
    "momentum": NonNegativeFloat,
}
"""What torch's optimizers check themselves, which takes seconds of imports. The rest is left to them."""

SET_HERE = {
    "logger": "loggers are a group: logger=mlflow, logger=[mlflow,csv] or logger=none",
    "accumulate_grad_batches": "it is set by the update plan; use update.microbatches instead",
    "max_epochs": "a run's length is trainer.max_steps, in optimizer steps",
    "max_time": "a run's length is trainer.max_steps, in optimizer steps",
    "default_root_dir": "the run's folder is hydra.run.dir",
    "use_distributed_sampler": "problems are divided among ranks by the package's own stream",
    "enable_checkpointing": "checkpoint_every_n_steps=0 keeps the last state alone, and trainer.fast_dev_run=true none",
    "limit_train_batches": "a run's length is trainer.max_steps; trainer.fast_dev_run=true makes one step",
    "min_steps": "a run ends before trainer.max_steps by callbacks=early_stopping alone, which has a patience",
    "min_epochs": "a run's length is trainer.max_steps, in optimizer steps",
    "val_check_interval": "evaluations are set by evaluation.every_n_steps",
    "check_val_every_n_epoch": "evaluations are set by evaluation.every_n_steps",
    "limit_val_batches": "evaluations are set by evaluation.problems and evaluation.samples",
    "limit_test_batches": "evaluations are set by evaluation.problems and evaluation.samples",
    "limit_predict_batches": "evaluations are set by evaluation.problems and evaluation.samples",
    "num_sanity_val_steps": "one evaluation comes before training; evaluation.every_n_steps sets the others",
    "reload_dataloaders_every_n_epochs": "problems come from one stream, which has no epochs",
    "overfit_batches": "+debug=overfit trains on one batch again and again",
}
"""Options of the Trainer that this package sets -> what to use in their place."""


def check_ranges(cfg: DictConfig) -> None:
    """Check the settings above.

    Raises:
        ConfigError: for a value of the wrong type or range, and for an option of the Trainer that would be dropped.
    """
    for key, remedy in SET_HERE.items():
        if key in cfg.trainer:
            raise ConfigError(f"trainer.{key}={cfg.trainer[key]} is not read: {remedy}")
    ranges: dict[str, Any] = dict(PLAIN)
    if str((cfg.get("optimizer") or {}).get("_target_")).startswith("torch.optim."):
        ranges |= {f"optimizer.{name}": hint for name, hint in OF_OPTIMIZERS.items()}
    for key, hint in ranges.items():
        block, _, name = key.rpartition(".")
        node = cfg[block] if block else cfg
        if name in node:
            value = node[name]
            check_value(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, hint, key)
    _check_hints(cfg)


def _check_hints(cfg: DictConfig) -> None:
    """Questions that tell an answer are for demonstrations alone."""
    for name, task in (cfg.get("data") or {}).items():
        if OmegaConf.is_dict(task) and task.get("hints") and cfg.get("task") != "warm_start":
            raise ConfigError(
                f"data.{name}.hints={task.hints}: questions would tell answers that demonstrations reach, right or wrong, "
                "which is for task=warm_start; set it to 0"
            )
