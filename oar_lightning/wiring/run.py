"""Settings -> a run: policy, module, callbacks and trainer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.data.stream import eval_set_problems
from oar_lightning.distributed.strategies import adapt
from oar_lightning.policy.language_model import check_head
from oar_lightning.policy.pretrained import Policy
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.loggers import guarded
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
from oar_lightning.training.callbacks.early_stopping import EarlyStopping
from oar_lightning.training.callbacks.kept import KeepConfig, check_monitor
from oar_lightning.training.datamodule import LoaderPlan, MathDataModule
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.supervised import SupervisedWarmStart
from oar_lightning.wiring.data import build_keep
from oar_lightning.wiring.lightning_options import own_callbacks, trainer_options
from oar_lightning.wiring.policy import bare_policy, build_stage, reference_model
from oar_lightning.wiring.settings import Settings
from oar_lightning.wiring.start import Start

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


def build_logger(
    cfg: DictConfig, run_dir: Path, run_id: str | None = None, resume: bool = False, tags: Mapping[str, str] = {}
) -> DurableMLFlowLogger | None:
    """The MLflow logger of a run, not started yet. It continues the MLflow run `run_id` where given.

    `tags`: more tags of a new run, from its start on.

    Raises:
        ConfigError: where the tracking server does not answer.
    """
    if cfg.logger is None:
        return None
    config: MLflowConfig = instantiate(cfg.logger, _convert_="all")
    ticket = current_ticket()
    # from the start, so that a trial that is killed early is found under its sweep
    config = replace(config, tags={**config.tags, **tags, **(ticket.tags() if ticket else {})})
    logger = DurableMLFlowLogger(config, run_dir / FOLDER, run_id, resume)
    logger.check()
    return logger


def build_others(cfg: DictConfig, run_dir: Path, step: int = 0) -> list[Logger]:
    """The loggers beside MLflow's. `step`: that from which the run goes on. A `_partial_` gets a folder in the run's.

    Raises:
        ImportError: where one needs a package that is not installed.
        ConfigError: for what is no logger.
    """
    found: list[Logger] = []
    for name, node in (cfg.get("loggers") or {}).items():
        if node is None:
            continue
        built = instantiate(node)
        built = built(folder=run_dir / str(name), step=step) if isinstance(built, functools.partial) else built
        if not isinstance(built, Logger):
            raise ConfigError(f"loggers.{name} makes a {type(built).__name__}, which is no logger of Lightning")
        found.append(guarded(built, str(name)))
    return found


def build_run(cfg: DictConfig, settings: Settings, start: Start) -> Run:
    """Load the policy and put the run together. Its MLflow run is created later, by `tracker.start`."""
    assert settings.train is not None, "build_settings reads the training data for these tasks"
    steps, run_dir = int(cfg.trainer.max_steps), start.run_dir
    logger = build_logger(cfg, run_dir, start.run_id, start.resumed, start.tags())
    policy = bare_policy(cfg, settings.train)
    check_head(policy.model)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
    eval_sets = {
        name: eval_set_problems(source, settings.evaluation.problems, name) for name, source in settings.eval_sets.items()
    }
    prompt.render(next(iter(eval_sets.values()))[0])  # a missing chat template fails here, before long work
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
        plan = settings.method.update
    else:
        assert settings.supervised is not None, "task=warm_start has it"
        module = SupervisedWarmStart(policy, prompt, settings.supervised, optimizer, settings.schedule)
        plan = settings.supervised
    module.train()  # policies are loaded in eval mode, and Lightning does not change it
    tracker = Tracker(run_dir, logger, build_others(cfg, run_dir, start.saved.step if start.saved else 0))
    evaluation = EvaluationCallback(eval_sets, stage, settings.method.sampling, settings.evaluation, tracker)
    seconds, stop, weights = RunSeconds(), GracefulStop(), FinalWeights()
    extra = own_callbacks(cfg)
    for callback in extra:
        if isinstance(callback, EarlyStopping):
            callback.check(evaluation)
    keeps = not cfg.trainer.get("fast_dev_run")
    trainer: L.Trainer = instantiate(
        trainer_options(cfg.trainer),
        logger=tracker.loggers or False,
        callbacks=[
            *start.fork(),
            seconds,
            TrainingProgress(),
            evaluation,
            Divergence(settings.divergence, evaluation),
            *_pruning(evaluation),
            FirstError(run_dir),
            weights,
            RandomState(),
            RunIdentity(lambda: tracker.run_id),
            stop,
            *extra,
            *([_checkpoints(cfg, run_dir, evaluation)] if keeps else []),
        ],
        enable_checkpointing=keeps,
        accumulate_grad_batches=plan.microbatches,
        max_epochs=-1,
        use_distributed_sampler=False,
        enable_model_summary=bool(cfg.trainer.get("enable_model_summary")),
        default_root_dir=str(run_dir),
        plugins=[*_cluster(), *(instantiate(cfg.trainer.get("plugins")) or [])],
    )
    adapt(trainer)  # a strategy that training cannot use fails here, before long work
    plan.check(trainer.world_size)
    keep = build_keep(cfg, settings.eval_sets, settings.evaluation.problems, prompt, policy.tokenizer)
    datamodule = MathDataModule(settings.train, int(cfg.seed), steps, plan, keep)
    return Run(datamodule, module, trainer, tracker, policy, evaluation, seconds, stop, weights)


def _checkpoints(cfg: DictConfig, run_dir: Path, evaluation: EvaluationCallback) -> LastCheckpoint:
    """Raises: ConfigError: where no evaluation says which checkpoints are best."""
    keep: KeepConfig = instantiate(cfg.checkpoints)
    monitor = check_monitor("checkpoints.monitor", keep.monitor, evaluation.metric_names())
    if keep.best and not evaluation.config.every_n_steps:
        raise ConfigError(
            f"checkpoints.best={keep.best} compares evaluations, and evaluation.every_n_steps=0 makes one at the end alone; "
            "set evaluation.every_n_steps"
        )
    return LastCheckpoint(
        run_dir / "checkpoints", int(cfg.checkpoint_every_n_steps), keep, lambda step: evaluation.value(monitor, step)
    )


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
