"""Which checkpoint a run resumes from, and whether it can."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import RUN_LOCK
from oar_lightning.common.outputs import write_text
from oar_lightning.distributed.deepspeed_checkpoint import (
    Layout,
    check_checksums,
    read_state,
    read_summary,
)
from oar_lightning.distributed.launch import is_restart
from oar_lightning.sweep.trial import current_ticket, job_folder
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, LAST, PREVIOUS
from oar_lightning.training.callbacks.evaluation import EvaluationCallback
from oar_lightning.training.callbacks.goes_on import goes_on_in

log = logging.getLogger(__name__)

FINISHED = "finished.json"
"""Of a run's folder: the step at which it was complete, its policy exported and its results recorded."""


def find_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint to resume from; None for a new run.

    It is the own checkpoint of a sweep's trial or of a job that Slurm or torchrun starts again, or the last one of the run
    whose folder that job went on in; else `ckpt_path`; else, with `resume=true`, the newest of this name and seed.

    Raises:
        ConfigError: where the checkpoint that was asked for does not exist.
    """
    if (folder := job_folder()) is not None and current_ticket() is not None:
        own = folder / CHECKPOINTS / LAST
        if own.exists():
            return own
    if is_restart():
        own_dir = Path(HydraConfig.get().runtime.output_dir)
        for run_dir in (own_dir, goes_on_in(own_dir)):
            if run_dir is not None and (run_dir / CHECKPOINTS / LAST).exists():
                return run_dir / CHECKPOINTS / LAST
    if cfg.ckpt_path is not None:
        return checkpoint_at(str(cfg.ckpt_path), "ckpt_path")
    if not cfg.resume:
        return None
    folder = Path(cfg.output_root).resolve() / str(cfg.name) / f"seed{cfg.seed}"
    found = _by_age(folder.glob(f"*/{CHECKPOINTS}/{LAST}"))
    if not found:
        begun = _by_age(folder.glob(f"*/{RUN_LOCK}"))  # this command has not locked its own folder yet
        again = (
            f" (hydra.run.dir={begun[-1].parent} takes up the folder of the run that ended before its first)" if begun else ""
        )
        raise ConfigError(f"resume=true: no checkpoint under {folder}; start without resume{again}, or give ckpt_path=<file>")
    return found[-1]


def _by_age(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.stat().st_mtime)


def checkpoint_at(given: str, key: str) -> Path:
    """The checkpoint that a setting names by itself or by its run's folder.

    Raises:
        ConfigError: where there is none.
    """
    path = Path(given).expanduser().absolute()  # absolute, not resolved: last.ckpt may be a link
    path = path / CHECKPOINTS / LAST if (path / CHECKPOINTS).is_dir() else path
    if not (path.is_file() or (path.is_dir() and path.suffix == ".ckpt")):
        what = f"a folder without {CHECKPOINTS}/" if path.is_dir() else "no such file"
        raise ConfigError(f"{key}={given}: {what}; give a run's folder or its checkpoints/last.ckpt")
    return path


Stamp = tuple[int, int]


@dataclass(frozen=True)
class Saved:
    """A checkpoint, its optimizer step, its MLflow run, how DeepSpeed has divided it, and the evaluations until then.

    `layout` is None for the single file of every other strategy. `stamp`: of the file or folder, before it was read.
    """

    checkpoint: Path
    step: int
    run_id: str | None
    layout: Layout | None = None
    evaluations: Sequence[Mapping[str, Any]] = ()
    stamp: Stamp | None = None


def read_saved(checkpoint: Path, fallback: bool = False) -> Saved:
    """Read a checkpoint's step and identity without a model. With `fallback`, one that is damaged gives way to the one before.

    Raises:
        ConfigError: for a file that is no checkpoint.
    """
    previous = checkpoint.with_name(PREVIOUS)
    try:
        return _saved(checkpoint)
    except Exception as error:
        if checkpoint.is_file() and not zipfile.is_zipfile(checkpoint) and not previous.exists():
            raise ConfigError(
                f"ckpt_path={checkpoint}: not a readable checkpoint of this project; give a run's folder, or its "
                "checkpoints/last.ckpt"
            ) from error
        if checkpoint == previous or not previous.exists():
            raise ConfigError(f"ckpt_path={checkpoint}: not a readable checkpoint of this project ({error})") from error
        if not fallback:
            raise ConfigError(
                f"ckpt_path={checkpoint}: not a readable checkpoint of this project ({error}); ckpt_fallback=true goes on from "
                f"the one before it, {previous.name}"
            ) from error
        log.warning("%s cannot be read (%s); going on from %s", checkpoint, error, previous)
        return read_saved(previous)


def check_steps_left(saved: Saved, max_steps: int, same_run: bool) -> None:
    """Refuse a checkpoint from which no step leads to `max_steps`, unless the same run has only that step left to report.

    Raises:
        ConfigError: names both steps and the remedy.
    """
    at = f"{saved.checkpoint} is at step {saved.step} and trainer.max_steps={max_steps}"
    if saved.step > max_steps:
        raise ConfigError(f"{at}: a run does not go back; raise trainer.max_steps, or start a new run without the checkpoint")
    if saved.step < max_steps:
        return
    if not same_run or is_finished(saved.checkpoint.parent.parent, saved.step):
        raise ConfigError(f"{at}: nothing is left to do; raise trainer.max_steps")
    # a run that was killed after its last step still has to be exported and reported; its last step was evaluated
    if not any(row["step"] == saved.step for row in saved.evaluations):
        raise ConfigError(
            f"{at}, and its policy was not evaluated at that step; raise trainer.max_steps, or export and evaluate it: "
            f"task=export ckpt_path={saved.checkpoint}, then task=evaluate policy=hf policy.name=<folder>"
        )


def mark_finished(run_dir: Path, step: int, max_steps: int) -> None:
    """Note that a run is complete at this step, of `max_steps` that it was to make at most, so that nothing of it is done
    again."""
    write_text(run_dir / FINISHED, json.dumps({"step": step, "max_steps": max_steps}) + "\n")


def forget_finished(run_dir: Path, step: int) -> None:
    """Remove the note of a run that goes on from a step before the one at which it was complete."""
    if is_finished(run_dir, step + 1):
        (run_dir / FINISHED).unlink(missing_ok=True)


def is_finished(run_dir: Path, step: int) -> bool:
    """Whether a run that was to make so many steps has exported its policy, perhaps at an earlier one, and so has nothing left
    to do."""
    try:
        noted = json.loads((run_dir / FINISHED).read_text(encoding="utf-8"))
        return max(noted["step"], noted.get("max_steps", 0)) >= step
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _saved(checkpoint: Path) -> Saved:
    """Read a checkpoint and compare its checksums."""
    stamp = stamp_of(checkpoint)
    if checkpoint.is_dir():
        summary = read_summary(checkpoint)
        evaluations = _evaluations(read_state(checkpoint))
        return Saved(checkpoint, summary.global_step, summary.mlflow_run_id, summary.layout, evaluations, stamp)
    state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    check_checksums(checkpoint)
    return Saved(checkpoint, int(state["global_step"]), state["mlflow_run_id"], evaluations=_evaluations(state), stamp=stamp)


def stamp_of(checkpoint: Path) -> Stamp:
    """What tells a checkpoint from one that takes its place."""
    found = checkpoint.stat()
    return found.st_ino, found.st_mtime_ns


def _evaluations(state: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What `EvaluationCallback` has saved; nothing where the checkpoint is of a trainer without it."""
    history: Sequence[Mapping[str, Any]] = state.get("callbacks", {}).get(EvaluationCallback.__name__, {}).get("history", ())
    return history


def check_layout(saved: Saved, own: Layout | None) -> None:
    """Refuse a checkpoint that this run's strategy cannot load. `own`: how the strategy divides its checkpoints.

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
