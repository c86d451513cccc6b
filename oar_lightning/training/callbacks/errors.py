"""Which rank failed first. The others fail after it, with errors that do not name the cause."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from oar_lightning.common.outputs import replace_file
from oar_lightning.policy.out_of_memory import PASSES, advice

PATTERN = "error-rank*.json"


@dataclass(frozen=True)
class RankError:
    """An error that ended a rank's training, and the time in seconds since the epoch."""

    rank: int
    time: float
    what: str


class FirstError(L.Callback):
    """Writes the error that ended this rank's training to the run's folder, which all ranks can read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if trainer.world_size > 1 and isinstance(exception, Exception):
            error = RankError(trainer.global_rank, time.time(), advice(exception, getattr(module, "memory_bounds", PASSES)))
            replace_file(self.folder / PATTERN.replace("*", str(trainer.global_rank)), json.dumps(asdict(error)))


@rank_zero_only
def forget_errors(folder: Path) -> None:
    """Remove the errors that an earlier start of this run has written."""
    for path in folder.glob(PATTERN):
        path.unlink()


def first_error(folder: Path) -> RankError | None:
    """The earliest error that any rank has written."""
    found = [RankError(**json.loads(path.read_text())) for path in folder.glob(PATTERN)]
    return min(found, key=lambda error: error.time, default=None)
