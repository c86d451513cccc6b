"""Slurm's queue: whether a job that is told to end goes into it again, and signals while nothing is being trained.

Read before anything slow is imported, since a signal may come as early.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Literal

from oar_lightning.distributed.launch import by_srun, by_torchrun, is_first_rank, slurm_job

log = logging.getLogger(__name__)

SCONTROL_TIMEOUT_S = 30.0

TRIES = 5
"""How often Slurm is asked, where a signal ends the asking."""

GRACE_S = 10.0
"""How long the other ranks wait before they end: with `--kill-on-bad-exit` the end of one would end the first too early."""

TOLD_TO_END = (signal.SIGTERM, signal.SIGUSR1)
"""SIGTERM: the job is preempted, cancelled, or its time is over. SIGUSR1: its time will be over soon (`--signal=USR1@600`)."""

Fate = Literal["told", "requeued", "out_of_time", "preempted", "cancelled"]


GOES_ON = ("RUNNING", "SUSPENDED", "SIGNALING")
"""States of a job that nobody has ended."""


def fate(record: str, restarts: int) -> Fate:
    """What happens to a job that got a signal, by `scontrol show job`. `restarts`: how often this start of it was put off.

    A job that ends is shown as COMPLETING whatever the reason; only the other fields tell one from the other.
    "told": it goes on, so the signal announces an end (SIGUSR1, or a preemption with grace). SIGNALING is a job that goes on
    while the signal is on its way to its other processes.
    """
    fields = dict(re.findall(r"(\w+)=(\S+)", record))
    if int(fields.get("Restarts", 0)) > restarts:
        return "requeued"
    if fields.get("JobState") in GOES_ON:
        return "told"
    if fields.get("Reason") == "TimeLimit":
        return "out_of_time"
    return "cancelled" if fields.get("PreemptTime", "None") == "None" else "preempted"


def requeue(trained: bool = True) -> None:
    """Ask Slurm to queue this job again, unless it was cancelled or Slurm has done so by itself.

    `trained`: whether this start got anywhere. One whose whole time went into loading would be started again for ever.
    """
    job = slurm_job()
    idle_signals.asked = True
    problem = "each was ended by a signal"
    for _ in range(TRIES):
        try:
            problem = _requeue(job, trained)
            break
        except _EndedBySignal:
            pass  # Slurm's signals go to all processes of a job; what was asked for may have been done
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
            break
    if problem:
        log.error("scontrol requeue %s failed (%s); submit the job again with ckpt_path=<run folder>", job, problem)


def _requeue(job: str, trained: bool) -> str:
    """What went wrong, or nothing."""
    shown = _scontrol("show", "job", job)
    found = fate(shown.stdout, int(os.environ.get("SLURM_RESTART_COUNT", "0"))) if shown.returncode == 0 else "told"
    if found == "cancelled":
        log.warning("Slurm's job %s was cancelled and is not put into the queue again", job)
        return ""
    if found == "requeued":
        log.warning("Slurm has put the job %s into the queue again; it will go on by itself", job)
        return ""
    if found == "out_of_time" and not trained:
        log.error("the time of Slurm's job %s was over before it trained; submit it again with a longer --time", job)
        return ""
    done = _scontrol("requeue", job)
    if done.returncode == 0:
        log.warning("Slurm's job %s is in the queue again; it will go on by itself", job)
        return ""
    return done.stderr.strip() or f"exit code {done.returncode}"


class _EndedBySignal(Exception):
    pass


def _scontrol(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S)
    if done.returncode < 0:
        raise _EndedBySignal
    return done


def leave(trained: bool) -> None:
    """Put this job into the queue again, where it is to be, and end this process without clearing up."""
    if is_first_rank():
        requeue(trained)
    else:
        time.sleep(GRACE_S)
    os._exit(128 + signal.SIGTERM)


class IdleSignals:
    """Answers Slurm's signals while nothing is trained: while the process loads, and after its last step.

    What there is to keep is in the run's folder then, and a job that is started again goes on from there. So SIGTERM ends the
    process at once. SIGUSR1 leaves time: a run that loads takes one step first, without which a job with little time would be
    started again for ever, and a run that finishes goes on with that. A thread answers, because the main thread may wait in a
    library for another rank.
    """

    def __init__(self) -> None:
        self.training = False
        """Whether `training.callbacks.stop.GracefulStop` answers signals instead."""
        self.trained = False
        """Whether it has done so."""
        self.warned = False
        """Whether SIGUSR1 has come."""
        self.asked = False
        """Whether the job's place in the queue is settled: what Slurm sends then is its answer."""

    def begin_training(self) -> bool:
        """Leave signals to the caller; returns whether SIGUSR1 has come already."""
        self.training = self.trained = True
        return self.warned

    def end_training(self, failed: bool = False) -> None:
        """Answer again. A run that has failed is not put into the queue, whatever comes while it ends: where another rank was
        killed, Slurm sends SIGTERM to this one."""
        self.training = False
        self.asked = self.asked or failed

    def answer(self) -> None:
        """Answer signals from now on. Called in the main thread, once."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        for number in TOLD_TO_END:
            signal.signal(number, lambda number, frame: None)  # the thread hears of it earlier
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=ignore_slurm)
        atexit.register(_ended)  # the first to be registered is the last to be called
        threading.Thread(target=self._listen, args=(read,), daemon=True, name="slurm-signals").start()

    def _listen(self, read: int) -> None:
        while True:
            for number in os.read(read, 64):
                if number == signal.SIGUSR1:
                    self.warned = True
                elif number == signal.SIGTERM and not self.training and not self.asked:
                    log.warning("SIGTERM while nothing is being trained")
                    leave(self.trained)


def _ended() -> None:
    """Everything is done and written. Python would give signals their default back before it clears up, which may take
    seconds on a busy machine; a run that is whole would end as a failed job."""
    for number in TOLD_TO_END:
        signal.signal(number, signal.SIG_IGN)


def ignore_slurm() -> None:
    """Let signals do what they do by default: in a process that does not train, and in a forked child, which is no rank."""
    signal.set_wakeup_fd(-1)
    for number in TOLD_TO_END:
        signal.signal(number, signal.SIG_DFL)


idle_signals = IdleSignals()
"""This process's."""


def answer_slurm(arguments: Sequence[str]) -> None:
    """Have `idle_signals` answer, where `srun` has started the command with these arguments.

    Not for torchrun's ranks, to which SIGTERM may say as well that another rank has died, nor for a multirun, whose jobs have
    processes of their own.
    """
    if by_srun() and not by_torchrun() and not {"-m", "--multirun", "hydra.mode=MULTIRUN"} & set(arguments):
        idle_signals.answer()
