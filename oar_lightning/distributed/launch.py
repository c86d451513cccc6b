"""Who started this process: a user (and Lightning the other ranks), torchrun, or Slurm's srun.

Read from the environment, before anything slow is imported.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from typing import Any

log = logging.getLogger(__name__)

SCONTROL_TIMEOUT_S = 30.0

_stores: list[Any] = []


def by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def by_srun() -> bool:
    """Whether this process is a step of a Slurm job (perhaps torchrun's). A shell that Slurm gave to a user is none."""
    return "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def is_first_rank() -> bool:
    """Whether this is rank 0, the process that prints and logs for all."""
    if not by_torchrun() and by_srun():
        return os.environ.get("SLURM_PROCID", "0") == "0"
    own = ("RANK",) if "RANK" in os.environ else ("NODE_RANK", "LOCAL_RANK")  # torchrun sets RANK, Lightning the other two
    return all(os.environ.get(name, "0") == "0" for name in own)


def run_name() -> str:
    """The last part of a run's folder, the same for all ranks.

    It is the time of the start (torchrun's processes agree on one), or the id of a Slurm job's step, which stays the same when
    Slurm starts the job again.
    """
    if by_srun():
        return f"slurm-{slurm_job()}.{os.environ['SLURM_STEP_ID']}"
    now = time.strftime("%Y-%m-%d_%H-%M-%S")
    return _agreed(now) if by_torchrun() else now


def _agreed(proposal: str) -> str:
    """The proposal of whichever process was first, kept in the store through which torchrun's processes meet."""
    from torch.distributed import rendezvous

    store = next(rendezvous("env://"))[0]
    _stores.append(store)  # kept alive: rank 0 may be its server, and training meets there again
    return str(store.compare_set("oar_lightning/run_name", "", proposal).decode())


def is_restart() -> bool:
    """Whether Slurm or torchrun has started this job before, after a preemption or a failure."""
    counts = [os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if by_torchrun() else "0"]
    counts += [os.environ.get("SLURM_RESTART_COUNT", "0") if by_srun() else "0"]
    return any(int(count) > 0 for count in counts)


def slurm_job() -> str:
    """The job's id in the form that `scontrol` reads."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def requeue() -> None:
    """Ask Slurm to queue this job again, unless it was cancelled (`scancel` sends SIGTERM too)."""
    job = slurm_job()
    try:
        state = _scontrol("show", "job", job)
        if "JobState=CANCELLED" in state.stdout:
            log.warning("Slurm's job %s was cancelled and is not put into the queue again", job)
            return
        done = _scontrol("requeue", job)
        problem = "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        log.error("scontrol requeue %s failed (%s); submit the job again with the ckpt_path above", job, problem)
    else:
        log.warning("Slurm's job %s is in the queue again; it will go on from this checkpoint", job)


def _scontrol(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["scontrol", *arguments], capture_output=True, text=True, timeout=SCONTROL_TIMEOUT_S)
