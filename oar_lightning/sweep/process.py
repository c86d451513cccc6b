"""Jobs of grids and sweeps run in processes of their own.

In one process, seeds, threads, MLflow runs and process groups would pass from job to job, a crash of one would end all,
and the ranks of a distributed trial would each start the whole sweep again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from oar_lightning.common.locks import FileLock
from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import (
    FOLDER_VARIABLE,
    TICKET,
    Pruned,
    Result,
    job_folder,
    read_result,
    write_result,
)

log = logging.getLogger(__name__)

GRACE_S = 120.0
"""How long a job that is told to stop has for its optimizer step and checkpoint."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A job that ends by one of these was told to stop: it is to go on later. Its exit code is 128 + the signal where it could
save a checkpoint, the negative signal where it had not begun to train."""

RANK_VARIABLES = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def run_job(arguments: Sequence[str], folder: Path) -> float | None:
    """Run ``python -m oar_lightning`` with these overrides in `folder`; returns its objective.

    Where another process is still at this job (one whose sweep was killed and which is saving its checkpoint), its end is
    awaited first; a job that has a result is not run again.

    Raises:
        RuntimeError: where the job failed; the message has the reason.
        SystemExit: where the job was told to stop by a signal, with its exit code.
    """
    is_trial = (folder / TICKET).is_file()
    lock = FileLock(folder / "run.lock")
    if not lock.acquire(wait=False):
        log.info("waiting for the process that is still at work in %s", folder)
        lock.acquire()
    try:
        result = read_result(folder) if is_trial else None
        if result is None:
            with contextlib.suppress(FileNotFoundError):
                (folder / "result.json").unlink()
            command = [sys.executable, "-m", "oar_lightning", *arguments, "hydra.mode=RUN", f"hydra.run.dir={quoted(folder)}"]
            environment = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES} | {FOLDER_VARIABLE: str(folder)}
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
    if result.state == "failed":
        raise RuntimeError(f"{result.reason} (see {folder})")
    return result.metrics.get("objective")


def run_process(command: Sequence[str], environment: Mapping[str, str], descriptor: int) -> int:
    """Run to the end and return the exit code. The process holds `descriptor` open and knows by its standard input that we
    live; what ends the waiting (Ctrl-C, SIGTERM made an exception) is passed on to it."""
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
    """Let it save its checkpoint; a second Ctrl-C, or a job that takes too long, ends it at once with all it started."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit):
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


@contextlib.contextmanager
def recording_outcome() -> Iterator[Callable[[float | None], None]]:
    """Around a job's work in its own process: its result, or how it failed, goes to the job's folder.

    Yields the function to call with what the work returned. Outside of jobs it does nothing.
    """
    folder = job_folder()
    if folder is None or not is_first_rank():
        yield lambda value: None
        return

    def complete(value: float | None) -> None:
        if read_result(folder) is None:
            write_result(folder, Result("complete", {} if value is None else {"objective": float(value)}))

    try:
        yield complete
    except Pruned as end:
        log.info("%s", end)
        write_result(folder, Result("pruned", reason=str(end)))
    except Exception as error:
        write_result(folder, Result("failed", reason=one_line(error)))
        raise


def one_line(error: BaseException) -> str:
    """Kind and first line of an error."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def stop_with_parent() -> None:
    """Stop a job in an orderly way once the process that started it is gone: nobody would record what it does.

    Outside of jobs it does nothing.
    """
    if job_folder() is None:
        return

    def watch() -> None:
        while os.read(0, 4096):
            pass
        log.warning("the process that started this job has ended; stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True, name="stop-with-parent").start()
