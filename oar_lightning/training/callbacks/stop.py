"""An orderly stop on Ctrl-C or SIGTERM."""

from __future__ import annotations

import logging
import signal
from types import FrameType
from typing import Any

import lightning as L

from oar_lightning.distributed.launch import by_srun
from oar_lightning.distributed.ranks import all_gather
from oar_lightning.distributed.slurm import idle_signals

log = logging.getLogger(__name__)


class GracefulStop(L.Callback):
    """Ends training after the current optimizer step on SIGINT or SIGTERM; a second SIGINT interrupts at once, the first after
    another signal does not: a sweep that was ended sends it to a trial that may have been ended, too.

    Under Slurm SIGUSR1 counts too, which it can send before a job's time is over. `received` is the signal that ended
    training, or None.
    """

    def __init__(self) -> None:
        self.signals = (signal.SIGINT, signal.SIGTERM, *((signal.SIGUSR1,) if by_srun() else ()))
        self.received: int | None = None
        self._step = -1
        self._former: dict[int, Any] = {}

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._step = trainer.global_step
        for number in self.signals:
            self._former[number] = signal.signal(number, self._handle)
        if idle_signals.begin_training():
            self.received = signal.SIGUSR1
            log.warning("SIGUSR1 has come while the run was loading: it takes a step, then saves a checkpoint")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
        log.warning("%s: finishing this step, then saving a checkpoint", signal.Signals(number).name)

    def on_train_batch_end(self, trainer: L.Trainer, module: L.LightningModule, *_: Any) -> None:
        if trainer.global_step != self._step:  # the last slot of an optimizer step
            # a signal may reach one rank only, or one rank a step earlier
            self.received = next((number for number in all_gather(self.received) if number is not None), None)
            trainer.should_stop = trainer.should_stop or self.received is not None
        self._step = trainer.global_step

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._restore()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self._restore(failed=True)

    def _restore(self, failed: bool = False) -> None:
        # not in teardown: Lightning restores the handlers of before `fit` earlier
        idle_signals.end_training(failed)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
