"""task=train (RL) and task=warm_start (supervised): build -> fit -> export -> report."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from oar_lightning import build
from oar_lightning.callbacks.checkpoint import PREVIOUS
from oar_lightning.callbacks.errors import first_error, forget_errors
from oar_lightning.callbacks.progress import before_after_table
from oar_lightning.config_check import ConfigError
from oar_lightning.deepspeed_checkpoint import Layout, check_checksums, read_summary
from oar_lightning.launch import by_srun, is_first_rank, is_restart, requeue
from oar_lightning.locks import FileLock
from oar_lightning.policy import export_policy, has_adapters
from oar_lightning.settings import build_settings
from oar_lightning.strategies import end_other_ranks, killed_rank, report_lost_ranks
from oar_lightning.sweep.process import describe_exit
from oar_lightning.sweep.trial import Result, current_ticket, job_folder, write_result
from oar_lightning.tasks.auto_budgets import begin_with_plan
from oar_lightning.tasks.run_tags import note_run, run_parameters, run_tags
from oar_lightning.token_budget import OutOfMemory, advice, out_of_memory

log = logging.getLogger(__name__)


def prepare(cfg: DictConfig) -> Callable[[], float | None]:
    checkpoint = find_checkpoint(cfg)
    settings = build_settings(cfg)
    build.set_threads(cfg.num_threads)
    build.seed_everything(cfg.seed)
    run_dir, saved = Path(HydraConfig.get().runtime.output_dir), None
    if checkpoint is not None:
        run_dir, saved = checkpoint.parent.parent, read_saved(checkpoint, int(cfg.trainer.max_steps), cfg.ckpt_fallback)
    claim(run_dir)
    job = build.build_run(cfg, settings, run_dir, saved.run_id if saved else None, resume=saved is not None)
    if saved is not None:
        check_layout(saved, getattr(job.trainer.strategy, "layout", None))
    begin_with_plan(cfg, job)
    job.tracker.start()
    return lambda: fit(cfg, job, run_dir, saved)


def claim(run_dir: Path) -> None:
    """Hold the run's folder until this process ends, however it does.

    Raises:
        ConfigError: where another process holds it.
    """
    own = job_folder()
    if not is_first_rank() or (own is not None and own.resolve() == run_dir.resolve()):
        return  # a job's folder is held by who started it
    if not FileLock(run_dir / "run.lock").acquire(wait=False):
        raise ConfigError(
            f"another process is training in {run_dir}; wait for its end or stop it, or start a run of your own without "
            "ckpt_path and resume"
        )


def fit(cfg: DictConfig, job: build.Run, run_dir: Path, saved: Saved | None) -> float | None:
    """Train, continuing a checkpoint where given; returns the first benchmark's sampled accuracy."""
    try:
        if saved is not None:
            log.info("continuing %s", saved.checkpoint)
            job.tracker.reopen(saved.step)
        note_run(job.tracker)
        job.tracker.describe(run_parameters(cfg), run_tags(cfg))
        job.tracker.write_text("config.yaml", OmegaConf.to_yaml(cfg, resolve=True))
        log.info("run folder: %s", run_dir)
        forget_errors(run_dir)
        report_lost_ranks(job.trainer, lambda: lost(job, run_dir))
        job.trainer.fit(job.module, job.datamodule, ckpt_path=saved and str(saved.checkpoint), weights_only=True)
        return finish(cfg, job, run_dir)
    except BaseException as error:
        job.tracker.close("FAILED" if isinstance(error, Exception) else "KILLED")
        failed = failed_rank(job, run_dir) if isinstance(error, Exception) else None
        end_other_ranks(job.trainer)
        if failed:
            raise RuntimeError(failed) from error
        if out_of_memory(error) and not isinstance(error, OutOfMemory):
            raise OutOfMemory(advice(error)) from error
        raise


def lost(job: build.Run, run_dir: Path) -> None:
    """What is left to do when another rank has died and this one waits for it in vain."""
    log.error("%s", failed_rank(job, run_dir) or "another rank has ended without an error")
    job.tracker.close("FAILED")


def failed_rank(job: build.Run, run_dir: Path) -> str | None:
    """Which other rank ended this one's training, and how; None where none is known to have."""
    first, own = first_error(run_dir), job.trainer.global_rank
    if first is not None and first.rank != own:
        return f"rank {first.rank} failed first: {first.what}"
    killed = killed_rank(job.trainer)
    return None if killed is None else f"rank {killed[0]} failed first: {describe_exit(killed[1])}"


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint to continue from: `ckpt_path`, or with `resume=true` the newest of this name and seed; a trial of a sweep
    that was interrupted has its own, and so has a job that Slurm or torchrun starts again.

    Raises:
        ConfigError: where there is none.
    """
    if (folder := job_folder()) is not None and current_ticket() is not None:
        own = folder / "checkpoints" / "last.ckpt"
        if own.exists():
            return own
    if is_restart():
        own = Path(HydraConfig.get().runtime.output_dir) / "checkpoints" / "last.ckpt"
        if own.exists():
            return own
    if cfg.ckpt_path is not None:
        path = Path(cfg.ckpt_path).expanduser().absolute()  # not resolved: last.ckpt may be a link
        path = path / "checkpoints" / "last.ckpt" if (path / "checkpoints").is_dir() else path
        if not (path.is_file() or (path.is_dir() and path.suffix == ".ckpt")):
            raise ConfigError(f"ckpt_path={cfg.ckpt_path}: no such file; give a run's folder or its checkpoints/last.ckpt")
        return path
    if not cfg.resume:
        return None
    folder = Path(cfg.output_root).resolve() / str(cfg.name) / f"seed{cfg.seed}"
    found = sorted(folder.glob("*/checkpoints/last.ckpt"), key=lambda p: p.stat().st_mtime)
    if not found:
        raise ConfigError(f"resume=true: no checkpoint under {folder}; start without resume, or give ckpt_path=<file>")
    return found[-1]


@dataclass(frozen=True)
class Saved:
    """A checkpoint, the optimizer step it was saved at, the MLflow run it belongs to, and how DeepSpeed has divided it.

    `layout` is None for a file, of any other strategy.
    """

    checkpoint: Path
    step: int
    run_id: str | None
    layout: Layout | None = None


def read_saved(checkpoint: Path, max_steps: int | None, fallback: bool = False) -> Saved:
    """What a checkpoint tells without loading it into a model; with `fallback`, where it cannot be read, the one before it.

    Raises:
        ConfigError: for a file that is no checkpoint, or of a run that has nothing left to do (with `max_steps`).
    """
    previous = checkpoint.with_name(PREVIOUS)
    try:
        saved = _saved(checkpoint)
    except Exception as error:
        if checkpoint == previous or not previous.exists():
            raise ConfigError(f"ckpt_path={checkpoint}: not a readable checkpoint of this project ({error})") from error
        if not fallback:
            raise ConfigError(
                f"ckpt_path={checkpoint}: not a readable checkpoint of this project ({error}); ckpt_fallback=true goes on from "
                f"the one before it, {previous.name}"
            ) from error
        log.warning("%s cannot be read (%s); going on from %s", checkpoint, error, previous)
        return read_saved(previous, max_steps)
    # a trial that was killed at its very end has its results to report
    if max_steps is not None and saved.step >= max_steps and current_ticket() is None:
        raise ConfigError(
            f"{checkpoint} is at step {saved.step} and trainer.max_steps={max_steps}: nothing is left to do; "
            "raise trainer.max_steps"
        )
    return saved


def _saved(checkpoint: Path) -> Saved:
    """What it tells, its checksums compared."""
    if checkpoint.is_dir():
        summary = read_summary(checkpoint)
        return Saved(checkpoint, summary.global_step, summary.mlflow_run_id, summary.layout)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    check_checksums(checkpoint)
    return Saved(checkpoint, int(state["global_step"]), state["mlflow_run_id"])


def check_layout(saved: Saved, own: Layout | None) -> None:
    """Refuse a checkpoint that this run's strategy cannot go on with; `own`: how it divides its checkpoints, where it does.

    Raises:
        ConfigError: names what the checkpoint needs.
    """
    if saved.layout == own:
        return
    remedy = f"start a new run from its policy: task=export ckpt_path={saved.checkpoint}, then policy=hf policy.name=<folder>"
    if saved.layout is None:
        raise ConfigError(
            f"ckpt_path={saved.checkpoint} is a checkpoint of trainer=ddp or of one process and cannot go on under DeepSpeed; "
            f"resume with that trainer, or {remedy}"
        )
    stage, count = saved.layout.zero_stage, saved.layout.ranks
    now = f"this run has stage {own.zero_stage} on {own.ranks}" if own else "this run has another strategy"
    raise ConfigError(
        f"ckpt_path={saved.checkpoint} was written by DeepSpeed's ZeRO stage {stage} on {count} ranks, and {now}; set "
        f"trainer=deepspeed_zero{stage} and trainer.devices (times trainer.num_nodes) to {count}, or {remedy}"
    )


def finish(cfg: DictConfig, job: build.Run, run_dir: Path) -> float | None:
    """Export the policy, print the table; after a signal say how to go on and exit with its code."""
    if job.stop.received is not None and job.trainer.global_step < job.trainer.max_steps:
        job.tracker.close("KILLED")
        where = run_dir / "checkpoints" / "last.ckpt"
        log.warning("stopped at step %d; to go on, repeat the command with ckpt_path=%s", job.trainer.global_step, where)
        if not job.trainer.is_global_zero:
            sys.exit(0)  # without an error code: the first would take it for a failure while it is still at work
        told_to_end = job.stop.received != signal.SIGINT
        if told_to_end and by_srun() and job_folder() is None:
            requeue()
        sys.exit(128 + (signal.SIGTERM if told_to_end else signal.SIGINT))
    folder = Path(cfg.export_to).expanduser() if cfg.export_to else run_dir / "policy"
    if job.trainer.is_global_zero:
        policy, weights = job.policy, job.weights.state
        if weights is not None and has_adapters(policy.model):  # they cannot be merged where each rank holds a part
            policy = build.bare_policy(cfg)
            policy.model.load_state_dict(weights)
            weights = None
        export_policy(policy.model, policy.tokenizer, folder, weights)
    metrics = final_metrics(job)
    job.tracker.write_metrics(metrics, job.trainer.global_step)
    state = {"trial_state": "complete"} if current_ticket() else {}
    job.tracker.describe({}, {"final_model": str(folder.resolve()), **state})
    job.tracker.close("FINISHED")
    if (own := job_folder()) is not None and job.trainer.is_global_zero:
        write_result(own, Result("complete", metrics))
    report(cfg, job, folder)
    return metrics["objective"]


def final_metrics(job: build.Run) -> dict[str, float]:
    """What runs are compared by: the first benchmark's sampled accuracy with its interval, and the seconds it took."""
    evaluation = job.evaluation
    last = evaluation.first_and_last(next(iter(evaluation.benchmarks)))[1]
    name = evaluation.accuracy
    found = {"objective": last[name], "objective_low": last[f"{name}_low"], "objective_high": last[f"{name}_high"]}
    return found | job.seconds.totals()


def report(cfg: DictConfig, job: build.Run, folder: Path) -> None:
    """Print accuracies before and after and how to see more."""
    names = list(job.evaluation.benchmarks)
    table = before_after_table({name: job.evaluation.first_and_last(name) for name in names})
    if job.trainer.is_global_zero:
        console = Console()
        console.print(table)
        console.print(f"policy: {folder}", soft_wrap=True)
        if cfg.logger is not None:
            console.print(f"compare runs: mlflow ui --backend-store-uri {cfg.logger.tracking_uri}", soft_wrap=True)
