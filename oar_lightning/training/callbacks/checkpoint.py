"""Checkpoints that continue a run exactly."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from oar_lightning.common.outputs import flush
from oar_lightning.common.scopes import replaced
from oar_lightning.distributed.deepspeed_checkpoint import complete_folder
from oar_lightning.distributed.ranks import all_gather, rank
from oar_lightning.distributed.strategies import adapt
from oar_lightning.training.callbacks.kept import BEST, KEPT, KeepConfig, KeptCheckpoints

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints within its own."""
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"

FOLDERS = "step_*.ckpt"
"""Of DeepSpeed: ``last.ckpt`` and ``previous.ckpt`` are links to them."""


class CheckpointFile(TorchCheckpointIO):
    """Writes a checkpoint straight to its path.

    Lightning writes to the system's temporary folder first, where a kill leaves it for good, and holds a second copy in memory.
    `LastCheckpoint` renames what is whole, so neither is needed.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        torch.save(checkpoint, path)
        flush(Path(path))  # a rename that reaches the disk before its content would leave an empty file without power


class RandomState(L.Callback):
    """Saves the states of the random generators of torch, numpy and Python, for each rank. Lightning does not.

    Plain types only, so that checkpoints load with `weights_only`.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Any] | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        name, keys, *rest = np.random.get_state(legacy=True)
        checkpoint["random_state"] = all_gather(
            {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
                "numpy": [name, np.asarray(keys).tolist(), *rest],
                "python": random.getstate(),
            }
        )

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("random_state")
        # with another number of ranks some get the same state; only dropout draws from it, sampling is seeded by step
        self._loaded = states and states[rank() % len(states)]

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self._loaded is None:
            return
        state, self._loaded = self._loaded, None
        torch.set_rng_state(state["torch"])
        if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda"])
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))


class RunIdentity(L.Callback):
    """Carries the MLflow run id in the checkpoint, so that a resumed run continues the same MLflow run."""

    def __init__(self, run_id: Callable[[], str | None]) -> None:
        self.run_id = run_id  # a function, since a run that started without its server gets its id later

    def on_save_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["mlflow_run_id"] = self.run_id()


class LastCheckpoint(ModelCheckpoint):
    """Writes ``last.ckpt`` every n optimizer steps, at the end of training and on an orderly stop.

    The checkpoint before it stays as ``previous.ckpt``. Where a run goes on from another one of its checkpoints (``best.ckpt``,
    or ``previous.ckpt`` because ``last.ckpt`` is damaged), that one becomes ``last.ckpt`` at once: a kill does not bring back
    the state that was left.

    Each checkpoint is written under another name and then renamed, so that a kill leaves the former one whole, and the next
    start clears up what is unfinished. If a checkpoint cannot be written (a full disk), this is logged as an error and training
    goes on, unless it is the last one of this process.

    A stop that is asked for within an optimizer step waits for the step's end.

    `keep` says which others stay, and `score` gives the score of the checkpoint at a step, where an evaluation was made.
    """

    def __init__(
        self,
        folder: Path,
        every_n_steps: int,
        keep: KeepConfig = KeepConfig(),
        score: Callable[[int], float | None] = lambda step: None,
    ) -> None:
        super().__init__(dirpath=folder, filename="last", every_n_train_steps=max(1, every_n_steps), save_top_k=0)
        self.folder = folder
        self.every = every_n_steps
        self.kept = KeptCheckpoints(folder, keep)
        self.score = score
        self._step = -1
        self._asked_to_stop = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        super().on_train_start(trainer, module)
        self._step = trainer.global_step
        if trainer.is_global_zero:
            if trainer.ckpt_path is not None:
                self._begin_from(Path(trainer.ckpt_path))
            self.kept.go_on_from(trainer.global_step, self.score)
            if trainer.ckpt_path is not None and self._is_own(Path(trainer.ckpt_path)):
                self._keep(trainer)  # a kill may have come between saving this state and keeping it, or none were kept then
            self._clear()  # what a killed process left unfinished; this process holds the folder's lock

    def _is_own(self, given: Path) -> bool:
        return given.absolute().parent.resolve() == self.folder.resolve()

    def _begin_from(self, given: Path) -> None:
        """Make a checkpoint of this folder the last one."""
        if given.name == LAST or not self._is_own(given):
            return
        last, saved = self.folder / LAST, given.resolve()
        if saved.is_dir():
            self._link(last, Path(saved.name))
        else:
            self._hard_link(saved, last)
        if given.name != PREVIOUS:  # that of a later step
            (self.folder / PREVIOUS).unlink(missing_ok=True)
        os.utime(last)  # of several runs `resume=true` takes the one that has worked last

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        step = trainer.global_step
        if step == self._step:  # a slot that is not the last of its optimizer step
            # another callback, such as a timer, may stop a run anywhere, and Lightning would end it here, without a checkpoint
            self._asked_to_stop = self._asked_to_stop or trainer.should_stop
            trainer.should_stop = False
            return
        self._step = step
        trainer.should_stop = trainer.should_stop or self._asked_to_stop
        evaluated = bool(self.kept.config.best) and self.score(step) is not None
        if (self.every and step % self.every == 0) or evaluated or step == trainer.max_steps or trainer.should_stop:
            self.save(trainer)

    def save(self, trainer: L.Trainer) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # one name for all ranks: with DeepSpeed each writes its part there
        written = self.folder / all_gather(f".{LAST}.{os.getpid()}")[0]
        with write_errors(trainer) as errors:
            trainer.save_checkpoint(written)
        problem = first_problem(errors)
        if problem is None and trainer.is_global_zero:
            try:
                self._put_in_place(trainer, written)
            except OSError as error:
                errors.append(error)
        problem = problem or first_problem(errors)
        if problem is None:
            self._keep(trainer)
            return
        if trainer.is_global_zero:
            remove(written)
        if trainer.should_stop or trainer.global_step == trainer.max_steps:  # the last one of this process must not be lost
            raise errors[0] if errors else OSError(problem)
        if trainer.is_global_zero:
            log.error("step %d: no checkpoint could be written (%s); training goes on", trainer.global_step, problem)

    def _keep(self, trainer: L.Trainer) -> None:
        """Keep what was saved where it is among the last or the best."""
        if not trainer.is_global_zero:
            return
        try:
            self.kept.add(self.folder / LAST, trainer.global_step, self.score(trainer.global_step))
        except OSError as error:
            log.error("step %d: the checkpoint could not be kept beside the last (%s)", trainer.global_step, error)

    def _put_in_place(self, trainer: L.Trainer, written: Path) -> None:
        if written.is_dir():
            run_id = next((c.run_id() for c in trainer.callbacks if isinstance(c, RunIdentity)), None)
            layout = adapt(trainer).layout
            assert layout is not None, "only strategies that divide their checkpoints write folders"
            complete_folder(written, trainer.global_step, run_id, layout)
            self._put_folder_in_place(written, trainer.global_step)
        else:
            self._put_file_in_place(written)

    def _put_file_in_place(self, written: Path) -> None:
        """Rename so that there is a whole ``last.ckpt`` at any moment."""
        last = self.folder / LAST
        if last.exists():
            self._hard_link(last, self.folder / PREVIOUS)
        os.replace(written, last)

    def _hard_link(self, saved: Path, name: Path) -> None:
        temporary = name.with_name(f".{name.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        os.link(saved, temporary)
        os.replace(temporary, name)
        temporary.unlink(missing_ok=True)  # replacing a file by another name of itself leaves both

    def _put_folder_in_place(self, written: Path, step: int) -> None:
        """The same for DeepSpeed's folders. A folder cannot be replaced in one step, but a link to it can."""
        last = self.folder / LAST
        folder = written.rename(self.folder / FOLDERS.replace("*", f"{step:06d}_{secrets.token_hex(4)}"))
        if last.is_symlink():
            self._link(self.folder / PREVIOUS, last.readlink())
        self._link(last, Path(folder.name))
        self._clear()

    def _link(self, name: Path, to: Path) -> None:
        temporary = name.with_name(f".{name.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(to)
        os.replace(temporary, name)

    def _clear(self) -> None:
        """Remove unfinished checkpoints, and folders that no link leads to any more."""
        links = (self.folder / LAST, self.folder / PREVIOUS, *self.kept.links())
        kept = {self.folder / link.readlink() for link in links if link.is_symlink()}
        unfinished = [path for name in (LAST, PREVIOUS, KEPT, BEST) for path in self.folder.glob(f".{name}.*")]
        for path in {*self.folder.glob(FOLDERS), *unfinished} - kept:
            remove(path)

    def on_train_epoch_end(self, *_: Any) -> None:
        return None

    def on_validation_end(self, *_: Any) -> None:
        return None


@contextlib.contextmanager
def write_errors(trainer: L.Trainer) -> Iterator[list[OSError]]:
    """A block in which a checkpoint file that cannot be written becomes an entry of the yielded list.

    An error raised on the spot would leave the other ranks waiting for this one.
    """
    owner, method = adapt(trainer).checkpoint_writer
    write, errors = getattr(owner, method), []

    def guarded(*arguments: Any, **named: Any) -> None:
        path = named["path"] if "path" in named else arguments[1]
        try:
            write(*arguments, **named)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError that names a line of C++
            remove(Path(path))
            errors.append(error if isinstance(error, OSError) else OSError(f"{Path(path).name}: {str(error).splitlines()[0]}"))

    with replaced(owner, method, guarded):
        yield errors


def first_problem(errors: list[OSError]) -> str | None:
    """The first error of the first rank that has one. All ranks have to call it."""
    return next((problem for problem in all_gather(str(errors[0]) if errors else None) if problem is not None), None)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder. What cannot be removed of a folder is left for the next time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
