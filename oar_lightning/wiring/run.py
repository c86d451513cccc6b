"""Settings -> a run: policy, module, callbacks and trainer."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig, ListConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.culprit import explained
from oar_lightning.data.stream import eval_set_problems
from oar_lightning.distributed.strategies import adapt
from oar_lightning.inspection.scorer_trial import needs_trial, try_scorer
from oar_lightning.policy.language_model import check_head
from oar_lightning.policy.pretrained import Policy
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.mlflow_logger import FOLDER, DurableMLFlowLogger, MLflowConfig
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import (
    Divergence,
    EvaluationCallback,
    FinalWeights,
    FirstError,
    GracefulStop,
    LastCheckpoint,
    RandomState,
    RunIdentity,
    RunSeconds,
    TrainingProgress,
)
from oar_lightning.training.datamodule import LoaderPlan, MathDataModule
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.supervised import SupervisedWarmStart
from oar_lightning.wiring.data import build_keep
from oar_lightning.wiring.policy import bare_policy, build_stage, check_length, reference_model
from oar_lightning.wiring.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """Everything `fit` needs."""

    datamodule: MathDataModule
    module: L.LightningModule
    trainer: L.Trainer
    tracker: Tracker
    policy: Policy
    evaluation: EvaluationCallback
    seconds: RunSeconds
    stop: GracefulStop
    weights: FinalWeights


def build_logger(cfg: DictConfig, run_dir: Path, run_id: str | None = None, resume: bool = False) -> DurableMLFlowLogger | None:
    """The MLflow logger of a run, not started yet. It continues the MLflow run `run_id` where given.

    Raises:
        ConfigError: where the tracking server does not answer.
    """
    if cfg.logger is None:
        return None
    config: MLflowConfig = instantiate(cfg.logger, _convert_="all")
    ticket = current_ticket()
    if ticket is not None:  # from the start, so that a trial that is killed early is found under its sweep
        config = replace(config, tags={**config.tags, **ticket.tags()})
    logger = DurableMLFlowLogger(config, run_dir / FOLDER, run_id, resume)
    logger.check()
    return logger


def check_optimizer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that the optimizer refuses. Other optimizers than torch's may compile code, and are
    not tried."""
    optimizer = instantiate(cfg.optimizer)
    if str(cfg.optimizer["_target_"]).startswith("torch.optim."):
        explained(partial(optimizer.func, [torch.nn.Parameter(torch.zeros(1))]), optimizer.keywords, "optimizer")


def check_trainer(cfg: DictConfig) -> None:
    """Raises: ConfigError: for settings that Lightning's trainer refuses."""
    accelerator, devices = cfg.trainer.get("accelerator"), cfg.trainer.get("devices")
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator={accelerator}: torch finds no GPU here; use trainer=cpu, or with the trainer of several "
            "ranks trainer.accelerator=cpu trainer.devices=2 trainer.precision=32-true"
        )
    if not (devices in (None, "auto") or (isinstance(devices, int) and devices >= 1) or isinstance(devices, list | ListConfig)):
        raise ConfigError(f"trainer.devices must be an integer >= 1, a list of devices, or auto, got {devices!r}")
    if not (isinstance(cfg.trainer.get("num_nodes", 1), int) and cfg.trainer.get("num_nodes", 1) >= 1):
        raise ConfigError(f"trainer.num_nodes must be an integer >= 1, got {cfg.trainer.num_nodes!r}")
    if not (cfg.trainer.get("gradient_clip_val") or 0) >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be >= 0, or null for none, got {cfg.trainer.gradient_clip_val}")
    settings = {str(key): value for key, value in cfg.trainer.items() if key != "_target_"}
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}

    def make(**settings: Any) -> object:
        return instantiate({"_target_": cfg.trainer["_target_"], **settings, **quiet})

    explained(make, settings, "trainer")


def build_run(cfg: DictConfig, settings: Settings, run_dir: Path, run_id: str | None, resume: bool) -> Run:
    """Load the policy and put the run together. Its MLflow run is created later, by `tracker.start`."""
    assert settings.train is not None, "build_settings reads the training data for these tasks"
    steps = int(cfg.trainer.max_steps)
    logger = build_logger(cfg, run_dir, run_id, resume)
    policy = bare_policy(cfg, settings.train)
    check_head(policy.model)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
    eval_sets = {
        name: eval_set_problems(source, settings.evaluation.problems, name) for name, source in settings.eval_sets.items()
    }
    prompt.render(next(iter(eval_sets.values()))[0])  # a missing chat template fails here, before long work
    check_length(policy, prompt, itertools.chain.from_iterable(eval_sets.values()), settings.method.sampling)
    optimizer = instantiate(cfg.optimizer)
    module: L.LightningModule
    plan: LoaderPlan
    if cfg.task == "train":
        module = PolicyOptimization(
            policy=policy,
            stage=stage,
            method=settings.method,
            optimizer=optimizer,
            schedule=settings.schedule,
            seed=int(cfg.seed),
            reference=reference_model(settings),
        )
        if needs_trial(settings.method.scorer):  # after the module has lent it its tools
            key = f"scorer._target_={cfg.scorer._target_}"
            try_scorer(settings.method.scorer, policy, stage, next(iter(settings.train)), key)
        plan = settings.method.update
    else:
        assert settings.supervised is not None, "task=warm_start has it"
        module = SupervisedWarmStart(policy, prompt, settings.supervised, optimizer, settings.schedule)
        plan = settings.supervised
    module.train()  # policies are loaded in eval mode, and Lightning does not change it
    tracker = Tracker(run_dir, logger)
    evaluation = EvaluationCallback(eval_sets, stage, settings.method.sampling, settings.evaluation, tracker)
    divergence = Divergence(settings.divergence, evaluation)
    if isinstance(module, PolicyOptimization):
        module.step_log.listeners.append(divergence.on_step_metrics)
    seconds, stop, weights = RunSeconds(), GracefulStop(), FinalWeights()
    trainer: L.Trainer = instantiate(
        cfg.trainer,
        logger=[logger] if logger else False,
        callbacks=[
            seconds,
            TrainingProgress(),
            evaluation,
            divergence,
            *_pruning(evaluation),
            FirstError(run_dir),
            weights,
            RandomState(),
            RunIdentity(lambda: tracker.run_id),
            stop,
            LastCheckpoint(run_dir / "checkpoints", int(cfg.checkpoint_every_n_steps)),
        ],
        accumulate_grad_batches=plan.microbatches,
        max_epochs=-1,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=str(run_dir),
        plugins=_cluster(),
    )
    adapt(trainer)  # a strategy that training cannot use fails here, before long work
    plan.check(trainer.world_size)
    keep = build_keep(cfg, settings.eval_sets, settings.evaluation.problems, prompt, policy.tokenizer)
    datamodule = MathDataModule(settings.train, int(cfg.seed), steps, plan, keep)
    return Run(datamodule, module, trainer, tracker, policy, evaluation, seconds, stop, weights)


def _cluster() -> list[SLURMEnvironment]:
    """Slurm without Lightning's own requeueing, which saves from within a signal handler, perhaps in the middle of a step.

    Here `GracefulStop` ends training first, and `tasks.train` queues the job again.
    """
    if not SLURMEnvironment.detect() or TorchElasticEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]


def _pruning(evaluation: EvaluationCallback) -> list[L.Callback]:
    """The callback of a sweep's trial whose sweep prunes."""
    ticket = current_ticket()
    if ticket is None or not ticket.pruning.enabled:
        return []
    from oar_lightning.training.callbacks.trial import MedianPruning  # Optuna takes seconds to import

    return [MedianPruning(ticket, evaluation)]
