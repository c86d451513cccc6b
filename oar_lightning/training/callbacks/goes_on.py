"""For jobs that Slurm or torchrun may start again: where a run goes on that began in another job's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L

from oar_lightning.common.outputs import replace_file

NOTE = "goes_on.json"
"""Of the folder of a job that goes on in the folder of another run: which one."""


class GoesOn(L.Callback):
    """Notes in a job's own folder in which run's folder it goes on, so that the job goes on there when it is started again.

    It notes this when training begins, not before: from then on the checkpoint that it was told to go on from, perhaps one of
    an earlier step, is that run's last one.
    """

    def __init__(self, own: Path, run_dir: Path) -> None:
        self.own = own
        self.run_dir = run_dir
        self._noted = False

    def on_train_batch_start(self, trainer: L.Trainer, *_: Any) -> None:
        if not self._noted and trainer.is_global_zero:
            self.own.mkdir(parents=True, exist_ok=True)
            replace_file(self.own / NOTE, json.dumps({"run": str(self.run_dir.resolve())}) + "\n")
        self._noted = True


def forget_goes_on(own: Path) -> None:
    """Of a job that was not started again: a note in its folder is another job's."""
    (own / NOTE).unlink(missing_ok=True)


def goes_on_in(own: Path) -> Path | None:
    """The folder of the run in which the job of the folder `own` went on when it was started before."""
    try:
        return Path(json.loads((own / NOTE).read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
