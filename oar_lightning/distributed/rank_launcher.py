"""Starts the other ranks of this machine, and ends all of them in bounded time when one fails."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher

from oar_lightning.common.scopes import environment
from oar_lightning.distributed.launch import FIRST_RANK, exit_with_parent

log = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long a rank may take to notice by itself that another has died; communication over NCCL never does."""


class RankLauncher(_SubprocessScriptLauncher):
    """Starts the other ranks of this machine and watches over them.

    Lightning's own launcher would kill this process with a signal that leaves no time to record anything.
    """

    on_lost: Callable[[], None] = staticmethod(lambda: None)
    """Called before this process ends because of a rank that has died."""

    def launch(self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any) -> Any:
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if self.cluster_environment.creates_processes_externally:
            exit_with_parent(os.getppid())
        else:
            with environment({FIRST_RANK: str(os.getpid())}):  # they watch from their start on, and load before they come here
                self._call_children_scripts()
            threading.Thread(target=self._watch, daemon=True, name="watch-ranks").start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def _watch(self) -> None:
        while True:
            codes = [process.poll() for process in self.procs]
            if any(codes):
                break
            if all(code == 0 for code in codes):
                return
            time.sleep(0.5)
        time.sleep(GRACE_S)  # where communication breaks off, the main thread ends the process within this time
        self.on_lost()
        kill_ranks(self.procs)
        os._exit(1)


def kill_ranks(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the processes that still run. A rank that waits in a collective reacts to no milder signal."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def killed_rank(trainer: L.Trainer) -> tuple[int, int] | None:
    """A rank that this process has started and that was ended by a signal: its number and its (negative) exit code."""
    if not isinstance(trainer.strategy.launcher, RankLauncher):
        return None
    processes = trainer.strategy.launcher.procs
    for _ in range(10):  # the connection breaks a moment before the process is gone
        for number, process in enumerate(processes, start=trainer.global_rank + 1):
            if (code := process.poll()) is not None and code < 0:
                return number, code
        time.sleep(0.1 if processes else 0)
    return None


def end_other_ranks(trainer: L.Trainer) -> None:
    """End the ranks that this process has started."""
    if isinstance(trainer.strategy.launcher, RankLauncher):
        kill_ranks(trainer.strategy.launcher.procs)


def report_lost_ranks(trainer: L.Trainer, report: Callable[[], None]) -> None:
    """Have `report` called before this process ends because another rank has died."""
    if isinstance(trainer.strategy.launcher, RankLauncher):
        trainer.strategy.launcher.on_lost = report
