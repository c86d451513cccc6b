"""torchrun under a true Slurm, with an agent on each of two nodes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from support.ports import free_port
from support.slurm import DDP, JOB, Slurm, needs_slurm, run_of

pytestmark = [pytest.mark.slow, needs_slurm]


@pytest.mark.parametrize("killed", [0, 1], ids=["first rank", "other rank"])
def test_ranks_go_on_together_when_one_of_them_was_killed(killed: int, slurm: Slurm, store: str, tmp_path: Path) -> None:
    """Only the agent of the killed rank counts a restart. Either may get rank 0 then."""
    agent = f"--nnodes=2 --nproc-per-node=1 --max-restarts=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:{free_port()}"
    job = slurm.submit(
        tmp_path,
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n"
        f"srun --kill-on-bad-exit=1 {sys.executable} -m torch.distributed.run {agent} --local-addr=127.0.0.1 {JOB} "
        f"{DDP.format(1, 2)} checkpoint_every_n_steps=1 trainer.max_steps=30 hydra.run.dir={tmp_path}/outputs/mine",
        "--nodes=2",
        "--ntasks-per-node=1",
    )
    job.wait_for("step 1/30")
    (process,) = job.processes(f"RANK={killed}")
    os.kill(process, signal.SIGKILL)
    assert job.end() == "COMPLETED", job.said()[-3000:]
    assert "continuing" in job.said()
    status, steps = run_of(store)
    assert (status, sorted(set(steps))) == ("FINISHED", list(range(1, 31)))
