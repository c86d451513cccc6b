"""The lock of a run's folder, in which one process works at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oar_lightning.common.config_check import ConfigError
from oar_lightning.common.locks import RUN_LOCK, FileLock
from oar_lightning.distributed.launch import is_first_rank
from oar_lightning.sweep.trial import job_folder
from oar_lightning.wiring.refusals import unwritable


def claim_and(run_dir: Path, start: Callable[[], object]) -> FileLock:
    """Lock the run's folder and do the first thing in it; where that fails, leave no lock that was not there before."""
    before = (run_dir / RUN_LOCK).exists()
    lock = claim(run_dir)
    try:
        start()
    except BaseException:
        if not before and lock.descriptor is not None:  # before its release, after which it may be another process's
            lock.path.unlink(missing_ok=True)
        lock.release()
        raise
    return lock


def claim(run_dir: Path, make: bool = True) -> FileLock:
    """Lock the run's folder until this process ends, in whatever way, or releases what is returned. Without `make`, only look
    whether it is locked.

    Raises:
        ConfigError: where another process holds it.
    """
    own, lock = job_folder(), FileLock(run_dir / RUN_LOCK)
    if not is_first_rank() or (own is not None and own.resolve() == run_dir.resolve()):
        return lock  # the sweep that started a job holds its folder
    try:
        free = lock.acquire(wait=False) if make or lock.path.exists() else True
    except OSError as error:
        raise ConfigError(unwritable(run_dir, error)) from error
    if not free:
        raise ConfigError(
            f"another process is at work in {run_dir}; wait for its end or stop it, or start a run in a folder of its own "
            "(without ckpt_path, resume and this hydra.run.dir)"
        )
    if not make:
        lock.release()
    return lock
