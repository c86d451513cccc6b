"""Settings -> a run: policy, module and trainer; the only file that knows both Hydra and Lightning."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import lightning as L
from hydra.utils import instantiate
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from oar_lightning.data.stream import benchmark_problems
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
from oar_lightning.training.datamodule import MathDataModule
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.slots import UpdatePlan
from oar_lightning.training.supervised import SupervisedWarmStart
from oar_lightning.wiring.data import build_keep
from oar_lightning.wiring.policy import bare_policy, build_stage, reference_model
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
    """The MLflow logger of a run's folder, continuing the MLflow run `run_id` where given; not started yet.

    Raises:
        ConfigError: where the tracking server does not answer.
    """
    if cfg.logger is None:
        return None
    config: MLflowConfig = instantiate(cfg.logger, _convert_="all")
    if (ticket := current_ticket()) is not None:  # from the start: a trial that is killed early is still its sweep's
        config = replace(config, tags={**config.tags, **ticket.tags()})
    logger = DurableMLFlowLogger(config, run_dir / FOLDER, run_id, resume)
    logger.check()
    return logger


def build_run(cfg: DictConfig, settings: Settings, run_dir: Path, run_id: str | None, resume: bool) -> Run:
    """Load the policy and put the run together; its MLflow run is made by `tracker.start`, when nothing can fail any more."""
    assert settings.train is not None, "refused before"
    steps = int(cfg.trainer.max_steps)
    logger = build_logger(cfg, run_dir, run_id, resume)
    policy = bare_policy(cfg, settings.train)
    check_head(policy.model)
    prompt = instantiate(cfg.data.prompt, tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
    benchmarks = {
        name: benchmark_problems(source, settings.evaluation.problems, name) for name, source in settings.benchmarks.items()
    }
    prompt.render(next(iter(benchmarks.values()))[0])  # a chat template that is missing should fail here
    optimizer = instantiate(cfg.optimizer)
    module: L.LightningModule
    plan: UpdatePlan | int
    microbatches = 1
    if cfg.task == "train":
        module = PolicyOptimization(
            policy=policy,
            stage=stage,
            method=settings,
            optimizer=optimizer,
            schedule=settings.schedule,
            seed=int(cfg.seed),
            reference=reference_model(settings),
        )
        plan, microbatches = settings.update, settings.update.microbatches
    else:
        assert settings.supervised is not None, "task=warm_start has it"
        module = SupervisedWarmStart(policy, prompt, settings.supervised, optimizer, settings.schedule)
        plan = settings.supervised.batch_size
    module.train()  # Lightning keeps the mode it is given
    tracker = Tracker(run_dir, logger)
    evaluation = EvaluationCallback(benchmarks, stage, settings.sampling, settings.evaluation, tracker)
    seconds, stop, weights = RunSeconds(), GracefulStop(), FinalWeights()
    trainer: L.Trainer = instantiate(
        cfg.trainer,
        logger=[logger] if logger else False,
        callbacks=[
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
            LastCheckpoint(run_dir / "checkpoints", int(cfg.checkpoint_every_n_steps)),
        ],
        accumulate_grad_batches=microbatches,
        max_epochs=-1,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=str(run_dir),
        plugins=_cluster(),
    )
    keep = build_keep(cfg, settings.benchmarks, settings.evaluation.problems, prompt, policy.tokenizer)
    datamodule = MathDataModule(settings.train, int(cfg.seed), steps, plan, keep)
    datamodule.check(trainer.world_size)
    return Run(datamodule, module, trainer, tracker, policy, evaluation, seconds, stop, weights)


def _cluster() -> list[SLURMEnvironment]:
    """Lightning saves a checkpoint from within a signal's handler, perhaps in the middle of a step: here `GracefulStop` ends
    training first and `tasks.train` has the job put into the queue again."""
    if not SLURMEnvironment.detect() or TorchElasticEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]


def _pruning(evaluation: EvaluationCallback) -> list[L.Callback]:
    """What a trial of a sweep with pruning needs."""
    ticket = current_ticket()
    if ticket is None or not ticket.pruning.enabled:
        return []
    from oar_lightning.training.callbacks.trial import MedianPruning  # Optuna takes seconds to import

    return [MedianPruning(ticket, evaluation)]
