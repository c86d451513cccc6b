"""Settings -> a run: policy, module, callbacks and trainer."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.environments import ClusterEnvironment, LightningEnvironment, SLURMEnvironment
from lightning.pytorch.utilities.enums import GradClipAlgorithmType

from oar_lightning.common.config_check import ConfigError, warn_idle
from oar_lightning.data.filters import AnyOf, PromptLength, training_filter, with_solution
from oar_lightning.data.prompts import PromptTemplate
from oar_lightning.data.stream import Keep, check_kept, eval_set_problems, sample_texts
from oar_lightning.distributed.launch import by_srun, by_torchrun, fill_in_tasks_per_node
from oar_lightning.distributed.strategies import ZeroAdapter, adapt
from oar_lightning.inspection.credit_trial import needs_trial, try_credit
from oar_lightning.policy.fresh import FreshPolicy
from oar_lightning.policy.lm_head import check_head
from oar_lightning.policy.model_card import EVALUATION, TRAINING
from oar_lightning.policy.pretrained import Policy, PretrainedPolicy
from oar_lightning.rollout import build_stage, check_length, longest_prompt
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.mlflow_logger import DurableMLFlowLogger
from oar_lightning.tracking.tracker import Tracker
from oar_lightning.training.callbacks import (
    CreditAlarms,
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
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, CheckpointFile
from oar_lightning.training.callbacks.early_stopping import EarlyStopping
from oar_lightning.training.callbacks.kept import check_compared, check_monitor
from oar_lightning.training.datamodule import LoaderPlan, MathDataModule
from oar_lightning.training.module import PolicyOptimization
from oar_lightning.training.policy_module import PolicyModule
from oar_lightning.training.precision import check_trained, check_update_dtype, warn_of_slow_products
from oar_lightning.training.settings import Settings
from oar_lightning.training.supervised import SupervisedWarmStart


@dataclass(frozen=True)
class Run:
    """Everything `fit` needs."""

    datamodule: MathDataModule
    module: PolicyModule
    trainer: L.Trainer
    tracker: Tracker
    policy: Policy
    evaluation: EvaluationCallback
    seconds: RunSeconds
    stop: GracefulStop
    weights: FinalWeights
    folder: Path

    @property
    def problems(self) -> dict[str, int | None]:
        """Number of problems of each set by its role in a model card; None for one that is streamed or generated."""
        counted = {f"{EVALUATION}{name}": len(problems) for name, problems in self.evaluation.eval_sets.items()}
        return {TRAINING: getattr(self.datamodule.train, "size", None), **counted}

    @property
    def reference(self) -> Any:
        """The frozen model of a KL term or of the scorer; None where there is none beside the policy."""
        return self.module.collector.reference if isinstance(self.module, PolicyOptimization) else None

    def fit(self, ckpt_path: str | None = None) -> None:
        """Train, from a checkpoint on where one is given.

        Raises:
            KeyboardInterrupt: where Ctrl-C came before the first step, or a second time within one. Lightning would end the
                process with exit code 1.
        """
        handler = signal.getsignal(signal.SIGINT)
        try:
            self.trainer.fit(self.module, self.datamodule, ckpt_path=ckpt_path, weights_only=True)
        except SystemExit as end:
            if not isinstance(end.__context__, KeyboardInterrupt):  # SIGTERM, or an own class that ends the process
                raise
            signal.signal(signal.SIGINT, handler)  # Lightning has it ignored
            raise KeyboardInterrupt("interrupted before the end of a step") from end


def assemble(
    settings: Settings,
    policy: Policy,
    make_trainer: Callable[..., L.Trainer],
    run_dir: Path,
    loggers: Sequence[Logger] = (),
    callbacks: Sequence[L.Callback] = (),
    progress: bool = True,
) -> Run:
    """Put the run of a loaded policy together.

    `make_trainer` gets what the run decides of Lightning's Trainer. Artifacts go to MLflow where one of the loggers is a
    `DurableMLFlowLogger`, which `tracker.start` starts.
    """
    assert settings.train is not None, "a run reads training problems"
    check_head(policy.model)
    prompt = settings.prompt(tokenizer=policy.tokenizer)
    stage = build_stage(policy, prompt, settings.answer, settings.rewards, settings.engine)
    eval_sets = {
        name: eval_set_problems(source, settings.evaluation.problems, name) for name, source in settings.eval_sets.items()
    }
    prompt.render(next(iter(eval_sets.values()))[0])  # a missing chat template fails here, before long work
    check_length(policy, prompt, itertools.chain.from_iterable(eval_sets.values()), settings.method.sampling, settings.engine)
    module: L.LightningModule
    plan: LoaderPlan
    if settings.supervised is None:
        module = PolicyOptimization(
            policy=policy,
            stage=stage,
            method=settings.method,
            optimizer=settings.optimizer,
            schedule=settings.schedule,
            seed=settings.seed,
            reference=reference_model(settings),
        )
        settings.method.scorer.check_model(policy.model)
        credit = settings.method.scorer, settings.method.gate
        if needs_trial(*credit):  # after the module has lent them its tools
            try_credit(*credit, policy, stage, next(iter(settings.train)))
        plan = settings.method.update
    else:
        plan = settings.supervised
        module = SupervisedWarmStart(policy, prompt, plan, settings.optimizer, settings.schedule)
    module.train()  # policies are loaded in eval mode, and Lightning does not change it
    mlflow = next((logger for logger in loggers if isinstance(logger, DurableMLFlowLogger)), None)
    tracker = Tracker(run_dir, mlflow, [logger for logger in loggers if logger is not mlflow])
    evaluation = EvaluationCallback(eval_sets, stage, settings.method.sampling, settings.evaluation, tracker)
    divergence = Divergence(settings.divergence, evaluation, settings.method.entropy_teaches)
    alarms = CreditAlarms(settings.alarms, settings.method, tracker)
    step_log: list[L.Callback] = []
    if isinstance(module, PolicyOptimization):
        step_log.append(module.step_log)
        module.step_log.listeners += [divergence.on_step_metrics, alarms.on_step_metrics]
    for callback in callbacks:
        if isinstance(callback, EarlyStopping):
            callback.check(evaluation)
    seconds, stop, weights = RunSeconds(), GracefulStop(), FinalWeights()
    trainer = make_trainer(
        logger=[*loggers] or False,
        callbacks=[
            seconds,
            *([TrainingProgress(evaluation.seconds_left)] if progress else []),
            evaluation,
            *step_log,
            divergence,
            alarms,
            *_pruning(evaluation),
            *callbacks,
            FirstError(run_dir),
            weights,
            RandomState(),
            RunIdentity(lambda: tracker.run_id),
            stop,
            _checkpoints(settings, run_dir, evaluation),
        ],
        accumulate_grad_batches=plan.microbatches,
        max_epochs=-1,
        use_distributed_sampler=False,
        enable_model_summary=False,
        default_root_dir=str(run_dir),
        plugins=[CheckpointFile(), *_cluster()],
    )
    check_compile(settings, trainer)  # a strategy that training cannot use fails here, before long work
    check_clipping(trainer)
    if isinstance(module, PolicyOptimization):
        module.check_trainer(trainer)
    check_trained(policy.model, trainer, getattr(settings.policy, "dtype", "float32"))
    if settings.supervised is None:
        check_update_dtype(settings.method.update, trainer.precision)
        warn_of_slow_products(settings.method.update, trainer.strategy.root_device)
    plan.check(trainer.world_size)
    longest = None if settings.supervised else longest_prompt(policy.model, settings.method.sampling, settings.engine)
    keep = keep_rule(settings, prompt, policy.tokenizer, longest)
    check_kept(settings.train, keep)
    datamodule = MathDataModule(settings.train, settings.seed, trainer.max_steps, plan, keep, settings.curriculum)
    return Run(datamodule, module, trainer, tracker, policy, evaluation, seconds, stop, weights, run_dir)


def check_compile(settings: Settings, trainer: L.Trainer) -> None:
    """Raises: ConfigError: where compiled passes would give gradients in another order than a rank without rows does."""
    compiled = settings.supervised is None and settings.method.update.compile
    if not adapt(trainer).ranks_may_differ_in_passes and compiled and trainer.world_size > 1:
        raise ConfigError(
            "update.compile=true gives gradients in another order than a rank without rows has them, and DeepSpeed would add "
            "those of different weights; set update.compile=false, or trainer=ddp"
        )


def check_clipping(trainer: L.Trainer) -> None:
    """Raises: ConfigError: where DeepSpeed would have to clip gradients by value."""
    if trainer.gradient_clip_algorithm == GradClipAlgorithmType.VALUE and isinstance(adapt(trainer), ZeroAdapter):
        raise ConfigError(
            "trainer.gradient_clip_algorithm=value: DeepSpeed clips by the norm alone; leave it out, or set trainer=ddp"
        )


def starting_policy(settings: Settings) -> Policy:
    """The policy before training: loaded, or a fresh one with a tokenizer of the training problems' texts."""
    if not isinstance(settings.policy, FreshPolicy):
        return settings.policy.load()
    assert settings.train is not None
    assert settings.supervised is not None, "RL does not start from a fresh policy"
    texts = sample_texts(settings.train, settings.prompt().render, settings.supervised.tokenizer_problems)
    return settings.policy.build(texts)


def reference_model(settings: Settings) -> Any:
    """The frozen reference model of a KL term or of the scorer; None without one, and with LoRA (the policy without its
    adapters serves)."""
    method = settings.method
    kl = method.loss.kl_coef and not method.loss.later_reference
    if not (kl or method.scorer.needs_reference) or settings.policy.lora is not None:
        return None
    assert isinstance(settings.policy, PretrainedPolicy), "a fresh policy is refused before"
    return settings.policy.load().model.requires_grad_(False)


def keep_rule(settings: Settings, prompt: PromptTemplate, tokenizer: Any, longest: int | None = None) -> Keep:
    """Which training problems to drop, and why: `decontaminate` (against the evaluation sets), prompts of more than
    `max_prompt_tokens`, or of more than `longest`, which the policy and the engine cannot complete; and of a warm start those
    without a solution."""
    limits = [limit for limit in (settings.max_prompt_tokens, longest) if limit is not None]
    length = PromptLength(prompt, tokenizer, min(limits)) if limits else None
    found = training_filter(settings.eval_sets if settings.decontaminate else {}, settings.evaluation.problems, length)
    return AnyOf((with_solution, *found.rules)) if settings.supervised else found


def _checkpoints(settings: Settings, run_dir: Path, evaluation: EvaluationCallback) -> LastCheckpoint:
    """Raises: ConfigError: where no evaluation says which checkpoints are best."""
    keep = settings.checkpoints
    monitor = check_monitor("checkpoints.monitor", keep.monitor, evaluation.metric_names())
    warn_idle("checkpoints", keep.idle)
    if keep.best:
        check_compared(f"checkpoints.best={keep.best}", evaluation.config.every_n_steps)
    every = settings.checkpoint_every_n_steps
    return LastCheckpoint(run_dir / CHECKPOINTS, every, keep, lambda step: evaluation.value(monitor, step))


def _cluster() -> list[ClusterEnvironment]:
    """Slurm without Lightning's own requeueing, which saves from within a signal handler, perhaps in the middle of a step.

    Here `GracefulStop` ends training first, and `tasks.train` queues the job again. A process in a Slurm job that `srun` has
    not started (the job's script, a shell, a sweep's trial) starts its ranks itself; Lightning would wait for tasks.
    """
    if by_torchrun():
        return []
    if by_srun():
        fill_in_tasks_per_node()
        return [SLURMEnvironment(auto_requeue=False)]
    return [LightningEnvironment()] if "SLURM_NTASKS" in os.environ else []


def _pruning(evaluation: EvaluationCallback) -> list[L.Callback]:
    """The callback of a sweep's trial whose sweep prunes."""
    ticket = current_ticket()
    if ticket is None or not ticket.pruning.enabled:
        return []
    from oar_lightning.training.callbacks.trial import MedianPruning  # Optuna takes seconds to import

    return [MedianPruning(ticket, evaluation)]
