"""Where a run begins: anew, where it was interrupted, or as a new run with the state of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from lightning import Callback
from omegaconf import DictConfig

from oar_lightning.common.config_check import ConfigError
from oar_lightning.distributed.launch import is_restart
from oar_lightning.sweep.trial import current_ticket
from oar_lightning.tracking.history import FORKED_AT
from oar_lightning.training.callbacks import Fork
from oar_lightning.training.callbacks.checkpoint import CHECKPOINTS, LAST, PREVIOUS
from oar_lightning.training.callbacks.goes_on import GoesOn, goes_on_in
from oar_lightning.wiring.config import plain
from oar_lightning.wiring.jobs import goes_on_elsewhere
from oar_lightning.wiring.kept_config import CONFIG, SAME_WEIGHTS, Change, changed_since, refusal, refuse_another_task
from oar_lightning.wiring.resume import FINISHED, Saved, check_steps_left, find_checkpoint, is_finished, read_saved, stamp_of
from oar_lightning.wiring.run_folder import Parent, read_origin

SAME_IN_A_FORK = ("task", "policy", "update.inner_epochs", "update.minibatches", "update.microbatches")
"""Beginnings of keys that a checkpoint's weights, its optimizer and its place within a batch of rollouts depend on."""

WHOLE_BATCH = (
    *("loss.kl_coef", "loss.kl_from", "rollout.temperature", "seed"),
    *("update.dtype", "trainer.precision", "entropy"),  # of old log-probabilities, and which tokens an entropy term reads
)
"""Beginnings of keys with which the rest of a batch of rollouts cannot be learnt: what it was drawn, kept or divided with."""

NEW_DATA = ("data.train", "data.first_problems", "content of data.train", "seed")
"""Beginnings of keys with which a position in the data means nothing any more."""


@dataclass(frozen=True)
class Start:
    """A run's folder, the checkpoint that it starts from, and (`changes`) what makes it another run than the checkpoint's.

    `begun`: the folder holds this run, which ended before its first checkpoint. `complete`: Slurm or torchrun has started a
    run again that had come to its end. `job_dir`: the job's own folder, where the run's is another one.
    """

    run_dir: Path
    saved: Saved | None = None
    changes: tuple[Change, ...] = ()
    begun: bool = False
    complete: bool = False
    job_dir: Path | None = None

    def check_unchanged(self) -> None:
        """Raises ConfigError: where another process, which has ended by now, has saved a step since the checkpoint was read, or
        has made its run in the folder of this new one."""
        if self.saved is None or self.changes:
            if not self.complete:
                _refuse_used(self.run_dir)
        elif self.saved.stamp != stamp_of(self.saved.checkpoint):
            raise ConfigError(
                f"{self.saved.checkpoint} was replaced while it was read, by a process that has ended since; repeat the command"
            )

    @property
    def resumed(self) -> bool:
        """Whether the same run goes on, in its folder and its MLflow run."""
        return self.begun or (self.saved is not None and not self.changes)

    @property
    def step(self) -> int:
        """The optimizer step that it starts from."""
        return self.saved.step if self.saved is not None else 0

    @property
    def kept_step(self) -> int:
        """The last step whose records stay; -1: none, since a run that has no checkpoint begins with its evaluation again."""
        return -1 if self.begun else self.step

    @property
    def same_policy_in(self) -> Path | None:
        """The folder of the run that began with the policy that this one begins with; None: there is none, or it has loaded
        the policy in another way."""
        if any(_below(change.key, ("policy",)) for change in self.changes):
            return None
        return self.saved.checkpoint.parent.parent if self.saved is not None else self.run_dir if self.begun else None

    @property
    def run_id(self) -> str | None:
        """The MLflow run that goes on, where a checkpoint names it; else the journal does."""
        return self.saved.run_id if self.saved is not None and not self.changes else None

    def callbacks(self) -> list[Callback]:
        """Those of a run that begins with another one's state, and of one that goes on in a folder which is not its job's."""
        if not self.changes:
            return [] if self.job_dir is None else [GoesOn(self.job_dir, self.run_dir)]
        keys = [change.key for change in self.changes]
        parts = [part for part in ("scorer", "gate", "entropy", "curriculum") if any(_below(key, (part,)) for key in keys)]
        return [Fork(any(_below(key, NEW_DATA) for key in keys), "optimizer._target_" in keys, parts)]

    def parent(self) -> Parent | None:
        """The run whose state this one began with."""
        if self.saved is None or not self.changes:
            return None
        origin = read_origin(self.saved.checkpoint.parent.parent)
        return Parent(self.saved.step, [change.key for change in self.changes], origin)

    def tags(self) -> dict[str, str]:
        """The MLflow tags that name the run whose state this one began with; the UI shows it below that run."""
        if self.saved is None or not self.changes:
            return {}
        parent = {"resumed_from_run": self.saved.run_id, "mlflow.parentRunId": self.saved.run_id} if self.saved.run_id else {}
        changed = "; ".join(map(str, self.changes))
        return {
            **parent,
            "resumed_from": str(self.saved.checkpoint),
            FORKED_AT: str(self.saved.step),
            "resumed_changes": changed if len(changed) <= 5000 else f"{changed[:4990]} ...",
        }


def find_start(cfg: DictConfig, problems: Mapping[str, str]) -> Start:
    """Where this run begins. `problems`: their fingerprints.

    Raises:
        ConfigError: where the checkpoint cannot be read, or belongs to a run with another config and `resume_changed` is off,
            or where a sweep's trial would go on in the folder of another run.
    """
    own, checkpoint = Path(HydraConfig.get().runtime.output_dir), find_checkpoint(cfg)
    if checkpoint is None:
        refuse_another_task(own, str(cfg.task))
        if not (begun := _begun(own, cfg, problems)):
            _refuse_used(own)
        elif parent := read_origin(own).parent:
            raise ConfigError(
                f"hydra.run.dir={own} holds a run that began with the state of another one (step {parent.step}) and ended "
                "before its first checkpoint; begin it again by that run's ckpt_path= and resume_changed=true, or name "
                "another folder"
            )
        return Start(own, begun=begun)
    if checkpoint.parent.name != CHECKPOINTS:
        raise ConfigError(
            f"ckpt_path={checkpoint}: a run goes on in its own folder, and this file is in no {CHECKPOINTS}/ of one; give the "
            f"run's folder, or start a new run from its policy: task=export ckpt_path={checkpoint}, then policy=hf "
            "policy.name=<folder>"
        )
    run_dir = checkpoint.parent.parent
    found = tuple(changed_since(run_dir, plain(cfg), problems))
    if found and not cfg.resume_changed:
        raise refusal(run_dir, found)
    max_steps = int(cfg.trainer.max_steps)
    if run_dir in (own, goes_on_in(own)) and is_restart() and not found and is_finished(run_dir, max_steps):
        return Start(run_dir, complete=True)
    saved = read_saved(checkpoint, cfg.ckpt_fallback)
    check_steps_left(saved, max_steps, same_run=not found)
    if not found:
        if current_ticket() is not None and run_dir.resolve() != own.resolve():
            raise goes_on_elsewhere(run_dir)
        return Start(run_dir, saved, job_dir=None if run_dir.resolve() == own.resolve() else own)
    check_fork(found, saved, int(cfg["update"].inner_epochs) * int(cfg["update"].minibatches))
    _refuse_used(own)
    start = Start(own, saved, found)
    same = _known_by(read_origin(own).parent) == _known_by(start.parent())
    return replace(start, begun=same and _begun(own, cfg, problems))


def _known_by(parent: Parent | None) -> object:
    return parent and (parent.step, [*parent.changed], parent.origin.command)


def _refuse_used(own: Path) -> None:
    """Raises ConfigError: where the folder of a new run holds another one, whose checkpoint would be taken for its own."""
    used = [name for name in (f"{CHECKPOINTS}/{LAST}", f"{CHECKPOINTS}/{PREVIOUS}", FINISHED) if (own / name).exists()]
    if used:
        raise ConfigError(
            f"hydra.run.dir={own} holds a run ({', '.join(used)}), and a new one would overwrite it; go on with it by "
            f"ckpt_path={own}, name another folder, or remove this one"
        )


def _begun(own: Path, cfg: DictConfig, problems: Mapping[str, str]) -> bool:
    """Whether the folder holds a run of the same config that ended before its first checkpoint."""
    if not (own / "artifacts" / CONFIG).exists() or (own / CHECKPOINTS / LAST).exists():
        return False
    return not changed_since(own, plain(cfg), problems)


def check_fork(found: tuple[Change, ...], saved: Saved, steps_per_rollout: int) -> None:
    """Raises ConfigError: for a change under which the checkpoint's state cannot be used."""
    same = (*SAME_IN_A_FORK, "optimizer._target_") if saved.layout else SAME_IN_A_FORK
    fixed = [change for change in found if _below(change.key, same) and not _below(change.key, SAME_WEIGHTS)]
    if fixed:
        raise ConfigError(
            f"resume_changed=true cannot load {saved.checkpoint} with another {'; '.join(map(str, fixed))}. Give the old "
            f"values, or start a new run from its policy: task=export ckpt_path={saved.checkpoint}, then policy=hf "
            "policy.name=<folder>"
        )
    of_batch = [change for change in found if _below(change.key, WHOLE_BATCH)]
    if of_batch and saved.step % steps_per_rollout:
        raise ConfigError(
            f"resume_changed=true cannot load {saved.checkpoint} with another {'; '.join(map(str, of_batch))}: step "
            f"{saved.step} is in the middle of a batch of rollouts, which was drawn with the old values. Give these, or a "
            f"checkpoint whose step is a multiple of {steps_per_rollout} (update.inner_epochs * update.minibatches)"
        )


def _below(key: str, beginnings: tuple[str, ...]) -> bool:
    return any(key == beginning or key.startswith(f"{beginning}.") for beginning in beginnings)
