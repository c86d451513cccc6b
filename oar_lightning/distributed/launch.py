"""Who started this process: a user (and Lightning the other ranks), torchrun, or Slurm's srun.

Read from the environment, before anything slow is imported.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from datetime import timedelta
from typing import Any

FIRST_RANK = "OAR_LIGHTNING_FIRST_RANK"
"""Environment variable of the ranks that a first rank starts: its process id."""

MEET_S = 300.0
"""How long torchrun's processes wait for each other at the start."""


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
    return str(_store().compare_set("oar_lightning/run_name", "", proposal).decode())


@functools.cache
def _store() -> Any:
    """Where torchrun's processes meet. It is kept alive: rank 0 may be its server, and training meets there again."""
    from torch.distributed import rendezvous

    return next(rendezvous("env://", timeout=timedelta(seconds=MEET_S)))[0]


def is_restart() -> bool:
    """Whether Slurm or torchrun has started this job before, after a preemption or a failure; the same for all ranks."""
    if by_srun() and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        return True
    return by_torchrun() and _of_any_rank(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)


def _of_any_rank(own: bool) -> bool:
    """Whether it holds for any of torchrun's processes. An agent counts the restarts after its own ranks' ends only."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return own
    key = "oar_lightning/restart/{}"
    _store().set(key.format(os.environ["RANK"]), str(int(own)))
    return any(_store().get(key.format(rank)) == b"1" for rank in range(size))


def end_with_first_rank() -> None:
    """End this process when the one that has started it as a further rank is gone, be it while this one still loads."""
    if (parent := os.environ.get(FIRST_RANK)) is not None and "LOCAL_RANK" in os.environ:
        exit_with_parent(int(parent))


def exit_with_parent(parent: int) -> None:
    """From now on, end this process when the one that has started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="exit-with-parent").start()


def started_tasks() -> tuple[int, int] | None:
    """How many processes srun or torchrun has started as ranks, and on how many nodes; None where neither has."""
    if by_torchrun():
        size = int(os.environ.get("WORLD_SIZE", "1"))
        return size, int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if by_srun() and "SLURM_NTASKS" in os.environ:
        return int(os.environ["SLURM_NTASKS"]), int(os.environ.get("SLURM_NNODES", "1"))
    return None


def fill_in_tasks_per_node() -> None:
    """Say how many tasks each node has, where only `--ntasks` was given: Lightning asks for nothing but that variable."""
    started = started_tasks()
    if started is not None and started[0] % started[1] == 0:
        os.environ["SLURM_NTASKS_PER_NODE"] = str(started[0] // started[1])


def slurm_job() -> str:
    """The job's id in the form that `scontrol` reads."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]
