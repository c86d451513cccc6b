"""Runs each job of a grid or a sweep in its own process.

In a single process seeds, threads, MLflow runs and process groups would pass from job to job, the crash of one job would end
all, and each rank of a distributed trial would start the whole sweep again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.credentials import in_words
from oar_lightning.common.locks import RUN_LOCK, FileLock
from oar_lightning.common.messages import named_line
from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import (
    FOLDER_VARIABLE,
    TICKET,
    Pruned,
    Result,
    SweepRefused,
    forget_result,
    job_folder,
    read_result,
    write_result,
)

log = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that stop a job which is to be resumed later. Its exit code is 128 + the signal where it saved a checkpoint, the
negative signal where its training had not begun."""

RANK_VARIABLES = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables that would make a job one of the ranks of whoever has started it."""

STEP_VARIABLES = ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_LOCALID")
"""The same of a Slurm job's step, whose task is the process that starts the job."""


class JobFailed(RuntimeError):
    """A job in its own process has failed; the message has the reason and the folder."""


def run_job(arguments: Sequence[str], folder: Path) -> float | None:
    """Run ``python -m oar_lightning`` with these overrides in `folder`; returns its objective.

    If another process still runs this job (its sweep was killed and it is saving a checkpoint), that process is awaited first.
    A trial that has a result is not run again.

    Raises:
        JobFailed: where the job failed.
        SystemExit: where a signal stopped the job, with its exit code.
    """
    is_trial = (folder / TICKET).is_file()
    lock = FileLock(folder / RUN_LOCK)
    if not lock.acquire(wait=False):
        log.info("waiting for the process that is still at work in %s", folder)
        lock.acquire()
    try:
        result = read_result(folder) if is_trial else None
        if result is None:
            forget_result(folder)
            command = [sys.executable, "-m", "oar_lightning", *arguments, "hydra.mode=RUN", f"hydra.run.dir={quoted(folder)}"]
            environment = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES + STEP_VARIABLES} | {
                FOLDER_VARIABLE: str(folder)
            }
            assert lock.descriptor is not None
            code = run_process(command, environment, lock.descriptor)
            result = read_result(folder)
            if result is None and (number := code - 128 if code > 0 else -code) in STOP_SIGNALS:
                raise SystemExit(128 + number)
            if result is None:
                result = Result("failed", reason=describe_exit(code)) if code else Result("complete")
                write_result(folder, result)
    finally:
        lock.release()
    if result.state in ("failed", "refused"):
        raise JobFailed(f"{result.reason} (see {folder})")
    return result.metrics.get("objective")


def await_trial(folder: Path) -> None:
    """Wait for the process that is at work in a trial's folder, if there is one."""
    lock = FileLock(folder / RUN_LOCK)
    lock.acquire()
    lock.release()


def run_process(command: Sequence[str], environment: Mapping[str, str], descriptor: int) -> int:
    """Run a command to its end; returns the exit code.

    The process inherits `descriptor`, and its standard input stays open as long as this process lives. An exception that
    interrupts the waiting (Ctrl-C, or SIGTERM turned into SystemExit) stops the process, too.
    """
    process = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.PIPE, start_new_session=True, pass_fds=(descriptor,)
    )
    try:
        return process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        assert process.stdin is not None
        process.stdin.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process and wait for its checkpoint, however long its step is. A second signal kills it with its children."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    log.warning(
        "waiting for the job to finish its optimizer step and save its checkpoint; a second Ctrl-C ends it at once, without "
        "what it did since the last one"
    )
    try:
        process.wait()
    except (KeyboardInterrupt, SystemExit):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", perhaps out of memory" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{hint}"


def quoted(path: Path) -> str:
    """A path as the value of a Hydra override."""
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


AWAY = {"ConnectError", "ConnectTimeout", "ConnectionError", "ReadTimeout"}
"""Names of errors that clients of servers (MLflow, a hub) raise where these do not answer."""


def of_a_server(error: BaseException | None) -> bool:
    """Whether a server that does not answer has caused the error, which is no fault of the settings."""
    while error is not None:
        if isinstance(error, ConnectionError | TimeoutError) or any(one.__name__ in AWAY for one in type(error).__mro__):
            return True
        if getattr(error, "error_code", None) in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"):  # of MLflow's client
            return True
        error = error.__cause__
    return False


@contextlib.contextmanager
def recording_failure(begun: bool = True) -> Iterator[None]:
    """A block in a job's own process. An error in it is written to the job's folder and goes on. A mistake in the config of a
    job that has not begun is no failure: its sweep decides what it is, and ends where it comes of a server that is away.

    Outside of jobs, and on other ranks than the first, nothing is written.
    """
    folder = job_folder()
    try:
        yield
    except Exception as error:
        if folder is not None and is_first_rank():
            of_all = isinstance(error, SweepRefused) or of_a_server(error)
            refused = Result("refused", reason=in_words(str(error)), of_all=of_all)
            failed = Result("failed", reason=in_words(named_line(error)))
            write_result(folder, refused if isinstance(error, ConfigError) and not begun else failed)
        raise


def run_recorded(work: Callable[[], float | None]) -> float | None:
    """Run a job's work, and write its result or the reason of its failure to the job's folder.

    Returns what the work returned; None where the sweep has pruned the trial. Outside of jobs, and on other ranks than the
    first, nothing is written.
    """
    folder = job_folder()
    if folder is None or not is_first_rank():
        return work()
    try:
        with recording_failure():
            value = work()
    except Pruned as end:
        log.info("%s", end)
        write_result(folder, Result("pruned", reason=str(end)))
        return None
    if read_result(folder) is None:
        write_result(folder, Result("complete", {} if value is None else {"objective": float(value)}))
    return value


def stop_with_parent() -> None:
    """Stop this job with SIGTERM when the process that started it ends, because nobody would record its result.

    Signals that Slurm sends to all processes of a step are left to that process. Outside of jobs it does nothing.
    """
    if job_folder() is None:
        return
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        log.warning("the process that started this job has ended; stopping after this optimizer step and its checkpoint")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="stop-with-parent").start()
