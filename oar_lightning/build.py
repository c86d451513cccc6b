"""Settings -> a run: policy, module and trainer; the only file that knows both Hydra and Lightning."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig, OmegaConf

from oar_lightning.answer_span import AnswerFormat
from oar_lightning.build_data import build_keep, build_train
from oar_lightning.callbacks import (
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
from oar_lightning.config_check import ConfigError
from oar_lightning.data.datamodule import MathDataModule, benchmark_problems, sample_texts
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import ProblemSource, UpdatePlan
from oar_lightning.language_model import check_head
from oar_lightning.mlflow_logger import FOLDER, DurableMLFlowLogger, MLflowConfig
from oar_lightning.module import PolicyOptimization
from oar_lightning.policy import FreshPolicy, Policy, PretrainedPolicy
from oar_lightning.reward import Rewards
from oar_lightning.rollout import AutoEngineConfig, EngineConfig, RolloutStage
from oar_lightning.settings import Settings
from oar_lightning.supervised import SupervisedWarmStart
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.token_text import TokenBytes
from oar_lightning.tracking import Tracker

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
            reference=_reference(settings),
        )
        plan, microbatches = settings.update, settings.update.microbatches
    else:
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
    from oar_lightning.callbacks.trial import MedianPruning  # Optuna takes seconds to import

    return [MedianPruning(ticket, evaluation)]


def bare_policy(cfg: DictConfig, train: ProblemSource | None = None) -> Policy:
    """The policy that a run begins with. `train`: its training problems, where they are built already."""
    spec: PretrainedPolicy | FreshPolicy = instantiate(cfg.policy)
    if not isinstance(spec, FreshPolicy):
        return spec.load()
    render = instantiate(cfg.data.prompt).render
    problems = build_train(cfg) if train is None else train
    return spec.build(sample_texts(problems, render, int(cfg.supervised.tokenizer_problems)))


def load_policy(spec: PretrainedPolicy | FreshPolicy, task: str, device: torch.device) -> Policy:
    """The policy of a task that does not train, in eval mode on its device.

    Raises:
        ConfigError: for a fresh policy, which knows nothing.
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


def _reference(settings: Settings) -> Any:
    """The frozen reference model where the loss has a KL term; with LoRA it is the policy without its adapters."""
    if not settings.loss.kl_coef or settings.policy.lora is not None:
        return None
    assert isinstance(settings.policy, PretrainedPolicy), "a fresh policy is refused before"
    return settings.policy.load().model.requires_grad_(False)


def plain(cfg: DictConfig) -> dict[str, Any]:
    """The resolved config as plain containers."""
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    return {str(k): v for k, v in resolved.items()}


def seed_everything(seed: int) -> None:
    L.seed_everything(seed, workers=True, verbose=False)


def set_threads(threads: int | None) -> None:
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)  # Lightning's launcher of several ranks would choose for itself
        torch.set_num_threads(threads)


def choose_device(accelerator: str) -> torch.device:
    """Where a task without a Trainer runs: on a GPU where `trainer.accelerator` asks for one that is there, else on the CPU."""
    if accelerator not in ("gpu", "cuda", "auto"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda")
    if accelerator != "auto":
        log.warning("trainer.accelerator=%s: there is no GPU here, so this runs on the CPU", accelerator)
    return torch.device("cpu")


def mixed_precision(precision: object, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What a Trainer's `precision` does to forward passes: `bf16-mixed` and `16-mixed` autocast, others change nothing."""
    dtypes = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    if str(precision) not in dtypes:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtypes[str(precision)])
